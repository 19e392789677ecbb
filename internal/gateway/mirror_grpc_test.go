package gateway_test

import (
	"context"
	"encoding/binary"
	"net/http"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// labelling is an engine that names a class, typed or raw, or fails.
func labelling(class int64, raw bool, code codes.Code, seen func(context.Context, *pb.ModelInferRequest)) *oipEngine {
	return &oipEngine{name: "iris", infer: func(ctx context.Context, r *pb.ModelInferRequest) (*pb.ModelInferResponse, error) {
		if seen != nil {
			seen(ctx, r)
		}
		if code != codes.OK {
			return nil, status.Error(code, "it fails")
		}
		out := &pb.ModelInferResponse{ModelName: "iris", Id: r.GetId(), Outputs: []*pb.ModelInferResponse_InferOutputTensor{{Name: "label", Datatype: "INT64", Shape: []int64{1}}}}
		if raw {
			out.RawOutputContents = [][]byte{binary.LittleEndian.AppendUint64(nil, uint64(class))}
		} else {
			out.Outputs[0].Contents = &pb.InferTensorContents{Int64Contents: []int64{class}}
		}
		return out, nil
	}}
}

func TestCopiesOfCallsAreCountedByWhatTheySay(t *testing.T) {
	const n = 3
	classOverREST := func(class string) route.Endpoint {
		return route.Endpoint{HTTP: engine(t, answering(200, "application/json", `{"model_name":"iris","outputs":[{"name":"label","datatype":"INT64","shape":[1],"data":[`+class+`]}]}`))}
	}
	over := func(e *oipEngine) route.Endpoint { return route.Endpoint{GRPC: grpcEngine(t, e)} }
	for name, tc := range map[string]struct {
		stable, canary   route.Endpoint
		compared, differ uint64
		result           string
	}{
		"the same class, typed and raw":    {stable: over(labelling(1, false, 0, nil)), canary: over(labelling(1, true, 0, nil)), compared: n, result: "equal"},
		"another class, typed":             {stable: over(labelling(1, false, 0, nil)), canary: over(labelling(2, false, 0, nil)), compared: n, differ: n, result: "output-differs"},
		"another class, raw":               {stable: over(labelling(1, true, 0, nil)), canary: over(labelling(2, true, 0, nil)), compared: n, differ: n, result: "output-differs"},
		"an error in place of an answer":   {stable: over(labelling(1, true, 0, nil)), canary: over(labelling(0, false, codes.InvalidArgument, nil)), compared: n, differ: n, result: "status-differs"},
		"an answer in place of an error":   {stable: over(labelling(0, false, codes.InvalidArgument, nil)), canary: over(labelling(1, true, 0, nil)), result: "status-differs"},
		"a copy that gets no answer":       {stable: over(labelling(1, true, 0, nil)), canary: over(labelling(0, false, codes.Unavailable, nil)), compared: n, differ: n, result: "failed"},
		"an engine that speaks REST alone": {stable: over(labelling(1, true, 0, nil)), canary: classOverREST("2"), compared: n, differ: n, result: "output-differs"},
		"both of them":                     {stable: classOverREST("1"), canary: classOverREST("1"), compared: n, result: "equal"},
	} {
		t.Run(name, func(t *testing.T) {
			load, metrics := new(state.Topic[demand.Report]), prometheus.NewRegistry()
			s := shadowed("", "", 100)
			for i, e := range []route.Endpoint{tc.canary, tc.stable} {
				e.Replica = s.Components[spec.Predictor].Targets[i].Endpoints[0].Replica
				s.Components[spec.Predictor].Targets[i].Endpoints[0] = e
			}
			g := start(t, func(c *gateway.Config) { c.Demand, c.Metrics = load, metrics }, s)
			client := pb.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
			for range n {
				_, _ = client.ModelInfer(t.Context(), &pb.ModelInferRequest{ModelName: "iris", Inputs: []*pb.ModelInferRequest_InferInputTensor{{
					Name: "x", Datatype: "FP32", Shape: []int64{1}, Contents: &pb.InferTensorContents{Fp32Contents: []float32{1}},
				}}})
			}
			if got := untilCounted(t, metrics, n); got[tc.result] != n {
				t.Errorf("counted %v, want %d %s", got, n, tc.result)
			}
			if tc.compared == 0 {
				return
			}
			got := untilAnswers(t, load, "iris-00002", func(c evidence.Counts) bool { return c.Compared >= n })
			if got.Compared != tc.compared || got.Differ != tc.differ || got.Requests != 0 {
				t.Errorf("counted %+v", got)
			}
		})
	}
}

func TestACopyOfACallTellsWhatItIs(t *testing.T) {
	type asked struct {
		md metadata.MD
		r  *pb.ModelInferRequest
	}
	copies := make(chan asked, 1)
	canary := labelling(1, true, 0, func(ctx context.Context, r *pb.ModelInferRequest) {
		md, _ := metadata.FromIncomingContext(ctx)
		copies <- asked{md, r}
	})
	s := shadowed("", "", 100)
	backend := s.Components[spec.Predictor]
	backend.Targets[0].Endpoints[0] = route.Endpoint{Replica: "b", GRPC: grpcEngine(t, canary)}
	backend.Targets[1].Endpoints[0] = route.Endpoint{Replica: "a", GRPC: grpcEngine(t, labelling(1, true, 0, nil))}
	g := start(t, nil, s)
	client := pb.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "blue", "x-request-id", "mine")
	var header metadata.MD
	sent := &pb.ModelInferRequest{ModelName: "iris", Id: "7", RawInputContents: [][]byte{{1, 2}}}
	if _, err := client.ModelInfer(ctx, sent, grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	if got := header.Get("x-stationmaster-revision"); !slices.Equal(got, []string{"iris-00001"}) {
		t.Errorf("the client was answered by %v", got)
	}
	got := <-copies
	for key, want := range map[string]string{"x-tenant": "blue", "x-request-id": "mine", http.CanonicalHeaderKey(gateway.MirrorHeader): "1"} {
		if v := got.md.Get(key); !slices.Equal(v, []string{want}) {
			t.Errorf("%s is %v, want %s", key, v, want)
		}
	}
	if !proto.Equal(got.r, sent) {
		t.Errorf("the copy is %v, want %v", got.r, sent)
	}
}
