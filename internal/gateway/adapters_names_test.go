package gateway_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// elsewhere is a service of a namespace of its own.
func elsewhere(namespace string, s route.Service) route.Service {
	s.Key.Namespace, s.Hosts, s.PathPrefix, s.BareNames = namespace, nil, "/serving/"+namespace+"/"+s.Key.Name, nil
	return s
}

// TestAdaptersAreNamedAsServicesAre: with the namespace before and the revision behind.
func TestAdaptersAreNamedAsServicesAre(t *testing.T) {
	old, next := engine(t, asked("old")), engine(t, asked("new"))
	base := llm("llm", "/", "served")
	base.Adapters, base.Created = []string{"sql"}, time.Unix(1000, 0)
	base.Components[spec.Predictor] = route.Backend{Targets: []route.Target{
		{Revision: "llm-00001", Tag: "prev", ModelName: "served", OpenAI: "/", Endpoints: []route.Endpoint{{HTTP: old}}},
		{Revision: "llm-00002", Weight: 100, ModelName: "served", OpenAI: "/", Endpoints: []route.Endpoint{{HTTP: next}}},
	}}
	listed := elsewhere("team", llm("llm", "/", "served", route.Endpoint{HTTP: engine(t, asked("team"))}))
	listed.Adapters, listed.Created = []string{"sql"}, time.Unix(2000, 0)
	own := elsewhere("lab", llm("lab", "/", "served", route.Endpoint{HTTP: engine(t, asked("lab"))}))
	twin := elsewhere("mill", llm("mill", "/", "served", route.Endpoint{HTTP: engine(t, asked("mill"))}))
	at := func(s route.Service) string { return s.Components[spec.Predictor].Targets[0].Endpoints[0].HTTP }
	// One that pods alone find, by its host, and an engine whose adapters have others' names.
	hidden := elsewhere("vault", llm("vault", "/", "served", route.Endpoint{HTTP: engine(t, asked("vault"))}))
	hidden.PathPrefix, hidden.Hosts, hidden.Adapters = "", []route.Host{{Name: "vault.vault"}}, []string{"secret"}
	taker := elsewhere("aaa", llm("taker", "/", "served", route.Endpoint{HTTP: engine(t, asked("taker"))}))
	taker.Created = time.Unix(1, 0)
	var known state.Topic[lora.Known]
	known.Publish(&lora.Known{
		at(hidden): {Service: hidden.Key, Adapters: []lora.Adapter{{Name: "secret", Parent: "served"}, {Name: "more", Parent: "served"}}},
		at(taker):  {Service: taker.Key, Adapters: []lora.Adapter{{Name: "team/sql"}, {Name: "lab/shared"}, {Name: "default/sql@prev"}}},
		old:        {Service: base.Key, Adapters: []lora.Adapter{{Name: "sql", Parent: "served"}}},
		next:       {Service: base.Key, Adapters: []lora.Adapter{{Name: "org/chat", Parent: "served"}, {Name: "sql", Parent: "served"}}},
		at(listed): {Service: listed.Key, Adapters: []lora.Adapter{{Name: "sql", Parent: "served"}}},
		at(own):    {Service: own.Key, Adapters: []lora.Adapter{{Name: "shared", Parent: "served"}}},
		at(twin):   {Service: twin.Key, Adapters: []lora.Adapter{{Name: "shared", Parent: "served"}}},
	})
	g := start(t, func(c *gateway.Config) { c.Adapters = &known }, base, listed, own, twin, hidden, taker)
	c := client(t)
	for name, tc := range map[string]struct {
		host, model, want, reached string
		status                     int
		message                    string
	}{
		"the name alone, of the older service": {model: "sql", want: "new", reached: "sql"},
		"a namespace":                          {model: "team/sql", want: "team", reached: "sql"},
		"the older one's namespace":            {model: "default/sql", want: "new", reached: "sql"},
		"an adapter that an engine told of":    {model: "lab/shared", want: "lab", reached: "shared"},
		"a slash of its own":                   {model: "org/chat", want: "new", reached: "org/chat"},
		"a revision":                           {model: "sql@llm-00001", want: "old", reached: "sql"},
		"a tag":                                {model: "sql:prev", want: "old", reached: "sql"},
		"a namespace and a revision":           {model: "default/sql@prev", want: "old", reached: "sql"},
		"a slash of its own and a revision":    {model: "org/chat@llm-00002", want: "new", reached: "org/chat"},
		"by the service's host":                {host: "llm-default.localhost", model: "default/sql@prev", want: "old", reached: "sql"},
		"another namespace, by host":           {host: "llm-default.localhost", model: "team/sql", want: "new", reached: "team/sql"},
		"the service itself":                   {model: "default/llm@prev", want: "old", reached: "served"},
		"several services, none older":         {model: "shared", status: 409, message: "lab/lab, mill/mill): name the adapter as <namespace>/shared"},
		"no such revision":                     {model: "sql@llm-00009", status: 404, message: `no revision "llm-00009"`},
		"no such adapter of the namespace":     {model: "lab/sql", status: 404, message: "lab/sql"},
		"a hidden service's, by its host":      {host: "vault.vault", model: "secret", want: "vault", reached: "secret"},
		"a hidden service's listed one":        {model: "secret", status: 404, message: "secret"},
		"with its namespace":                   {model: "vault/secret", status: 404, message: "vault/secret"},
		"one that its engine told of":          {model: "more", status: 404, message: "more"},
		"a hidden service itself":              {model: "vault/vault", status: 404, message: "vault/vault"},
		"no such adapter":                      {model: "team/none", status: 404, message: "team/none"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"`+tc.model+`"}`)
			r.Host = tc.host
			a := do(t, c, r)
			if tc.status != 0 {
				if message, _, _, _ := apiError(t, a); a.StatusCode != tc.status || !strings.Contains(message, tc.message) {
					t.Errorf("%d %s", a.StatusCode, a.body)
				}
				return
			}
			if a.StatusCode != http.StatusOK || !strings.HasPrefix(a.body, tc.want+" ") || !strings.HasSuffix(a.body, `{"model":"`+tc.reached+`"}`) {
				t.Errorf("%d %s, want %s to be asked for %s", a.StatusCode, a.body, tc.want, tc.reached)
			}
		})
	}
	for path, want := range map[string]string{
		"/openai/v1/models/team/sql":         `"id":"team/sql","object":"model","created":2000,"owned_by":"team","root":"llm","parent":"llm"`,
		"/v1/models/team/sql":                `"id":"team/sql"`,
		"/openai/v1/models/lab%2Fshared":     `"id":"lab/shared"`,
		"/openai/v1/models/sql@llm-00001":    `"id":"sql@llm-00001"`,
		"/openai/v1/models/default/sql@prev": `"parent":"llm"`,
	} {
		if a := do(t, c, request(t, http.MethodGet, g.url(path), "")); a.StatusCode != http.StatusOK || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
	}
	for _, path := range []string{"/openai/v1/models", "/v1/models"} {
		var list struct {
			Data []struct{ ID, Parent string } `json:"data"`
		}
		if a := do(t, c, request(t, http.MethodGet, g.url(path), "")); json.Unmarshal([]byte(a.body), &list) != nil {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
		var got []string
		for _, m := range list.Data {
			if m.Parent != "" {
				got = append(got, m.ID)
			}
		}
		want := []string{"lab/shared", "mill/shared", "org/chat", "sql", "team/sql"}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: the list has %q, want %q", path, got, want)
		}
		for _, id := range got {
			if a := do(t, c, request(t, http.MethodGet, g.url(path+"/"+id), "")); a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"id":"`+id+`"`) {
				t.Errorf("%s of the list isn't found: %d %s", id, a.StatusCode, a.body)
			}
		}
	}
	for _, path := range []string{"/openai/v1/models/secret", "/openai/v1/models/more", "/openai/v1/models/sql@nope", "/v1/models/team/none"} {
		if a := do(t, c, request(t, http.MethodGet, g.url(path), "")); a.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
	}
}

// TestAnAdaptersAnswerHasTheClientsName also where the engine knows it by a shorter one.
func TestAnAdaptersAnswerHasTheClientsName(t *testing.T) {
	at := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"model":"sql"}`))
	})
	s := llm("llm", "/", "served", route.Endpoint{HTTP: at})
	s.Adapters = []string{"sql"}
	var known state.Topic[lora.Known]
	known.Publish(&lora.Known{at: {Service: s.Key, Adapters: []lora.Adapter{{Name: "sql", Parent: "served"}}}})
	g := start(t, func(c *gateway.Config) { c.Adapters = &known }, s)
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"default/sql"}`))
	if a.body != `{"model":"default/sql"}` {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}
