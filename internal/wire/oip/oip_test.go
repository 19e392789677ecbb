package oip_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

func slicesOf[T any](rt *rapid.T, g *rapid.Generator[T], n int) []T {
	return rapid.SliceOfN(g, n, n).Draw(rt, "data")
}

// drawTensor makes a tensor that every codec which may carry it can.
func drawTensor(rt *rapid.T, name string, types []oip.Datatype) oip.Tensor {
	t := oip.Tensor{Name: name, Datatype: rapid.SampledFrom(types).Draw(rt, "datatype")}
	t.Shape = rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 3).Draw(rt, "shape")
	t.Parameters = drawParameters(rt)
	count, _ := oip.Count(t.Shape)
	n := int(count)
	switch t.Datatype {
	case oip.Bool:
		t.Data = slicesOf(rt, rapid.Bool(), n)
	case oip.Uint8:
		t.Data = slicesOf(rt, rapid.Uint8(), n)
	case oip.Uint16, oip.FP16, oip.BF16:
		t.Data = slicesOf(rt, rapid.Uint16(), n)
	case oip.Uint32:
		t.Data = slicesOf(rt, rapid.Uint32(), n)
	case oip.Uint64:
		t.Data = slicesOf(rt, rapid.Uint64(), n)
	case oip.Int8:
		t.Data = slicesOf(rt, rapid.Int8(), n)
	case oip.Int16:
		t.Data = slicesOf(rt, rapid.Int16(), n)
	case oip.Int32:
		t.Data = slicesOf(rt, rapid.Int32(), n)
	case oip.Int64:
		t.Data = slicesOf(rt, rapid.Int64(), n)
	case oip.FP32:
		bits := rapid.Map(rapid.Uint32(), math.Float32frombits)
		t.Data = slicesOf(rt, rapid.OneOf(bits, rapid.Float32()), n)
	case oip.FP64:
		bits := rapid.Map(rapid.Uint64(), math.Float64frombits)
		t.Data = slicesOf(rt, rapid.OneOf(bits, rapid.Float64()), n)
	case oip.Bytes:
		t.Data = slicesOf(rt, rapid.Map(rapid.String(), func(s string) []byte { return []byte(strings.ToValidUTF8(s, "?")) }), n)
	}
	return t
}

