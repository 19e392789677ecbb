package gateway_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// asked is an engine that says what reached it.
func asked(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintf(w, "%s %s %d %s", name, r.RequestURI, r.ContentLength, b)
	}
}

// llm is a service whose engine speaks the OpenAI API under a root.
func llm(name, root, engineModel string, endpoints ...route.Endpoint) route.Service {
	s := service(name, endpoints...)
	t := &s.Components[spec.Predictor].Targets[0]
	t.OpenAI, t.ModelName = root, engineModel
	return s
}

// apiError reads an error in OpenAI's shape, which must have all four members.
func apiError(tb testing.TB, a answer) (message, kind string, param, code any) {
	tb.Helper()
	var v struct {
		Error map[string]any `json:"error"`
	}
	if err := json.Unmarshal([]byte(a.body), &v); err != nil || len(v.Error) != 4 {
		tb.Fatalf("status %d: %q isn't an error in OpenAI's shape", a.StatusCode, a.body)
	}
	return v.Error["message"].(string), v.Error["type"].(string), v.Error["param"], v.Error["code"]
}

func TestTheModelLeadsToItsService(t *testing.T) {
	plain := llm("plain", "", "plain", route.Endpoint{HTTP: engine(t, asked("plain"))})
	vllm := llm("vllm", "/", "served", route.Endpoint{HTTP: engine(t, asked("vllm"))})
	hf := llm("hf", "/openai", "hf", route.Endpoint{HTTP: engine(t, asked("hf"))})
	twin := llm("plain", "", "plain", route.Endpoint{HTTP: engine(t, asked("twin"))})
	twin.Key.Namespace, twin.Hosts, twin.PathPrefix, twin.BareNames = "other", nil, "/serving/other/plain", nil
	old := llm("rolled", "/", "rolled", route.Endpoint{HTTP: engine(t, asked("old"))})
	old.Components[spec.Predictor] = route.Backend{Targets: []route.Target{
		{Revision: "rolled-00001", Tag: "prev", ModelName: "rolled", Endpoints: []route.Endpoint{{HTTP: engine(t, asked("old"))}}},
		{Revision: "rolled-00002", Weight: 100, ModelName: "rolled", Endpoints: []route.Endpoint{{HTTP: engine(t, asked("new"))}}},
	}}
	ollama := llm("ollama", "/", "ollama:8b", route.Endpoint{HTTP: engine(t, asked("ollama"))})
	g := start(t, nil, plain, vllm, hf, twin, old, ollama)
	const spaced = `{ "model" : "plain", "seed":12345678901234567890, "tools":[{"x":1.0e-3}] , "messages":["é"]}`
	tests := map[string]struct{ host, path, body, want string }{
		"by name, byte for byte":           {path: "/v1/chat/completions", body: spaced, want: fmt.Sprintf("plain /v1/chat/completions %d %s", len(spaced), spaced)},
		"an unknown engine's path stays":   {path: "/openai/v1/embeddings?x=y", body: `{"model":"plain"}`, want: `plain /openai/v1/embeddings?x=y 17 {"model":"plain"}`},
		"the root is taken off":            {path: "/openai/v1/rerank", body: `{"model":"served"}`, host: "vllm-default.localhost", want: `vllm /v1/rerank 18 {"model":"served"}`},
		"the root is put on":               {path: "/v1/completions", body: `{"model":"hf"}`, want: `hf /openai/v1/completions 14 {"model":"hf"}`},
		"the root is right":                {path: "/openai/v1/completions", body: `{"model":"hf"}`, want: `hf /openai/v1/completions 14 {"model":"hf"}`},
		"the engine's name":                {path: "/v1/responses", body: `{"input":"x", "model" : "vllm" }`, want: `vllm /v1/responses 34 {"input":"x", "model" : "served" }`},
		"a namespace":                      {path: "/v1/score", body: `{"model":"other/plain"}`, want: `twin /v1/score 17 {"model":"plain"}`},
		"a revision":                       {path: "/v1/completions", body: `{"model":"rolled@rolled-00001"}`, want: `old /v1/completions 18 {"model":"rolled"}`},
		"a tag behind a colon":             {path: "/v1/completions", body: `{"model":"rolled:prev"}`, want: `old /v1/completions 18 {"model":"rolled"}`},
		"a name with a colon of its own":   {path: "/v1/completions", body: `{"model":"ollama:8b"}`, want: `ollama /v1/completions 21 {"model":"ollama:8b"}`},
		"by host, an engine's own colon":   {host: "plain-default.localhost", path: "/v1/completions", body: `{"model":"plain:8b"}`, want: `plain /v1/completions 20 {"model":"plain:8b"}`},
		"a revision by its tag":            {path: "/v1/completions", body: `{"model":"default/rolled@prev"}`, want: `old /v1/completions 18 {"model":"rolled"}`},
		"no revision":                      {path: "/v1/completions", body: `{"model":"rolled"}`, want: `new /v1/completions 18 {"model":"rolled"}`},
		"a revision on the service's host": {host: "rolled-default.localhost", path: "/v1/completions", body: `{"model":"rolled@rolled-00001"}`, want: `old /v1/completions 18 {"model":"rolled"}`},
		"by prefix, renamed":               {path: "/serving/default/vllm/openai/v1/completions", body: `{"model":"vllm"}`, want: `vllm /v1/completions 18 {"model":"served"}`},
		"by host, the engine's own name":   {host: "vllm-default.localhost", path: "/v1/completions", body: `{"model":"adapter"}`, want: `vllm /v1/completions 19 {"model":"adapter"}`},
		"by host, a body to judge":         {host: "vllm-default.localhost", path: "/v1/completions", body: `{"model":`, want: `vllm /v1/completions 9 {"model":`},
		"by host, no model":                {host: "vllm-default.localhost", path: "/v1/completions", body: `{}`, want: `vllm /v1/completions 2 {}`},
		"by host, another path":            {host: "vllm-default.localhost", path: "/v1/tokenize", body: `{}`, want: `vllm /v1/tokenize 2 {}`},
		"by host, the engine's models":     {host: "vllm-default.localhost", path: "/openai/v1/models", body: `{}`, want: `vllm /v1/models 2 {}`},
	}
	c := client(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := request(t, http.MethodPost, g.url(tc.path), tc.body)
			r.Host = tc.host
			r.Header.Set("Content-Type", "application/json")
			a := do(t, c, r)
			if a.StatusCode != http.StatusOK || a.body != tc.want {
				t.Errorf("status %d\n got %s\nwant %s", a.StatusCode, a.body, tc.want)
			}
		})
	}
}

