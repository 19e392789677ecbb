package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// engineGot is what an engine got.
type engineGot struct {
	replica, path string
	header        http.Header
	body          map[string]any
}

// split is a service of two replicas whose prompts two others read, and what all of them got.
type split struct {
	mu              sync.Mutex
	prefill, decode []engineGot
}

func (s *split) take(to *[]engineGot, replica string, r *http.Request) map[string]any {
	b, _ := io.ReadAll(r.Body)
	var body map[string]any
	_ = json.Unmarshal(b, &body)
	s.mu.Lock()
	defer s.mu.Unlock()
	*to = append(*to, engineGot{replica, r.URL.Path, r.Header.Clone(), body})
	return body
}

// reads answers as vLLM does for a request that keeps its cache for another engine.
func (s *split) reads(replica string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := s.take(&s.prefill, replica, r)
		p, _ := body["kv_transfer_params"].(map[string]any)
		if p["do_remote_decode"] != true || body["stream"] == true || body["max_tokens"] != 1. || body["stream_options"] != nil {
			http.Error(w, "this isn't the protocol", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"1","choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":900,"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":%q,"remote_block_ids":[[1,2,3]],"remote_host":"127.0.0.1","remote_port":5600}}`, replica)
	}
}

func (s *split) goesOn(replica string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := s.take(&s.decode, replica, r)
		if body["stream"] == true {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n"+
				"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":900,\"completion_tokens\":7}}\n\ndata: [DONE]\n\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"hello"}],"usage":{"prompt_tokens":900,"completion_tokens":7}}`)
	}
}

// counted are the values of a metric by its last label.
func counted(tb testing.TB, r *prometheus.Registry, name string, label string) map[string]float64 {
	tb.Helper()
	families, err := r.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label {
					out[l.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	return out
}

func TestPromptsAreReadByAnotherServicesReplicas(t *testing.T) {
	long := strings.Repeat("lorem ipsum ", 200)
	chat := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}],"max_tokens":50}`, long)
	stream := fmt.Sprintf(`{"model":"m","stream":true,"prompt":%q,"min_tokens":3}`, long)
	fails := func(string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }
	}
	mute := func(string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"choices":[]}`) }
	}
	kv := &spec.Prefill{Service: "p", MinTokens: 256}
	tests := map[string]struct {
		how        *spec.Prefill
		path, body string
		// readers are what stands in for the other service's replicas; nil for its own.
		readers func(replica string) http.HandlerFunc
		// change is made to the other service.
		change func(*route.Service)
		result string
	}{
		"a chat":                       {how: kv, path: "/v1/chat/completions", body: chat, result: "done"},
		"a stream of text":             {how: kv, path: "/v1/completions", body: stream, result: "done"},
		"a prompt that is short":       {how: kv, path: "/v1/completions", body: `{"model":"m","prompt":"hi"}`, result: "short"},
		"a short one, and no bound":    {how: &spec.Prefill{Service: "p"}, path: "/v1/completions", body: `{"model":"m","prompt":"hi"}`, result: "done"},
		"embeddings":                   {how: kv, path: "/v1/embeddings", body: fmt.Sprintf(`{"model":"m","input":%q}`, long)},
		"nobody is asked to":           {how: nil, path: "/v1/chat/completions", body: chat},
		"the readers fail":             {how: kv, path: "/v1/chat/completions", body: chat, readers: fails, result: "failed"},
		"the readers transfer nothing": {how: kv, path: "/v1/chat/completions", body: chat, readers: mute, result: "failed"},
		"no such service":              {how: &spec.Prefill{Service: "other"}, path: "/v1/chat/completions", body: chat, result: "unavailable"},
		"the client routes by itself":  {how: kv, path: "/v1/chat/completions", body: strings.Replace(chat, `{`, `{"kv_transfer_params":{"mine":1},`, 1), result: "unread"},
		"the readers have no HTTP port": {how: kv, path: "/v1/chat/completions", body: chat, result: "unavailable", change: func(s *route.Service) {
			e := s.Components[spec.Predictor].Targets[0].Endpoints
			e[0].HTTP, e[1].HTTP = "", ""
		}},
		"no reader is ready": {how: kv, path: "/v1/chat/completions", body: chat, result: "unavailable", change: func(s *route.Service) {
			s.Components[spec.Predictor] = route.Backend{NotReady: "it starts"}
		}},
		"the readers can't be reached": {how: kv, path: "/v1/chat/completions", body: chat, result: "failed", change: func(s *route.Service) {
			l := listen(t)
			_ = l.Close()
			for i := range s.Components[spec.Predictor].Targets[0].Endpoints {
				s.Components[spec.Predictor].Targets[0].Endpoints[i].HTTP = l.Addr().String()
			}
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := new(split)
			readers := tc.readers
			if readers == nil {
				readers = s.reads
			}
			p, m := fleet(t, "p", "", 2, readers), fleet(t, "m", "least-tokens", 2, s.goesOn)
			p.Components[spec.Predictor].Targets[0].ModelName = "engines-own"
			if tc.change != nil {
				tc.change(&p)
			}
			b := m.Components[spec.Predictor]
			b.Prefill = tc.how
			m.Components[spec.Predictor] = b
			reg := prometheus.NewRegistry()
			g := start(t, func(c *gateway.Config) { c.Metrics = reg }, p, m)
			c := client(t)
			const n = 4
			for range n {
				r := request(t, http.MethodPost, g.url(tc.path), tc.body)
				r.Header.Set("Authorization", "Bearer secret")
				r.Header.Set("Accept-Encoding", "gzip")
				r.Header.Set(gateway.PrefillerHeader, "10.0.0.1:80")
				if a := do(t, c, r); a.StatusCode != http.StatusOK || !strings.Contains(a.body, "hello") || strings.Contains(tc.body, `"stream":true`) && strings.Contains(a.body, "usage") {
					t.Fatalf("%d %s", a.StatusCode, a.body)
				}
			}
			g.stop()
			want := map[string]float64{}
			if tc.result != "" {
				want[tc.result] = n
			}
			if got := counted(t, reg, "stationmaster_prefill_total", "result"); !maps.Equal(got, want) {
				t.Errorf("counted %v", got)
			}
			if got := counted(t, reg, "stationmaster_tokens_total", "kind"); !maps.Equal(got, map[string]float64{"prompt": 900 * n, "completion": 7 * n}) {
				t.Errorf("tokens: %v", got)
			}
			if len(s.decode) != n {
				t.Errorf("%d requests were answered", len(s.decode))
			}
			s.check(t, tc.body, tc.path, tc.result == "done")
		})
	}
}