func drawParameters(rt *rapid.T) oip.Parameters {
	p := oip.Parameters{}
	for _, name := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,4}`), 0, 3, rapid.ID).Draw(rt, "names") {
		p[name] = rapid.OneOf(
			rapid.Bool().AsAny(), rapid.Int64().AsAny(),
			rapid.Map(rapid.String(), func(s string) string { return strings.ToValidUTF8(s, "?") }).AsAny(),
			rapid.Float64().AsAny(),
			// A smaller uint64 is written as an int64 is, and read as one.
			rapid.Uint64Range(math.MaxInt64+1, math.MaxUint64).AsAny(),
		).Draw(rt, "value")
	}
	return p
}

func drawTensors(rt *rapid.T, types []oip.Datatype) []oip.Tensor {
	tensors := []oip.Tensor{}
	for i := range rapid.IntRange(0, 3).Draw(rt, "tensors") {
		tensors = append(tensors, drawTensor(rt, fmt.Sprintf("t%d", i), types))
	}
	return tensors
}

func drawRequest(rt *rapid.T, types []oip.Datatype) *oip.InferRequest {
	r := &oip.InferRequest{ID: rapid.StringMatching(`[a-z0-9-]{0,8}`).Draw(rt, "id"), Parameters: drawParameters(rt)}
	r.Inputs = drawTensors(rt, types)
	for i := range rapid.IntRange(0, 2).Draw(rt, "outputs") {
		r.Outputs = append(r.Outputs, oip.RequestedOutput{Name: fmt.Sprintf("o%d", i), Parameters: drawParameters(rt)})
	}
	return r
}

// same compares by meaning: a not-a-number equals another, nil an empty set, and the raw form
// the typed one.
var same = cmp.Options{
	cmpopts.EquateEmpty(), cmpopts.EquateNaNs(),
	cmp.Transformer("values", func(t oip.Tensor) any {
		v, err := t.Values()
		if err != nil {
			v = err.Error()
		}
		return struct {
			Name       string
			Datatype   oip.Datatype
			Shape      []int64
			Parameters oip.Parameters
			Values     any
		}{t.Name, t.Datatype, t.Shape, t.Parameters, v}
	}),
}

func inJSON() []oip.Datatype {
	var out []oip.Datatype
	for _, d := range oip.Datatypes() {
		if d != oip.FP16 && d != oip.BF16 {
			out = append(out, d)
		}
	}
	return out
}

func TestRequestSurvivesJSON(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := drawRequest(rt, inJSON())
		body, n, err := oip.AppendRequest(nil, want, nil)
		if err != nil || n != oip.WholeBody {
			rt.Fatalf("encode: length %d, %v", n, err)
		}
		got, err := oip.DecodeRequest(body, n)
		if err != nil {
			rt.Fatalf("decode %s: %v", body, err)
		}
		if diff := cmp.Diff(want, got, same); diff != "" {
			rt.Fatalf("through %s (-want +got):\n%s", body, diff)
		}
	})
}

func TestRequestSurvivesTheBinaryExtension(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := drawRequest(rt, oip.Datatypes())
		want.BinaryOutput = rapid.Bool().Draw(rt, "binary output")
		for i := range want.Outputs {
			if rapid.Bool().Draw(rt, "says binary") {
				b := rapid.Bool().Draw(rt, "binary")
				want.Outputs[i].Binary = &b
			}
		}
		inBinary := map[string]bool{}
		for i := range want.Inputs {
			d := want.Inputs[i].Datatype
			inBinary[want.Inputs[i].Name] = d == oip.FP16 || d == oip.BF16 || rapid.Bool().Draw(rt, "in binary")
		}
		prefix := []byte("before")
		body, n, err := oip.AppendRequest(prefix, want, func(name string) bool { return inBinary[name] })
		if err != nil {
			rt.Fatal(err)
		}
		got, err := oip.DecodeRequest(body[len(prefix):], n)
		if err != nil {
			rt.Fatalf("decode %q: %v", body, err)
		}
		if diff := cmp.Diff(want, got, same); diff != "" {
			rt.Fatalf("through %q (-want +got):\n%s", body, diff)
		}
	})
}

func TestRequestSurvivesGRPC(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := drawRequest(rt, oip.Datatypes())
		want.ModelName, want.ModelVersion = "m", "7"
		m, err := oip.RequestToProto(want, rapid.Bool().Draw(rt, "raw"))
		if err != nil {
			rt.Fatal(err)
		}
		wire, err := proto.Marshal(m)
		if err != nil {
			rt.Fatal(err)
		}
		var back pb.ModelInferRequest
		if err := proto.Unmarshal(wire, &back); err != nil {
			rt.Fatal(err)
		}
		got, err := oip.RequestFromProto(&back)
		if err != nil {
			rt.Fatalf("decode %v: %v", &back, err)
		}
		if diff := cmp.Diff(want, got, same); diff != "" {
			rt.Fatalf("through %v (-want +got):\n%s", &back, diff)
		}
	})
}

func TestResponseSurvivesEveryCodec(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := &oip.InferResponse{ModelName: "m", ModelVersion: "2", ID: "x", Parameters: drawParameters(rt), Outputs: drawTensors(rt, inJSON())}
		raw := rapid.Bool().Draw(rt, "raw")
		m, err := oip.ResponseToProto(want, raw)
		if err != nil {
			rt.Fatal(err)
		}
		if raw && len(m.GetOutputs()) != len(m.GetRawOutputContents()) {
			rt.Fatalf("%d outputs and %d raw", len(m.GetOutputs()), len(m.GetRawOutputContents()))
		}
		viaGRPC, err := oip.ResponseFromProto(m)
		if err != nil {
			rt.Fatal(err)
		}
		body, n, err := oip.AppendResponse(nil, viaGRPC, func(string) bool { return raw })
		if err != nil {
			rt.Fatal(err)
		}
		got, err := oip.DecodeResponse(body, n)
		if err != nil {
			rt.Fatalf("decode %q: %v", body, err)
		}
		if diff := cmp.Diff(want, got, same); diff != "" {
			rt.Fatalf("through %q (-want +got):\n%s", body, diff)
		}
	})
}

func TestDecodeRequestUnderstands(t *testing.T) {
	one := func(d oip.Datatype, shape []int64, data any) *oip.InferRequest {
		return &oip.InferRequest{Inputs: []oip.Tensor{{Name: "x", Datatype: d, Shape: shape, Data: data}}}
	}
	tests := map[string]struct {
		body string
		want *oip.InferRequest
	}{
		"nested data": {
			`{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2.5],[-3e2,0.1]]}]}`,
			one(oip.FP32, []int64{2, 2}, []float32{1, 2.5, -300, 0.1}),
		},
		"data before its datatype and shape": {
			`{"inputs":[{"data":[1,2],"datatype":"INT8","name":"x","shape":[2,1]}]}`,
			one(oip.Int8, []int64{2, 1}, []int8{1, 2}),
		},
		"whole numbers beyond 2^53": {
			`{"inputs":[{"name":"x","shape":[2],"datatype":"INT64","data":[9007199254740993,-9223372036854775808]}]}`,
			one(oip.Int64, []int64{2}, []int64{9007199254740993, math.MinInt64}),
		},
		"the largest unsigned number": {
			`{"inputs":[{"name":"x","shape":[1],"datatype":"UINT64","data":[18446744073709551615]}]}`,
			one(oip.Uint64, []int64{1}, []uint64{math.MaxUint64}),
		},
		"a whole number written as a float": {
			`{"inputs":[{"name":"x","shape":[2],"datatype":"INT32","data":[1.0,2e1]}]}`,
			one(oip.Int32, []int64{2}, []int32{1, 20}),
		},
		"a scalar in an array": {
			`{"inputs":[{"name":"x","shape":[],"datatype":"BYTES","data":["Zoë 😀 \ud83d\ude00\n"]}]}`,
			one(oip.Bytes, []int64{}, [][]byte{[]byte("Zoë 😀 😀\n")}),
		},
		"a bare scalar": {
			`{"inputs":[{"name":"x","shape":[],"datatype":"BOOL","data":true}]}`,
			one(oip.Bool, []int64{}, []bool{true}),
		},
		"no elements": {
			`{"inputs":[{"name":"x","shape":[0,3],"datatype":"FP64","data":[]}]}`,
			one(oip.FP64, []int64{0, 3}, []float64{}),
		},
		"what Python writes for numbers that JSON hasn't": {
			`{"inputs":[{"name":"x","shape":[5],"datatype":"FP64","data":[NaN,Infinity,-Infinity,null,1e999]}]}`,
			one(oip.FP64, []int64{5}, []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.NaN(), math.Inf(1)}),
		},
		"null for what isn't given, and fields of others": {
			`{"id":null,"parameters":null,"outputs":null,"model_name":"m","inputs":[{"name":"x","shape":[1],"datatype":"UINT8","data":[255],"parameters":{"headers":null},"note":[{}]}]} `,
			one(oip.Uint8, []int64{1}, []uint8{255}),
		},
		"parameters of every kind": {
			`{"parameters":{"b":true,"i":-1,"u":9223372036854775808,"f":1.0,"s":"x"},"inputs":[]}`,
			&oip.InferRequest{Parameters: oip.Parameters{"b": true, "i": int64(-1), "u": uint64(1 << 63), "f": 1.0, "s": "x"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := oip.DecodeRequest([]byte(tc.body), oip.WholeBody)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, same); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeRequestRefuses(t *testing.T) {
	tensor := func(rest string) string { return `{"inputs":[{"name":"x",` + rest + `}]}` }
	tests := map[string]struct {
		body string
		// wantErr are parts of the message.
		wantErr []string
	}{
		"an empty body":                     {``, []string{"byte 0", "object"}},
		"a body cut off":                    {`{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1`, []string{`inputs[0] "x"`, "the text ends"}},
		"text after the end":                {`{"inputs":[]} {}`, []string{"after the end"}},
		"no inputs":                         {`{"id":"1"}`, []string{`no "inputs"`}},
		"a list for a body":                 {`[]`, []string{"object"}},
		"fewer elements than the shape":     {tensor(`"shape":[1,4],"datatype":"FP32","data":[1,2,3]`), []string{`"x"`, "[1 4] has 4", "the data 3"}},
		"a huge shape":                      {tensor(`"shape":[9999999999],"datatype":"FP32","data":[1]`), []string{"9999999999", "the data 1"}},
		"a shape beyond counting":           {tensor(`"shape":[9999999999,9999999999],"datatype":"FP32","data":[1]`), []string{"more elements than can be counted"}},
		"a negative dimension":              {tensor(`"shape":[-1],"datatype":"FP32","data":[1]`), []string{"shape[0]", "-1"}},
		"a fraction for a dimension":        {tensor(`"shape":[1.5],"datatype":"FP32","data":[1]`), []string{"shape[0]", "whole number"}},
		"ragged data":                       {tensor(`"shape":[2,2],"datatype":"FP32","data":[[1,2],[3]]`), []string{"array of 1 where others at the same depth have 2"}},
		"a value beside arrays":             {tensor(`"shape":[2,2],"datatype":"FP32","data":[[1,2],3]`), []string{"a value where an array should be"}},
		"an array beside values":            {tensor(`"shape":[2],"datatype":"FP32","data":[1,[2]]`), []string{"an array where a value should be"}},
		"another nesting than the shape":    {tensor(`"shape":[4,1],"datatype":"FP32","data":[[1,2],[3,4]]`), []string{"nested as [2 2]", "[4 1]"}},
		"a string among numbers":            {tensor(`"shape":[3],"datatype":"FP32","data":[1,2,"3"]`), []string{"data[2]", `'"'`}},
		"a number among strings":            {tensor(`"shape":[1],"datatype":"BYTES","data":[1]`), []string{"data[0]", "a string should start"}},
		"a number too large for its type":   {tensor(`"shape":[2],"datatype":"INT8","data":[1,128]`), []string{"data[1]", "128 is out of the range -128 to 127"}},
		"a negative unsigned number":        {tensor(`"shape":[1],"datatype":"UINT64","data":[-1]`), []string{"data[0]", "-1 is out of the range"}},
		"a fraction for a whole number":     {tensor(`"shape":[1],"datatype":"INT64","data":[1.5]`), []string{"1.5 isn't a whole number"}},
		"a float that would be rounded":     {tensor(`"shape":[1],"datatype":"INT64","data":[9007199254740993.0]`), []string{"data[0]", "9007199254740993.0 isn't a whole number up to 2^53"}},
		"a float too large for its type":    {tensor(`"shape":[1],"datatype":"UINT8","data":[2.56e2]`), []string{"data[0]", "2.56e2 is out of the range 0 to 255"}},
		"a double for a single":             {tensor(`"shape":[1],"datatype":"FP32","data":[1e300]`), []string{"out of range for FP32"}},
		"a number that starts with nought":  {tensor(`"shape":[1],"datatype":"INT64","data":[01]`), []string{"starts with 0"}},
		"half floats in JSON":               {tensor(`"shape":[1],"datatype":"FP16","data":[1]`), []string{"FP16 has no JSON form", "gRPC"}},
		"an unknown datatype":               {tensor(`"shape":[1],"datatype":"FLOAT","data":[1]`), []string{`"FLOAT" is unknown`, "FP32"}},
		"no datatype":                       {tensor(`"shape":[1],"data":[1]`), []string{"no datatype"}},
		"no shape":                          {tensor(`"datatype":"FP32","data":[1]`), []string{"no shape"}},
		"no data":                           {tensor(`"shape":[1],"datatype":"FP32"`), []string{"neither data nor binary_data_size"}},
		"no name":                           {`{"inputs":[{"shape":[1],"datatype":"FP32","data":[1]}]}`, []string{"inputs[0]: no name"}},
		"an input twice":                    {`{"inputs":[{"name":"x","shape":[0],"datatype":"FP32","data":[]},{"name":"x","shape":[0],"datatype":"FP32","data":[]}]}`, []string{`"x" comes twice`}},
		"a key twice":                       {`{"inputs":[],"inputs":[]}`, []string{`"inputs" comes twice`}},
		"a nested parameter":                {`{"parameters":{"p":{}},"inputs":[]}`, []string{`parameter "p"`}},
		"a parameter beyond 64 bits":        {`{"parameters":{"p":18446744073709551616},"inputs":[]}`, []string{`parameter "p"`, "64 bits"}},
		"binary_data_output that's no bool": {`{"parameters":{"binary_data_output":"yes"},"inputs":[]}`, []string{"binary_data_output", "true or false"}},
		"an output without name":            {`{"inputs":[],"outputs":[{}]}`, []string{"outputs[0]", "no name"}},
		"a lone surrogate":                  {tensor(`"shape":[1],"datatype":"BYTES","data":["\ud83d"]`), []string{"surrogate"}},
		"a string that isn't UTF-8":         {tensor(`"shape":[1],"datatype":"BYTES","data":["` + "\xff" + `"]`), []string{"UTF-8"}},
		"nesting without end":               {tensor(`"shape":[1],"datatype":"FP32","data":` + strings.Repeat("[", 100000)), []string{"nested deeper"}},
		"nesting without end in the unread": {`{"more":` + strings.Repeat("[", 100000), []string{"nested deeper"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := oip.DecodeRequest([]byte(tc.body), oip.WholeBody)
			checkRefused(t, err, tc.wantErr)
		})
	}
}

func checkRefused(t *testing.T, err error, wantParts []string) {
	t.Helper()
	if err == nil {
		t.Fatal("was taken")
	}
	if kind := errdef.KindOf(err); kind != errdef.ErrInvalid {
		t.Errorf("%v is of kind %v", err, kind)
	}
	for _, part := range wantParts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("message %q lacks %q", err, part)
		}
	}
}

func TestDecodeBinaryRefuses(t *testing.T) {
	head := func(d string, shape, size string) string {
		return `{"inputs":[{"name":"x","shape":` + shape + `,"datatype":"` + d + `","parameters":{"binary_data_size":` + size + `}}]}`
	}
	tests := map[string]struct {
		json, blob string
		jsonLen    int // 0: that of json
		wantErr    []string
	}{
		"a JSON length beyond the body":   {`{}`, "", 5, []string{"5 bytes of JSON, the body has 2"}},
		"a negative JSON length":          {`{}`, "", -2, []string{"-2"}},
		"fewer bytes than announced":      {head("FP32", "[1]", "4"), "abc", 0, []string{"binary_data_size is 4", "3 bytes are left"}},
		"more bytes than announced":       {head("FP32", "[1]", "4"), "abcde", 0, []string{"1 bytes follow"}},
		"a size that isn't the shape's":   {head("FP32", "[2]", "4"), "abcd", 0, []string{"2 elements of FP32 take 4 bytes each, 4 bytes came"}},
		"a shape whose size overflows":    {head("FP64", "[4611686018427387904]", "0"), "", 0, []string{"4611686018427387904 elements"}},
		"a negative size":                 {head("FP32", "[1]", "-4"), "", 0, []string{"binary_data_size is -4"}},
		"a string's length beyond it":     {head("BYTES", "[1]", "6"), "\x09\x00\x00\x00ab", 0, []string{"element 0", "9 bytes, 2 are left"}},
		"a string's length cut off":       {head("BYTES", "[1]", "3"), "\x09\x00\x00", 0, []string{"element 0", "takes 4 bytes"}},
		"more strings than the shape":     {head("BYTES", "[1]", "8"), "\x00\x00\x00\x00\x00\x00\x00\x00", 0, []string{"left over after 1"}},
		"fewer strings than the shape":    {head("BYTES", "[9999999999999]", "4"), "\x00\x00\x00\x00", 0, []string{"end after 1 of 9999999999999"}},
		"both forms of data":              {`{"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","data":[1],"parameters":{"binary_data_size":1}}]}`, "a", 0, []string{"both data and binary_data_size"}},
		"bytes that no tensor speaks for": {`{"inputs":[]}`, "a", 0, []string{"1 bytes follow"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.jsonLen == 0 {
				tc.jsonLen = len(tc.json)
			}
			_, err := oip.DecodeRequest([]byte(tc.json+tc.blob), tc.jsonLen)
			checkRefused(t, err, tc.wantErr)
		})
	}
}

func TestRequestFromProtoRefuses(t *testing.T) {
	tensor := func(d string, shape []int64, c *pb.InferTensorContents) *pb.ModelInferRequest_InferInputTensor {
		return &pb.ModelInferRequest_InferInputTensor{Name: "x", Datatype: d, Shape: shape, Contents: c}
	}
	in := func(ts ...*pb.ModelInferRequest_InferInputTensor) *pb.ModelInferRequest {
		return &pb.ModelInferRequest{Inputs: ts}
	}
	raw := func(m *pb.ModelInferRequest, raw ...[]byte) *pb.ModelInferRequest {
		m.RawInputContents = raw
		return m
	}
	tests := map[string]struct {
		in      *pb.ModelInferRequest
		wantErr []string
	}{
		"raw for one of two inputs":   {raw(in(tensor("FP32", []int64{1}, nil), tensor("FP32", []int64{1}, nil)), []byte("abcd")), []string{"1 entries for 2 inputs"}},
		"raw and contents":            {raw(in(tensor("UINT8", []int64{1}, &pb.InferTensorContents{UintContents: []uint32{1}})), []byte("a")), []string{"both contents and raw_input_contents"}},
		"half floats in contents":     {in(tensor("BF16", []int64{1}, &pb.InferTensorContents{Fp32Contents: []float32{1}})), []string{"BF16 has no contents field"}},
		"the wrong contents field":    {in(tensor("FP32", []int64{1}, &pb.InferTensorContents{Fp64Contents: []float64{1}})), []string{"fp64_contents holds", "FP32 go in fp32_contents"}},
		"too few elements":            {in(tensor("FP32", []int64{4}, &pb.InferTensorContents{Fp32Contents: []float32{1}})), []string{`"x"`, "4 elements and the data 1"}},
		"no contents":                 {in(tensor("FP32", []int64{4}, nil)), []string{"the data 0"}},
		"a number beyond its type":    {in(tensor("INT8", []int64{1}, &pb.InferTensorContents{IntContents: []int32{-129}})), []string{"element 0: -129"}},
		"an unsigned beyond its type": {in(tensor("UINT16", []int64{1}, &pb.InferTensorContents{UintContents: []uint32{65536}})), []string{"element 0: 65536"}},
		"a negative dimension":        {in(tensor("FP32", []int64{-1}, nil)), []string{"-1"}},
		"an unknown datatype":         {in(tensor("", []int64{1}, nil)), []string{"is unknown"}},
		"no name":                     {&pb.ModelInferRequest{Inputs: []*pb.ModelInferRequest_InferInputTensor{{Datatype: "FP32"}}}, []string{"inputs[0]: no name"}},
		"raw that is too short":       {raw(in(tensor("FP16", []int64{2}, nil)), []byte("abc")), []string{"2 elements of FP16 take 2 bytes each, 3 bytes came"}},
		"a parameter without value":   {&pb.ModelInferRequest{Parameters: map[string]*pb.InferParameter{"p": {}}}, []string{`"p" has no value`}},
		"an output without name":      {&pb.ModelInferRequest{Outputs: []*pb.ModelInferRequest_InferRequestedOutputTensor{{}}}, []string{"outputs[0]"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := oip.RequestFromProto(tc.in)
			checkRefused(t, err, tc.wantErr)
		})
	}
}

func TestEmptyContentsBesideRawAreNone(t *testing.T) {
	got, err := oip.ResponseFromProto(&pb.ModelInferResponse{
		Outputs:           []*pb.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: "UINT8", Shape: []int64{1}, Contents: &pb.InferTensorContents{}}},
		RawOutputContents: [][]byte{{7}},
	})
	if err != nil || string(got.Outputs[0].Raw) != "\x07" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestOneHalfFloatMakesAllOutputsRaw(t *testing.T) {
	m, err := oip.ResponseToProto(&oip.InferResponse{Outputs: []oip.Tensor{
		{Name: "a", Datatype: oip.FP32, Shape: []int64{1}, Data: []float32{1}},
		{Name: "b", Datatype: oip.FP16, Shape: []int64{1}, Data: []uint16{0x3c00}},
	}}, false)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]byte{{0, 0, 0x80, 0x3f}, {0, 0x3c}}
	if diff := cmp.Diff(want, m.GetRawOutputContents()); diff != "" || m.GetOutputs()[0].GetContents() != nil {
		t.Errorf("raw contents (-want +got):\n%s", diff)
	}
}

func TestWhatJSONCantHoldIsRefusedWithTheWayOut(t *testing.T) {
	for name, tensor := range map[string]oip.Tensor{
		"half floats":          {Name: "y", Datatype: oip.BF16, Shape: []int64{1}, Data: []uint16{1}},
		"bytes that no UTF-8 ": {Name: "y", Datatype: oip.Bytes, Shape: []int64{1}, Data: [][]byte{{0xff}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := oip.AppendResponse(nil, &oip.InferResponse{Outputs: []oip.Tensor{tensor}}, nil)
			checkRefused(t, err, []string{`"y"`, "binary", "gRPC"})
			if _, n, err := oip.AppendResponse(nil, &oip.InferResponse{Outputs: []oip.Tensor{tensor}}, func(string) bool { return true }); err != nil || n == oip.WholeBody {
				t.Errorf("in binary form: %d, %v", n, err)
			}
		})
	}
}

// The shape of the JSON is a contract with clients.
func TestResponseJSONIsStable(t *testing.T) {
	body, _, err := oip.AppendResponse(nil, &oip.InferResponse{
		ModelName: "iris", ID: "req-4711", Parameters: oip.Parameters{"z": 1.0, "a": int64(1)},
		Outputs: []oip.Tensor{
			{Name: "label", Datatype: oip.Int64, Shape: []int64{1}, Data: []int64{0}},
			{Name: "p", Datatype: oip.FP32, Shape: []int64{1, 3}, Data: []float32{0.1, 1e-7, float32(math.NaN())}},
			{Name: "s", Datatype: oip.Bytes, Shape: []int64{1}, Data: [][]byte{[]byte("a\"b\x01é")}},
		},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"model_name":"iris","id":"req-4711","parameters":{"a":1,"z":1.0},"outputs":[` +
		`{"name":"label","datatype":"INT64","shape":[1],"data":[0]},` +
		`{"name":"p","datatype":"FP32","shape":[1,3],"data":[0.1,1e-07,null]},` +
		`{"name":"s","datatype":"BYTES","shape":[1],"data":["a\"b\u0001é"]}]}`
	if string(body) != want {
		t.Errorf("got  %s\nwant %s", body, want)
	}
}

