package convert_test

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

const ints = `{"id":"r1","inputs":[{"name":"x","datatype":"INT64","shape":[2],"data":[9007199254740993,-1]}]}`

// echo answers a request with its own inputs.
func echo(in *pb.ModelInferRequest) *pb.ModelInferResponse {
	out := &pb.ModelInferResponse{ModelName: in.GetModelName(), RawOutputContents: in.GetRawInputContents()}
	for _, t := range in.GetInputs() {
		out.Outputs = append(out.Outputs, &pb.ModelInferResponse_InferOutputTensor{
			Name: t.GetName(), Datatype: t.GetDatatype(), Shape: t.GetShape(), Contents: t.GetContents(),
		})
	}
	return out
}

func TestRESTGoesOverGRPCAndBack(t *testing.T) {
	half := `{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}}]}`
	tests := map[string]struct {
		head        http.Header
		body        string
		want        string
		contentType string
	}{
		"JSON":   {http.Header{}, ints, `"data":[9007199254740993,-1]`, "application/json"},
		"binary": {http.Header{oip.HeaderLength: {strconv.Itoa(len(half))}}, half + "\x00\x3c", "\x00\x3c", "application/octet-stream"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body, err := convert.NewBody(tc.head, []byte(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			c, err := convert.NewToGRPC(body, "2")
			if err != nil {
				t.Fatal(err)
			}
			in := c.Message("own").(*pb.ModelInferRequest)
			if in.GetModelName() != "own" || in.GetModelVersion() != "2" {
				t.Errorf("asks for %q %q", in.GetModelName(), in.GetModelVersion())
			}
			if in = c.Message("other").(*pb.ModelInferRequest); in.GetModelName() != "other" {
				t.Errorf("asks another engine for %q", in.GetModelName())
			}
			answer, err := c.Answer(echo(in))
			if err != nil || !strings.Contains(string(answer.Bytes), tc.want) {
				t.Fatalf("%v: %s", err, answer.Bytes)
			}
			head := http.Header{}
			answer.Describe(head)
			if head.Get("Content-Type") != tc.contentType || (head.Get(oip.HeaderLength) != "") != (answer.JSONLen != oip.WholeBody) {
				t.Errorf("head %v", head)
			}
		})
	}
	c, err := convert.NewToGRPC(convert.Body{Bytes: []byte(ints), JSONLen: oip.WholeBody}, "")
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Answer(&pb.ModelInferResponse{})
	if err != nil || !strings.Contains(string(answer.Bytes), `"id":"r1"`) {
		t.Errorf("the client's id is lost: %v, %s", err, answer.Bytes)
	}
}

func TestGRPCGoesOverRESTAndBack(t *testing.T) {
	floats := &pb.ModelInferRequest{
		ModelVersion: "3", Id: "r2",
		Inputs: []*pb.ModelInferRequest_InferInputTensor{{
			Name: "x", Datatype: "FP32", Shape: []int64{2}, Contents: &pb.InferTensorContents{Fp32Contents: []float32{1.5, -2}},
		}},
	}
	half := &pb.ModelInferRequest{
		RawInputContents: [][]byte{{0, 0x3c}},
		Inputs:           []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP16", Shape: []int64{1}}},
	}
	for name, in := range map[string]*pb.ModelInferRequest{"JSON": floats, "binary": half} {
		t.Run(name, func(t *testing.T) {
			c, err := convert.NewToREST(in)
			if err != nil {
				t.Fatal(err)
			}
			want := "/v2/models/my%20model/infer"
			if in == floats {
				want = "/v2/models/my%20model/versions/3/infer"
			}
			if got := c.Path("my model"); got != want {
				t.Errorf("path %q, want %q", got, want)
			}
			head := http.Header{}
			c.Body.Describe(head)
			reply := strings.Replace(string(c.Body.Bytes), `"inputs"`, `"outputs"`, 1)
			if n := c.Body.JSONLen; n != oip.WholeBody {
				head.Set(oip.HeaderLength, strconv.Itoa(n+len("outputs")-len("inputs")))
			}
			out, err := c.Answer(head, []byte(reply), "my model")
			if err != nil {
				t.Fatal(err)
			}
			expected := echo(in)
			expected.ModelName, expected.Id = "my model", in.GetId()
			if diff := cmp.Diff(expected, out, protocmp.Transform(), protocmp.IgnoreFields(&pb.ModelInferResponse{}, "parameters")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestFaultsAreLaidAtTheRightDoor(t *testing.T) {
	if _, err := convert.NewBody(http.Header{oip.HeaderLength: {"4", "5"}}, nil); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("two lengths: %v", err)
	}
	if _, err := convert.NewBody(http.Header{oip.HeaderLength: {"4", "4"}}, nil); err != nil {
		t.Errorf("the same length twice: %v", err)
	}
	if _, err := convert.NewToGRPC(convert.Body{Bytes: []byte(`{"inputs":[`), JSONLen: oip.WholeBody}, ""); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("a client's cut JSON: %v", err)
	}
	rest, err := convert.NewToREST(&pb.ModelInferRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		head http.Header
		body string
	}{
		"cut JSON":    {http.Header{}, `{"outputs":[`},
		"two lengths": {http.Header{oip.HeaderLength: {"4", "5"}}, `{"outputs":[]}`},
		"no length":   {http.Header{oip.HeaderLength: {"four"}}, `{"outputs":[]}`},
	} {
		if _, err := rest.Answer(tc.head, []byte(tc.body), "m"); !errors.Is(err, errdef.ErrInternal) || errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("an engine's %s: %v", name, err)
		}
	}
	grpc, err := convert.NewToGRPC(convert.Body{Bytes: []byte(ints), JSONLen: oip.WholeBody}, "")
	if err != nil {
		t.Fatal(err)
	}
	bad := &pb.ModelInferResponse{Outputs: []*pb.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: "FP32", Shape: []int64{3}}}}
	if _, err := grpc.Answer(bad); !errors.Is(err, errdef.ErrInternal) {
		t.Errorf("an engine's tensor without its data: %v", err)
	}
}
