package gateway_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

func TestAnAdapterLeadsToTheReplicasThatHaveIt(t *testing.T) {
	first, second := engine(t, asked("first")), engine(t, asked("second"))
	base := llm("llm", "/", "served", route.Endpoint{Replica: "1", HTTP: first}, route.Endpoint{Replica: "2", HTTP: second})
	base.Adapters = []string{"listed"}
	both := llm("both", "/", "both", route.Endpoint{Replica: "1", HTTP: engine(t, asked("both"))})
	both.Created, base.Created = time.Unix(2000, 0), time.Unix(1000, 0)
	var known state.Topic[lora.Known]
	known.Publish(&lora.Known{
		first:  {Service: base.Key, Adapters: []lora.Adapter{{Name: "own", Parent: "served"}}},
		second: {Service: base.Key, Adapters: []lora.Adapter{{Name: "listed", Parent: "served"}, {Name: "sql:2", Parent: "served"}}},
		both.Components[spec.Predictor].Targets[0].Endpoints[0].HTTP: {Service: both.Key, Adapters: []lora.Adapter{{Name: "own", Parent: "both"}}},
	})
	g := start(t, func(c *gateway.Config) { c.Adapters = &known }, base, both)
	c := client(t)
	for name, tc := range map[string]struct{ host, path, model, want string }{
		"one that is listed, on the bare address":  {"", "/v1/completions", "listed", "second"},
		"one that an engine reports":               {"", "/openai/v1/chat/completions", "own", "first"},
		"one with a colon":                         {"", "/v1/completions", "sql:2", "second"},
		"by the service's host":                    {"llm-default.localhost", "/v1/completions", "listed", "second"},
		"by the path prefix":                       {"", "/serving/default/llm/v1/completions", "own", "first"},
		"another service's, by its host":           {"both-default.localhost", "/v1/completions", "own", "both"},
		"a name that only the engine can judge of": {"both-default.localhost", "/v1/completions", "listed", "both"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 8 {
				r := request(t, http.MethodPost, g.url(tc.path), `{"model":"`+tc.model+`"}`)
				r.Host = tc.host
				a := do(t, c, r)
				if a.StatusCode != http.StatusOK || !strings.HasPrefix(a.body, tc.want+" ") || !strings.HasSuffix(a.body, `{"model":"`+tc.model+`"}`) {
					t.Fatalf("status %d: %s, want the engine %s with the model's name as it was", a.StatusCode, a.body, tc.want)
				}
			}
		})
	}

	a := do(t, c, request(t, http.MethodGet, g.url("/v1/models"), ""))
	var list struct {
		Data []struct{ ID, Parent, Root, State string }
	}
	if err := json.Unmarshal([]byte(a.body), &list); err != nil {
		t.Fatal(err)
	}
	parents := map[string]string{}
	for _, m := range list.Data {
		parents[m.ID] = m.Parent
		if m.State != "ready" {
			t.Errorf("%s is %s", m.ID, m.State)
		}
	}
	want := map[string]string{"llm": "", "both": "", "listed": "llm", "own": "llm", "sql:2": "llm"}
	if len(parents) != len(list.Data) || len(parents) != len(want) {
		t.Errorf("listed are %s", a.body)
	}
	for id, parent := range want {
		if got, ok := parents[id]; !ok || got != parent {
			t.Errorf("%s has the parent %q, want %q", id, got, parent)
		}
	}
	for _, path := range []string{"/openai/v1/models/own", "/v1/models/own", "/openai/v1/models/listed", "/v1/models/listed"} {
		a := do(t, c, request(t, http.MethodGet, g.url(path), ""))
		if !strings.Contains(a.body, `"id":"`+path[strings.LastIndexByte(path, '/')+1:]) || !strings.Contains(a.body, `"parent":"llm"`) || !strings.Contains(a.body, `"state":"ready"`) {
			t.Errorf("%s: status %d: %s", path, a.StatusCode, a.body)
		}
	}
	if a := do(t, c, request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"none"}`)); a.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown adapter: status %d: %s", a.StatusCode, a.body)
	}
}

func TestAListedAdapterIsWaitedFor(t *testing.T) {
	at := engine(t, asked("engine"))
	s := llm("llm", "/", "served", route.Endpoint{Replica: "1", HTTP: at})
	s.Adapters = []string{"sql"}
	var known state.Topic[lora.Known]
	known.Publish(&lora.Known{})
	g := start(t, func(c *gateway.Config) { c.Adapters = &known }, s)
	c := client(t)
	done := make(chan answer, 1)
	go func() { done <- do(t, c, request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"sql"}`)) }()
	if a := do(t, c, request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"llm"}`)); a.StatusCode != http.StatusOK {
		t.Errorf("the model itself: status %d: %s", a.StatusCode, a.body)
	}
	select {
	case a := <-done:
		t.Fatalf("answered before the adapter was loaded: %d %s", a.StatusCode, a.body)
	default:
	}
	known.Publish(&lora.Known{at: {Service: s.Key, Adapters: []lora.Adapter{{Name: "sql", Parent: "served"}}}})
	if a := <-done; a.StatusCode != http.StatusOK || !strings.HasSuffix(a.body, `{"model":"sql"}`) {
		t.Errorf("status %d: %s", a.StatusCode, a.body)
	}
}

func TestAnAdapterThatNoReplicaLoadsIsRefused(t *testing.T) {
	s := llm("llm", "/", "served", route.Endpoint{Replica: "1", HTTP: engine(t, asked("engine"))})
	s.Adapters = []string{"sql"}
	var known state.Topic[lora.Known]
	known.Publish(&lora.Known{})
	g := start(t, func(c *gateway.Config) { c.Adapters, c.Timeouts.Hold = &known, 50*time.Millisecond }, s)
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"sql"}`))
	if message, _, _, _ := apiError(t, a); a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(message, "no replica has loaded the adapter sql yet") {
		t.Errorf("status %d: %s", a.StatusCode, a.body)
	}
}