// A claimed shape must not make the decoder allocate more than the body could fill.
func TestAllocationIsBoundedByTheBody(t *testing.T) {
	body := []byte(`{"inputs":[{"name":"x","shape":[2000000000],"datatype":"FP64","data":[1]}]}`)
	res := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := oip.DecodeRequest(body, oip.WholeBody); err == nil {
				b.Fatal("was taken")
			}
		}
	})
	if got := res.AllocedBytesPerOp(); got > 16<<10 {
		t.Errorf("%d bytes allocated for a body of %d", got, len(body))
	}
}

func TestEveryKindHasAStatusAndACode(t *testing.T) {
	want := map[error]struct {
		http int
		grpc codes.Code
	}{
		errdef.ErrInvalid:         {400, codes.InvalidArgument},
		errdef.ErrNotFound:        {404, codes.NotFound},
		errdef.ErrConflict:        {409, codes.FailedPrecondition},
		errdef.ErrUnauthenticated: {401, codes.Unauthenticated},
		errdef.ErrDenied:          {403, codes.PermissionDenied},
		errdef.ErrTooLarge:        {413, codes.ResourceExhausted},
		errdef.ErrOverloaded:      {503, codes.Unavailable},
		errdef.ErrUnavailable:     {503, codes.Unavailable},
		errdef.ErrTimeout:         {504, codes.DeadlineExceeded},
		errdef.ErrUnsupported:     {501, codes.Unimplemented},
		errdef.ErrUnverified:      {403, codes.PermissionDenied},
		errdef.ErrNoSpace:         {507, codes.ResourceExhausted},
		errdef.ErrInternal:        {500, codes.Internal},
	}
	for _, kind := range errdef.Kinds() {
		w, ok := want[kind]
		if !ok {
			t.Errorf("kind %v is new: say what it looks like here and in the table", kind)
			continue
		}
		http, code := oip.Status(fmt.Errorf("x: %w", kind))
		if http != w.http || code != w.grpc {
			t.Errorf("%v is %d and %v, want %d and %v", kind, http, code, w.http, w.grpc)
		}
		if back := oip.KindOfStatus(http); back == nil {
			t.Errorf("status %d means no kind", http)
		}
	}
	if http, code := oip.Status(nil); http != 200 || code != codes.OK {
		t.Errorf("no error is %d and %v", http, code)
	}
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		if kind := oip.KindOfCode(c); (kind == nil) != (c == codes.OK) {
			t.Errorf("code %v is of kind %v", c, kind)
		}
	}
}

