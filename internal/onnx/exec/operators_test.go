package exec_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/onnx/exec"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// operatorCase is one that test/golden/onnx/operators.py recorded.
type operatorCase struct {
	Name, Op, Domain string
	Opset            int64
	Attrs            map[string]struct {
		I       int64
		F       value
		S       string
		T       *recorded
		Ints    []int64
		Floats  []value
		Strings []string
	}
	Inputs, Outputs []*recorded
}

type recorded struct {
	Type  string
	Shape []int64
	Data  []json.RawMessage
}

// value is a number; those that JSON lacks are strings.
type value float64

func (v *value) UnmarshalJSON(b []byte) error {
	text := string(b)
	if s, err := strconv.Unquote(text); err == nil {
		text = s
	}
	x, err := strconv.ParseFloat(text, 64)
	*v = value(x)
	return err
}

func list[T any](data []json.RawMessage) []T {
	out := make([]T, len(data))
	for i, raw := range data {
		if err := json.Unmarshal(raw, &out[i]); err != nil {
			panic(err)
		}
	}
	return out
}

func floatList[T float32 | float64](data []json.RawMessage) []T {
	out := make([]T, len(data))
	for i, v := range list[value](data) {
		out[i] = T(v)
	}
	return out
}

func (r *recorded) tensor(t testing.TB, name string) *graph.Tensor {
	t.Helper()
	out := &graph.Tensor{Name: name, Shape: r.Shape}
	switch r.Type {
	case "FP32":
		out.Type, out.Data = graph.FP32, floatList[float32](r.Data)
	case "FP64":
		out.Type, out.Data = graph.FP64, floatList[float64](r.Data)
	case "INT64":
		out.Type, out.Data = graph.Int64, list[int64](r.Data)
	case "INT32":
		out.Type, out.Data = graph.Int32, list[int32](r.Data)
	case "INT16":
		out.Type, out.Data = graph.Int16, list[int16](r.Data)
	case "INT8":
		out.Type, out.Data = graph.Int8, list[int8](r.Data)
	case "UINT8":
		numbers := list[uint16](r.Data) // a []uint8 is text in JSON
		out.Type, out.Data = graph.Uint8, convertAll(numbers, func(x uint16) uint8 { return uint8(x) })
	case "BOOL":
		out.Type, out.Data = graph.Bool, list[bool](r.Data)
	case "BYTES":
		out.Type, out.Data = graph.String, list[string](r.Data)
	default:
		t.Fatalf("the recorded cases have no type %s", r.Type)
	}
	return out
}

func convertAll[A, B any](a []A, f func(A) B) []B {
	out := make([]B, len(a))
	for i, x := range a {
		out[i] = f(x)
	}
	return out
}

// model is the case as a graph of one node, and the values of its inputs.
func (c *operatorCase) model(t testing.TB) (*graph.Model, map[string]*graph.Tensor) {
	t.Helper()
	n := graph.Node{Op: c.Op, Domain: c.Domain, Attrs: map[string]graph.Attr{}}
	for name, a := range c.Attrs {
		attr := graph.Attr{F: float32(a.F), I: a.I, S: a.S, Ints: a.Ints, Strings: a.Strings}
		for _, f := range a.Floats {
			attr.Floats = append(attr.Floats, float32(f))
		}
		if a.T != nil {
			attr.T = a.T.tensor(t, name)
		}
		n.Attrs[name] = attr
	}
	g := &graph.Graph{Consts: map[string]*graph.Tensor{}}
	in := map[string]*graph.Tensor{}
	for i, r := range c.Inputs {
		if r == nil {
			n.Inputs = append(n.Inputs, "")
			continue
		}
		name := fmt.Sprintf("i%d", i)
		in[name] = r.tensor(t, name)
		n.Inputs = append(n.Inputs, name)
		g.Inputs = append(g.Inputs, graph.Value{TensorInfo: graph.TensorInfo{Name: name}})
	}
	for i := range c.Outputs {
		name := fmt.Sprintf("o%d", i)
		n.Outputs = append(n.Outputs, name)
		g.Outputs = append(g.Outputs, graph.Value{TensorInfo: graph.TensorInfo{Name: name}})
	}
	g.Nodes = []graph.Node{n}
	return &graph.Model{Graph: g, Opsets: map[string]int64{c.Domain: c.Opset}}, in
}

func operatorCases(t testing.TB) []operatorCase {
	t.Helper()
	raw, err := os.ReadFile("testdata/operators.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []operatorCase
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

func TestOperatorsComputeWhatTheStandardSays(t *testing.T) {
	tested := map[string]bool{"ai.onnx.ml.ZipMap": true} // makes maps; the models in internal/onnx/testdata have it
	for _, c := range operatorCases(t) {
		op := c.Op
		if c.Domain != "" {
			op = c.Domain + "." + op
		}
		tested[op] = true
		t.Run(c.Name, func(t *testing.T) {
			m, in := c.model(t)
			p, err := exec.Compile(m)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, o := range m.Graph.Outputs {
				names = append(names, o.Name)
			}
			// Callers share the program and the inputs.
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					got, err := p.Run(t.Context(), in, names)
					if err != nil {
						t.Error(err)
						return
					}
					for i, g := range got {
						if diff := difference(g, c.Outputs[i].tensor(t, names[i])); diff != "" {
							t.Errorf("output %d: %s", i, diff)
						}
					}
				})
			}
			wg.Wait()
			_, fresh := c.model(t)
			for name := range fresh {
				if diff := cmp.Diff(fmt.Sprint(fresh[name]), fmt.Sprint(in[name])); diff != "" {
					t.Errorf("the input %s was changed: %s", name, diff)
				}
			}
		})
	}
	for _, op := range exec.Operators() {
		if !tested[op] {
			t.Errorf("no case tests %s; add one to test/golden/onnx/operators.py", op)
		}
	}
}

// difference allows floats 1e-5, relative for those over 1.
func difference(got, want *graph.Tensor) string {
	if got.Type != want.Type || !slices.Equal(got.Shape, want.Shape) {
		return fmt.Sprintf("got %s%v, want %s%v", got.Type, got.Shape, want.Type, want.Shape)
	}
	near := func(i int, g, w float64) string {
		if g == w || math.IsNaN(g) && math.IsNaN(w) || math.Abs(g-w) <= 1e-5*max(1, math.Abs(w)) {
			return ""
		}
		return fmt.Sprintf("element %d is %v, want %v", i, g, w)
	}
	switch w := want.Data.(type) {
	case []float32:
		for i, g := range got.Data.([]float32) {
			if diff := near(i, float64(g), float64(w[i])); diff != "" {
				return diff
			}
		}
		return ""
	case []float64:
		for i, g := range got.Data.([]float64) {
			if diff := near(i, g, w[i]); diff != "" {
				return diff
			}
		}
		return ""
	}
	return cmp.Diff(want.Data, got.Data)
}
