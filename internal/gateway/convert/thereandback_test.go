package convert_test

import (
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// FuzzOverGRPCAndBack: an infer request goes from REST to gRPC and on to REST, and its answer from gRPC to REST
// and on to gRPC, and both are what they were.
func FuzzOverGRPCAndBack(f *testing.F) {
	f.Add("7", "Grüße\x00\"", 0.1, int64(-1), float32(1.5), true, []byte("\xff\x00"))
	f.Add("", "", math.Copysign(0, -1), int64(math.MinInt64), float32(math.MaxFloat32), false, []byte(nil))
	f.Fuzz(func(t *testing.T, id, text string, d float64, n int64, v float32, binary bool, bytes []byte) {
		id, text = strings.ToValidUTF8(id, "?"), strings.ToValidUTF8(text, "é")
		if d-d != 0 {
			d = 0
		}
		if v-v != 0 {
			v = 0
		}
		if !binary { // JSON holds texts alone
			bytes = []byte(text)
		}
		u := uint64(n) //nolint:gosec // any bits will do
		tensors := []oip.Tensor{
			{Name: "f", Datatype: oip.FP32, Shape: []int64{1, 2}, Data: []float32{v, -v}},
			{Name: "d", Datatype: oip.FP64, Shape: []int64{1}, Data: []float64{d}},
			{Name: "n", Datatype: oip.Int64, Shape: []int64{2}, Data: []int64{n, -1}},
			{Name: "u", Datatype: oip.Uint64, Shape: []int64{1}, Data: []uint64{u}},
			{Name: "i", Datatype: oip.Int8, Shape: []int64{1}, Data: []int8{int8(n)}}, //nolint:gosec // as above
			{Name: "b", Datatype: oip.Bool, Shape: []int64{1}, Data: []bool{binary}},
			{Name: "s", Datatype: oip.Bytes, Shape: []int64{2}, Data: [][]byte{[]byte(text), bytes}, Parameters: oip.Parameters{"content_type": text}},
		}
		asked := &oip.InferRequest{ID: id, Inputs: tensors, Parameters: oip.Parameters{"x": d, "n": n, "s": text, "b": binary},
			Outputs: []oip.RequestedOutput{{Name: "y"}, {Name: "z"}}}
		all := func(string) bool { return binary }
		body, jsonLen, err := oip.AppendRequest(nil, asked, all)
		if err != nil {
			t.Fatal(err)
		}
		over, err := convert.NewToGRPC(convert.Body{Bytes: body, JSONLen: jsonLen}, "2")
		if err != nil {
			t.Fatal(err)
		}
		message := over.Message("m").(*pb.ModelInferRequest)
		back, err := convert.NewToREST(message)
		if err != nil {
			t.Fatal(err)
		}
		want, err := oip.DecodeRequest(body, jsonLen)
		if err != nil {
			t.Fatal(err)
		}
		got, err := oip.DecodeRequest(back.Body.Bytes, back.Body.JSONLen)
		if err != nil {
			t.Fatal(err)
		}
		got.BinaryOutput = want.BinaryOutput // asked for where bytes are no text
		if diff := cmp.Diff(asValues(t, want.Inputs), asValues(t, got.Inputs), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("inputs (-want +got)\n%s", diff)
		}
		want.Inputs, got.Inputs = nil, nil
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || back.Path("m") != "/v2/models/m/versions/2/infer" {
			t.Fatalf("%s (-want +got)\n%s", back.Path("m"), diff)
		}

		made, err := oip.ResponseToProto(&oip.InferResponse{ModelName: "m", ModelVersion: "2", ID: id, Outputs: tensors, Parameters: oip.Parameters{"n": n}}, binary)
		if err != nil {
			t.Fatal(err)
		}
		want2 := proto.Clone(made)
		// A client that asks for all in the form in which it sends.
		everything, err := convert.NewToGRPC(convert.Body{Bytes: []byte(`{"inputs":[],"parameters":{"binary_data_output":` + map[bool]string{true: "true", false: "false"}[binary] + `}}`), JSONLen: oip.WholeBody}, "")
		if err != nil {
			t.Fatal(err)
		}
		rest, err := everything.Answer(made)
		if err != nil {
			t.Fatal(err)
		}
		head := http.Header{}
		rest.Describe(head)
		again, err := back.Answer(head, rest.Bytes, "m")
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(want2, again) {
			t.Fatalf("%v became %v", want2, again)
		}
	})
}

// asValues gives tensors that hold values, whichever form they came in.
func asValues(tb testing.TB, tensors []oip.Tensor) []oip.Tensor {
	tb.Helper()
	out := make([]oip.Tensor, len(tensors))
	for i := range tensors {
		values, err := tensors[i].Values()
		if err != nil {
			tb.Fatal(err)
		}
		out[i] = oip.Tensor{Name: tensors[i].Name, Datatype: tensors[i].Datatype, Shape: tensors[i].Shape, Data: values, Parameters: tensors[i].Parameters}
	}
	return out
}
