package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// shadowed is a service whose canary gets copies of a percent of its requests.
func shadowed(stable, canary string, percent int) route.Service {
	s := service("iris")
	s.Components[spec.Predictor] = route.Backend{
		Targets: []route.Target{
			{Revision: "iris-00002", Tag: "latest", ModelName: "iris", Endpoints: []route.Endpoint{{Replica: "b", HTTP: canary}}},
			{Revision: "iris-00001", Tag: "prev", Weight: 100, ModelName: "iris", Endpoints: []route.Endpoint{{Replica: "a", HTTP: stable}}},
		},
		Mirror: route.Mirror{Tag: "latest", Percent: percent},
	}
	return s
}

func answering(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// mirrorCounts reads stationmaster_mirror_total by result.
func mirrorCounts(t *testing.T, r *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, f := range families {
		if f.GetName() != "stationmaster_mirror_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "result" {
					out[l.GetValue()] += int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return out
}

func untilCounted(t *testing.T, r *prometheus.Registry, n int) map[string]int {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		got, sum := mirrorCounts(t, r), 0
		for _, c := range got {
			sum += c
		}
		if sum >= n {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("counted %v, want %d in all", got, n)
		}
	}
}

func TestAMirrorsAnswersAreComparedAndDropped(t *testing.T) {
	v2 := func(value string) string {
		return `{"model_name":"iris","outputs":[{"name":"y","shape":[1,2],"datatype":"FP32","data":[` + value + `]}]}`
	}
	const json = "application/json"
	tests := map[string]struct {
		stable, canary http.HandlerFunc
		want           string
	}{
		"the same":                     {answering(200, json, v2("1,2")), answering(200, json, v2("1,2")), "equal"},
		"the same but for rounding":    {answering(200, json, v2("1,2")), answering(200, json, v2("1.00001,2")), "equal"},
		"another id and order":         {answering(200, json, v2("1,2")), answering(200, json, `{"id":"7","outputs":[{"data":[1.0,2.0],"datatype":"FP32","shape":[1,2],"name":"y"}]}`), "equal"},
		"other numbers":                {answering(200, json, v2("1,2")), answering(200, json, v2("1,2.1")), "output-differs"},
		"another output":               {answering(200, json, v2("1,2")), answering(200, json, strings.Replace(v2("1,2"), `"y"`, `"z"`, 1)), "output-differs"},
		"V1, the same":                 {answering(200, json, `{"predictions":[1]}`), answering(200, json, `{"predictions": [1.0]}`), "equal"},
		"V1, another class":            {answering(200, json, `{"predictions":["a"]}`), answering(200, json, `{"predictions":["b"]}`), "output-differs"},
		"another status":               {answering(200, json, v2("1,2")), answering(500, json, `{"error":"no"}`), "status-differs"},
		"both refuse, in other words":  {answering(400, json, `{"error":"a"}`), answering(400, json, `{"error":"b"}`), "uncompared"},
		"text that differs":            {answering(200, "text/plain", "a"), answering(200, "text/plain", "b"), "uncompared"},
		"an answer beyond the bound":   {answering(200, "text/plain", strings.Repeat("a", 2<<20)), answering(200, "text/plain", "b"), "uncompared"},
		"a mirror that breaks off":     {answering(200, json, v2("1,2")), func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "failed"},
		"JSON that isn't an inference": {answering(200, json, `{"a":1}`), answering(200, json, `{"a":2}`), "uncompared"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var copied []string
			canary := engine(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				copied = append(copied, r.Method+" "+r.URL.Path+" "+string(body)+" "+r.Header.Get(gateway.MirrorHeader))
				mu.Unlock()
				tc.canary(w, r)
			})
			metrics := prometheus.NewRegistry()
			g := start(t, func(c *gateway.Config) { c.Metrics = metrics }, shadowed(engine(t, tc.stable), canary, 100))
			resp, err := http.Post(g.url("/v2/models/iris/infer"), json, strings.NewReader(`{"inputs":[]}`))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if got := resp.Header.Get("X-Stationmaster-Revision"); got != "iris-00001" {
				t.Errorf("the client was answered by %s", got)
			}
			if got := untilCounted(t, metrics, 1); got[tc.want] != 1 {
				t.Errorf("counted %v, want one %s", got, tc.want)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(copied) != 1 || copied[0] != `POST /v2/models/iris/infer {"inputs":[]} 1` {
				t.Errorf("the mirror got %q", copied)
			}
		})
	}
}

