package exec_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/exec"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// failer is what *testing.T and *rapid.T share.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// chain runs nodes one after the other: x is the first one's first input, more constants follow
// by name, and the result is the last one's first output.
func chain(t failer, x *graph.Tensor, consts map[string]*graph.Tensor, nodes ...graph.Node) *graph.Tensor {
	t.Helper()
	out, err := tryChain(x, consts, nodes...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryChain(x *graph.Tensor, consts map[string]*graph.Tensor, nodes ...graph.Node) (*graph.Tensor, error) {
	at := "x"
	for i := range nodes {
		nodes[i].Inputs = append([]string{at}, nodes[i].Inputs...)
		at = fmt.Sprintf("v%d", i)
		nodes[i].Outputs = []string{at}
	}
	info := func(name string) []graph.Value { return []graph.Value{{TensorInfo: graph.TensorInfo{Name: name}}} }
	p, err := exec.Compile(&graph.Model{
		Opsets: map[string]int64{"": 17},
		Graph:  &graph.Graph{Nodes: nodes, Consts: consts, Inputs: info("x"), Outputs: info(at)},
	})
	if err != nil {
		return nil, err
	}
	out, err := p.Run(context.Background(), map[string]*graph.Tensor{"x": x}, []string{at})
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

func node(op string, attrs map[string]graph.Attr, inputs ...string) graph.Node {
	return graph.Node{Op: op, Attrs: attrs, Inputs: inputs}
}

func floats(shape []int64, data []float32) *graph.Tensor {
	return &graph.Tensor{Type: graph.FP32, Shape: shape, Data: data}
}

func integers(values ...int64) *graph.Tensor {
	return &graph.Tensor{Type: graph.Int64, Shape: []int64{int64(len(values))}, Data: values}
}

// drawTensor draws up to four dimensions of 0 to 5, and small whole numbers, whose sums are exact.
func drawTensor(t *rapid.T, name string) *graph.Tensor {
	shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 1, 4).Draw(t, name+" shape")
	return drawOf(t, name, shape)
}

func drawOf(t *rapid.T, name string, shape []int64) *graph.Tensor {
	n, _ := graph.Count(shape)
	start := rapid.IntRange(-9, 9).Draw(t, name)
	data := make([]float32, n)
	for i := range data {
		data[i] = float32((start+7*i)%19 - 9)
	}
	return floats(shape, data)
}

func TestTransposingBackGivesTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := drawTensor(t, "x")
		axes := make([]int64, len(x.Shape))
		for i := range axes {
			axes[i] = int64(i)
		}
		perm := rapid.Permutation(axes).Draw(t, "perm")
		back := make([]int64, len(perm))
		for i, p := range perm {
			back[p] = int64(i)
		}
		got := chain(t, x, nil, node("Transpose", map[string]graph.Attr{"perm": {Ints: perm}}), node("Transpose", map[string]graph.Attr{"perm": {Ints: back}}))
		if diff := cmp.Diff(x.Data, got.Data) + cmp.Diff(x.Shape, got.Shape); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestReshapingBackGivesTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := drawTensor(t, "x")
		consts := map[string]*graph.Tensor{"flat": integers(-1), "back": integers(x.Shape...)}
		keep := map[string]graph.Attr{"allowzero": {I: 1}}
		got := chain(t, x, consts, node("Reshape", nil, "flat"), node("Reshape", keep, "back"))
		if diff := cmp.Diff(x.Data, got.Data) + cmp.Diff(x.Shape, got.Shape); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestAnAxisFromTheEndIsTheSameAxis(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := drawTensor(t, "x")
		axis := rapid.IntRange(0, len(x.Shape)-1).Draw(t, "axis")
		op := rapid.SampledFrom([]string{"Softmax", "LogSoftmax", "Concat", "Flatten", "ArgMax"}).Draw(t, "op")
		if op == "ArgMax" && x.Shape[axis] == 0 {
			return // of nothing, there is no largest
		}
		a := chain(t, x, nil, node(op, map[string]graph.Attr{"axis": {I: int64(axis)}}))
		b := chain(t, x, nil, node(op, map[string]graph.Attr{"axis": {I: int64(axis - len(x.Shape))}}))
		if diff := cmp.Diff(fmt.Sprint(a.Shape, a.Data), fmt.Sprint(b.Shape, b.Data)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Every way that rows, columns and numbers repeat gives what the rule says for each element.
func TestBroadcastingFollowsTheRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		full := rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 4).Draw(t, "full shape")
		some := func(name string) []int64 {
			s := slices.Clone(full[rapid.IntRange(0, len(full)).Draw(t, name+" starts"):])
			for i := range s {
				if rapid.Bool().Draw(t, name+" repeats") {
					s[i] = 1
				}
			}
			return s
		}
		x, y := drawOf(t, "x", some("x")), drawOf(t, "y", some("y"))
		got := chain(t, x, map[string]*graph.Tensor{"y": y}, node("Sub", nil, "y"))
		shape := got.Shape
		n, _ := graph.Count(shape)
		if len(shape) != max(len(x.Shape), len(y.Shape)) || len(got.Data.([]float32)) != n {
			t.Fatalf("%v and %v give %v", x.Shape, y.Shape, shape)
		}
		at := func(s *graph.Tensor, index []int64) float32 {
			offset := int64(0)
			for i, d := range s.Shape {
				k := index[i+len(index)-len(s.Shape)]
				if d == 1 {
					k = 0
				}
				offset = offset*d + k
			}
			return s.Data.([]float32)[offset]
		}
		for i, g := range got.Data.([]float32) {
			index, rest := make([]int64, len(shape)), int64(i)
			for d := len(shape) - 1; d >= 0; d-- {
				index[d], rest = rest%shape[d], rest/shape[d]
			}
			if want := at(x, index) - at(y, index); g != want {
				t.Fatalf("%v - %v at %v is %v, want %v", x.Shape, y.Shape, index, g, want)
			}
		}
	})
}

