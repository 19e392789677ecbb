package compare_test

import (
	"encoding/binary"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/gateway/compare"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// heard is an answer: JSON, or with the length of its JSON one with binary tensors, or a
// ModelInferResponse.
type heard struct {
	body    []byte
	jsonLen int
	message bool
}

func (h heard) answer() compare.Answer {
	a := compare.Answer{Status: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: h.body, Message: h.message}
	if h.jsonLen > 0 {
		a.Header = http.Header{"Content-Type": {"application/octet-stream"}, oip.HeaderLength: {strconv.Itoa(h.jsonLen)}}
	}
	return a
}

// compared compares a good answer that a client heard with that of a copy: the classes, and all
// of it.
func compared(want, got heard) (was, differs bool, result compare.Result) {
	was, differs = compare.Drift(want.answer(), got.answer())
	return was, differs, compare.Of(want.answer(), got.answer())
}

// drift compares two answers in JSON.
func drift(wantStatus int, want string, gotStatus int, got string) (was, differs bool) {
	a, b := heard{body: []byte(want)}.answer(), heard{body: []byte(got)}.answer()
	a.Status, b.Status = wantStatus, gotStatus
	return compare.Drift(a, b)
}

// tensors is a V2 answer.
func tensors(t ...oip.Tensor) *oip.InferResponse {
	return &oip.InferResponse{ModelName: "m", Outputs: t}
}

// forms are an answer in each of its encodings.
func forms(t *testing.T, r *oip.InferResponse) map[string]heard {
	t.Helper()
	out := map[string]heard{}
	half := slices.ContainsFunc(r.Outputs, func(o oip.Tensor) bool { return o.Datatype == oip.FP16 || o.Datatype == oip.BF16 })
	if !half { // which have no other form than raw
		body, _, err := oip.AppendResponse(nil, r, func(string) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		out["JSON"] = heard{body: body}
	}
	body, n, err := oip.AppendResponse(nil, r, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	out["binary tensors"] = heard{body: body, jsonLen: n}
	for name, raw := range map[string]bool{"a typed message": false, "a raw message": true} {
		m, err := oip.ResponseToProto(r, raw)
		if err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = heard{body: b, message: true}
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
		result    compare.Result
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
					if want.message != got.message {
						continue // a copy goes as its request came
					}
					was, differs, result := compared(want, got)
					if !was || differs != tc.differs || result != tc.result {
						t.Errorf("%s and %s: compared %v, differs %v, %s; want differs %v, %s", a, b, was, differs, result, tc.differs, tc.result)
					}
				}
			}
		})
	}
}

