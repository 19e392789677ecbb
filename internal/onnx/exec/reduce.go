package exec

import (
	"fmt"
	"math"
	"slices"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// folding is one reduction: start, take an element, finish with how many were taken.
type folding struct {
	start  float64
	take   func(acc, x float64) float64
	finish func(acc float64, n int) float64
}

func same(acc float64, _ int) float64 { return acc }

var (
	reduceSum       = folding{0, func(a, x float64) float64 { return a + x }, same}
	reduceMean      = folding{0, func(a, x float64) float64 { return a + x }, func(a float64, n int) float64 { return a / float64(n) }}
	reduceMax       = folding{math.Inf(-1), math.Max, same}
	reduceMin       = folding{math.Inf(1), math.Min, same}
	reduceProd      = folding{1, func(a, x float64) float64 { return a * x }, same}
	reduceSumSquare = folding{0, func(a, x float64) float64 { return a + x*x }, same}
	reduceL1        = folding{0, func(a, x float64) float64 { return a + math.Abs(x) }, same}
	reduceL2        = folding{0, func(a, x float64) float64 { return a + x*x }, func(a float64, _ int) float64 { return math.Sqrt(a) }}
	// reduceLogSumExp works on pairs that don't overflow: log(e^a + e^x).
	reduceLogSumExp = folding{math.Inf(-1), func(a, x float64) float64 {
		if math.IsInf(a, -1) {
			return x
		}
		m := max(a, x)
		return m + math.Log(math.Exp(a-m)+math.Exp(x-m))
	}, same}
)

func reduction(f folding) builder {
	return func(n *graph.Node, _ int64) (kernel, error) {
		keep, idle := n.Int("keepdims", 1) == 1, n.Int("noop_with_empty_axes", 0) == 1
		return func(in []*tensor) ([]*tensor, error) {
			axes, err := axesOf(n, in, 1)
			if err != nil {
				return nil, err
			}
			if len(axes) == 0 && idle {
				return one(in[0]), nil
			}
			t, err := f.reduce(in[0], axes, keep)
			return one(t), err
		}, nil
	}
}

func (f folding) reduce(t *tensor, axes []int64, keep bool) (*tensor, error) {
	rank := len(t.Shape)
	gone := make([]bool, rank)
	for _, a := range axes {
		at, err := axisOf(a, rank)
		if err != nil {
			return nil, err
		}
		gone[at] = true
	}
	full, shape, taken := make([]int64, rank), []int64{}, 1
	for i, d := range t.Shape {
		full[i] = d
		if gone[i] || len(axes) == 0 {
			full[i] = 1
			taken *= int(d)
			if keep {
				shape = append(shape, 1)
			}
			continue
		}
		shape = append(shape, d)
	}
	into := broadcastStrides(full, t.Shape)
	acc := make([]float64, count(full))
	for i := range acc {
		acc[i] = f.start
	}
	switch d := t.Data.(type) {
	case []float32:
		fold(f, t, d, into, acc)
		return newTensor(shape, finished[float32](f, acc, taken)), nil
	case []float64:
		fold(f, t, d, into, acc)
		return newTensor(shape, finished[float64](f, acc, taken)), nil
	case []int64:
		fold(f, t, d, into, acc)
		return newTensor(shape, finished[int64](f, acc, taken)), nil
	case []int32:
		fold(f, t, d, into, acc)
		return newTensor(shape, finished[int32](f, acc, taken)), nil
	}
	return nil, unsupportedType(t)
}

func fold[T number](f folding, t *tensor, d []T, into []int, acc []float64) {
	walk(t.Shape, into, make([]int, len(t.Shape)), func(i, a, _ int) { acc[a] = f.take(acc[a], float64(d[i])) })
}

func finished[T number](f folding, acc []float64, n int) []T {
	return mapped(acc, func(x float64) T { return T(f.finish(x, n)) })
}

// argument is ArgMax or ArgMin; of equal values the first wins, or the last where asked.
func argument(most bool) builder {
	return func(n *graph.Node, _ int64) (kernel, error) {
		axis, keep, last := n.Int("axis", 0), n.Int("keepdims", 1) == 1, n.Int("select_last_index", 0) == 1
		return func(in []*tensor) ([]*tensor, error) {
			t := in[0]
			at, err := axisOf(axis, len(t.Shape))
			if err != nil {
				return nil, err
			}
			d, err := castTo(t, graph.FP64)
			if err != nil {
				return nil, err
			}
			x := d.Data.([]float64)
			outer, size, inner := count(t.Shape[:at]), int(t.Shape[at]), count(t.Shape[at+1:])
			out := make([]int64, outer*inner)
			for o := range outer {
				for k := range inner {
					best := 0
					for i := 1; i < size; i++ {
						v, b := x[(o*size+i)*inner+k], x[(o*size+best)*inner+k]
						if (most && v > b) || (!most && v < b) || (last && v == b) {
							best = i
						}
					}
					out[o*inner+k] = int64(best)
				}
			}
			shape := slices.Clone(t.Shape)
			if keep {
				shape[at] = 1
			} else {
				shape = slices.Delete(shape, at, at+1)
			}
			return one(newTensor(shape, out)), nil
		}, nil
	}
}

func buildTopK(n *graph.Node, _ int64) (kernel, error) {
	axis, largest, fixed := n.Int("axis", -1), n.Int("largest", 1) == 1, n.Int("k", 0)
	return func(in []*tensor) ([]*tensor, error) {
		t, k := in[0], fixed
		if len(in) > 1 {
			v, err := ints(in[1])
			if err != nil {
				return nil, err
			}
			k = v[0]
		}
		at, err := axisOf(axis, len(t.Shape))
		if err != nil {
			return nil, err
		}
		size := int(t.Shape[at])
		if k < 0 || k > int64(size) {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the %d best of %d were asked for", k, size))
		}
		d, err := castTo(t, graph.FP64)
		if err != nil {
			return nil, err
		}
		x := d.Data.([]float64)
		outer, inner := count(t.Shape[:at]), count(t.Shape[at+1:])
		shape := slices.Clone(t.Shape)
		shape[at] = k
		offsets, places := make([]int, outer*int(k)*inner), make([]int64, outer*int(k)*inner)
		order := make([]int, size)
		for o := range outer {
			for c := range inner {
				value := func(i int) float64 { return x[(o*size+i)*inner+c] }
				for i := range order {
					order[i] = i
				}
				slices.SortStableFunc(order, func(a, b int) int {
					va, vb := value(a), value(b)
					switch {
					case va == vb:
						return 0
					case (va > vb) == largest:
						return -1
					}
					return 1
				})
				for i := range int(k) {
					to := (o*int(k)+i)*inner + c
					offsets[to], places[to] = (o*size+order[i])*inner+c, int64(order[i])
				}
			}
		}
		return []*tensor{gathered(t, shape, offsets), newTensor(shape, places)}, nil
	}, nil
}

// softmax works along one axis; before opset 13 it worked on all dimensions from the axis on.
func softmax(logarithm bool) builder {
	return func(n *graph.Node, opset int64) (kernel, error) {
		otherwise := int64(-1)
		if opset < 13 {
			otherwise = 1
		}
		axis := n.Int("axis", otherwise)
		return func(in []*tensor) ([]*tensor, error) {
			t := in[0]
			at, err := axisOf(axis, max(len(t.Shape), 1))
			if err != nil {
				return nil, err
			}
			outer, size, inner := count(t.Shape[:at]), count(t.Shape[at:]), 1
			if opset >= 13 {
				size, inner = int(t.Shape[at]), count(t.Shape[at+1:])
			}
			switch d := t.Data.(type) {
			case []float32:
				return one(like(t, softmaxed(d, outer, size, inner, logarithm))), nil
			case []float64:
				return one(like(t, softmaxed(d, outer, size, inner, logarithm))), nil
			}
			return nil, unsupportedType(t)
		}, nil
	}
}

func softmaxed[T float32 | float64](d []T, outer, size, inner int, logarithm bool) []T {
	out := make([]T, len(d))
	plane := size * inner
	if plane == 0 {
		return out
	}
	parallel(outer*plane, plane, func(from, to int) {
		for o := from / plane; o < to/plane; o++ {
			softmaxPlane(out[o*plane:(o+1)*plane], d[o*plane:(o+1)*plane], size, inner, logarithm)
		}
	})
	return out
}

// softmaxPlane is softmax of each of the inner columns of size elements.
func softmaxPlane[T float32 | float64](out, d []T, size, inner int, logarithm bool) {
	for base := range inner {
		top := math.Inf(-1)
		for i := range size {
			top = max(top, float64(d[base+i*inner]))
		}
		sum := 0.0
		for i := range size {
			e := math.Exp(float64(d[base+i*inner]) - top)
			out[base+i*inner] = T(e)
			sum += e
		}
		for i := range size {
			at := base + i*inner
			if logarithm {
				out[at] = T(float64(d[at]) - top - math.Log(sum))
			} else {
				out[at] = T(float64(out[at]) / sum)
			}
		}
	}
}

func buildLayerNormalization(n *graph.Node, _ int64) (kernel, error) {
	axis, epsilon := n.Int("axis", -1), float64(n.Float("epsilon", 1e-5))
	return func(in []*tensor) ([]*tensor, error) {
		t := in[0]
		at, err := axisOf(axis, len(t.Shape))
		if err != nil {
			return nil, err
		}
		x, err := floats(t)
		if err != nil {
			return nil, err
		}
		scale := in[1].Data.([]float32)
		var bias []float32
		if len(in) > 2 && in[2] != nil {
			bias = in[2].Data.([]float32)
		}
		size := count(t.Shape[at:])
		out := make([]float32, len(x))
		for from := 0; from < len(x); from += size {
			row := x[from : from+size]
			mean, square := 0.0, 0.0
			for _, v := range row {
				mean += float64(v)
			}
			mean /= float64(size)
			for _, v := range row {
				square += (float64(v) - mean) * (float64(v) - mean)
			}
			by := 1 / math.Sqrt(square/float64(size)+epsilon)
			for i, v := range row {
				y := float32((float64(v)-mean)*by) * scale[i]
				if bias != nil {
					y += bias[i]
				}
				out[from+i] = y
			}
		}
		return one(like(t, out)), nil
	}, nil
}