// Sizes go beyond a tile, a pass, and what is worth a second core.
func TestProductsAreTheSumsOfProducts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, n := rapid.Int64Range(1, 20).Draw(t, "m"), rapid.Int64Range(1, 70).Draw(t, "n")
		k := rapid.SampledFrom([]int64{0, 1, 3, 4, 17, 511, 512, 513, 1030}).Draw(t, "k")
		a, b := drawOf(t, "a", []int64{m, k}), drawOf(t, "b", []int64{k, n})
		got := chain(t, a, map[string]*graph.Tensor{"b": b}, node("MatMul", nil, "b")).Data.([]float32)
		x, y := a.Data.([]float32), b.Data.([]float32)
		for i := range m {
			for j := range n {
				want := float32(0)
				for p := range k {
					want += x[i*k+p] * y[p*n+j]
				}
				if got[i*n+j] != want {
					t.Fatalf("%d×%d times %d×%d: element %d,%d is %v, want %v", m, k, k, n, i, j, got[i*n+j], want)
				}
			}
		}
	})
}

// Large tensors are worked on by several cores.
func TestLargeTensorsComputeAsSmallOnes(t *testing.T) {
	const rows, cols = 700, 101
	data, column := make([]float32, rows*cols), make([]float32, rows)
	for i := range data {
		data[i] = float32(i%23) / 7
	}
	for i := range column {
		column[i] = float32(i % 5)
	}
	consts := map[string]*graph.Tensor{"row": floats([]int64{cols}, data[:cols]), "column": floats([]int64{rows, 1}, column), "one": floats(nil, []float32{1})}
	got := chain(t, floats([]int64{rows, cols}, data), consts,
		node("Add", nil, "row"), node("Mul", nil, "column"), node("Sub", nil, "one"), node("Tanh", nil), node("Softmax", nil)).Data.([]float32)
	for r := range rows {
		sum, line := 0.0, make([]float64, cols)
		for c := range cols {
			line[c] = math.Exp(math.Tanh(float64((data[r*cols+c]+data[c])*column[r] - 1)))
			sum += line[c]
		}
		for c, want := range line {
			if d := float64(got[r*cols+c]) - want/sum; math.Abs(d) > 1e-6 {
				t.Fatalf("row %d, column %d is off by %v", r, c, d)
			}
		}
	}
}