func TestMetadataSurvivesJSONAndGRPC(t *testing.T) {
	want := &oip.ModelMetadata{
		Name: "m", Platform: "onnx_stationmaster", Properties: map[string]string{"backend": "go"},
		Inputs:  []oip.TensorMetadata{{Name: "x", Datatype: oip.FP32, Shape: []int64{-1, 4}}},
		Outputs: []oip.TensorMetadata{{Name: "y", Datatype: oip.Int64, Shape: []int64{}}},
	}
	var got oip.ModelMetadata
	if err := oip.Decode(oip.Encode(want), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, oip.ModelMetadataFromProto(want.ToProto())); diff != "" {
		t.Errorf("gRPC (-want +got):\n%s", diff)
	}
	checkRefused(t, oip.Decode([]byte(`{"name":1}`), &got), nil)
	server := &oip.ServerMetadata{Name: "s", Version: "1", Extensions: []string{oip.ExtensionBinaryData}}
	if diff := cmp.Diff(server, oip.ServerMetadataFromProto(server.ToProto())); diff != "" {
		t.Errorf("server (-want +got):\n%s", diff)
	}
	index := []oip.IndexedModel{{Name: "m", State: oip.StateReady}}
	if diff := cmp.Diff(index, oip.IndexFromProto(oip.IndexToProto(index))); diff != "" {
		t.Errorf("index (-want +got):\n%s", diff)
	}
}

