package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// speaking is a service whose engine is declared to speak protocols.
func speaking(s route.Service, declared string, protocols ...spec.Protocol) route.Service {
	t := &s.Components[spec.Predictor].Targets[0]
	t.Protocols, t.Translate = protocols, declared
	return s
}

// v2Engine serves a V2 model over REST, and counts how often it was asked for the metadata.
func v2Engine(name, meta, answer string, asked *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/v2/models/" + name:
			asked.Add(1)
			_, _ = io.WriteString(w, meta)
		case "/v2/models/" + name + "/infer":
			if got := r.Header.Get("X-Client"); got != "kept" || r.Header.Get("Accept-Encoding") != "" {
				http.Error(w, `{"error":"the client's fields"}`, http.StatusTeapot)
				return
			}
			b, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Engine-Got", string(b))
			_, _ = io.WriteString(w, answer)
		case "/v2/models/" + name + "/versions/3/infer":
			_, _ = io.WriteString(w, strings.Replace(answer, "7", "3", 1))
		case "/v2/models/" + name + "/ready":
		default:
			http.Error(w, `{"error":"no such path"}`, http.StatusNotFound)
		}
	}
}

func compact(tb testing.TB, text string) any {
	tb.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	return v
}

func TestOpenAIOverTensors(t *testing.T) {
	var asked atomic.Int32
	const meta = `{"name":"served","platform":"x","inputs":[{"name":"text","datatype":"BYTES","shape":[-1]}],"outputs":[{"name":"v","datatype":"FP32","shape":[-1,2]}]}`
	emb := service("emb", route.Endpoint{HTTP: engine(t, v2Engine("served", meta, `{"model_name":"served","outputs":[{"name":"v","datatype":"FP32","shape":[2,2],"data":[1,0,0.5,0.25]}]}`, &asked))})
	emb.Components[spec.Predictor].Targets[0].ModelName = "served"
	image := service("image", route.Endpoint{HTTP: engine(t, v2Engine("image", `{"name":"image","inputs":[{"name":"pixels","datatype":"FP32","shape":[-1,3]}],"outputs":[]}`, "", new(atomic.Int32)))})
	own := service("own", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "own "+r.URL.Path)
	})})
	broken := service("broken", route.Endpoint{HTTP: engine(t, v2Engine("broken", meta, `{"outputs":[]}`, new(atomic.Int32)))})
	wrong := service("wrong", route.Endpoint{HTTP: engine(t, v2Engine("wrong", meta, ``, new(atomic.Int32)))})
	bare := service("bare", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/embeddings" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":{"message":"the engine knows better","type":"x","param":null,"code":404}}`)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			http.Error(w, "no such model", http.StatusBadRequest)
			return
		}
		http.NotFound(w, r)
	})})
	v1 := service("v1", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/chat/completions" {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		_, _ = io.WriteString(w, "v1 "+r.URL.Path)
	})})
	off := service("off", route.Endpoint{HTTP: engine(t, asked2("off"))})
	g := start(t, nil, speaking(emb, "", spec.V2), speaking(image, "", spec.V2), speaking(own, "", spec.V2), speaking(broken, "", spec.V2),
		speaking(wrong, "colour=red", spec.V2), speaking(off, "off", spec.V2), speaking(bare, "", spec.V2), speaking(v1, "", spec.V1))
	tests := map[string]struct {
		path, body string
		status     int
		want       string // JSON, or a part of an error's message
	}{
		"embeddings": {"/v1/embeddings", `{"model":"emb","input":["a","b"]}`, 200,
			`{"object":"list","model":"emb","data":[{"object":"embedding","index":0,"embedding":[1,0]},{"object":"embedding","index":1,"embedding":[0.5,0.25]}],"usage":{"prompt_tokens":0,"total_tokens":0}}`},
		"rerank by prefix":                 {"/serving/default/emb/v1/rerank", `{"model":"emb","query":"a","documents":["b"]}`, 200, ``},
		"a bad request":                    {"/v1/embeddings", `{"model":"emb","input":[[1]]}`, 400, "takes texts"},
		"no texts":                         {"/v1/embeddings", `{"model":"image","input":"a"}`, 501, "pixels FP32"},
		"its own API":                      {"/v1/embeddings", `{"model":"own","input":"a"}`, 200, "own /v1/embeddings"},
		"a broken answer":                  {"/v1/embeddings", `{"model":"broken","input":"a"}`, 501, "declare it with output="},
		"a wrong setting":                  {"/v1/embeddings", `{"model":"wrong","input":"a"}`, 501, `no setting "colour"`},
		"off":                              {"/v1/embeddings", `{"model":"off","input":"a"}`, 200, "off /v1/embeddings"},
		"chat isn't":                       {"/v1/chat/completions", `{"model":"own","messages":[]}`, 200, "own /v1/chat/completions"},
		"chat of a model of vectors":       {"/v1/chat/completions", `{"model":"emb","messages":[]}`, 501, "takes text BYTES and gives v FP32; ask it for /v1/embeddings"},
		"completions of a model of images": {"/openai/v1/completions", `{"model":"image","prompt":"a"}`, 501, "takes pixels FP32"},
		"responses":                        {"/v1/responses", `{"model":"emb","input":"a"}`, 501, "/v1/responses has no counterpart in V2"},
		"moderations":                      {"/v1/moderations", `{"model":"emb","input":"a"}`, 501, "/v1/moderations has no counterpart"},
		"images":                           {"/v1/images/generations", `{"model":"image","prompt":"a"}`, 501, "/v2/models/image/infer"},
		"audio":                            {"/v1/audio/speech", `{"model":"emb","input":"a"}`, 501, "stationmaster.dev/openai-root"},
		"what tells nothing and has none":  {"/v1/chat/completions", `{"model":"bare","messages":[]}`, 501, "tells nothing of model"},
		"what refuses in OpenAI's shape":   {"/v1/embeddings", `{"model":"bare","input":"a"}`, 404, "the engine knows better"},
		"an engine of V1 alone":            {"/v1/chat/completions", `{"model":"v1","messages":[]}`, 501, "/v1/models/v1:predict"},
		"an engine of V1 that has more":    {"/v1/embeddings", `{"model":"v1","input":"a"}`, 200, "v1 /v1/embeddings"},
	}
	c := client(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := request(t, http.MethodPost, g.url(tc.path), tc.body)
			r.Header.Set("X-Client", "kept")
			r.Header.Set("Accept-Encoding", "br")
			a := do(t, c, r)
			switch {
			case a.StatusCode != tc.status:
				t.Fatalf("%d %s", a.StatusCode, a.body)
			case tc.status != 200:
				if a.StatusCode == 501 && a.Header.Get("X-Should-Retry") != "false" {
					t.Errorf("clients ask again for what can't be: %v", a.Header)
				}
				if message, _, _, _ := apiError(t, a); a.Header.Get("X-Stationmaster-Revision") == "" || !strings.Contains(message, tc.want) {
					t.Errorf("%s", a.body)
				}
			case strings.HasPrefix(tc.want, "{"):
				if diff := cmp.Diff(compact(t, tc.want), compact(t, a.body)); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			case !strings.Contains(a.body, tc.want):
				t.Errorf("%s", a.body)
			}
			if tc.status == 200 && a.Header.Get("X-Engine-Got") != "" {
				t.Errorf("the engine's fields came to the client: %v", a.Header)
			}
			if tc.status == 200 && a.Header.Get("X-Stationmaster-Revision") == "" {
				t.Errorf("no revision: %v", a.Header)
			}
		})
	}
	if n := asked.Load(); n < 1 || n > 3 {
		t.Errorf("the metadata was asked for %d times", n)
	}
}

// asked2 is an engine that says what path reached it.
func asked2(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", name, r.URL.Path) }
}

// TestOpenAIOverTensorsByGRPC asks an engine that has a gRPC port: numbers come raw.
func TestOpenAIOverTensorsByGRPC(t *testing.T) {
	addr := grpcEngine(t, &oipEngine{
		inputs: []*pb.ModelMetadataResponse_TensorMetadata{{Name: "text", Datatype: "BYTES", Shape: []int64{-1}}},
		infer: func(_ context.Context, q *pb.ModelInferRequest) (*pb.ModelInferResponse, error) {
			if q.GetModelName() != "emb" || string(q.GetRawInputContents()[0]) != "\x01\x00\x00\x00a" {
				return nil, fmt.Errorf("asked %v", q)
			}
			return &pb.ModelInferResponse{
				Outputs:           []*pb.ModelInferResponse_InferOutputTensor{{Name: "v", Datatype: "FP32", Shape: []int64{1, 1}}},
				RawOutputContents: [][]byte{{0, 0, 0x80, 0x3f}},
			}, nil
		},
	})
	g := start(t, nil, speaking(service("emb", route.Endpoint{GRPC: addr}), "", spec.GRPCV2))
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/embeddings"), `{"model":"emb","input":"a","encoding_format":"base64"}`))
	if a.StatusCode != 200 || !strings.Contains(a.body, `"embedding":"AACAPw=="`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	a = do(t, client(t), request(t, http.MethodPost, g.url("/v1/models/emb:predict"), `{"instances":["a"]}`))
	if a.StatusCode != 200 || a.body != `{"predictions":[[1]]}` {
		t.Errorf("V1: %d %s", a.StatusCode, a.body)
	}
}

// languageEngine speaks OpenAI's completions.
func languageEngine(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	var q struct {
		Model, Prompt string
		Stream        bool
	}
	if r.URL.Path != "/api/v1/completions" || json.Unmarshal(b, &q) != nil || q.Model != "served" {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"asked `+r.URL.Path+`","type":"invalid_request_error"}}`)
		return
	}
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[{"text":"%s!","index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`, q.Prompt)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, piece := range strings.SplitAfter("data: {\"choices\":[{\"text\":\"Grüße\"}]}\n\ndata: {\"choices\":[{\"text\":\"!\",\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n", "\xc3") {
		_, _ = io.WriteString(w, piece)
		w.(http.Flusher).Flush()
	}
	if q.Prompt == "break" {
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

func TestV2OverOpenAI(t *testing.T) {
	registry := prometheus.NewRegistry()
	g := start(t, func(c *gateway.Config) { c.Metrics = registry }, llm("llm", "/api", "served", route.Endpoint{HTTP: engine(t, languageEngine)}))
	const frame = "data: {\"model_name\":\"llm\",\"text_output\":\"%s\",\"done\":%v}\n\n"
	said := fmt.Sprintf(frame, "Grüße", false) + fmt.Sprintf(frame, "!", false)
	tests := map[string]struct {
		method, path, body string
		status             int
		want               string
	}{
		"generate":         {"POST", "/v2/models/llm/generate", `{"text_input":"a"}`, 200, `{"model_name":"llm","text_output":"a!"}`},
		"generate_stream":  {"POST", "/v2/models/llm/generate_stream", `{"text_input":"a"}`, 200, said + fmt.Sprintf(frame, "", true)},
		"it breaks off":    {"POST", "/v2/models/llm/generate_stream", `{"text_input":"break"}`, 200, said + `data: {"error":"`},
		"infer":            {"POST", "/v2/models/llm/infer", `{"id":"7","inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["a"]}]}`, 200, `{"model_name":"llm","id":"7","parameters":{"completion_tokens":4,"prompt_tokens":3},"outputs":[{"name":"text_output","datatype":"BYTES","shape":[1],"data":["a!"]}]}`},
		"metadata":         {"GET", "/v2/models/llm", ``, 200, `{"name":"llm","platform":"openai","inputs":[{"name":"text_input","datatype":"BYTES","shape":[-1]}],"outputs":[{"name":"text_output","datatype":"BYTES","shape":[-1]},{"name":"finish_reason","datatype":"BYTES","shape":[-1]}]}`},
		"ready":            {"GET", "/v2/models/llm/ready", ``, 200, `{"name":"llm","ready":true}`},
		"a bad parameter":  {"POST", "/v2/models/llm/generate", `{"text_input":"a","parameters":{"n":2}}`, 400, `{"error":"the parameter \"n\"`},
		"a tensor":         {"POST", "/v2/models/llm/infer", `{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]}]}`, 400, `{"error":"input \"x\"`},
		"a version":        {"POST", "/v2/models/llm/versions/2/infer", `{}`, 501, `{"error":"the engine of`},
		"a wrong method":   {"GET", "/v2/models/llm/generate", ``, 405, `{"error":`},
		"a wrong method 2": {"POST", "/v2/models/llm/ready", ``, 405, `{"error":`},
	}
	c := client(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a := do(t, c, request(t, tc.method, g.url(tc.path), tc.body))
			if a.StatusCode != tc.status || !strings.HasPrefix(a.body, tc.want) {
				t.Errorf("%d\n got %s\nwant %s", a.StatusCode, a.body, tc.want)
			}
			if tc.status == 200 && a.Header.Get("X-Model-Digest") != digest {
				t.Errorf("digest: %v", a.Header)
			}
		})
	}
	if got := series(t, registry, "stationmaster_tokens_total"); got["stationmaster_tokens_total completion"] != 16 || got["stationmaster_tokens_total prompt"] != 12 {
		t.Errorf("tokens %v", got)
	}
}

func TestV1AndV2OverEachOther(t *testing.T) {
	const meta = `{"name":"v2","platform":"x","inputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}],"outputs":[]}`
	v2 := service("v2", route.Endpoint{HTTP: engine(t, v2Engine("v2", meta, `{"model_name":"v2","outputs":[{"name":"y","datatype":"INT64","shape":[1],"data":[7]}]}`, new(atomic.Int32)))})
	v1 := service("v1", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/v1/models/v1":
			_, _ = io.WriteString(w, `{"name":"v1","ready":"True"}`)
		case r.URL.Path == "/v1/models/v1:predict" && string(b) == `{"instances":[[1,2.5]]}`:
			_, _ = io.WriteString(w, `{"predictions":[0.5]}`)
		default:
			http.Error(w, `{"error":"no"}`, http.StatusNotFound)
		}
	})})
	g := start(t, nil, speaking(v2, "", spec.V2), speaking(v1, "", spec.V1), llm("llm", "/api", "served", route.Endpoint{HTTP: engine(t, languageEngine)}))
	c := client(t)
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
		want               string
	}{
		"V1 over V2":          {"POST", "/v1/models/v2:predict", `{"instances":[[1,2]]}`, 200, `{"predictions":[7]}`},
		"what doesn't fit":    {"POST", "/v1/models/v2:predict", `{"instances":["a"]}`, 400, `{"error":"instances: input \"x\"`},
		"V2 over V1":          {"POST", "/v2/models/v1/infer", `{"id":"7","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2.5]}]}`, 200, `{"model_name":"v1","id":"7","outputs":[{"name":"predictions","datatype":"FP64","shape":[1],"data":[0.5]}]}`},
		"ready":               {"GET", "/v2/models/v1/ready", ``, 200, `{"name":"v1","ready":true}`},
		"an engine's refusal": {"POST", "/v2/models/v1/infer", `{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}`, 404, `{"error":"no"}`},
		"V1 has no versions":  {"POST", "/v2/models/v1/versions/1/infer", `{}`, 501, `{"error":`},
		"V1 has no metadata":  {"GET", "/v2/models/v1", ``, 501, `{"error":`},
		"status over V2":      {"GET", "/v1/models/v2", ``, 200, `{"name":"v2","ready":true}`},
		"a version over V2":   {"POST", "/v1/models/v2/versions/3:predict", `{"instances":[[1,2]]}`, 200, `{"predictions":[3]}`},
		"a field of its own":  {"POST", "/v1/models/v2:predict", `{"instances":[[1,2]],"context":{}}`, 400, `{"error":"\"context\"`},
		"explain over V2":     {"POST", "/v1/models/v2:explain", `{"instances":[[1,2]]}`, 501, `{"error":"the engine of default/v2 speaks V2, which has no :explain`},
		"regress over V2":     {"POST", "/v1/models/v2:regress", `{}`, 501, `{"error":`},
		"over OpenAI":         {"POST", "/v1/models/llm:predict", `{"instances":["a"]}`, 200, `{"predictions":["a!"]}`},
		"with parameters":     {"POST", "/v1/models/llm:predict", `{"instances":["a"],"parameters":{"max_tokens":3}}`, 200, `{"predictions":["a!"]}`},
		"nested parameters":   {"POST", "/v1/models/llm:predict", `{"instances":["a"],"parameters":{"x":[3]}}`, 400, `{"error":"parameters: parameter \"x\"`},
		"numbers over OpenAI": {"POST", "/v1/models/llm:predict", `{"instances":[[1]]}`, 400, `{"error":"instances: input \"text_input\"`},
		"explain over OpenAI": {"POST", "/v1/models/llm:explain", `{"instances":["a"]}`, 501, `{"error":"the engine of default/llm speaks OpenAI`},
		"no version, OpenAI":  {"POST", "/v1/models/llm/versions/2:predict", `{"instances":["a"]}`, 501, `{"error":`},
		"a wrong method":      {"GET", "/v1/models/llm:predict", ``, 405, `{"error":`},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, tc.method, g.url(tc.path), tc.body)
			r.Header.Set("X-Client", "kept")
			a := do(t, c, r)
			if a.StatusCode != tc.status || !strings.HasPrefix(a.body, tc.want) {
				t.Errorf("%d\n got %s\nwant %s", a.StatusCode, a.body, tc.want)
			}
		})
	}
}