// TestACopyOfAnOpenAIRequestIsOneThatItsEngineUnderstands: it goes where that has the API, and isn't made
// where it would have to be translated, or was written for an engine with another name for the model.
func TestACopyOfAnOpenAIRequestIsOneThatItsEngineUnderstands(t *testing.T) {
	only := func(path string) string {
		return engine(t, func(w http.ResponseWriter, r *http.Request) {
			status := http.StatusOK
			if r.URL.Path != path {
				status = http.StatusNotFound
			}
			answering(status, "application/json", `{"data":[]}`)(w, r)
		})
	}
	for name, tc := range map[string]struct {
		canary route.Target
		want   string
	}{
		"the same root":          {route.Target{OpenAI: "/", ModelName: "m", Endpoints: []route.Endpoint{{HTTP: only("/v1/embeddings")}}}, "equal"},
		"a root of its own":      {route.Target{OpenAI: "/v3", ModelName: "m", Endpoints: []route.Endpoint{{HTTP: only("/v3/embeddings")}}}, "equal"},
		"an engine of tensors":   {route.Target{Protocols: []spec.Protocol{spec.V2}, ModelName: "m", Endpoints: []route.Endpoint{{HTTP: only("/")}}}, ""},
		"another name for it":    {route.Target{OpenAI: "/", ModelName: "other", Endpoints: []route.Endpoint{{HTTP: only("/v1/embeddings")}}}, ""},
		"an engine that refuses": {route.Target{OpenAI: "/", ModelName: "m", Endpoints: []route.Endpoint{{HTTP: only("/none")}}}, "status-differs"},
	} {
		t.Run(name, func(t *testing.T) {
			s := shadowed(only("/v1/embeddings"), "", 100)
			targets := s.Components[spec.Predictor].Targets
			tc.canary.Revision, tc.canary.Tag = targets[0].Revision, targets[0].Tag
			targets[0] = tc.canary
			targets[1].OpenAI, targets[1].ModelName = "/", "m"
			metrics := prometheus.NewRegistry()
			g := start(t, func(c *gateway.Config) { c.Metrics = metrics }, s)
			a := do(t, client(t), request(t, http.MethodPost, g.url("/openai/v1/embeddings"), `{"model":"iris","input":"a"}`))
			if a.StatusCode != http.StatusOK {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
			if tc.want != "" {
				untilCounted(t, metrics, 1)
			}
			g.stop()
			if got := mirrorCounts(t, metrics); got[tc.want] != 1 && (tc.want != "" || len(got) > 0) {
				t.Errorf("counted %v, want one %s", got, tc.want)
			}
		})
	}
}

func TestAMirrorThatHangsDelaysNothingAndIsBounded(t *testing.T) {
	hang := make(chan struct{})
	canary := engine(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(hang) })
	metrics := prometheus.NewRegistry()
	g := start(t, func(c *gateway.Config) { c.Metrics = metrics }, shadowed(engine(t, answering(200, "application/json", "{}")), canary, 100))
	const requests = 100
	began := time.Now()
	for i := range requests {
		resp, err := http.Post(g.url("/v2/models/iris/infer"), "application/json", strings.NewReader(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d", resp.StatusCode)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("%d requests took %v", requests, took)
	}
	if got := untilCounted(t, metrics, requests-64); got["dropped"] != requests-64 {
		t.Errorf("counted %v, want %d dropped", got, requests-64)
	}
	began = time.Now()
	g.stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("copies under way held up the gateway's end for %v", took)
	}
}

func TestWhatIsTooLargeOrNotAskedForIsNotMirrored(t *testing.T) {
	mirrored := make(chan string, 10)
	canary := engine(t, func(w http.ResponseWriter, r *http.Request) {
		mirrored <- r.URL.Path
		w.WriteHeader(http.StatusOK)
	})
	stable := engine(t, answering(200, "application/json", "{}"))
	metrics := prometheus.NewRegistry()
	g := start(t, func(c *gateway.Config) { c.Metrics = metrics }, shadowed(stable, canary, 100))
	post := func(body io.Reader) {
		t.Helper()
		resp, err := http.Post(g.url("/v2/models/iris/infer"), "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	large := strings.Repeat("x", 1<<20+1)
	post(strings.NewReader(large))
	post(struct{ io.Reader }{strings.NewReader(large)}) // of unknown length
	if got := untilCounted(t, metrics, 2); got["too-large"] != 2 {
		t.Errorf("counted %v", got)
	}
	if resp, err := http.Get(g.url("/v2/models/iris")); err == nil {
		_ = resp.Body.Close()
	}
	g.table.Publish(route.Compile([]route.Service{shadowed(stable, canary, 0)}))
	post(strings.NewReader("{}"))
	g.table.Publish(route.Compile([]route.Service{shadowed(stable, canary, 100)}))
	post(struct{ io.Reader }{strings.NewReader("{}")})
	if got := untilCounted(t, metrics, 3); got["too-large"] != 2 {
		t.Errorf("counted %v", got)
	}
	if len(mirrored) != 1 {
		t.Errorf("%d requests were mirrored, want the last one", len(mirrored))
	}
}
