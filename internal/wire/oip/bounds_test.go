package oip_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// checkBrief says whether an error of decoding fits where it must go, whatever came in.
func checkBrief(t *testing.T, err error) {
	t.Helper()
	if errdef.KindOf(err) != errdef.ErrInvalid {
		t.Fatalf("%v isn't invalid", err)
	}
	if text := err.Error(); len(text) > 1024 || !utf8.ValidString(text) {
		t.Fatalf("the message has %d bytes: %.2000q", len(text), text)
	}
}

func TestNoMessageQuotesWithoutBounds(t *testing.T) {
	tensor := func(rest string) string { return `{"inputs":[{"name":"x",` + rest + `}]}` }
	// LONG stands for a long text and NUM for a long number.
	bodies := []string{
		`{"LONG":1,"id":`, `{"id":NUM}`, `{"inputs":[{"name":"LONG","name":"LONG"}]}`,
		`{"inputs":[{"name":"LONG","LONG":1}]}`,
		`{"inputs":[{"name":"LONG","parameters":{"LONG":NUM}}]}`,
		`{"inputs":[{"name":"LONG","parameters":{"LONG":"LONG","LONG":"LONG"}}]}`,
		`{"inputs":[{"name":"LONG","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":"LONG"}}]}`,
		`{"inputs":[{"name":"LONG","datatype":"FP32","shape":[1],"data":[1,2]}]}`,
		`{"inputs":[{"name":"LONG","datatype":"UINT8","shape":[0],"data":[]},{"name":"LONG","datatype":"UINT8","shape":[0],"data":[]}]}`,
		`{"parameters":{"binary_data_output":"LONG"},"inputs":[]}`,
		`{"parameters":{"LONG":NUM},"inputs":[]}`,
		`{"inputs":[],"outputs":[{"name":"LONG"},{"name":"LONG"}]}`,
		`{"inputs":[],"outputs":[{"name":"LONG","parameters":{"binary_data":"LONG"}}]}`,
		tensor(`"datatype":"LONG"`), tensor(`"shape":[NUM]`), tensor(`"shape":[-NUM]`), tensor(`"shape":[NUM.5]`),
		tensor(`"datatype":"INT64","shape":[1],"data":[NUM]`), tensor(`"datatype":"INT64","shape":[1],"data":[NUM.5]`),
		tensor(`"datatype":"UINT8","shape":[1],"data":[-NUM]`), tensor(`"datatype":"UINT8","shape":[1],"data":[NUM.5]`),
		tensor(`"datatype":"FP32","shape":[1],"data":[1` + strings.Repeat("0", 100) + `.NUM]`),
		tensor(`"datatype":"FP32","shape":[` + strings.Repeat("1,", 100000) + `1],"data":[1,2]`),
		tensor(`"datatype":"FP32","shape":[` + strings.Repeat("9223372036854775807,", 63) + `1],"data":[1,2]`),
		tensor(`"datatype":"FP32","shape":[` + strings.Repeat("1,", 63) + `9223372036854775807],"data":[[[1,2]]]`),
	}
	for what, long := range map[string]string{
		"letters": strings.Repeat("a", 100000), "escapes": strings.Repeat(`\u0000`, 100000), "runes": strings.Repeat("\U0010ffff", 100000),
	} {
		for i, body := range bodies {
			body = strings.NewReplacer("LONG", long, "NUM", strings.Repeat("9", 100000)).Replace(body)
			_, err := oip.DecodeRequest([]byte(body), oip.WholeBody)
			if err == nil {
				t.Errorf("%s: body %d was taken", what, i)
				continue
			}
			checkBrief(t, err)
		}
	}
	_, err := oip.ParseHeaderLength(strings.Repeat("9", 100000))
	checkBrief(t, err)
	_, err = oip.ParseHeaderLength(strings.Repeat("9", 100000), strings.Repeat("8", 100000))
	checkBrief(t, err)
	var m oip.ModelReady
	checkBrief(t, oip.Decode([]byte(`{"ready":`+strings.Repeat("9", 100000)+`}`), &m))
}

func TestNoMessageAboutGRPCQuotesWithoutBounds(t *testing.T) {
	long := strings.Repeat("\x00", 100000)
	rank := make([]int64, 100000)
	for i := range rank {
		rank[i] = 1 << 62
	}
	in := func(t *pb.ModelInferRequest_InferInputTensor) *pb.ModelInferRequest {
		return &pb.ModelInferRequest{Inputs: []*pb.ModelInferRequest_InferInputTensor{t, t}}
	}
	for name, m := range map[string]*pb.ModelInferRequest{
		"a name":               in(&pb.ModelInferRequest_InferInputTensor{Name: long, Datatype: "UINT8", Shape: []int64{0}}),
		"a datatype":           in(&pb.ModelInferRequest_InferInputTensor{Name: long, Datatype: long}),
		"a rank":               in(&pb.ModelInferRequest_InferInputTensor{Name: long, Datatype: "FP32", Shape: rank}),
		"dimensions":           in(&pb.ModelInferRequest_InferInputTensor{Name: long, Datatype: "FP32", Shape: rank[:64]}),
		"a negative dimension": in(&pb.ModelInferRequest_InferInputTensor{Name: long, Datatype: "FP32", Shape: append(rank[:63:63], -1)}),
		"a parameter":          in(&pb.ModelInferRequest_InferInputTensor{Name: long, Parameters: map[string]*pb.InferParameter{long: {}}}),
		"an output": {Outputs: []*pb.ModelInferRequest_InferRequestedOutputTensor{
			{Name: long, Parameters: map[string]*pb.InferParameter{long: {}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := oip.RequestFromProto(m)
			if err == nil {
				t.Fatal("was taken")
			}
			checkBrief(t, err)
		})
	}
}

func TestRankIsBounded(t *testing.T) {
	body := func(rank int) []byte {
		return fmt.Appendf(nil, `{"inputs":[{"name":"x","datatype":"FP32","shape":[%s1],"data":[1]}]}`, strings.Repeat("1,", rank-1))
	}
	r, err := oip.DecodeRequest(body(oip.MaxRank), oip.WholeBody)
	if err != nil {
		t.Fatal(err)
	}
	m, err := oip.RequestToProto(r, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := oip.RequestFromProto(m); err != nil {
		t.Fatal(err)
	}
	_, err = oip.DecodeRequest(body(oip.MaxRank+1), oip.WholeBody)
	checkRefused(t, err, []string{"more than 64 dimensions"})
	more := proto.CloneOf(m)
	more.Inputs[0].Shape = append(more.Inputs[0].Shape, 1)
	_, err = oip.RequestFromProto(more)
	checkRefused(t, err, []string{"more than 64 dimensions"})
}

func TestNothingIsBoundedToo(t *testing.T) {
	for name, tc := range map[string]struct {
		shape []int64
		ok    bool
	}{
		"no rows":                  {[]int64{0, 4}, true},
		"no columns":               {[]int64{4, 0}, true},
		"a trillion rows of none":  {[]int64{1e12, 0}, false},
		"rows of none, multiplied": {[]int64{0, 1 << 20, 2}, false},
	} {
		if n, err := oip.Count(tc.shape); n != 0 || (err == nil) != tc.ok {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}
