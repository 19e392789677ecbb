package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// busyEngine tells of a model of texts, and refuses all else with a status and these fields.
func busyEngine(code int, fields map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"name":"m","inputs":[{"name":"text","datatype":"BYTES","shape":[-1]}],"outputs":[{"name":"logits","datatype":"FP32","shape":[-1,2]}]}`)
			return
		}
		for name, value := range fields {
			w.Header().Set(name, value)
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"error":"the queue is full"}`)
	}
}

// TestAnEngineThatIsBusySaysWhenToAskAgain asks engines that refuse for now by way of every translation:
// their status and what they say of the time come to the client.
func TestAnEngineThatIsBusySaysWhenToAskAgain(t *testing.T) {
	asks := map[string]struct{ path, body string }{
		"classify over V2":        {"/v1/classify", `{"model":"net","input":"a"}`},
		"embeddings over V2":      {"/v1/embeddings", `{"model":"net","input":"a"}`},
		"V1 over V2":              {"/v1/models/net:predict", `{"instances":["a"]}`},
		"V1 over OpenAI":          {"/v1/models/llm:predict", `{"instances":["a"]}`},
		"V2 over V1":              {"/v2/models/old/infer", `{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}`},
		"generate over OpenAI":    {"/v2/models/llm/generate", `{"text_input":"a"}`},
		"a stream over OpenAI":    {"/v2/models/llm/generate_stream", `{"text_input":"a"}`},
		"V2's infer over OpenAI":  {"/v2/models/llm/infer", `{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["a"]}]}`},
		"rerank in TEI's own way": {"/v1/rerank", `{"model":"tei","query":"q","documents":["a"]}`},
	}
	for _, tc := range []struct {
		code      int
		fields    map[string]string
		after, ms string
		rpc       codes.Code
	}{
		{429, map[string]string{"Retry-After": "30"}, "30", "", codes.ResourceExhausted},
		{429, map[string]string{"Retry-After-Ms": "2500"}, "3", "2500", codes.ResourceExhausted},
		{429, nil, "1", "1000", codes.ResourceExhausted},
		{503, map[string]string{"Retry-After": "41", "Retry-After-Ms": "40500"}, "41", "40500", codes.Unavailable},
	} {
		t.Run(fmt.Sprint(tc.code, tc.fields), func(t *testing.T) {
			at := route.Endpoint{HTTP: engine(t, busyEngine(tc.code, tc.fields))}
			g := start(t, nil, speaking(service("net", at), "", spec.V2), speaking(service("old", at), "", spec.V1),
				llm("llm", "/", "served", at), speaking(llm("tei", "/", "served", at), "dialect=tei"))
			c := client(t)
			for name, ask := range asks {
				a := do(t, c, request(t, http.MethodPost, g.url(ask.path), ask.body))
				if a.StatusCode != tc.code || a.Header.Get("Retry-After") != tc.after || a.Header.Get("Retry-After-Ms") != tc.ms || !strings.Contains(a.body, "the queue is full") {
					t.Errorf("%s: %d %v %s", name, a.StatusCode, a.Header, a.body)
				}
				if strings.Contains(a.body, `"type"`) {
					if _, kind, _, _ := apiError(t, a); (kind == "rate_limit_error") != (tc.code == 429) {
						t.Errorf("%s: the error's type is %s", name, kind)
					}
				}
			}
			rpc := pb.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
			for _, model := range []string{"llm", "old", "net"} {
				in := asText(model, "a", false)
				if model == "net" {
					in.Inputs[0].Name = "text"
				}
				var trailer metadata.MD
				_, err := rpc.ModelInfer(t.Context(), in, grpc.Trailer(&trailer))
				if status.Code(err) != tc.rpc || !strings.Contains(err.Error(), "the queue is full") || !slices.Equal(trailer["retry-after"], []string{tc.after}) {
					t.Errorf("%s over gRPC: %v %v", model, err, trailer)
				}
			}
		})
	}
}