func shared(t testing.TB, path string) string {
	t.Helper()
	root := os.Getenv("STATIONMASTER_SHARED")
	if root == "" {
		root = "../../../../shared"
	}
	dir := filepath.Join(root, path)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the shared corpus isn't there (%v); set STATIONMASTER_SHARED", err)
	}
	return dir
}

func TestKServesPayloadsKeepTheirMeaning(t *testing.T) {
	dir := shared(t, "corpus/kserve/test/e2e/data")
	files, _ := filepath.Glob(filepath.Join(dir, "*_v2*.json"))
	if len(files) < 6 {
		t.Fatalf("only %d payloads in %s", len(files), dir)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var want *oip.InferRequest
			if strings.HasSuffix(file, "_grpc.json") {
				var m pb.ModelInferRequest
				if err := protojson.Unmarshal(body, &m); err != nil {
					t.Fatal(err)
				}
				want, err = oip.RequestFromProto(&m)
			} else {
				want, err = oip.DecodeRequest(body, oip.WholeBody)
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(want.Inputs) == 0 {
				t.Fatal("no inputs")
			}
			for _, raw := range []bool{false, true} {
				m, err := oip.RequestToProto(want, raw)
				if err != nil {
					t.Fatal(err)
				}
				viaGRPC, err := oip.RequestFromProto(m)
				if err != nil {
					t.Fatal(err)
				}
				// Which outputs come in binary form is a matter of REST.
				viaGRPC.BinaryOutput, viaGRPC.Outputs = want.BinaryOutput, want.Outputs
				out, n, err := oip.AppendRequest(nil, viaGRPC, func(string) bool { return raw })
				if err != nil {
					t.Fatal(err)
				}
				got, err := oip.DecodeRequest(out, n)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got, same); diff != "" {
					t.Errorf("raw=%v (-want +got):\n%s", raw, diff)
				}
			}
		})
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"id":"req-4711","inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`), -1)
	f.Add([]byte(`{"inputs":[{"name":"x","shape":[2],"datatype":"BYTES","data":["a","\u00e9"]}],"outputs":[{"name":"y","parameters":{"binary_data":true}}]}`), -1)
	f.Add([]byte(`{"inputs":[{"name":"x","shape":[1],"datatype":"FP16","parameters":{"binary_data_size":2}}]}ab`), 86)
	f.Add([]byte(`{"parameters":{"a":1,"b":1.5,"c":true,"binary_data_output":true},"inputs":[{"data":[[1],[2]],"datatype":"INT64","name":"x","shape":[2,1]}]}`), -1)
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		before := bytes.Clone(body)
		r, err := oip.DecodeRequest(body, n)
		if err != nil {
			checkBrief(t, err)
			return
		}
		for i := range r.Inputs {
			if err := r.Inputs[i].Check(); err != nil {
				t.Fatalf("took a tensor that isn't whole: %v", err)
			}
		}
		binary := map[string]bool{}
		for i := range r.Inputs {
			binary[r.Inputs[i].Name] = r.Inputs[i].Raw != nil
		}
		out, m, err := oip.AppendRequest(nil, r, func(name string) bool { return binary[name] })
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		again, err := oip.DecodeRequest(out, m)
		if err != nil {
			t.Fatalf("decode %q: %v", out, err)
		}
		if diff := cmp.Diff(r, again, same); diff != "" {
			t.Fatalf("through %q (-want +got):\n%s", out, diff)
		}
		if !bytes.Equal(before, body) {
			t.Fatal("the body was written to")
		}
		if p, err := oip.RequestToProto(r, len(r.Inputs)%2 == 0); err != nil {
			// Only a mixture of names that gRPC can't say may fail, and there is none.
			t.Fatalf("to gRPC: %v", err)
		} else if back, err := oip.RequestFromProto(p); err != nil {
			t.Fatalf("from gRPC: %v", err)
		} else if diff := cmp.Diff(r.Inputs, back.Inputs, same); diff != "" {
			t.Fatalf("through gRPC (-want +got):\n%s", diff)
		}
	})
}