func TestInputsThatDontFitAreErrorsOfAKind(t *testing.T) {
	x := floats([]int64{2, 3}, make([]float32, 6))
	image := floats([]int64{1, 2, 4, 4}, make([]float32, 32))
	for name, tc := range map[string]struct {
		x      *graph.Tensor
		consts map[string]*graph.Tensor
		node   graph.Node
		want   error
	}{
		"shapes that don't broadcast": {x, map[string]*graph.Tensor{"y": floats([]int64{4}, make([]float32, 4))}, node("Add", nil, "y"), errdef.ErrInvalid},
		"matrices that don't fit":     {x, map[string]*graph.Tensor{"y": floats([]int64{2, 3}, make([]float32, 6))}, node("MatMul", nil, "y"), errdef.ErrInvalid},
		"another type":                {x, map[string]*graph.Tensor{"y": integers(1, 2, 3)}, node("MatMul", nil, "y"), errdef.ErrInvalid},
		"an axis that isn't there":    {x, nil, node("Softmax", map[string]graph.Attr{"axis": {I: 2}}), errdef.ErrInvalid},
		"a shape of another size":     {x, map[string]*graph.Tensor{"y": integers(4, 2)}, node("Reshape", nil, "y"), errdef.ErrInvalid},
		"an index outside":            {x, map[string]*graph.Tensor{"y": integers(2)}, node("Gather", nil, "y"), errdef.ErrInvalid},
		"a division by zero":          {integers(1), map[string]*graph.Tensor{"y": integers(0)}, node("Div", nil, "y"), errdef.ErrInvalid},
		"more than memory":            {x, map[string]*graph.Tensor{"y": integers(1<<20, 1<<20, 2, 3)}, node("Expand", nil, "y"), errdef.ErrInvalid},
		"padding beyond the input":    {x, map[string]*graph.Tensor{"y": integers(0, -2, 0, -2)}, node("Pad", nil, "y"), errdef.ErrInvalid},
		"weights of other channels":   {image, map[string]*graph.Tensor{"y": floats([]int64{1, 3, 1, 1}, make([]float32, 3))}, node("Conv", nil, "y"), errdef.ErrInvalid},
		"a window beyond the image":   {image, nil, node("MaxPool", map[string]graph.Attr{"kernel_shape": {Ints: []int64{5, 5}}}), errdef.ErrInvalid},
		"pads of another rank":        {image, nil, node("MaxPool", map[string]graph.Attr{"kernel_shape": {Ints: []int64{2, 2}}, "pads": {Ints: []int64{1}}}), errdef.ErrInvalid},
		"an image without dimensions": {x, nil, node("GlobalAveragePool", nil), errdef.ErrInvalid},
		"padding that isn't known":    {image, nil, node("Conv", map[string]graph.Attr{"auto_pad": {S: "SAME"}}), errdef.ErrUnsupported},
		"training":                    {image, nil, node("BatchNormalization", map[string]graph.Attr{"training_mode": {I: 1}}), errdef.ErrUnsupported},
		"an unknown activation":       {image, nil, node("RNN", map[string]graph.Attr{"activations": {Strings: []string{"Cubic"}}}), errdef.ErrUnsupported},
		"weights that don't fit":      {floats([]int64{1, 1, 3}, make([]float32, 3)), map[string]*graph.Tensor{"y": floats([]int64{1, 4, 2}, make([]float32, 8))}, node("LSTM", nil, "y", "y"), errdef.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := tryChain(tc.x, tc.consts, tc.node); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestMissingOperatorsAreNamed(t *testing.T) {
	branch := &graph.Graph{Nodes: []graph.Node{{Op: "Warp", Domain: "example.org", Outputs: []string{"w"}}}}
	_, err := exec.Compile(&graph.Model{
		Opsets: map[string]int64{"": 17, "example.org": 2},
		Graph: &graph.Graph{Nodes: []graph.Node{
			{Op: "Relu", Inputs: []string{"x"}, Outputs: []string{"r"}},
			{Op: "If", Name: "if_0", Inputs: []string{"r"}, Outputs: []string{"y"}, Attrs: map[string]graph.Attr{"then_branch": {G: branch}}},
			{Op: "If", Name: "if_1", Inputs: []string{"r"}, Outputs: []string{"z"}},
		}},
	})
	want := "If of ai.onnx version 17 (node if_0), Warp of example.org version 2 (the node that makes w)"
	if !errors.Is(err, errdef.ErrUnsupported) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want it to end in %q", err, want)
	}
}