func TestErrorsOfTheAPIHaveItsShape(t *testing.T) {
	down := llm("down", "/", "down")
	down.Components[spec.Predictor] = route.Backend{NotReady: "it starts"}
	g := start(t, func(c *gateway.Config) { c.OpenAI.MaxRead = 100_000 },
		llm("one", "/", "one", route.Endpoint{HTTP: engine(t, asked("one"))}), down)
	long := `{"messages":"` + strings.Repeat("x", 200_000) + `","model":"one"}`
	tests := map[string]struct {
		method, path, body string
		status             int
		message            string
		kind               string
		param, code        any
	}{
		"unknown model":        {path: "/v1/chat/completions", body: `{"model":"none"}`, status: 404, message: `"none"; services here: default/down`, kind: "invalid_request_error", code: "model_not_found"},
		"unknown namespace":    {path: "/v1/embeddings", body: `{"model":"x/one"}`, status: 404, message: `"x/one"`, kind: "invalid_request_error", code: "model_not_found"},
		"unknown revision":     {path: "/v1/embeddings", body: `{"model":"one@one-00007"}`, status: 404, message: "one-00007", kind: "invalid_request_error", code: "model_not_found"},
		"unknown tag":          {path: "/v1/embeddings", body: `{"model":"one:7b"}`, status: 404, message: "7b", kind: "invalid_request_error", code: "model_not_found"},
		"no model":             {path: "/openai/v1/completions", body: `{}`, status: 400, message: `no "model"`, kind: "invalid_request_error", param: "model"},
		"no JSON":              {path: "/v1/completions", body: `{"model":`, status: 400, message: "JSON at byte", kind: "invalid_request_error"},
		"nothing":              {path: "/v1/completions", body: ``, status: 400, message: "object should start", kind: "invalid_request_error"},
		"two models":           {path: "/v1/completions", body: `{"model":"one","model":"down"}`, status: 400, message: "twice", kind: "invalid_request_error"},
		"not ready":            {path: "/v1/score", body: `{"model":"down"}`, status: 503, message: "it starts", kind: "server_error"},
		"not ready, by prefix": {path: "/serving/default/down/v1/completions", body: `{"model":"down"}`, status: 503, message: "it starts", kind: "server_error"},
		"model too far":        {path: "/v1/completions", body: long, status: 413, message: "within the first 100000 bytes", kind: "invalid_request_error"},
		"wrong method":         {method: http.MethodGet, path: "/v1/chat/completions", status: 405, message: "takes POST", kind: "invalid_request_error"},
		"wrong method, list":   {path: "/openai/v1/models", body: "{}", status: 405, message: "takes GET", kind: "invalid_request_error"},
		"unknown path":         {path: "/openai/v1/nothing", body: "{}", status: 404, message: "no route", kind: "invalid_request_error"},
		"unknown bare path":    {method: http.MethodGet, path: "/v1/nosuch", status: 404, message: "as /v1/chat/completions", kind: "invalid_request_error"},
		"unknown service":      {path: "/serving/default/x/v1/chat/completions", body: `{"model":"x"}`, status: 404, message: "no route", kind: "invalid_request_error"},
		"its list":             {method: http.MethodGet, path: "/serving/default/x/openai/v1/models", status: 404, message: "no route", kind: "invalid_request_error"},
		"unknown in the list":  {method: http.MethodGet, path: "/openai/v1/models/none", status: 404, message: `"none"`, kind: "invalid_request_error", code: "model_not_found"},
	}
	c := client(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			method := tc.method
			if method == "" {
				method = http.MethodPost
			}
			a := do(t, c, request(t, method, g.url(tc.path), tc.body))
			message, kind, param, code := apiError(t, a)
			if a.StatusCode != tc.status || !strings.Contains(message, tc.message) || kind != tc.kind || param != tc.param || code != tc.code {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
			if seconds, _ := strconv.Atoi(a.Header.Get("Retry-After")); a.StatusCode == 503 && (seconds < 1 || a.Header.Get("Retry-After-Ms") == "") {
				t.Errorf("Retry-After %q, Retry-After-Ms %q", a.Header.Get("Retry-After"), a.Header.Get("Retry-After-Ms"))
			}
		})
	}
}

