package gateway_test

import (
	"context"
	"encoding/binary"
	"math"
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
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// tensors is a V2 answer.
func tensors(t ...oip.Tensor) *oip.InferResponse {
	return &oip.InferResponse{ModelName: "m", Outputs: t}
}

// forms are an answer in each of its encodings.
func forms(t *testing.T, r *oip.InferResponse) map[string]gateway.Heard {
	t.Helper()
	out := map[string]gateway.Heard{}
	half := slices.ContainsFunc(r.Outputs, func(o oip.Tensor) bool { return o.Datatype == oip.FP16 || o.Datatype == oip.BF16 })
	if !half { // which have no other form than raw
		body, _, err := oip.AppendResponse(nil, r, func(string) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		out["JSON"] = gateway.Heard{Body: body}
	}
	body, n, err := oip.AppendResponse(nil, r, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	out["binary tensors"] = gateway.Heard{Body: body, JSONLen: n}
	for name, raw := range map[string]bool{"a typed message": false, "a raw message": true} {
		m, err := oip.ResponseToProto(r, raw)
		if err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = gateway.Heard{Body: b, Message: true}
	}
	return out
}

func TestDriftIsTheSameInEveryEncoding(t *testing.T) {
	scores := func(v ...float32) oip.Tensor {
		return oip.Tensor{Name: "scores", Datatype: oip.FP32, Shape: []int64{2, 2}, Data: v}
	}
	label := func(v ...int64) oip.Tensor {
		return oip.Tensor{Name: "label", Datatype: oip.Int64, Shape: []int64{int64(len(v))}, Data: v}
	}
	words := func(v ...string) oip.Tensor {
		all := make([][]byte, len(v))
		for i, s := range v {
			all[i] = []byte(s)
		}
		return oip.Tensor{Name: "class", Datatype: oip.Bytes, Shape: []int64{int64(len(v))}, Data: all}
	}
	half := func(d oip.Datatype, bits ...uint16) oip.Tensor {
		return oip.Tensor{Name: "scores", Datatype: d, Shape: []int64{1, int64(len(bits))}, Data: bits}
	}
	const f16one, f16half, b16one, b16half = 0x3c00, 0x3800, 0x3f80, 0x3f00
	for name, tc := range map[string]struct {
		want, got *oip.InferResponse
		differs   bool
		result    string
	}{
		"the same":                            {tensors(scores(0.9, 0.1, 0.2, 0.8)), tensors(scores(0.9, 0.1, 0.2, 0.8)), false, "equal"},
		"other scores, the same greatest":     {tensors(scores(0.9, 0.1, 0.2, 0.8)), tensors(scores(0.6, 0.4, 0.3, 0.7)), false, "output-differs"},
		"scores within tolerance":             {tensors(scores(0.9, 0.1, 0.2, 0.8)), tensors(scores(0.90001, 0.1, 0.2, 0.8)), false, "equal"},
		"another greatest in one row":         {tensors(scores(0.9, 0.1, 0.2, 0.8)), tensors(scores(0.9, 0.1, 0.8, 0.2)), true, "output-differs"},
		"other scores beside the same labels": {tensors(label(0, 1), scores(0.9, 0.1, 0.2, 0.8)), tensors(scores(0.1, 0.9, 0.2, 0.8), label(0, 1)), false, "output-differs"},
		"another label":                       {tensors(label(0, 1)), tensors(label(0, 2)), true, "output-differs"},
		"one row less":                        {tensors(label(0, 1)), tensors(label(0)), true, "output-differs"},
		"another word":                        {tensors(words("cat", "dog")), tensors(words("cat", "cow")), true, "output-differs"},
		"the same words":                      {tensors(words("cat", "dog"), scores(0, 1, 1, 0)), tensors(words("cat", "dog"), scores(0, 1, 0, 1)), false, "output-differs"},
		"another truth":                       {tensors(oip.Tensor{Name: "b", Datatype: oip.Bool, Shape: []int64{1}, Data: []bool{true}}), tensors(oip.Tensor{Name: "b", Datatype: oip.Bool, Shape: []int64{1}, Data: []bool{false}}), true, "output-differs"},
		"half floats, the same greatest":      {tensors(half(oip.FP16, f16one, f16half)), tensors(half(oip.FP16, f16one, 0)), false, "output-differs"},
		"half floats, another greatest":       {tensors(half(oip.FP16, f16one, f16half)), tensors(half(oip.FP16, f16half, f16one)), true, "output-differs"},
		"bfloats, another greatest":           {tensors(half(oip.BF16, b16one, b16half)), tensors(half(oip.BF16, b16half, b16one)), true, "output-differs"},
		"an output more":                      {tensors(label(0, 1)), tensors(label(0, 1), scores(0, 1, 1, 0)), true, "output-differs"},
	} {
		t.Run(name, func(t *testing.T) {
			wants, gots := forms(t, tc.want), forms(t, tc.got)
			for a, want := range wants {
				for b, got := range gots {
					if want.Message != got.Message {
						continue // a copy goes as its request came
					}
					compared, differs, result := gateway.Compared(want, got)
					if !compared || differs != tc.differs || result != tc.result {
						t.Errorf("%s and %s: compared %v, differs %v, %s; want differs %v, %s", a, b, compared, differs, result, tc.differs, tc.result)
					}
				}
			}
		})
	}
}

func TestWhatCantBeReadIsntCompared(t *testing.T) {
	good := forms(t, tensors(oip.Tensor{Name: "label", Datatype: oip.Int64, Shape: []int64{1}, Data: []int64{1}}))
	for name, bad := range map[string]gateway.Heard{
		"a length beyond the body":  {Body: []byte(`{"outputs":[]}`), JSONLen: 99},
		"data that ends too early":  {Body: []byte(`{"model_name":"m","outputs":[{"name":"a","datatype":"FP32","shape":[9],"parameters":{"binary_data_size":4}}]}xxxx`), JSONLen: 112},
		"a message that is no such": {Body: []byte("\xff\xff"), Message: true},
		"contents of another size":  {Body: message(t, &pb.ModelInferResponse{Outputs: []*pb.ModelInferResponse_InferOutputTensor{{Name: "a", Datatype: "FP32", Shape: []int64{9}}}}), Message: true},
	} {
		want := good["binary tensors"]
		if bad.Message {
			want = good["a raw message"]
		}
		if compared, differs, result := gateway.Compared(want, bad); compared || differs || result != "uncompared" {
			t.Errorf("%s: compared %v, differs %v, %s", name, compared, differs, result)
		}
	}
}

func message(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// What is no number in a tensor is near its like alone.
func TestNoNumbersAreCompared(t *testing.T) {
	value := func(v float64) gateway.Heard {
		raw := binary.LittleEndian.AppendUint64(nil, math.Float64bits(v))
		return gateway.Heard{Message: true, Body: message(t, &pb.ModelInferResponse{
			Id:                "x" + string(rune('a'+len(raw))),
			Outputs:           []*pb.ModelInferResponse_InferOutputTensor{{Name: "a", Datatype: "FP64", Shape: []int64{1}}},
			RawOutputContents: [][]byte{raw},
		})}
	}
	inf, nan := math.Inf(1), math.NaN()
	for _, tc := range []struct {
		a, b float64
		same bool
	}{{inf, inf, true}, {nan, nan, true}, {inf, 1, false}, {inf, -inf, false}, {nan, 1, false}, {math.MaxFloat64, -math.MaxFloat64, false}, {0, math.Copysign(0, -1), true}} {
		if _, differs, _ := gateway.Compared(value(tc.a), value(tc.b)); differs == tc.same {
			t.Errorf("%v and %v: differ %v", tc.a, tc.b, differs)
		}
	}
}

func FuzzComparedMessages(f *testing.F) {
	f.Add([]byte("\x2a\x05\x0a\x01a\x12\x00"), []byte(""), 0)
	f.Add([]byte(`{"outputs":[]}`), []byte(`{"outputs":[{"name":"a","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}abcd`), 14)
	f.Fuzz(func(t *testing.T, a, b []byte, n int) {
		for _, heard := range []func([]byte) gateway.Heard{
			func(b []byte) gateway.Heard { return gateway.Heard{Body: b, Message: true} },
			func(b []byte) gateway.Heard { return gateway.Heard{Body: b, JSONLen: n} },
		} {
			compared, differs, _ := gateway.Compared(heard(a), heard(b))
			if again, other, _ := gateway.Compared(heard(b), heard(a)); again != compared || other != differs {
				t.Errorf("%q and %q: %v %v, and the other way round %v %v", a, b, compared, differs, again, other)
			}
		}
	})
}

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
