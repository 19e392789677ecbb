package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// answers is an engine that answers each "<path> <body>" as it says, and tells what else it was asked.
func answers(table map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		answer, ok := table[strings.TrimSpace(r.URL.Path+" "+string(b))]
		if !ok {
			w.WriteHeader(http.StatusTeapot)
			answer = "asked " + r.URL.Path + " " + string(b)
		}
		_, _ = io.WriteString(w, answer)
	}
}

// TestEnginesWithPathsOfTheirOwn asks engines that don't have all of the OpenAI API where others do.
func TestEnginesWithPathsOfTheirOwn(t *testing.T) {
	serving := func(name, root, settings string, table map[string]string, protocols ...spec.Protocol) route.Service {
		return speaking(llm(name, root, "served", route.Endpoint{HTTP: engine(t, answers(table))}), settings, protocols...)
	}
	const ranked = `[{"index":1,"score":0.75},{"index":0,"score":0.25}]`
	tei := map[string]string{
		`/rerank {"query":"q","texts":["a","b"]}`:                                   ranked,
		`/predict {"inputs":[["x"]]}`:                                               `[[{"score":0.75,"label":"yes"},{"score":0.25,"label":"no"}]]`,
		`/v1/embeddings {"model":"served","encoding_format":"float","input":["a"]}`: `{"object":"list","data":[{"index":0,"embedding":[1,2]}],"model":"served"}`,
		`/v1/embeddings {"model":"served","input":"a"}`:                             `{"as it came":true}`,
	}
	vllm := map[string]string{
		`/classify {"model":"served","input":"a"}`: `{"as it came":true}`,
		`/v1/score {"model":"served","input":"a"}`: `{"as it came":true}`,
	}
	ovms := map[string]string{
		`/v3/embeddings {"model":"served","input":"a"}`:                   `{"as it came":true}`,
		`/v3/rerank {"model":"served","query":"a"}`:                       `{"as it came":true}`,
		`/v3/chat/completions {"model":"served","messages":[]}`:           `{"as it came":true}`,
		`/v3/completions {"model":"served","prompt":"a","max_tokens":20}`: `{"choices":[{"text":"b","index":0,"finish_reason":"stop"}]}`,
		`/v3/completions {"model":"served","prompt":"a"}`:                 `{"choices":[{"text":"b","index":0,"finish_reason":"stop"}]}`,
		`/v3/models`:        `{"its own":"list"}`,
		`/v2/models/served`: `{"name":"served","inputs":[{"name":"HTTP_REQUEST_PAYLOAD","datatype":"INVALID","shape":[]}],"outputs":[]}`,
	}
	tensors := map[string]string{
		`/v2/models/served`: `{"name":"served","inputs":[{"name":"text","datatype":"BYTES","shape":[-1]}],"outputs":[{"name":"v","datatype":"FP32","shape":[-1,1]}]}`,
		`/v2/models/served/infer {"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}]}`: `{"outputs":[{"name":"v","datatype":"FP32","shape":[1,1],"data":[1]}]}`,
	}
	silent := map[string]string{`/v3/completions {"model":"served","prompt":"a"}`: `{"choices":[{"text":"b","index":0,"finish_reason":"stop"}]}`}
	g := start(t, nil,
		serving("silent", "/v3", "models=either", silent, spec.V1, spec.V2),
		serving("tei", "/", "task=embeddings, dialect=tei", tei),
		serving("vllm", "/", "dialect=vllm", vllm),
		serving("ovms", "/v3", "models=either", ovms, spec.V1, spec.V2),
		serving("net", "/v3", "models=either", tensors, spec.V1, spec.V2),
	)
	c := client(t)
	for name, tc := range map[string]struct {
		path, body string
		status     int
		want       string
	}{
		"TEI's rerank":             {"/v1/rerank", `{"model":"tei","query":"q","documents":["a","b"],"top_n":1,"return_documents":false}`, 200, `"model":"tei","results":[{"index":1,"relevance_score":0.75}]`},
		"a slash at the end":       {"/v1/classify/", `{"model":"tei","input":"x"}`, 200, `"label":"yes","probs":[0.25,0.75]`},
		"one, for vLLM":            {"/v1/classify/", `{"model":"vllm","input":"a"}`, 200, `{"as it came":true}`},
		"TEI's score":              {"/openai/v1/score", `{"model":"tei","text_1":"q","text_2":["a","b"]}`, 200, `"data":[{"index":0,"object":"score","score":0.25},{"index":1,"object":"score","score":0.75}]`},
		"TEI's classify":           {"/v1/classify", `{"model":"tei","input":"x"}`, 200, `"label":"yes","probs":[0.25,0.75]`},
		"what TEI can't":           {"/v1/score", `{"model":"tei","text_1":["p","q"],"text_2":["a","b"]}`, 400, `one text with others at a time`},
		"TEI's embeddings":         {"/v1/embeddings", `{"model":"tei","input":"a"}`, 200, `{"as it came":true}`},
		"TEI's refusal":            {"/v1/rerank", `{"model":"tei","query":"q","documents":["c"]}`, 400, `asked /rerank`},
		"V2 over TEI":              {"/v2/models/tei/infer", `{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["a"]}]}`, 200, `"outputs":[{"name":"embedding","datatype":"FP32","shape":[1,2],"data":[1,2]}]`},
		"V1 over TEI":              {"/v1/models/tei:predict", `{"instances":["a"]}`, 200, `{"predictions":[[1,2]]}`},
		"vLLM's classify":          {"/v1/classify", `{"model":"vllm","input":"a"}`, 200, `{"as it came":true}`},
		"vLLM's score":             {"/v1/score", `{"model":"vllm","input":"a"}`, 200, `{"as it came":true}`},
		"OpenVINO's embeddings":    {"/v1/embeddings", `{"model":"ovms","input":"a"}`, 200, `{"as it came":true}`},
		"OpenVINO's rerank":        {"/openai/v1/rerank", `{"model":"ovms","query":"a"}`, 200, `{"as it came":true}`},
		"OpenVINO's chat":          {"/v1/chat/completions", `{"model":"ovms","messages":[]}`, 200, `{"as it came":true}`},
		"OpenVINO's models":        {"/serving/default/ovms/openai/v1/models", ``, 200, `{"its own":"list"}`},
		"V2 over OpenVINO":         {"/v2/models/ovms/infer", `{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["a"]}]}`, 200, `"outputs":[{"name":"text_output","datatype":"BYTES","shape":[1],"data":["b"]}]`},
		"generate over OpenVINO":   {"/v2/models/ovms/generate", `{"text_input":"a"}`, 200, `"text_output":"b"`},
		"OpenVINO's graph":         {"/v2/models/ovms", ``, 200, `"inputs":[{"name":"text_input","datatype":"BYTES","shape":[-1]}]`},
		"tensors for its graph":    {"/v2/models/ovms/infer", `{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]}]}`, 400, `{"error":"input \"x\"`},
		"what tells no metadata":   {"/v2/models/silent/infer", `{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["a"]}]}`, 200, `"data":["b"]`},
		"V2 of OpenVINO's tensors": {"/v2/models/net/infer", `{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}]}`, 200, `"data":[1]`},
		"OpenVINO's network":       {"/v2/models/net", ``, 200, `"inputs":[{"name":"text",`},
		"OpenVINO's tensors":       {"/v1/embeddings", `{"model":"net","input":"a"}`, 200, `"embedding":[1]`},
		"OpenVINO's tensors chat":  {"/v1/chat/completions", `{"model":"net","messages":[]}`, 501, `takes text BYTES`},
	} {
		t.Run(name, func(t *testing.T) {
			method := http.MethodPost
			if tc.body == "" {
				method = http.MethodGet
			}
			a := do(t, c, request(t, method, g.url(tc.path), tc.body))
			if a.StatusCode != tc.status || !strings.Contains(a.body, tc.want) {
				t.Errorf("%d\n got %s\nwant %s", a.StatusCode, a.body, tc.want)
			}
		})
	}
}

