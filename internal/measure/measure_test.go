package measure

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	iris  = spec.ServiceKey{Namespace: "n", Name: "iris"}
	first = spec.RevisionKey{Namespace: "n", Name: "iris-1"}
)

// pages is a server with pages that tests change.
type pages struct {
	*httptest.Server
	mu    sync.Mutex
	texts map[string]string
	asked []string
}

func newPages(t *testing.T) *pages {
	p := &pages{texts: map[string]string{}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked = append(p.asked, r.URL.String())
		text, ok := p.texts[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
		case strings.HasPrefix(text, "→"):
			http.Redirect(w, r, strings.TrimPrefix(text, "→"), http.StatusFound)
		default:
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *pages) set(path, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.texts[path] = text
}

func success(kind, result string) string {
	return `{"status":"success","data":{"resultType":"` + kind + `","result":` + result + `}}`
}

func TestWhatAServerAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		answer string
		want   float64
		err    string
	}{
		"one series":        {answer: success("vector", `[{"metric":{},"value":[1,"12.5"]}]`), want: 12.5},
		"a scalar":          {answer: success("scalar", `[1,"3"]`), want: 3},
		"zero is a value":   {answer: success("vector", `[{"metric":{},"value":[1,"0"]}]`)},
		"nothing isn't":     {answer: success("vector", `[]`), err: "the query finds nothing"},
		"several series":    {answer: success("vector", `[{"value":[1,"1"]},{"value":[1,"2"]}]`), err: "several series; sum them up"},
		"no number":         {answer: success("vector", `[{"value":[1,"NaN"]}]`), err: `"NaN", which is no number`},
		"without end":       {answer: success("scalar", `[1,"+Inf"]`), err: "no number to scale on"},
		"a range":           {answer: success("matrix", `[]`), err: `a "matrix"`},
		"a refusal":         {answer: `{"status":"error","errorType":"bad_data","error":"parse error"}`, err: "refuses the query: parse error"},
		"somebody else":     {answer: `<html>`, err: "isn't that of Prometheus' query API"},
		"another structure": {answer: success("vector", `{}`), err: "isn't that of Prometheus' query API"},
		"a number as such":  {answer: success("scalar", `[1,3]`), err: "isn't that of Prometheus' query API"},
		"a long answer":     {answer: strings.Repeat(" ", maxAnswer+1), err: "longer than"},
		"a way elsewhere":   {answer: "→http://127.0.0.1:1/", err: "status 302"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPages(t)
			p.set("/base/api/v1/query", tc.answer)
			c := newClient()
			defer c.CloseIdleConnections()
			v, err := c.query(t.Context(), demand.PrometheusQuery{Server: p.URL + "/base/", Query: `sum(up{a="b"})`, Namespace: "team"})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil || v != tc.want {
				t.Errorf("%v, %v; want %v", v, err, tc.want)
			}
			asked, _ := url.Parse(p.asked[0])
			if q := asked.Query(); q.Get("query") != `sum(up{a="b"})` || q.Get("namespace") != "team" {
				t.Errorf("asked %s", p.asked[0])
			}
		})
	}
}

func TestServersThatArentAsked(t *testing.T) {
	c := newClient()
	defer c.CloseIdleConnections()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for name, tc := range map[string]struct{ server, err string }{
		"no server":        {closed.URL, "dial: connect: connection refused"},
		"metadata":         {"http://169.254.169.254", "link-local addresses aren't asked"},
		"another protocol": {"ftp://prometheus", "must be a URL with http or https"},
		"no URL":           {"prometheus:9090", "must be a URL with http or https"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.query(t.Context(), demand.PrometheusQuery{Server: tc.server, Query: "up"})
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want one with %q", err, tc.err)
			}
		})
	}
}

// world measures revision first of service iris once for each call of round.
type world struct {
	board demand.Board
	meter *Meter
}

func newWorld(t *testing.T, user User, m demand.Metrics) *world {
	w := &world{}
	w.meter = New(&w.board, user, nil)
	t.Cleanup(w.meter.client.CloseIdleConnections)
	w.scales(m)
	return w
}

func (w *world) scales(m demand.Metrics) {
	for range m.Sources {
		m.HPA.Metrics = append(m.HPA.Metrics, scale.MetricTarget{Name: "queue", Type: scale.AverageValue, Target: 1})
	}
	w.board.Subjects.Store(iris, []demand.Subject{{Revision: first.Name, Metrics: &m}})
}

func (w *world) round(t *testing.T) demand.Measured {
	t.Helper()
	w.meter.round(t.Context())
	m, ok := w.board.Measured.Load(first)
	if !ok {
		t.Fatal("nothing was measured")
	}
	return m
}

