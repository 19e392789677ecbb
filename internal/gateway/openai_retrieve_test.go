package gateway_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// ofSDK is a question as one of OpenAI's SDKs asks it.
func ofSDK(t *testing.T, url string) *http.Request {
	t.Helper()
	r := request(t, http.MethodGet, url, "")
	r.Header.Set("X-Stainless-Lang", "python")
	return r
}

// TestWhatTheListHasIsFound by each of its names, below both prefixes, though V1's status has the same path.
func TestWhatTheListHasIsFound(t *testing.T) {
	smol := llm("smol", "/", "smol", route.Endpoint{HTTP: engine(t, asked("smol"))})
	smol.Created = time.Unix(1000, 0)
	smol.Components[spec.Predictor].Targets[0].Tag = "latest"
	hidden := llm("smol", "/", "smol", route.Endpoint{HTTP: engine(t, asked("team"))})
	hidden.Key.Namespace, hidden.Hosts, hidden.PathPrefix, hidden.Created = "team", nil, "/serving/team/smol", time.Unix(2000, 0)
	iris := service("iris", route.Endpoint{HTTP: engine(t, asked("iris"))})
	iris.Components[spec.Predictor].Targets[0].Protocols = []spec.Protocol{spec.V2}
	old := service("old", route.Endpoint{HTTP: engine(t, asked("old"))})
	old.Components[spec.Predictor].Targets[0].Protocols = []spec.Protocol{spec.V1}
	chain := graphOf("chain", spec.Sequence, spec.GraphStep{Service: "old"})
	g := start(t, nil, smol, hidden, iris, old, chain)
	c := client(t)

	for _, path := range []string{"/v1/models", "/openai/v1/models"} {
		var list struct {
			Data []struct {
				ID        string
				OwnedBy   string `json:"owned_by"`
				Revisions []struct{ ID string }
			}
			Models []string
		}
		if a := do(t, c, ofSDK(t, g.url(path))); json.Unmarshal([]byte(a.body), &list) != nil {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
		ids, services := []string{"default/smol", "default/iris", "smol:latest", "default/smol@latest"}, map[string]string{}
		for _, m := range list.Data {
			services[m.ID] = m.OwnedBy
			ids = append(ids, m.ID)
			for _, r := range m.Revisions {
				ids = append(ids, r.ID)
			}
		}
		if services["smol"] != "default" || services["team/smol"] != "team" || len(services) != 5 {
			t.Errorf("%s lists %v", path, services)
		}
		for _, name := range list.Models {
			if strings.Contains(name, "/") {
				t.Errorf("V1's list has %q, which none of its paths takes", name)
			}
		}
		for _, id := range ids {
			var m struct {
				ID, Name, Object string
				Ready            bool
			}
			a := do(t, c, ofSDK(t, g.url(path+"/"+id)))
			if json.Unmarshal([]byte(a.body), &m) != nil || a.StatusCode != http.StatusOK || m.ID != id || m.Object != "model" {
				t.Errorf("%s/%s: %d %s", path, id, a.StatusCode, a.body)
			}
			if path == "/v1/models" && (m.Name != id || !m.Ready) {
				t.Errorf("%s/%s: not V1's too: %s", path, id, a.body)
			}
		}
	}

	// V1's clients get the engine's own answer.
	if a := do(t, c, request(t, http.MethodGet, g.url("/v1/models/old"), "")); !strings.HasPrefix(a.body, "old ") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	for _, id := range []string{"none", "team/none", "none/smol", "smol@none"} {
		for _, path := range []string{"/v1/models/", "/openai/v1/models/"} {
			a := do(t, c, ofSDK(t, g.url(path+id)))
			if _, _, _, code := apiError(t, a); a.StatusCode != http.StatusNotFound || code != "model_not_found" {
				t.Errorf("%s%s: %d %s", path, id, a.StatusCode, a.body)
			}
		}
		if a := do(t, c, request(t, http.MethodGet, g.url("/v1/models/"+id), "")); a.StatusCode != http.StatusNotFound || !strings.HasPrefix(a.body, `{"error":"`) {
			t.Errorf("V1's client gets %d %s", a.StatusCode, a.body)
		}
	}
}