func FuzzDecodeResponse(f *testing.F) {
	f.Add([]byte(`{"model_name":"m","model_version":"1","id":"a","outputs":[{"name":"y","shape":[3],"datatype":"FP32","data":[0.1,null,1e999]}]}`), -1)
	f.Add([]byte(`{"outputs":[{"name":"y","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":5}}]}`+"\x01\x00\x00\x00a"), 92)
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		r, err := oip.DecodeResponse(body, n)
		if err != nil {
			checkBrief(t, err)
			return
		}
		p, err := oip.ResponseToProto(r, false)
		if err != nil {
			t.Fatal(err)
		}
		again, err := oip.ResponseFromProto(p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, again, same); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func FuzzRequestFromProto(f *testing.F) {
	for _, raw := range []bool{false, true} {
		m, _ := oip.RequestToProto(&oip.InferRequest{ModelName: "m", Parameters: oip.Parameters{"p": 1.5}, Inputs: []oip.Tensor{
			{Name: "a", Datatype: oip.Int8, Shape: []int64{2}, Data: []int8{-1, 1}},
			{Name: "b", Datatype: oip.Bytes, Shape: []int64{1}, Data: [][]byte{[]byte("x")}},
		}}, raw)
		wire, _ := proto.Marshal(m)
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var m pb.ModelInferRequest
		if proto.Unmarshal(wire, &m) != nil {
			return
		}
		r, err := oip.RequestFromProto(&m)
		if err != nil {
			checkBrief(t, err)
			return
		}
		for i := range r.Inputs {
			if err := r.Inputs[i].Check(); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Inputs[i].Values(); err != nil {
				t.Fatal(err)
			}
		}
		back, err := oip.RequestToProto(r, len(m.GetRawInputContents()) > 0)
		if err != nil {
			t.Fatal(err)
		}
		again, err := oip.RequestFromProto(back)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, again, same); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}