// TestPairsAndClassesOverOpenAI asks with tensors what OpenAI calls score and classify, over REST and gRPC.
func TestPairsAndClassesOverOpenAI(t *testing.T) {
	var asked atomic.Int32
	h := answers(map[string]string{
		`/api/v1/score {"model":"served","text_1":"q","text_2":["a","b"]}`: `{"data":[{"index":0,"score":0.25},{"index":1,"score":0.75}],"usage":{"prompt_tokens":3}}`,
		`/api/v1/classify {"model":"served","input":["q"]}`:                `{"data":[{"index":0,"label":"yes","probs":[0.25,0.75]}]}`,
	})
	count := func(w http.ResponseWriter, r *http.Request) { asked.Add(1); h(w, r) }
	at := route.Endpoint{HTTP: engine(t, count)}
	g := start(t, nil, speaking(llm("score", "/api", "served", at), "task=score"), speaking(llm("kinds", "/api", "served", at), "task=classify"))
	c := client(t)
	for name, tc := range map[string]struct{ method, path, body, want string }{
		"infer":          {"POST", "/v2/models/score/infer", `{"inputs":[{"name":"text_1","datatype":"BYTES","shape":[2],"data":["q","q"]},{"name":"text_2","datatype":"BYTES","shape":[2],"data":["a","b"]}]}`, `{"model_name":"score","outputs":[{"name":"scores","datatype":"FP32","shape":[2],"data":[0.25,0.75]}]}`},
		"V1":             {"POST", "/v1/models/score:predict", `{"instances":[{"text_1":"q","text_2":"a"},{"text_1":"q","text_2":"b"}]}`, `{"predictions":[0.25,0.75]}`},
		"metadata":       {"GET", "/v2/models/score", ``, `{"name":"score","platform":"openai","inputs":[{"name":"text_1","datatype":"BYTES","shape":[-1]},{"name":"text_2","datatype":"BYTES","shape":[-1]}],"outputs":[{"name":"scores","datatype":"FP32","shape":[-1]}]}`},
		"classes":        {"POST", "/v2/models/kinds/infer", `{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["q"]}]}`, `"outputs":[{"name":"labels","datatype":"BYTES","shape":[1],"data":["yes"]},{"name":"probabilities","datatype":"FP32","shape":[1,2],"data":[0.25,0.75]}]}`},
		"classes for V1": {"POST", "/v1/models/kinds:predict", `{"instances":["q"]}`, `{"predictions":[{"labels":"yes","probabilities":[0.25,0.75]}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			a := do(t, c, request(t, tc.method, g.url(tc.path), tc.body))
			if a.StatusCode != 200 || !strings.Contains(a.body, tc.want) {
				t.Errorf("%d\n got %s\nwant %s", a.StatusCode, a.body, tc.want)
			}
		})
	}
	if asked.Load() != 4 {
		t.Errorf("the engine was asked %d times", asked.Load())
	}

	rpc := pb.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	pairs := asText("score", "", false)
	pairs.Inputs[0] = &pb.ModelInferRequest_InferInputTensor{Name: "pairs", Datatype: "BYTES", Shape: []int64{2, 2},
		Contents: &pb.InferTensorContents{BytesContents: [][]byte{[]byte("q"), []byte("a"), []byte("q"), []byte("b")}}}
	out, err := rpc.ModelInfer(t.Context(), pairs)
	if err != nil || out.GetOutputs()[0].GetName() != "scores" || out.GetOutputs()[0].GetContents().GetFp32Contents()[1] != 0.75 {
		t.Errorf("over gRPC: %v, %v", out, err)
	}
	got, err := rpc.ModelMetadata(t.Context(), &pb.ModelMetadataRequest{Name: "kinds"})
	want := []*pb.ModelMetadataResponse_TensorMetadata{{Name: "labels", Datatype: "BYTES", Shape: []int64{-1}}, {Name: "probabilities", Datatype: "FP32", Shape: []int64{-1, -1}}}
	if err != nil || !proto.Equal(&pb.ModelMetadataResponse{Outputs: want}, &pb.ModelMetadataResponse{Outputs: got.GetOutputs()}) {
		t.Errorf("metadata over gRPC: %v, %v", got, err)
	}
}

// TestWhatPassesGoesToAnotherReplica asks replicas of an engine of both kinds, one of which dies over each chat.
func TestWhatPassesGoesToAnotherReplica(t *testing.T) {
	healthy := answers(map[string]string{`/v3/chat/completions {"model":"served","messages":[]}`: `{"by":"the other"}`})
	dying := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			http.NotFound(w, r)
			return
		}
		panic(http.ErrAbortHandler)
	}
	s := llm("ovms", "/v3", "served", route.Endpoint{Replica: "a", HTTP: engine(t, dying)}, route.Endpoint{Replica: "b", HTTP: engine(t, healthy)})
	g := start(t, nil, speaking(s, "models=either", spec.V2))
	for range 6 {
		a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), `{"model":"ovms","messages":[]}`))
		if a.StatusCode != 200 || !strings.Contains(a.body, "the other") {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
	}
}