func TestWhatCantBeReadIsntCompared(t *testing.T) {
	good := forms(t, tensors(oip.Tensor{Name: "label", Datatype: oip.Int64, Shape: []int64{1}, Data: []int64{1}}))
	for name, bad := range map[string]heard{
		"a length beyond the body":  {body: []byte(`{"outputs":[]}`), jsonLen: 99},
		"data that ends too early":  {body: []byte(`{"model_name":"m","outputs":[{"name":"a","datatype":"FP32","shape":[9],"parameters":{"binary_data_size":4}}]}xxxx`), jsonLen: 112},
		"a message that is no such": {body: []byte("\xff\xff"), message: true},
		"contents of another size":  {body: message(t, &pb.ModelInferResponse{Outputs: []*pb.ModelInferResponse_InferOutputTensor{{Name: "a", Datatype: "FP32", Shape: []int64{9}}}}), message: true},
	} {
		want := good["binary tensors"]
		if bad.message {
			want = good["a raw message"]
		}
		if was, differs, result := compared(want, bad); was || differs || result != "uncompared" {
			t.Errorf("%s: compared %v, differs %v, %s", name, was, differs, result)
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
	value := func(v float64) heard {
		raw := binary.LittleEndian.AppendUint64(nil, math.Float64bits(v))
		return heard{message: true, body: message(t, &pb.ModelInferResponse{
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
		if _, differs, _ := compared(value(tc.a), value(tc.b)); differs == tc.same {
			t.Errorf("%v and %v: differ %v", tc.a, tc.b, differs)
		}
	}
}

func FuzzComparedMessages(f *testing.F) {
	f.Add([]byte("\x2a\x05\x0a\x01a\x12\x00"), []byte(""), 0)
	f.Add([]byte(`{"outputs":[]}`), []byte(`{"outputs":[{"name":"a","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}abcd`), 14)
	f.Fuzz(func(t *testing.T, a, b []byte, n int) {
		for _, as := range []func([]byte) heard{
			func(b []byte) heard { return heard{body: b, message: true} },
			func(b []byte) heard { return heard{body: b, jsonLen: n} },
		} {
			was, differs, _ := compared(as(a), as(b))
			if again, other, _ := compared(as(b), as(a)); again != was || other != differs {
				t.Errorf("%q and %q: %v %v, and the other way round %v %v", a, b, was, differs, again, other)
			}
		}
	})
}

func TestDriftIsAboutClasses(t *testing.T) {
	v2 := func(outputs string) string { return `{"model_name":"m","outputs":[` + outputs + `]}` }
	scores := func(data string) string {
		return `{"name":"scores","datatype":"FP32","shape":[2,2],"data":` + data + `}`
	}
	label := func(data string) string { return `{"name":"label","datatype":"INT64","shape":[2],"data":` + data + `}` }
	type pair struct {
		wantStatus int
		want       string
		gotStatus  int
		got        string
	}
	same, differs, none := [2]bool{true, false}, [2]bool{true, true}, [2]bool{false, false}
	tests := map[string]struct {
		pair
		result [2]bool
	}{
		"the same bytes":                             {pair{200, "x", 200, "x"}, same},
		"other scores, the same greatest":            {pair{200, v2(scores("[0.9,0.1,0.2,0.8]")), 200, v2(scores("[0.6,0.4,0.3,0.7]"))}, same},
		"the same in nested lists":                   {pair{200, v2(scores("[0.9,0.1,0.2,0.8]")), 200, v2(scores("[[0.6,0.4],[0.3,0.7]]"))}, same},
		"another greatest in one row":                {pair{200, v2(scores("[0.9,0.1,0.2,0.8]")), 200, v2(scores("[0.9,0.1,0.8,0.2]"))}, differs},
		"other scores beside the same labels":        {pair{200, v2(label("[0,1]") + "," + scores("[0.9,0.1,0.2,0.8]")), 200, v2(label("[0,1]") + "," + scores("[0.1,0.9,0.2,0.8]"))}, same},
		"another label":                              {pair{200, v2(label("[0,1]")), 200, v2(label("[0,2]"))}, differs},
		"one row less":                               {pair{200, v2(label("[0,1]")), 200, v2(strings.Replace(label("[0]"), "[2]", "[1]", 1))}, differs},
		"another output":                             {pair{200, v2(label("[0,1]")), 200, v2(scores("[0.9,0.1,0.2,0.8]"))}, differs},
		"an output more":                             {pair{200, v2(label("[0,1]")), 200, v2(label("[0,1]") + "," + scores("[0.9,0.1,0.2,0.8]"))}, differs},
		"V1, other scores, the same greatest":        {pair{200, `{"predictions":[[0.9,0.1],[0.2,0.8]]}`, 200, `{"predictions":[[0.6,0.4],[0.3,0.7]]}`}, same},
		"V1, another greatest":                       {pair{200, `{"predictions":[[0.9,0.1],[0.2,0.8]]}`, 200, `{"predictions":[[0.6,0.4],[0.7,0.3]]}`}, differs},
		"V1, another class by its number":            {pair{200, `{"predictions":[0,1]}`, 200, `{"predictions":[0,2]}`}, differs},
		"V1, the same word":                          {pair{200, `{"predictions":["a"], "x": 1}`, 200, `{"predictions":["a"]}`}, same},
		"V1, another word":                           {pair{200, `{"predictions":["a"]}`, 200, `{"predictions":["b"]}`}, differs},
		"one score each, within tolerance":           {pair{200, `{"predictions":[0.5]}`, 200, `{"predictions":[0.50001]}`}, same},
		"one score each, beyond":                     {pair{200, `{"predictions":[0.5]}`, 200, `{"predictions":[0.6]}`}, differs},
		"no predictions at all":                      {pair{200, `{"predictions":[]}`, 200, `{"predictions": [] }`}, same},
		"an error where the client heard an answer":  {pair{200, v2(label("[0]")), 500, "{}"}, differs},
		"an answer where the client heard of errors": {pair{500, "{}", 200, v2(label("[0]"))}, none},
		"what isn't an inference":                    {pair{200, `{"a":1}`, 200, `{"a":2}`}, none},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			was, differs := drift(tc.wantStatus, tc.want, tc.gotStatus, tc.got)
			if got := [2]bool{was, differs}; got != tc.result {
				t.Errorf("compared %v, differs %v; want %v", was, differs, tc.result)
			}
		})
	}
}

func FuzzDrift(f *testing.F) {
	f.Add(`{"predictions":[[0.9,0.1],[0.2,0.8]]}`, `{"predictions":[[0.9,0.1],[0.2]]}`)
	f.Add(`{"outputs":[{"name":"a","datatype":"FP32","shape":[2,0],"data":[1]}]}`, `{"outputs":[{"name":"a","datatype":"FP32","shape":[2,0],"data":[2]}]}`)
	f.Add(`{"predictions":[[]]}`, `{"predictions":[[],1]}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		was, differs := drift(200, a, 200, b)
		if again, other := drift(200, b, 200, a); again != was || other != differs {
			t.Errorf("%q and %q: %v %v, and the other way round %v %v", a, b, was, differs, again, other)
		}
	})
}