// check looks at what the engines got of a request that was made some times.
func (s *split) check(t *testing.T, asked, path string, split bool) {
	t.Helper()
	var want map[string]any
	if err := json.Unmarshal([]byte(asked), &want); err != nil {
		t.Fatal(err)
	}
	at := map[string]bool{}
	for _, p := range s.prefill {
		at[p.replica] = true
		if p.body["model"] != "engines-own" || p.path != path || p.header.Get("Authorization") != "" || p.header.Get("Accept-Encoding") != "" || p.header.Get("X-Request-Id") == "" {
			t.Errorf("who read the prompt got %v", p)
		}
	}
	if split && len(asked) > 1024 && len(at) != 1 {
		t.Errorf("one prompt was read by %v", at)
	}
	if !split && len(at) != 0 {
		t.Errorf("the prompt was read by %v", at)
	}
	for i, d := range s.decode {
		params, _ := d.body["kv_transfer_params"].(map[string]any)
		if split && (params["remote_engine_id"] != s.prefill[i].replica || d.header.Get("X-Request-Id") != s.prefill[i].header.Get("X-Request-Id")) {
			t.Errorf("who goes on got %v", d)
		}
		if split {
			delete(d.body, "kv_transfer_params")
		}
		if fmt.Sprint(d.body["max_tokens"], d.body["min_tokens"], d.body["prompt"], d.body["messages"], d.body["kv_transfer_params"]) !=
			fmt.Sprint(want["max_tokens"], want["min_tokens"], want["prompt"], want["messages"], want["kv_transfer_params"]) {
			t.Errorf("who goes on got %v", d.body)
		}
		if v := d.header.Get(gateway.PrefillerHeader); v != "" {
			t.Errorf("the client named %s", v)
		}
	}
}

func TestASidecarIsToldWhoReadsThePrompt(t *testing.T) {
	s := new(split)
	p, m := fleet(t, "p", "", 2, s.reads), fleet(t, "m", "", 1, s.goesOn)
	b := m.Components[spec.Predictor]
	b.Prefill = &spec.Prefill{Service: "p", Header: true, MinTokens: 10}
	m.Components[spec.Predictor] = b
	reg := prometheus.NewRegistry()
	g := start(t, func(c *gateway.Config) { c.Metrics = reg }, p, m)
	body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("lorem ", 200))
	for _, body := range []string{body, body, `{"model":"m","messages":[]}`} {
		r := request(t, http.MethodPost, g.url("/v1/chat/completions"), body)
		r.Header.Set(gateway.PrefillerHeader, "10.0.0.1:80")
		if a := do(t, client(t), r); a.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
	}
	if len(s.prefill) != 0 || len(s.decode) != 3 {
		t.Fatalf("%d prompts were read, %d answered", len(s.prefill), len(s.decode))
	}
	told := s.decode[0].header.Get(gateway.PrefillerHeader)
	if e := p.Components[spec.Predictor].Targets[0].Endpoints; told != e[0].HTTP && told != e[1].HTTP {
		t.Errorf("told %q", told)
	}
	if again, short := s.decode[1].header.Get(gateway.PrefillerHeader), s.decode[2].header.Get(gateway.PrefillerHeader); again != told || short != "" {
		t.Errorf("the same prompt is read by %q and %q, a short one by %q", told, again, short)
	}
	g.stop()
	if got := counted(t, reg, "stationmaster_prefill_total", "result"); !maps.Equal(got, map[string]float64{"sent": 2, "short": 1}) {
		t.Errorf("counted %v", got)
	}
}