// TestLargeBodiesPassWhole sends bodies whose model comes first, in the middle and last, of known
// length and chunked.
func TestLargeBodiesPassWhole(t *testing.T) {
	g := start(t, nil, llm("one", "/", "served", route.Endpoint{HTTP: engine(t, asked("one"))}))
	c := client(t)
	text := strings.Repeat("Grüße, 世界! ", 300_000) // about 5 MB
	for name, body := range map[string]string{
		"first":  `{"model":"one","messages":"` + text + `"}`,
		"middle": `{"a":"` + text[:len(text)/2] + `","model":"one","b":"` + text[len(text)/2:] + `"}`,
		"last":   `{"messages":"` + text + `","model":"one"}`,
	} {
		want := strings.Replace(body, `"model":"one"`, `"model":"served"`, 1)
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, chunked %v", name, chunked), func(t *testing.T) {
				r := request(t, http.MethodPost, g.url("/v1/chat/completions"), body)
				if chunked {
					r.ContentLength = -1
				}
				a := do(t, c, r)
				_, got, _ := strings.Cut(a.body, "/v1/chat/completions ")
				length, got, _ := strings.Cut(got, " ")
				if got != want {
					t.Fatalf("status %d, %d bytes of %d: %.200s", a.StatusCode, len(got), len(want), a.body)
				}
				if n := strconv.Itoa(len(want)); length != n && !chunked {
					t.Errorf("length %s, want %s", length, n)
				}
			})
		}
	}
}

// form makes a form; a value that starts with @ is a file's content.
func form(tb testing.TB, fields ...string) (body, kind string) {
	tb.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(fields); i += 2 {
		value, file := strings.CutPrefix(fields[i+1], "@")
		add := w.CreateFormField
		if file {
			add = func(field string) (io.Writer, error) { return w.CreateFormFile(field, "model") }
		}
		part, err := add(fields[i])
		if err != nil {
			tb.Fatal(err)
		}
		_, _ = io.WriteString(part, value)
	}
	_ = w.Close()
	return b.String(), w.FormDataContentType()
}

