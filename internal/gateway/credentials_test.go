package gateway_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// shown is an engine that answers with the names of the fields by which its client proves itself.
func shown(w http.ResponseWriter, r *http.Request) {
	var got []string
	for _, name := range []string{"Authorization", "Cookie", "X-Api-Key", "Api-Key"} {
		if r.Header.Get(name) != "" {
			got = append(got, name)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Shown", strings.Join(got, " "))
	_, _ = w.Write([]byte(`{"object":"chat.completion","choices":[]}`))
}

func TestCredentialsOfTheFrontDoorStayThere(t *testing.T) {
	serve := func(name string, c route.Credentials) route.Service {
		s := llm(name, "/", name, route.Endpoint{HTTP: engine(t, shown)})
		target := &s.Components[spec.Predictor].Targets[0]
		target.Credentials, target.Translate = c, "off"
		return s
	}
	g := start(t, nil, serve("unsaid", route.CredentialsByProtocol), serve("open", route.CredentialsForwarded), serve("closed", route.CredentialsWithheld))
	const all = "Authorization Cookie X-Api-Key Api-Key"
	chat := func(model string) (string, string) {
		return "/v1/chat/completions", `{"model":"` + model + `","messages":[]}`
	}
	infer := func(model string) (string, string) { return "/v1/models/" + model + ":predict", `{"instances":[]}` }
	file := func(model string) (string, string) { return "/serving/default/" + model + "/v1/files", `{}` }
	other := func(model string) (string, string) { return "/serving/default/" + model + "/tokenize", `{}` }
	tests := map[string]struct {
		ask   func(string) (string, string)
		model string
		want  string
	}{
		"also where no model is named":             {file, "unsaid", ""},
		"there, to who checks them":                {file, "open", all},
		"paths that aren't the API's":              {other, "unsaid", all},
		"OpenAI's are withheld":                    {chat, "unsaid", ""},
		"V1's go on, as in KServe":                 {infer, "unsaid", all},
		"an engine that checks OpenAI's keys":      {chat, "open", all},
		"an engine that is to get none, by OpenAI": {chat, "closed", ""},
		"an engine that is to get none, by V1":     {infer, "closed", ""},
	}
	c := client(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path, body := tc.ask(tc.model)
			r := request(t, http.MethodPost, g.url(path), body)
			r.Header.Set("Content-Type", "application/json")
			for _, name := range strings.Fields(all) {
				r.Header.Set(name, "secret")
			}
			a := do(t, c, r)
			if a.StatusCode != http.StatusOK || a.Header.Get("X-Shown") != tc.want {
				t.Errorf("status %d, the engine saw %q, want %q: %s", a.StatusCode, a.Header.Get("X-Shown"), tc.want, a.body)
			}
		})
	}
}

func TestTheRootOfTheAPICanBeAnother(t *testing.T) {
	vllm := llm("vllm", "/", "served", route.Endpoint{HTTP: engine(t, asked("vllm"))})
	own := llm("own", "/llm", "own", route.Endpoint{HTTP: engine(t, asked("own"))})
	tests := map[string]struct{ root, host, path, want string }{
		"the root that is set":           {"api/ai/", "", "/api/ai/v1/completions", `vllm /v1/completions 18 {"model":"served"}`},
		"bare paths stay":                {"/api/ai", "", "/v1/completions", `vllm /v1/completions 18 {"model":"served"}`},
		"the engine's own root, by host": {"", "own-default.localhost", "/llm/v1/completions", `own /llm/v1/completions 16 {"model":"vllm"}`},
		"the usual one by host":          {"", "own-default.localhost", "/openai/v1/completions", `own /llm/v1/completions 16 {"model":"vllm"}`},
		"none":                           {"/", "", "/v1/completions", `vllm /v1/completions 18 {"model":"served"}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := start(t, func(c *gateway.Config) { c.OpenAI.Root = tc.root }, vllm, own)
			r := request(t, http.MethodPost, g.url(tc.path), `{"model":"vllm"}`)
			r.Host = tc.host
			if a := do(t, client(t), r); a.StatusCode != http.StatusOK || a.body != tc.want {
				t.Errorf("status %d\n got %s\nwant %s", a.StatusCode, a.body, tc.want)
			}
		})
	}

	g := start(t, func(c *gateway.Config) { c.OpenAI.Root = "/api/ai" }, vllm)
	for path, shaped := range map[string]bool{"/api/ai/v1/models/none": true, "/openai/v1/models/none": false} {
		a := do(t, client(t), request(t, http.MethodGet, g.url(path), ""))
		var v struct{ Error any }
		if err := json.Unmarshal([]byte(a.body), &v); err != nil || a.StatusCode != http.StatusNotFound {
			t.Fatalf("%s: status %d, %q, %v", path, a.StatusCode, a.body, err)
		}
		if _, object := v.Error.(map[string]any); object != shaped {
			t.Errorf("%s: %s; in OpenAI's shape: %s", path, a.body, cmp.Diff(shaped, object))
		}
	}
}

func TestCredentialsOfCalls(t *testing.T) {
	for name, tc := range map[string]struct {
		credentials route.Credentials
		want        string
	}{
		"go on, as in KServe":            {route.CredentialsByProtocol, "Bearer secret"},
		"stay where an engine gets none": {route.CredentialsWithheld, ""},
	} {
		t.Run(name, func(t *testing.T) {
			seen := ""
			e := &oipEngine{name: "m", infer: func(ctx context.Context, r *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
				md, _ := metadata.FromIncomingContext(ctx)
				seen = strings.Join(md["authorization"], " ")
				return &oip.ModelInferResponse{ModelName: r.GetModelName()}, nil
			}}
			s := service("m", route.Endpoint{GRPC: grpcEngine(t, e)})
			s.Components[spec.Predictor].Targets[0].Credentials = tc.credentials
			g := start(t, nil, s)
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret")
			if _, err := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC)).ModelInfer(ctx, &oip.ModelInferRequest{ModelName: "m"}); err != nil {
				t.Fatal(err)
			}
			if seen != tc.want {
				t.Errorf("the engine saw %q, want %q", seen, tc.want)
			}
		})
	}
}

func TestACopyHasNoCredentialsEither(t *testing.T) {
	seen := make(chan string, 1)
	canary := engine(t, func(w http.ResponseWriter, r *http.Request) {
		shown(w, r)
		seen <- w.Header().Get("X-Shown")
	})
	s := shadowed(engine(t, shown), canary, 100)
	for i := range s.Components[spec.Predictor].Targets {
		s.Components[spec.Predictor].Targets[i].OpenAI = "/"
	}
	g := start(t, nil, s)
	r := request(t, http.MethodPost, g.url("/serving/default/iris/v1/files"), "{}")
	r.Header.Set("Authorization", "Bearer secret")
	if a := do(t, client(t), r); a.StatusCode != http.StatusOK || a.Header.Get("X-Shown") != "" {
		t.Fatalf("status %d, the engine saw %q", a.StatusCode, a.Header.Get("X-Shown"))
	}
	if got := <-seen; got != "" {
		t.Errorf("the engine of the copy saw %q", got)
	}
}