// readBy makes another service the one whose replicas read a service's prompts.
func readBy(s route.Service, other string) route.Service {
	b := s.Components[spec.Predictor]
	b.Prefill = &spec.Prefill{Service: other}
	s.Components[spec.Predictor] = b
	return s
}

const hi = `{"model":"m","prompt":"hi"}`

func TestReadersThatSleepAreWokenByARequestThatGoesOnWithoutThem(t *testing.T) {
	load, woken := new(state.Topic[demand.Report]), make(chan struct{})
	m := fleet(t, "m", "", 1, func(string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-woken
			_, _ = io.WriteString(w, `{"choices":[]}`)
		}
	})
	g := start(t, func(c *gateway.Config) { c.Demand = load }, cold("p"), readBy(m, "p"))
	done := make(chan answer, 1)
	r := request(t, http.MethodPost, g.url("/v1/completions"), hi)
	go func() { done <- do(t, client(t), r) }()
	until(t, "it is told that a request waits", func() bool { return heldOf(load, "p") == 1 })
	close(woken)
	if a := <-done; a.StatusCode != http.StatusOK {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	until(t, "none waits", func() bool { return heldOf(load, "p") == 0 })
}

// A replica that read a prompt gives it to one engine: a mirror must not take it.
func TestAMirrorReadsItsPromptsItself(t *testing.T) {
	s, copied := new(split), new(split)
	p, m := fleet(t, "p", "", 1, s.reads), fleet(t, "m", "", 1, s.goesOn)
	b := m.Components[spec.Predictor]
	b.Targets[0].Tag = "prev"
	b.Targets = append(b.Targets, route.Target{Revision: "m-00002", Tag: "latest", ModelName: "m", OpenAI: "/", Endpoints: []route.Endpoint{{Replica: "c", HTTP: engine(t, copied.goesOn("c"))}}})
	b.Mirror = route.Mirror{Tag: "latest", Percent: 100}
	m.Components[spec.Predictor] = b
	reg := prometheus.NewRegistry()
	g := start(t, func(c *gateway.Config) { c.Metrics = reg }, p, readBy(m, "p"))
	if a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/completions"), hi)); a.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	untilCounted(t, reg, 1)
	g.stop()
	if len(copied.decode) != 1 || copied.decode[0].body["prompt"] != "hi" || copied.decode[0].body["kv_transfer_params"] != nil {
		t.Errorf("the mirror got %v", copied.decode)
	}
	if len(s.decode) != 1 || s.decode[0].body["kv_transfer_params"] == nil {
		t.Errorf("who answers got %v", s.decode)
	}
}

// A reader that is full isn't waited for.
func TestReadersHaveTheirLimit(t *testing.T) {
	s, began, goOn := new(split), make(chan struct{}), make(chan struct{})
	p := fleet(t, "p", "", 1, func(replica string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			close(began)
			<-goOn
			s.reads(replica)(w, r)
		}
	})
	p.Components[spec.Predictor].Targets[0].Limit = 1
	reg := prometheus.NewRegistry()
	g := start(t, func(c *gateway.Config) { c.Metrics = reg }, p, readBy(fleet(t, "m", "", 1, s.goesOn), "p"))
	first := make(chan answer, 1)
	r := request(t, http.MethodPost, g.url("/v1/completions"), hi)
	go func() { first <- do(t, client(t), r) }()
	<-began
	if a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/completions"), hi)); a.StatusCode != http.StatusOK {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	close(goOn)
	if a := <-first; a.StatusCode != http.StatusOK {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	g.stop()
	if got := counted(t, reg, "stationmaster_prefill_total", "result"); !maps.Equal(got, map[string]float64{"done": 1, "unavailable": 1}) {
		t.Errorf("counted %v", got)
	}
}

// What was read goes along where a request is made once more, whatever its size.
func TestAPromptIsReadOnceForARequestThatIsMadeTwice(t *testing.T) {
	for name, words := range map[string]int{"small": 100, "large": 30_000} {
		t.Run(name, func(t *testing.T) {
			s := new(split)
			var died atomic.Bool
			m := fleet(t, "m", "least-tokens", 2, func(replica string) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					s.goesOn(replica)(httptest.NewRecorder(), r)
					if died.CompareAndSwap(false, true) {
						panic(http.ErrAbortHandler)
					}
					_, _ = io.WriteString(w, `{"choices":[]}`)
				}
			})
			g := start(t, nil, fleet(t, "p", "", 1, s.reads), readBy(m, "p"))
			prompt := strings.Repeat("word ", words)
			a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/completions"), fmt.Sprintf(`{"model":"m","prompt":%q}`, prompt)))
			if a.StatusCode != http.StatusOK || len(s.prefill) != 1 || len(s.decode) != 2 {
				t.Fatalf("%d %s: read %d times, asked %d times", a.StatusCode, a.body, len(s.prefill), len(s.decode))
			}
			for _, d := range s.decode {
				if d.body["kv_transfer_params"] == nil || d.body["prompt"] != prompt {
					t.Errorf("%s got another body", d.replica)
				}
			}
			if s.decode[0].replica == s.decode[1].replica {
				t.Errorf("both were at %s", s.decode[0].replica)
			}
		})
	}
}