// generating is a V2 engine that makes text of text, as the Triton server does.
func generating(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	switch r.URL.Path {
	case "/v2/models/gen":
		_, _ = io.WriteString(w, `{"name":"gen","platform":"x","inputs":[{"name":"text_input","datatype":"BYTES","shape":[1]},{"name":"stream","datatype":"BOOL","shape":[1]}],"outputs":[{"name":"text_output","datatype":"BYTES","shape":[-1]}]}`)
	case "/v2/models/gen/generate":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"model_name":"gen","text_output":%q}`, b)
	case "/v2/models/gen/generate_stream":
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, piece := range strings.SplitAfter("data: {\"text_output\":\"Grüße\"}\n\ndata: {\"text_output\":\"!\"}\n\n", "\xc3") {
			_, _ = io.WriteString(w, piece)
			w.(http.Flusher).Flush()
		}
		if strings.Contains(string(b), "break") {
			panic(http.ErrAbortHandler)
		}
	}
}

func TestCompletionsOverV2(t *testing.T) {
	registry := prometheus.NewRegistry()
	g := start(t, func(c *gateway.Config) { c.Metrics = registry }, speaking(service("gen", route.Endpoint{HTTP: engine(t, generating)}), "", spec.V2))
	c := client(t)
	a := do(t, c, request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"gen","prompt":"a","max_tokens":3}`))
	if a.StatusCode != 200 || !strings.Contains(a.body, `{\"text_input\":\"a\",\"stream\":false,\"parameters\":{\"max_tokens\":3}}`) || !strings.Contains(a.body, `"system_fingerprint":"gen-00001@4f2b"`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	a = do(t, c, request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"gen","prompt":"a","stream":true}`))
	if a.StatusCode != 200 || strings.Count(a.body, "data: ") != 4 || !strings.Contains(a.body, `"text":"Grüße"`) || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	a = do(t, c, request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"gen","prompt":"break","stream":true}`))
	if a.StatusCode != 200 || !strings.Contains(a.body, `"code":"stream_broken"`) || strings.Contains(a.body, "[DONE]") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	a = do(t, c, request(t, http.MethodPost, g.url("/v1/chat/completions"), `{"model":"gen","messages":[]}`))
	if message, _, _, _ := apiError(t, a); a.StatusCode != 501 || !strings.Contains(message, "no messages") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	a = do(t, c, request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"gen","prompt":"a","n":2}`))
	if apiError(t, a); a.StatusCode != 400 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if got := series(t, registry, "stationmaster_time_to_first_token")["stationmaster_time_to_first_token_seconds"]; got != 2 {
		t.Errorf("first tokens of %v streams were timed", got)
	}
}

// TestTheShapeForAModelThatIsNot asks under a path that V1 and the OpenAI API share.
func TestTheShapeForAModelThatIsNot(t *testing.T) {
	api := llm("llm", "/", "llm", route.Endpoint{HTTP: engine(t, asked2("llm"))})
	v1 := speaking(service("v1", route.Endpoint{HTTP: engine(t, asked2("v1"))}), "", spec.V1)
	for name, tc := range map[string]struct {
		services []route.Service
		path     string
		sdk, api bool
	}{
		"engines of V1":                      {[]route.Service{v1}, "/v1/models/none", false, false},
		"engines of OpenAI":                  {[]route.Service{api}, "/v1/models/none", false, true},
		"both":                               {[]route.Service{api, v1}, "/v1/models/none", false, false},
		"both, and a client of OpenAI":       {[]route.Service{api, v1}, "/v1/models/none", true, true},
		"both, under OpenAI's own path":      {[]route.Service{api, v1}, "/openai/v1/models/none", false, true},
		"no engines, and a client of OpenAI": {nil, "/v1/models/none", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, nil, tc.services...)
			r := request(t, http.MethodGet, g.url(tc.path), "")
			if tc.sdk {
				r.Header.Set("X-Stainless-Lang", "python")
			}
			a := do(t, client(t), r)
			if a.StatusCode != http.StatusNotFound {
				t.Fatalf("%d %s", a.StatusCode, a.body)
			}
			if tc.api {
				apiError(t, a)
			} else if !strings.HasPrefix(a.body, `{"error":"`) {
				t.Errorf("%s", a.body)
			}
		})
	}
}
