package v1_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/oip"
	v1 "stationmaster.dev/stationmaster/internal/wire/v1"
)

var (
	iris = []oip.TensorMetadata{{Name: "x", Datatype: oip.FP32, Shape: []int64{-1, 4}}}
	text = []oip.TensorMetadata{{Name: "s", Datatype: oip.Bytes, Shape: []int64{-1, 1}}}
	two  = []oip.TensorMetadata{
		{Name: "a", Datatype: oip.Int64, Shape: []int64{-1, 1}},
		{Name: "b", Datatype: oip.FP32, Shape: []int64{-1, 2}},
	}
)

func TestTensors(t *testing.T) {
	wantTwo := []oip.Tensor{
		{Name: "a", Datatype: oip.Int64, Shape: []int64{2, 1}, Data: []int64{1, 2}},
		{Name: "b", Datatype: oip.FP32, Shape: []int64{2, 2}, Data: []float32{1, 2, 3, 4}},
	}
	tests := map[string]struct {
		body   string
		inputs []oip.TensorMetadata
		want   []oip.Tensor
	}{
		"rows of one input": {`{"instances":[[1,2,3,4],[5,6,7,8.5]]}`, iris, []oip.Tensor{
			{Name: "x", Datatype: oip.FP32, Shape: []int64{2, 4}, Data: []float32{1, 2, 3, 4, 5, 6, 7, 8.5}}}},
		"inputs as rows": {`{"signature_name":"s","inputs":[[1,2,3,4]]}`, iris, []oip.Tensor{
			{Name: "x", Datatype: oip.FP32, Shape: []int64{1, 4}, Data: []float32{1, 2, 3, 4}}}},
		"strings without the last dimension": {`{"instances":["a","b"]}`, text, []oip.Tensor{
			{Name: "s", Datatype: oip.Bytes, Shape: []int64{2, 1}, Data: [][]byte{[]byte("a"), []byte("b")}}}},
		"rows by name":        {`{"instances":[{"a":1,"b":[1,2]},{"b":[3,4],"a":[2]}]}`, nil, nil},
		"rows by name, alike": {`{"instances": [ {"a":1,"b":[1,2]}, {"b":[3,4],"a":2} ]}`, two, wantTwo},
		"columns by name":     {`{"inputs":{"b":[[1,2],[3,4]],"a":[1,2]}}`, two, wantTwo},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := v1.DecodeRequest([]byte(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			if tc.inputs == nil {
				if _, err := r.Tensors(two); err == nil {
					t.Fatal("rows of unlike nesting were taken")
				}
				return
			}
			got, err := r.Tensors(tc.inputs)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadRequestsSayWhatToDo(t *testing.T) {
	tests := map[string]struct {
		body    string
		inputs  []oip.TensorMetadata
		wantErr []string
	}{
		"neither instances nor inputs": {`{"data":[]}`, iris, []string{`neither "instances" nor "inputs"`}},
		"both":                         {`{"instances":[],"inputs":[]}`, iris, []string{"give one"}},
		"a key twice":                  {`{"instances":[],"instances":[]}`, iris, []string{"twice"}},
		"instances that are no list":   {`{"instances":{"a":1}}`, iris, []string{"array"}},
		"cut off":                      {`{"instances":[[1,2`, iris, []string{"the text ends"}},
		"no rows":                      {`{"instances":[1,2,3,4]}`, iris, []string{"[-1 4]", "one entry for each row"}},
		"a string for a number":        {`{"instances":[[1,2,3,"4"]]}`, iris, []string{`input "x"`, "data[3]"}},
		"a list for several inputs":    {`{"instances":[[1,2]]}`, two, []string{"[a b]", "object"}},
		"a list of objects for a row":  {`{"inputs":[[{"a":1},{"b":[1,2]}]]}`, two, []string{"[a b]", "each entry of inputs as an object"}},
		"columns of no input's name":   {`{"instances":[{"sepal_length":[5.1]}]}`, iris, []string{"instances[0]", `no input "sepal_length"; it takes [x]`}},
		"columns of unlike length":     {`{"inputs":{"a":[1,2],"b":[1,2]}}`, two, []string{`input "b"`, "[-1 2]", "nested as [2]"}},
		"an input missing":             {`{"instances":[{"a":1}]}`, two, []string{"instances[0]", `"b" is missing`}},
		"an input unknown":             {`{"inputs":{"a":[1],"c":[1]}}`, two, []string{`no input "c"`, "[a b]"}},
		"an input twice in a row":      {`{"instances":[{"a":1,"a":1}]}`, two, []string{`"a" comes twice`}},
		"rows of several kinds":        {`{"instances":[{"a":1,"b":[1,2]},3]}`, two, []string{"instances[1]"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := v1.DecodeRequest([]byte(tc.body))
			if err == nil {
				_, err = r.Tensors(tc.inputs)
			}
			if err == nil {
				t.Fatal("was taken")
			}
			if errdef.KindOf(err) != errdef.ErrInvalid {
				t.Errorf("%v isn't invalid", err)
			}
			for _, part := range tc.wantErr {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("message %q lacks %q", err, part)
				}
			}
		})
	}
}

func TestNoMessageQuotesWithoutBounds(t *testing.T) {
	long, number := strings.Repeat(`\u0000`, 100000), strings.Repeat("9", 100000)
	many := make([]oip.TensorMetadata, 10000)
	for i := range many {
		many[i] = oip.TensorMetadata{Name: strings.Repeat("n", i), Datatype: oip.FP32, Shape: make([]int64, 1000)}
	}
	for _, body := range []string{
		`{"LONG":1,"LONG":2}`, `{"inputs":{"LONG":1}}`, `{"instances":[{"LONG":1}]}`, `{"instances":[NUM.5]}`, `{"instances":[[1]]}`,
	} {
		for _, inputs := range [][]oip.TensorMetadata{iris, text, two, many, many[:1]} {
			r, err := v1.DecodeRequest([]byte(strings.NewReplacer("LONG", long, "NUM", number).Replace(body)))
			if err == nil {
				_, err = r.Tensors(inputs)
			}
			if err != nil && len(err.Error()) > 1024 {
				t.Errorf("%s: the message has %d bytes: %.300v", body, len(err.Error()), err)
			}
		}
	}
}

func TestPredictions(t *testing.T) {
	label := oip.Tensor{Name: "label", Datatype: oip.Int64, Shape: []int64{2}, Data: []int64{0, 2}}
	prob := oip.Tensor{Name: "p", Datatype: oip.FP32, Shape: []int64{2, 2}, Data: []float32{0.75, 0.25, 0.5, 0.5}}
	total := oip.Tensor{Name: "total", Datatype: oip.FP64, Shape: nil, Data: []float64{2}}
	tests := map[string]struct {
		outputs []oip.Tensor
		want    string
	}{
		"one output":                  {[]oip.Tensor{prob}, `{"predictions":[[0.75,0.25],[0.5,0.5]]}`},
		"outputs of the same rows":    {[]oip.Tensor{label, prob}, `{"predictions":[{"label":0,"p":[0.75,0.25]},{"label":2,"p":[0.5,0.5]}]}`},
		"outputs of different extent": {[]oip.Tensor{label, total}, `{"predictions":{"label":[0,2],"total":2}}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := v1.AppendPredictions(nil, tc.outputs)
			if err != nil || string(got) != tc.want {
				t.Errorf("got %s, %v\nwant %s", got, err, tc.want)
			}
		})
	}
	half := oip.Tensor{Name: "h", Datatype: oip.FP16, Shape: []int64{1}, Data: []uint16{0}}
	if _, err := v1.AppendPredictions(nil, []oip.Tensor{half}); err == nil {
		t.Error("half floats became JSON")
	}
}

// What one model predicts can be given to another: nested values come back as they were.
func TestPredictionsComeBackAsInstances(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(1, 4), 1, 3).Draw(rt, "shape")
		n, _ := oip.Count(shape)
		want := oip.Tensor{Name: "x", Datatype: oip.FP64, Shape: shape, Data: rapid.SliceOfN(rapid.Float64(), int(n), int(n)).Draw(rt, "data")}
		body, err := v1.AppendPredictions(nil, []oip.Tensor{want})
		if err != nil {
			rt.Fatal(err)
		}
		predictions, err := v1.DecodePredictions(body)
		if err != nil {
			rt.Fatal(err)
		}
		r, err := v1.DecodeRequest((&v1.Request{Instances: predictions}).Append(nil))
		if err != nil {
			rt.Fatal(err)
		}
		got, err := r.Tensors([]oip.TensorMetadata{{Name: "x", Datatype: oip.FP64, Shape: shape}})
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff([]oip.Tensor{want}, got, cmpopts.EquateNaNs()); diff != "" {
			rt.Fatalf("through %s (-want +got):\n%s", body, diff)
		}
	})
}

func TestKServesPayloadsKeepTheirMeaning(t *testing.T) {
	root := os.Getenv("STATIONMASTER_SHARED")
	if root == "" {
		root = "../../../../shared"
	}
	dir := filepath.Join(root, "corpus/kserve/test/e2e/data")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the shared corpus isn't there (%v); set STATIONMASTER_SHARED", err)
	}
	for file, inputs := range map[string][]oip.TensorMetadata{
		"iris_input.json":        iris,
		"bert_fill_mask_v1.json": text,
		"income_input.json":      {{Name: "x", Datatype: oip.Int64, Shape: []int64{-1, 12}}},
		"iris_input_v3.json": {
			{Name: "sepal_length_(cm)", Datatype: oip.FP32, Shape: []int64{-1, 1}},
			{Name: "sepal_width_(cm)", Datatype: oip.FP32, Shape: []int64{-1, 1}},
			{Name: "petal_length_(cm)", Datatype: oip.FP32, Shape: []int64{-1, 1}},
			{Name: "petal_width_(cm)", Datatype: oip.FP32, Shape: []int64{-1, 1}},
		},
	} {
		t.Run(file, func(t *testing.T) {
			body, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			r, err := v1.DecodeRequest(body)
			if err != nil {
				t.Fatal(err)
			}
			again, err := v1.DecodeRequest(r.Append(nil))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r, again); diff != "" {
				t.Errorf("through V1 (-want +got):\n%s", diff)
			}
			want, err := r.Tensors(inputs)
			if err != nil {
				t.Fatal(err)
			}
			v2, n, err := oip.AppendRequest(nil, &oip.InferRequest{Inputs: want}, nil)
			if err != nil {
				t.Fatal(err)
			}
			back, err := oip.DecodeRequest(v2, n)
			if err != nil {
				t.Fatal(err)
			}
			m, err := oip.RequestToProto(back, false)
			if err != nil {
				t.Fatal(err)
			}
			viaGRPC, err := oip.RequestFromProto(m)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, viaGRPC.Inputs, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("through V2 and gRPC (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"instances":[[1,2,3,4]]}`))
	f.Add([]byte(`{"inputs":{"a":[1],"b":[[1,2]]}}`))
	f.Add([]byte(`{"instances":[{"a":1,"b":[1,2]}]}`))
	f.Add([]byte(`{"instances":["text"]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := v1.DecodeRequest(body)
		if err != nil {
			return
		}
		again, err := v1.DecodeRequest(r.Append(nil))
		if err != nil {
			t.Fatalf("decode what was encoded: %v", err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		for _, inputs := range [][]oip.TensorMetadata{iris, text, two} {
			tensors, err := r.Tensors(inputs)
			if err != nil {
				if len(err.Error()) > 1024 {
					t.Fatalf("the message has %d bytes: %v", len(err.Error()), err)
				}
				continue
			}
			for i := range tensors {
				if err := tensors[i].Check(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := v1.AppendPredictions(nil, tensors); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzDecodePredictions(f *testing.F) {
	f.Add([]byte(`{"predictions":[1,2]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if p, err := v1.DecodePredictions(body); err == nil && len(p) == 0 {
			t.Fatal("no predictions and no error")
		}
	})
}
