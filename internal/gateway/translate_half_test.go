package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// TestHalfFloatsReachClientsOfJSON asks models of FP16 and BF16, whose numbers V2 has no JSON for, over REST
// and gRPC.
func TestHalfFloatsReachClientsOfJSON(t *testing.T) {
	for datatype, raw := range map[string]string{"FP16": "\x00\x3e\x00\xb4", "BF16": "\xc0\x3f\x80\xbe"} { // 1.5 and -0.25
		t.Run(datatype, func(t *testing.T) {
			overREST := engine(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				switch {
				case r.Method == http.MethodGet:
					fmt.Fprintf(w, `{"name":"m","inputs":[{"name":"text","datatype":"BYTES","shape":[-1]}],"outputs":[{"name":"embedding","datatype":"%s","shape":[-1,2]}]}`, datatype)
				case !strings.Contains(string(b), `"binary_data_output":true`) && !strings.Contains(string(b), `"binary_data":true`):
					http.Error(w, `{"error":"there is no JSON for it"}`, http.StatusBadRequest)
				default:
					head := fmt.Sprintf(`{"model_name":"m","outputs":[{"name":"embedding","datatype":"%s","shape":[1,2],"parameters":{"binary_data_size":4}}]}`, datatype)
					w.Header().Set("Content-Type", "application/octet-stream")
					w.Header().Set("Inference-Header-Content-Length", fmt.Sprint(len(head)))
					_, _ = io.WriteString(w, head+raw)
				}
			})
			overGRPC := grpcEngine(t, &oipEngine{
				inputs: []*pb.ModelMetadataResponse_TensorMetadata{{Name: "text", Datatype: "BYTES", Shape: []int64{-1}}},
				infer: func(context.Context, *pb.ModelInferRequest) (*pb.ModelInferResponse, error) {
					return &pb.ModelInferResponse{
						Outputs:           []*pb.ModelInferResponse_InferOutputTensor{{Name: "embedding", Datatype: datatype, Shape: []int64{1, 2}}},
						RawOutputContents: [][]byte{[]byte(raw)},
					}, nil
				},
			})
			g := start(t, nil, speaking(service("rest", route.Endpoint{HTTP: overREST}), "", spec.V2), speaking(service("declared", route.Endpoint{HTTP: overREST}), "output=embedding", spec.V2),
				speaking(service("rpc", route.Endpoint{GRPC: overGRPC}), "", spec.GRPCV2))
			c := client(t)
			for _, name := range []string{"rest", "declared", "rpc"} {
				a := do(t, c, request(t, http.MethodPost, g.url("/v1/models/"+name+":predict"), `{"instances":["a"]}`))
				if a.StatusCode != 200 || a.body != `{"predictions":[[1.5,-0.25]]}` {
					t.Errorf("V1, %s: %d %s", name, a.StatusCode, a.body)
				}
				a = do(t, c, request(t, http.MethodPost, g.url("/v1/embeddings"), `{"model":"`+name+`","input":"a"}`))
				if a.StatusCode != 200 || !strings.Contains(a.body, `"embedding":[1.5,-0.25]`) {
					t.Errorf("embeddings, %s: %d %s", name, a.StatusCode, a.body)
				}
			}
		})
	}
}
