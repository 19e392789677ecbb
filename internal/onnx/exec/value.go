package exec

import (
	"fmt"
	"slices"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

type tensor = graph.Tensor

func one(t *tensor) []*tensor { return []*tensor{t} }

// typeOf returns the element type of a slice. The 16-bit floats travel as uint16 and are set
// by the few kernels that make them.
func typeOf(data any) graph.DataType {
	switch data.(type) {
	case []bool:
		return graph.Bool
	case []uint8:
		return graph.Uint8
	case []uint16:
		return graph.Uint16
	case []uint32:
		return graph.Uint32
	case []uint64:
		return graph.Uint64
	case []int8:
		return graph.Int8
	case []int16:
		return graph.Int16
	case []int32:
		return graph.Int32
	case []int64:
		return graph.Int64
	case []float32:
		return graph.FP32
	case []float64:
		return graph.FP64
	case []string:
		return graph.String
	}
	return graph.Undefined
}

func newTensor(shape []int64, data any) *tensor {
	return &tensor{Type: typeOf(data), Shape: shape, Data: data}
}

func like(t *tensor, data any) *tensor { return newTensor(t.Shape, data) }

// count is the number of elements of a shape that a kernel computed.
func count(shape []int64) int {
	n, ok := graph.Count(shape)
	if !ok {
		panic(fmt.Sprintf("shape %v", shape))
	}
	return n
}

// limited is count with a bound, for shapes that come from a tensor's content: a graph must
// not be able to ask for more memory than a machine has.
func limited(shape []int64) (int, error) {
	n, ok := graph.Count(shape)
	if !ok || n > 1<<28 {
		return 0, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the shape %v is out of bounds", shape))
	}
	return n, nil
}

func unsupportedType(t *tensor) error {
	return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("elements of type %s aren't built in here", t.Type))
}

// number is a type of element that can be calculated with.
type number interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int8 | ~int16 | ~int32 | ~int64 | ~float32 | ~float64
}

// floats returns any numeric tensor's elements as float32, without a copy where they are.
func floats(t *tensor) ([]float32, error) {
	switch d := t.Data.(type) {
	case []float32:
		return d, nil
	case []float64:
		return castSlice[float64, float32](d), nil
	case []int64:
		return castSlice[int64, float32](d), nil
	case []int32:
		return castSlice[int32, float32](d), nil
	case []uint8:
		return castSlice[uint8, float32](d), nil
	case []bool:
		out := make([]float32, len(d))
		for i, b := range d {
			if b {
				out[i] = 1
			}
		}
		return out, nil
	}
	return nil, unsupportedType(t)
}

// ints returns an integer tensor's elements as int64.
func ints(t *tensor) ([]int64, error) {
	switch d := t.Data.(type) {
	case []int64:
		return d, nil
	case []int32:
		return castSlice[int32, int64](d), nil
	}
	return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("integers are needed and %s came", t.Type))
}

func castSlice[A, B number](a []A) []B {
	out := make([]B, len(a))
	for i, x := range a {
		out[i] = B(x)
	}
	return out
}

// rows splits a shape into rows by columns: a vector is one row; further dimensions count as
// columns.
func rows(t *tensor) (n, cols int) {
	switch len(t.Shape) {
	case 0:
		return 1, 1
	case 1:
		return 1, int(t.Shape[0])
	}
	n = int(t.Shape[0])
	return n, count(t.Shape[1:])
}

// axisOf normalises an axis that may count from the end.
func axisOf(axis int64, rank int) (int, error) {
	if axis < 0 {
		axis += int64(rank)
	}
	if axis < 0 || axis >= int64(rank) {
		return 0, errdef.New(errdef.ErrInvalid, fmt.Sprintf("axis %d of a tensor with %d dimensions", axis, rank))
	}
	return int(axis), nil
}

// strides are the distances between neighbours along each dimension.
func strides(shape []int64) []int {
	out := make([]int, len(shape))
	step := 1
	for i, d := range slices.Backward(shape) {
		out[i] = step
		step *= int(d)
	}
	return out
}

// broadcastShape joins two shapes by the rules that ONNX shares with NumPy.
func broadcastShape(a, b []int64) ([]int64, error) {
	out := make([]int64, max(len(a), len(b)))
	for i := range out {
		x, y := int64(1), int64(1)
		if j := i - len(out) + len(a); j >= 0 {
			x = a[j]
		}
		if j := i - len(out) + len(b); j >= 0 {
			y = b[j]
		}
		switch {
		case x == y || y == 1:
			out[i] = x
		case x == 1:
			out[i] = y
		default:
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the shapes %v and %v don't fit each other", a, b))
		}
	}
	return out, nil
}

// broadcastStrides are a tensor's strides within a larger shape: 0 where it repeats.
func broadcastStrides(shape, out []int64) []int {
	own := strides(shape)
	s := make([]int, len(out))
	for i := range out {
		if j := i - len(out) + len(shape); j >= 0 && shape[j] != 1 {
			s[i] = own[j]
		}
	}
	return s
}

// walk calls f with the offsets of each element of a shape in up to two tensors with the
// given strides, in row-major order.
func walk(shape []int64, sa, sb []int, f func(i, a, b int)) {
	n := count(shape)
	if n == 0 {
		return
	}
	index := make([]int64, len(shape))
	a, b := 0, 0
	for i := range n {
		f(i, a, b)
		for d := len(shape) - 1; d >= 0; d-- {
			index[d]++
			a += sa[d]
			b += sb[d]
			if index[d] < shape[d] {
				break
			}
			a -= sa[d] * int(shape[d])
			b -= sb[d] * int(shape[d])
			index[d] = 0
		}
	}
}
