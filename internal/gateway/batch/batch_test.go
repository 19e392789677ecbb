package batch_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/gateway/batch"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

func TestGroups(t *testing.T) {
	// An item is "key rows bytes"; the groups that go are told by their items.
	for name, tc := range map[string]struct {
		items []string
		full  []string
		open  int // bytes that are left
	}{
		"few wait":                            {items: []string{"a 1 1", "a 2 1"}, open: 2},
		"as many as may":                      {items: []string{"a 1 1", "a 3 1", "a 1 1"}, full: []string{"a 1 1+a 3 1"}, open: 1},
		"one that doesn't fit begins another": {items: []string{"a 3 1", "a 2 1"}, full: []string{"a 3 1"}, open: 1},
		"one that is too many alone":          {items: []string{"a 9 1"}, full: []string{"a 9 1"}},
		"it doesn't wait behind others":       {items: []string{"a 1 1", "a 9 1"}, full: []string{"a 1 1", "a 9 1"}},
		"keys don't mix":                      {items: []string{"a 2 1", "b 2 1", "a 2 1", "b 2 1"}, full: []string{"a 2 1+a 2 1", "b 2 1+b 2 1"}},
		"as many bytes as may":                {items: []string{"a 1 60", "a 1 60", "a 1 10"}, full: []string{"a 1 60"}, open: 70},
		"one of too many bytes":               {items: []string{"a 1 100", "a 1 1"}, full: []string{"a 1 100"}, open: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var q batch.Queue[string]
			limits := batch.Limits{MaxRows: 4, MaxBytes: 100, MaxWait: time.Second}
			now := time.Unix(1, 0)
			var full []string
			for _, item := range tc.items {
				var key string
				var rows, bytes int
				if _, err := fmt.Sscan(item, &key, &rows, &bytes); err != nil {
					t.Fatal(err)
				}
				went, opened := q.Add(key, item, rows, bytes, limits, now)
				if opened != nil && !opened.Due.Equal(now.Add(time.Second)) {
					t.Errorf("due at %v", opened.Due)
				}
				for _, g := range went {
					full = append(full, strings.Join(g.Items, "+"))
					if q.Take(g) {
						t.Error("a full group was still open")
					}
				}
				now = now.Add(time.Millisecond)
			}
			if !slices.Equal(full, tc.full) || q.Bytes() != tc.open {
				t.Errorf("%q went and %d bytes are left; want %q and %d", full, q.Bytes(), tc.full, tc.open)
			}
		})
	}
}

func TestNoGroupLosesAnItemOrHoldsTooMany(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var q batch.Queue[int]
		limits := batch.Limits{MaxRows: rapid.IntRange(1, 9).Draw(rt, "rows"), MaxBytes: rapid.IntRange(1, 50).Draw(rt, "bytes")}
		rows := map[int]int{}
		var groups []*batch.Group[int]
		for i := range rapid.IntRange(0, 40).Draw(rt, "items") {
			rows[i] = rapid.IntRange(1, 12).Draw(rt, "rows of an item")
			_, opened := q.Add(rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key"), i, rows[i], rapid.IntRange(1, 60).Draw(rt, "bytes of an item"), limits, time.Time{})
			if opened != nil {
				groups = append(groups, opened)
			}
			if len(groups) > 0 && rapid.Bool().Draw(rt, "due") {
				q.Take(groups[len(groups)-1])
			}
		}
		seen := map[int]bool{}
		for _, g := range groups {
			sum := 0
			for _, item := range g.Items {
				if seen[item] {
					rt.Fatalf("%d is in two groups", item)
				}
				seen[item] = true
				sum += rows[item]
			}
			if sum != g.Rows || len(g.Items) > 1 && (g.Rows > limits.MaxRows || g.Bytes > limits.MaxBytes) {
				rt.Fatalf("a group of %+v within %+v", g, limits)
			}
			q.Take(g)
		}
		if len(seen) != len(rows) || q.Bytes() != 0 {
			rt.Fatalf("%d of %d items are in groups, %d bytes left", len(seen), len(rows), q.Bytes())
		}
	})
}

