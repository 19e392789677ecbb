package limits

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table has a service with a revision for each engine, by the engine's name, at the addresses.
func table(engines ...string) *route.Table {
	var services []route.Service
	for _, name := range engines {
		name, address, _ := strings.Cut(name, "=")
		var endpoints []route.Endpoint
		for a := range strings.FieldsSeq(strings.ReplaceAll(address, ",", " ")) {
			endpoints = append(endpoints, route.Endpoint{HTTP: a})
		}
		services = append(services, route.Service{
			Key: spec.ServiceKey{Namespace: "ns", Name: name}, Entry: spec.Predictor,
			Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{
				{Revision: name + "-1", ModelName: "model", Engine: name, Endpoints: endpoints},
			}}},
		})
	}
	return route.Compile(services)
}

func key(name string) spec.RevisionKey { return spec.RevisionKey{Namespace: "ns", Name: name} }

// questions are a stand-in for engines: it keeps what was asked, and answers by the address.
type questions struct {
	mu     sync.Mutex
	asked  []string
	answer map[string]int // negative for an error
}

func (q *questions) ask(_ context.Context, e *route.Endpoint, of adapter.Question, model string) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = append(q.asked, e.HTTP+of.Path+" "+model)
	if n := q.answer[e.HTTP+of.Path]; n >= 0 {
		return n, nil
	}
	return 0, errors.New("it can't be reached")
}

func (q *questions) take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.asked
	q.asked = nil
	return out
}

func TestARevisionIsAskedOnceItIsReadyAndNotAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tables state.Topic[route.Table]
		var known state.Topic[Known]
		q := &questions{answer: map[string]int{"a/v1/models": -1, "b/v1/models": 8192, "p/props": -1, "p/v1/models": 4096, "n/info": 0}}
		a := New(&tables, &known, nil)
		a.ask = q.ask
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		look := func(step string, want Known, asked ...string) {
			t.Helper()
			synctest.Wait()
			got := Known{}
			if k := known.Load(); k != nil {
				got = *k
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: known (-want +got)\n%s", step, diff)
			}
			if diff := cmp.Diff(asked, q.take()); diff != "" {
				t.Errorf("%s: asked (-want +got)\n%s", step, diff)
			}
		}
		look("no table", Known{})
		tables.Publish(table("vllm", "mlserver=m"))
		look("nothing to ask", Known{})
		tables.Publish(table("vllm=a,b"))
		look("the first replica can't be reached", Known{}, "a/v1/models model")
		tables.Publish(table("vllm=a,b"))
		look("it isn't due", Known{})
		time.Sleep(firstPause)
		look("the other one tells", Known{key("vllm-1"): 8192}, "b/v1/models model")
		tables.Publish(table("vllm"))
		look("it sleeps", Known{key("vllm-1"): 8192})
		tables.Publish(table("vllm=c", "llamacpp=p"))
		look("another comes", Known{key("vllm-1"): 8192, key("llamacpp-1"): 4096}, "p/props model", "p/v1/models model")
		tables.Publish(table("tgi=n"))
		look("both are gone, and one says nothing", Known{}, "n/info model")
		time.Sleep(24 * time.Hour)
		look("a day later", Known{})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAnEngineThatCantTellIsAskedEverMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tables state.Topic[route.Table]
		q := &questions{answer: map[string]int{"a/v1/models": -1}}
		a := New(&tables, new(state.Topic[Known]), nil)
		a.ask = q.ask
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		tables.Publish(table("vllm=a"))
		time.Sleep(time.Hour)
		synctest.Wait()
		// After 5, 10, 20 … 320 s, and every 10 min then: 1 + 7 + 4.
		if n := len(q.take()); n != 12 {
			t.Errorf("asked %d times within an hour", n)
		}
		cancel()
		<-done
	})
}

func TestQuestionsAreAskedOverHTTP(t *testing.T) {
	answers := map[string]string{
		"GET /v1/models ":                    `{"data":[{"id":"model","max_model_len":8192}]}`,
		"GET /info ":                         `{"max_total_tokens":4096}`,
		`POST /api/show {"model":"model"}`:   `{"parameters":"num_ctx 2048"}`,
		"GET /props ":                        `{"default_generation_settings":{"n_ctx":1024}}`,
		"GET /openai/v1/models ":             "",
		`POST /api/show {"model":"another"}`: `{}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		answer := answers[r.Method+" "+r.URL.Path+" "+string(body)]
		if answer == "" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	e := &route.Endpoint{HTTP: strings.TrimPrefix(s.URL, "http://")}
	for name, tc := range map[string]struct {
		engine, model string
		at            *route.Endpoint
		want          int
		fails         bool
	}{
		"vLLM":                 {engine: "vllm", at: e, want: 8192},
		"TGI":                  {engine: "tgi", at: e, want: 4096},
		"Ollama":               {engine: "ollama", at: e, want: 2048},
		"Ollama tells nothing": {engine: "ollama", model: "another", at: e},
		"llama.cpp":            {engine: "llamacpp", at: e, want: 1024},
		"another status":       {engine: "huggingface", at: e, fails: true},
		"nobody there":         {engine: "vllm", at: &route.Endpoint{HTTP: "127.0.0.1:1"}, fails: true},
		"no port for HTTP":     {engine: "vllm", at: new(route.Endpoint)},
	} {
		model := tc.model
		if model == "" {
			model = "model"
		}
		n, err := ask(t.Context(), tc.at, engine.ByName(tc.engine).Limits[0], model)
		if n != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}