func engineMetric(query string, over demand.Over) demand.Source {
	return demand.Source{Engine: &demand.EngineMetric{Query: query, Over: over}}
}

func TestEnginesAreSummedUp(t *testing.T) {
	p := newPages(t)
	p.set("/a", "# HELP queue_length Waiting.\n# TYPE queue_length gauge\nqueue_length{model=\"x\"} 3\nqueue_length{model=\"y\"} 40\nqueue_length_max 1000\n")
	p.set("/b", "queue_length{model=\"x\",zone=\"1\"} 4 1712345678901\nqueue_length{model=\"x\",zone=\"2\"} NaN\n")
	p.set("/empty", "up 1\n")
	p.set("/html", "queue_length<br>\n")
	for name, tc := range map[string]struct {
		query   string
		paths   []string
		want    scale.Measurement
		problem string
	}{
		"all series":              {"queue_length", []string{"/a", "/b"}, scale.Measurement{Value: 47, Known: true}, ""},
		"those with a label":      {`queue_length{model="x"}`, []string{"/a", "/b"}, scale.Measurement{Value: 7, Known: true}, ""},
		"those without":           {` queue_length { zone != "1" , } `, []string{"/a", "/b"}, scale.Measurement{Value: 43, Known: true, Partial: true}, "1 of 2 replicas don't tell it: its page doesn't have the metric"},
		"one doesn't tell":        {"queue_length", []string{"/a", "/empty"}, scale.Measurement{Value: 43, Known: true, Partial: true}, "queue: 1 of 2 replicas don't tell it: its page doesn't have the metric"},
		"one isn't there":         {"queue_length", []string{"/none", "/b"}, scale.Measurement{Value: 4, Known: true, Partial: true}, "1 of 2 replicas don't tell it: it answers with status 404"},
		"none tells":              {"queue_length", []string{"/empty"}, scale.Measurement{Partial: true}, "1 of 1 replicas don't tell it"},
		"something else":          {"queue_length", []string{"/html"}, scale.Measurement{Partial: true}, "isn't in Prometheus' text format"},
		"no replica":              {"queue_length", nil, scale.Measurement{}, ""},
		"a query of PromQL":       {"rate(queue_length[1m])", []string{"/a"}, scale.Measurement{}, "name a Prometheus server in serverAddress"},
		"an engine without pages": {"queue_length", []string{""}, scale.Measurement{Partial: true}, "no page of metrics that is reached here"},
	} {
		t.Run(name, func(t *testing.T) {
			m := demand.Metrics{Sources: []demand.Source{engineMetric(tc.query, "")}}
			for i, path := range tc.paths {
				page := ""
				if path != "" {
					page = p.URL + path
				}
				m.Replicas = append(m.Replicas, demand.Replica{ID: fmt.Sprint(i), Metrics: page})
			}
			got := newWorld(t, nil, m).round(t)
			if got.Values[0] != tc.want {
				t.Errorf("measured %+v, want %+v", got.Values[0], tc.want)
			}
			if tc.problem == "" && got.Problem != "" || !strings.Contains(got.Problem, tc.problem) {
				t.Errorf("problem %q, want %q", got.Problem, tc.problem)
			}
		})
	}
}

func TestAPageWithoutEndIsGivenUp(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		line := []byte(strings.Repeat("# nothing\n", 1000))
		for range maxPage/len(line) + 2 {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}))
	defer s.Close()
	w := newWorld(t, nil, demand.Metrics{Sources: []demand.Source{engineMetric("a", "")}, Replicas: []demand.Replica{{ID: "1", Metrics: s.URL}}})
	if got := w.round(t); !strings.Contains(got.Problem, "longer than") {
		t.Errorf("problem %q", got.Problem)
	}
}

func TestWhatLeavesTheBoardIsForgotten(t *testing.T) {
	p := newPages(t)
	p.set("/a", "queue 1\n")
	w := newWorld(t, nil, demand.Metrics{Sources: []demand.Source{engineMetric("queue", "")}, Replicas: []demand.Replica{{ID: "1", Metrics: p.URL + "/a"}}})
	w.round(t)
	w.board.Subjects.Delete(iris)
	w.meter.round(t.Context())
	if _, ok := w.board.Measured.Load(first); ok || len(w.meter.memory) != 0 {
		t.Errorf("it is still there: %v", w.meter.memory)
	}
}