func TestV1RequestsBecomeOneAndItsAnswerTheirs(t *testing.T) {
	read := func(body string) *batch.V1 {
		t.Helper()
		r, err := batch.ReadV1([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b := read(`{"instances": [[1, 2.5], [3, 4]], "signature_name": "x"}`), read(`{"signature_name":"x","instances":[[5,6]]}`)
	if a.Key() != `[n2],"signature_name":"x"` || a.Key() != b.Key() || a.Rows() != 2 || b.Rows() != 1 {
		t.Errorf("keys %q and %q, %d and %d rows", a.Key(), b.Key(), a.Rows(), b.Rows())
	}
	if got, want := string(batch.MergeV1([]*batch.V1{a, b})), `{"instances":[[1, 2.5],[3, 4],[5,6]],"signature_name":"x"}`; got != want {
		t.Errorf("merged %s, want %s", got, want)
	}
	parts, err := batch.SplitV1([]byte(`{"predictions": [0, {"p": 1}, "c"], "model": "m", "message": "engine's"}`), []*batch.V1{a, b}, "id-1")
	want := []string{
		`{"message":"","batchId":"id-1","predictions":[0,{"p": 1}],"model":"m"}`,
		`{"message":"","batchId":"id-1","predictions":["c"],"model":"m"}`,
	}
	if err != nil || string(parts[0]) != want[0] || string(parts[1]) != want[1] {
		t.Errorf("split %s, %v; want %s", parts, err, want)
	}
	for _, answer := range []string{`{"predictions":[1,2]}`, `{"predictions":[1,2,3,4]}`, `{"predictions":{"a":[1,2,3]}}`, `{"error":"x"}`, `[]`, ``, `{"predictions":[1,2,3]} x`} {
		if parts, err := batch.SplitV1([]byte(answer), []*batch.V1{a, b}, "i"); err == nil {
			t.Errorf("%s was split into %s", answer, parts)
		}
	}
}

func TestV1RequestsThatDifferDontGoTogether(t *testing.T) {
	bodies := []string{
		`{"instances":[[1,2]]}`, `{"instances":[[1,2,3]]}`, `{"instances":[1]}`, `{"instances":["a"]}`, `{"instances":[[1,"a"]]}`,
		`{"instances":[{"x":1}]}`, `{"instances":[{"y":1}]}`, `{"instances":[[[1],[2]]]}`, `{"instances":[true]}`, `{"instances":[null]}`,
		`{"instances":[[1,2]],"parameters":{"k":1}}`, `{"instances":[[1,2]],"parameters":{"k":2}}`, `{"instances":[[]]}`,
		`{"instances":[[[1,1],1]]}`, `{"instances":[[1,[1,1]]]}`,
	}
	keys := map[string]string{}
	for _, body := range bodies {
		r, err := batch.ReadV1([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if other, has := keys[r.Key()]; has {
			t.Errorf("%s and %s have the key %q", body, other, r.Key())
		}
		keys[r.Key()] = body
	}
	for _, body := range []string{``, `{}`, `[1]`, `{"inputs":[1]}`, `{"instances":[]}`, `{"instances":1}`, `{"instances":[[1],[2,3]]}`, `{"instances":[1],"instances":[2]}`, `{"instances":[1]}x`, `{"instances":[1`} {
		if r, err := batch.ReadV1([]byte(body)); err == nil {
			t.Errorf("%s has the key %q, want an error", body, r.Key())
		}
	}
}

func tensor(name string, datatype oip.Datatype, data any, shape ...int64) oip.Tensor {
	return oip.Tensor{Name: name, Datatype: datatype, Shape: shape, Data: data}
}

func v2(t testing.TB, id string, inputs ...oip.Tensor) *batch.V2 {
	t.Helper()
	r, err := batch.NewV2(&oip.InferRequest{ID: id, Inputs: inputs})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestV2RequestsBecomeOneAndItsAnswerTheirs(t *testing.T) {
	a := v2(t, "a", tensor("x", oip.FP32, []float32{1, 2, 3, 4}, 2, 2), tensor("s", oip.Bytes, [][]byte{[]byte("p"), []byte("q")}, 2))
	b := v2(t, "b", tensor("x", oip.FP32, []float32{5, 6}, 1, 2), tensor("s", oip.Bytes, [][]byte{[]byte("rr")}, 1))
	if a.Key() != b.Key() {
		t.Errorf("keys %q and %q", a.Key(), b.Key())
	}
	got := batch.MergeV2([]*batch.V2{a, b}, "both")
	want := &oip.InferRequest{ID: "both", Inputs: []oip.Tensor{
		tensor("x", oip.FP32, []float32{1, 2, 3, 4, 5, 6}, 3, 2), tensor("s", oip.Bytes, [][]byte{[]byte("p"), []byte("q"), []byte("rr")}, 3),
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("merged (-want +got):\n%s", diff)
	}
	if a.Inputs[0].Shape[0] != 2 || len(a.Inputs[0].Data.([]float32)) != 4 {
		t.Error("merging changed a request")
	}
	raw := oip.Tensor{Name: "r", Datatype: oip.Bytes, Shape: []int64{3, 1}, Raw: []byte("\x01\x00\x00\x00a\x00\x00\x00\x00\x02\x00\x00\x00bc")}
	answer := &oip.InferResponse{ModelName: "m", ID: "both", Outputs: []oip.Tensor{tensor("y", oip.Int64, []int64{7, 8, 9}, 3), raw}}
	parts, err := batch.SplitV2(answer, []*batch.V2{a, b})
	wantParts := []*oip.InferResponse{
		{ModelName: "m", ID: "a", Outputs: []oip.Tensor{tensor("y", oip.Int64, []int64{7, 8}, 2), {Name: "r", Datatype: oip.Bytes, Shape: []int64{2, 1}, Raw: []byte("\x01\x00\x00\x00a\x00\x00\x00\x00")}}},
		{ModelName: "m", ID: "b", Outputs: []oip.Tensor{tensor("y", oip.Int64, []int64{9}, 1), {Name: "r", Datatype: oip.Bytes, Shape: []int64{1, 1}, Raw: []byte("\x02\x00\x00\x00bc")}}},
	}
	if diff := cmp.Diff(wantParts, parts); err != nil || diff != "" {
		t.Errorf("split %v (-want +got):\n%s", err, diff)
	}
	for name, output := range map[string]oip.Tensor{
		"one row for all":    tensor("y", oip.Int64, []int64{7}, 1),
		"a scalar":           tensor("y", oip.Int64, []int64{7}),
		"fewer than it says": tensor("y", oip.Int64, []int64{7, 8}, 3),
	} {
		if _, err := batch.SplitV2(&oip.InferResponse{Outputs: []oip.Tensor{output}}, []*batch.V2{a, b}); err == nil {
			t.Errorf("%s was split", name)
		}
	}
}

func TestV2RequestsThatDifferDontGoTogether(t *testing.T) {
	x := tensor("x", oip.FP32, []float32{1, 2}, 1, 2)
	yes, no := true, false
	raw := x
	raw.Data, raw.Raw = nil, make([]byte, 8)
	labelled := x
	labelled.Parameters = oip.Parameters{"kind": "a"}
	requests := []*oip.InferRequest{
		{Inputs: []oip.Tensor{x}},
		{Inputs: []oip.Tensor{tensor("x", oip.FP32, []float32{1}, 1, 1)}},
		{Inputs: []oip.Tensor{tensor("x", oip.FP32, []float32{1, 2}, 1, 2, 1)}},
		{Inputs: []oip.Tensor{tensor("x", oip.FP64, []float64{1, 2}, 1, 2)}},
		{Inputs: []oip.Tensor{tensor("y", oip.FP32, []float32{1, 2}, 1, 2)}},
		{Inputs: []oip.Tensor{raw}},
		{Inputs: []oip.Tensor{labelled}},
		{Inputs: []oip.Tensor{x, tensor("y", oip.FP32, []float32{1}, 1)}},
		{Inputs: []oip.Tensor{x}, ModelVersion: "2"},
		{Inputs: []oip.Tensor{x}, BinaryOutput: true},
		{Inputs: []oip.Tensor{x}, Parameters: oip.Parameters{"k": int64(1)}},
		{Inputs: []oip.Tensor{x}, Parameters: oip.Parameters{"k": "1"}},
		{Inputs: []oip.Tensor{x}, Outputs: []oip.RequestedOutput{{Name: "o"}}},
		{Inputs: []oip.Tensor{x}, Outputs: []oip.RequestedOutput{{Name: "o", Binary: &yes}}},
		{Inputs: []oip.Tensor{x}, Outputs: []oip.RequestedOutput{{Name: "o", Binary: &no}}},
	}
	keys := map[string]int{}
	for i, r := range requests {
		v, err := batch.NewV2(r)
		if err != nil {
			t.Fatal(i, err)
		}
		if other, has := keys[v.Key()]; has {
			t.Errorf("requests %d and %d have the key %q", i, other, v.Key())
		}
		keys[v.Key()] = i
	}
	for name, r := range map[string]*oip.InferRequest{
		"no inputs":       {},
		"a scalar":        {Inputs: []oip.Tensor{tensor("x", oip.FP32, []float32{1})}},
		"no rows":         {Inputs: []oip.Tensor{tensor("x", oip.FP32, []float32{}, 0, 2)}},
		"different rows":  {Inputs: []oip.Tensor{x, tensor("y", oip.FP32, []float32{1, 2}, 2)}},
		"a sequence":      {Inputs: []oip.Tensor{x}, Parameters: oip.Parameters{"sequence_id": int64(1)}},
		"missing numbers": {Inputs: []oip.Tensor{tensor("x", oip.FP32, []float32{1}, 1, 2)}},
	} {
		if v, err := batch.NewV2(r); err == nil {
			t.Errorf("%s: %q, want an error", name, v.Key())
		}
	}
}

// FuzzV1 takes the rows of any request that can be read for predictions: what is merged and split
// is what it was.
func FuzzV1(f *testing.F) {
	f.Add([]byte(`{"instances":[[1,2],[3,4]]}`))
	f.Add([]byte(`{"a":"ü","instances":[{"x":[1,[2]],"y":"\u00e4"}, {"x":[3,[4]],"y":""}],"b":{"instances":1}}`))
	f.Add([]byte(`{"instances":[[[1,1],"a",null,[]]]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := batch.ReadV1(body)
		if err != nil {
			return
		}
		merged := batch.MergeV1([]*batch.V1{r, r, r})
		again, err := batch.ReadV1(merged)
		if err != nil || again.Rows() != 3*r.Rows() || again.Key() != r.Key() {
			t.Fatalf("%s merged is %s: %v", body, merged, err)
		}
		answer := append([]byte(`{"predictions"`), merged[len(`{"instances"`):]...)
		parts, err := batch.SplitV1(answer, []*batch.V1{r, r, r}, "i")
		if err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		one := batch.MergeV1([]*batch.V1{r})
		for _, p := range parts {
			got := strings.TrimPrefix(string(p), `{"message":"","batchId":"i","predictions"`)
			if got != string(one[len(`{"instances"`):]) && !strings.Contains(string(one), `"message"`) && !strings.Contains(string(one), `"batchId"`) && !strings.Contains(string(one), `"predictions"`) {
				t.Fatalf("%s became %s", body, p)
			}
		}
	})
}

// FuzzV2 lets any request's inputs be the outputs: what is merged and split is what it was.
func FuzzV2(f *testing.F) {
	f.Add([]byte(`{"id":"1","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[1,2,3,4]}]}`), -1)
	f.Add([]byte(`{"inputs":[{"name":"s","shape":[2],"datatype":"BYTES","data":["a","ü"]},{"name":"b","shape":[2,1],"datatype":"BOOL","data":[[true],[false]]}],"parameters":{"k":1.5}}`), -1)
	for text, packed := range map[string]string{
		`{"inputs":[{"name":"h","shape":[1,2],"datatype":"FP16","parameters":{"binary_data_size":4}}]}`: "abcd",
		`{"inputs":[{"name":"s","shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":10}}]}`: "\x01\x00\x00\x00a\x01\x00\x00\x00b",
	} {
		f.Add([]byte(text+packed), len(text))
	}
	f.Fuzz(func(t *testing.T, body []byte, jsonLen int) {
		request, err := oip.DecodeRequest(body, jsonLen)
		if err != nil {
			return
		}
		r, err := batch.NewV2(request)
		if err != nil {
			return
		}
		merged := batch.MergeV2([]*batch.V2{r, r}, "both")
		if _, err := batch.NewV2(merged); err != nil {
			t.Fatalf("merged: %v", err)
		}
		parts, err := batch.SplitV2(&oip.InferResponse{Outputs: merged.Inputs}, []*batch.V2{r, r})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			for i := range p.Outputs {
				got, err := p.Outputs[i].AppendRaw(nil)
				want, wantErr := r.Inputs[i].AppendRaw(nil)
				if err != nil || wantErr != nil || string(got) != string(want) || !slices.Equal(p.Outputs[i].Shape, r.Inputs[i].Shape) {
					t.Fatalf("output %d is %+v, the input was %+v", i, p.Outputs[i], r.Inputs[i])
				}
			}
		}
	})
}

func BenchmarkMergeAndSplitV1(b *testing.B) {
	body := []byte(`{"instances":[[` + strings.Repeat("0.5,", 255) + `0.5]]}`)
	var predictions []json.RawMessage
	for range 32 {
		predictions = append(predictions, json.RawMessage("0.25"))
	}
	answer, err := json.Marshal(map[string]any{"predictions": predictions})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var all []*batch.V1
		for range 32 {
			r, err := batch.ReadV1(body)
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, r)
		}
		batch.MergeV1(all)
		if _, err := batch.SplitV1(answer, all, "id"); err != nil {
			b.Fatal(err)
		}
	}
}