func TestFormsNameTheirModel(t *testing.T) {
	g := start(t, func(c *gateway.Config) { c.OpenAI.MaxRead = 1 << 20 },
		llm("audio", "/", "whisper", route.Endpoint{HTTP: engine(t, asked("audio"))}))
	c := client(t)
	sound := strings.Repeat("\x00\r\n\r\naudio\r\n--", 50_000)
	tests := map[string]struct {
		fields []string
		status int
	}{
		"the model comes first":     {fields: []string{"model", "audio", "language", "audio", "file", "@" + sound}},
		"the model comes last":      {fields: []string{"prompt", "audio", "file", "@" + sound, "model", "audio"}},
		"a file of the same name":   {fields: []string{"model", "@audio", "model", "audio"}},
		"no model":                  {fields: []string{"file", "@x"}, status: 400},
		"an empty model":            {fields: []string{"model", ""}, status: 400},
		"two models":                {fields: []string{"model", "audio", "file", "@" + sound, "model", "audio"}, status: 400},
		"two models, a file before": {fields: []string{"file", "@x", "model", "audio", "model", "other"}, status: 400},
		"an unknown model":          {fields: []string{"model", "none"}, status: 404},
		"the model comes too late":  {fields: []string{"file", "@" + sound + sound, "model", "audio"}, status: 413},
		"the engine's own name too": {fields: []string{"model", "whisper"}, status: 404},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body, kind := form(t, tc.fields...)
			r := request(t, http.MethodPost, g.url("/v1/audio/transcriptions"), body)
			r.Header.Set("Content-Type", kind)
			a := do(t, c, r)
			if tc.status != 0 {
				if apiError(t, a); a.StatusCode != tc.status {
					t.Errorf("%d %s", a.StatusCode, a.body)
				}
				return
			}
			_, got, _ := strings.Cut(a.body, "transcriptions ")
			_, got, _ = strings.Cut(got, " ")
			i := strings.LastIndex(body, "name=\"model\"\r\n\r\naudio\r\n")
			want := body[:i] + strings.Replace(body[i:], "audio", "whisper", 1)
			if got != want {
				t.Errorf("status %d, %d bytes, want %d: %.300s", a.StatusCode, len(got), len(want), a.body)
			}
		})
	}
}

func TestModelsAreListed(t *testing.T) {
	one := llm("one", "/", "one", route.Endpoint{HTTP: engine(t, asked("one"))})
	one.Created = time.Unix(1_700_000_000, 0)
	served := &one.Components[spec.Predictor].Targets[0]
	served.Format, served.ContextLength, served.Tag = "gguf", 100, "latest"
	told := map[spec.RevisionKey]int{{Namespace: "default", Name: "one-00001"}: 8192, {Namespace: "other", Name: "v1-00001"}: 1}
	lengths := new(state.Topic[map[spec.RevisionKey]int])
	lengths.Publish(&told)
	g := start(t, func(c *gateway.Config) { c.ContextLengths = lengths }, one, service("v1", route.Endpoint{HTTP: engine(t, asked("v1"))}))
	c := client(t)
	entry := `{"id":"one","object":"model","created":1700000000,"owned_by":"default","revision":"one-00001","digest":"sha256:4f2b","format":"gguf","context_length":8192,"state":"ready",
		"revisions":[{"id":"one@one-00001","revision":"one-00001","digest":"sha256:4f2b","format":"gguf","context_length":8192,"state":"ready","tag":"latest","traffic":100}]}`
	other := `{"id":"v1","object":"model","created":0,"owned_by":"default","revision":"v1-00001","digest":"sha256:4f2b","state":"ready",
		"revisions":[{"id":"v1@v1-00001","revision":"v1-00001","digest":"sha256:4f2b","state":"ready","traffic":100}]}`
	for path, want := range map[string]string{
		"/v1/models":                      `{"models":["one","v1"],"object":"list","data":[` + entry + `,` + other + `]}`,
		"/openai/v1/models":               `{"object":"list","data":[` + entry + `,` + other + `]}`,
		"/openai/v1/models/one":           entry,
		"/openai/v1/models/default/one":   strings.NewReplacer(`"one"`, `"default/one"`, `"one@`, `"default/one@`).Replace(entry),
		"/openai/v1/models/one@one-00001": strings.Replace(entry, `"one"`, `"one@one-00001"`, 1),
		"/openai/v1/models/one:latest":    strings.Replace(entry, `"one"`, `"one:latest"`, 1),
		"/v1/models/one":                  `{"name":"one","ready":true,` + entry[1:],
	} {
		a := do(t, c, request(t, http.MethodGet, g.url(path), ""))
		var got, expected any
		if json.Unmarshal([]byte(a.body), &got) != nil || json.Unmarshal([]byte(want), &expected) != nil {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		} else if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", path, diff)
		}
	}
	if a := do(t, c, request(t, http.MethodGet, g.url("/v1/models/v1"), "")); !strings.HasPrefix(a.body, "v1 /v1/models/v1") {
		t.Errorf("an engine of V1 isn't asked itself: %s", a.body)
	}
}