func TestValuesOverTime(t *testing.T) {
	at := func(seconds int) time.Time { return time.Date(2026, 11, 30, 12, 0, seconds, 0, time.UTC) }
	s := &series{}
	for i, v := range []float64{100, 10, 20, 5, 30} { // the first has left the window by the last
		s.add(at(i*20), v)
	}
	for over, want := range map[demand.Over]float64{
		"": 30, demand.OverLast: 30, demand.OverAvg: 16.25, demand.OverMin: 5, demand.OverMax: 30, demand.OverSum: 65, demand.OverCount: 4,
		demand.OverRate: 40. / 60, // 10 up, then a counter that began anew at 0 and is at 5, then 25 up
	} {
		if got, ok := s.over(over); !ok || got != want {
			t.Errorf("%q: %v, %v; want %v", over, got, ok, want)
		}
	}
	one := &series{}
	one.add(at(0), 1)
	one.add(at(0), 2)
	if v, ok := one.over(demand.OverMax); !ok || v != 2 {
		t.Errorf("%v, %v of a value that was replaced", v, ok)
	}
	if _, ok := one.over(demand.OverRate); ok {
		t.Error("one value has a rate")
	}
}

// uses tells the same of every service.
type uses map[string]spec.Use

func (u uses) Use(context.Context, spec.ServiceKey) (map[string]spec.Use, error) { return u, nil }

func TestWhatReplicasUse(t *testing.T) {
	two := []demand.Replica{{ID: "a"}, {ID: "b"}}
	used := uses{"a": {Memory: 100}, "b": {Memory: 300}}
	for name, tc := range map[string]struct {
		user    User
		of      demand.ResourceUse
		want    scale.Measurement
		problem string
	}{
		"memory":                  {used, demand.ResourceUse{Memory: true}, scale.Measurement{Value: 400, Known: true}, ""},
		"memory of what is asked": {used, demand.ResourceUse{Memory: true, Percent: true, Request: 400}, scale.Measurement{Value: 50, Known: true}, ""},
		"one isn't known":         {uses{"a": {Memory: 100}}, demand.ResourceUse{Memory: true, Percent: true, Request: 400}, scale.Measurement{Value: 25, Known: true, Partial: true}, "1 of 2 replicas don't tell it: what it uses isn't known"},
		"nothing is asked for":    {used, demand.ResourceUse{Memory: true, Percent: true}, scale.Measurement{}, "ask for nothing in resources.requests"},
		"nobody knows":            {nil, demand.ResourceUse{}, scale.Measurement{}, "set the annotation serving.kserve.io/autoscalerClass to hpa or keda"},
		"the processor at first":  {used, demand.ResourceUse{}, scale.Measurement{Partial: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := newWorld(t, tc.user, demand.Metrics{Sources: []demand.Source{{Resource: &tc.of}}, Replicas: two}).round(t)
			if got.Values[0] != tc.want || tc.problem == "" && got.Problem != "" || !strings.Contains(got.Problem, tc.problem) {
				t.Errorf("measured %+v, %q; want %+v, %q", got.Values[0], got.Problem, tc.want, tc.problem)
			}
		})
	}
}

func TestTheProcessorIsARate(t *testing.T) {
	m := New(&demand.Board{}, uses{"a": {CPU: 50 * time.Second}}, nil)
	ago := time.Now().Add(-20 * time.Second)
	kept := map[string]*series{"a": {points: []point{{ago, 40}}}}
	got, err := m.use(t.Context(), iris, []demand.Replica{{ID: "a"}}, demand.ResourceUse{Percent: true, Request: 1}, kept)
	// 10 s of processor in 20 s and the moment since; the bound is wide for a slow machine.
	if err != nil || !got.Known || got.Value > 50 || got.Value < 20 {
		t.Errorf("%+v, %v; want nearly 50 %%", got, err)
	}
}

func TestRunMeasuresUntilItIsEnded(t *testing.T) {
	p := newPages(t)
	p.set("/a", "queue 2\n")
	w := newWorld(t, nil, demand.Metrics{Sources: []demand.Source{engineMetric("queue", "")}, Replicas: []demand.Replica{{ID: "1", Metrics: p.URL + "/a"}}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.meter.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if m, ok := w.board.Measured.Load(first); ok {
			if m.Values[0] != (scale.Measurement{Value: 2, Known: true}) {
				t.Errorf("measured %+v", m)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was measured")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func FuzzResult(f *testing.F) {
	f.Add([]byte(success("vector", `[{"metric":{},"value":[1,"12.5"]}]`)))
	f.Add([]byte(success("scalar", `[1,"3"]`)))
	f.Add([]byte(`{"status":"error"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if v, err := result(raw); err == nil && v-v != 0 {
			t.Errorf("%v of %s", v, raw)
		}
	})
}
