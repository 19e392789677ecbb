package exec

import (
	"fmt"
	"slices"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// index normalises an index that may count from the end.
func index(i, size int64) (int, error) {
	if i < 0 {
		i += size
	}
	if i < 0 || i >= size {
		return 0, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the index %d is outside a dimension of %d", i, size))
	}
	return int(i), nil
}

func buildGather(n *graph.Node, _ int64) (kernel, error) {
	axis := n.Int("axis", 0)
	return func(in []*tensor) ([]*tensor, error) {
		data := in[0]
		at, err := axisOf(axis, len(data.Shape))
		if err != nil {
			return nil, err
		}
		indices, err := ints(in[1])
		if err != nil {
			return nil, err
		}
		outer, inner := count(data.Shape[:at]), count(data.Shape[at+1:])
		size := data.Shape[at]
		shape := slices.Concat(data.Shape[:at], in[1].Shape, data.Shape[at+1:])
		if _, err := limited(shape); err != nil {
			return nil, err
		}
		starts := make([]int, len(indices))
		for i, x := range indices {
			if starts[i], err = index(x, size); err != nil {
				return nil, err
			}
		}
		if d, ok := data.Data.([]float32); ok {
			return one(newTensor(shape, gatherRuns(d, starts, outer, int(size), inner))), nil
		}
		offsets := make([]int, 0, outer*len(starts)*inner)
		for o := range outer {
			for _, s := range starts {
				for k := range inner {
					offsets = append(offsets, (o*int(size)+s)*inner+k)
				}
			}
		}
		return one(gathered(data, shape, offsets)), nil
	}, nil
}

func gatherRuns(d []float32, starts []int, outer, size, inner int) []float32 {
	out := make([]float32, 0, outer*len(starts)*inner)
	for o := range outer {
		for _, s := range starts {
			at := (o*size + s) * inner
			out = append(out, d[at:at+inner]...)
		}
	}
	return out
}

func buildGatherElements(n *graph.Node, _ int64) (kernel, error) {
	axis := n.Int("axis", 0)
	return func(in []*tensor) ([]*tensor, error) {
		data := in[0]
		at, err := axisOf(axis, len(data.Shape))
		if err != nil {
			return nil, err
		}
		indices, err := ints(in[1])
		if err != nil {
			return nil, err
		}
		own := strides(data.Shape)
		by := slices.Clone(own)
		by[at] = 0
		offsets := make([]int, len(indices))
		var failed error
		walk(in[1].Shape, by, make([]int, len(by)), func(i, a, _ int) {
			x, err := index(indices[i], data.Shape[at])
			if err != nil {
				failed = err
				return
			}
			offsets[i] = a + x*own[at]
		})
		if failed != nil {
			return nil, failed
		}
		return one(gathered(data, in[1].Shape, offsets)), nil
	}, nil
}

func buildGatherND(n *graph.Node, _ int64) (kernel, error) {
	if n.Int("batch_dims", 0) != 0 {
		return nil, errdef.New(errdef.ErrUnsupported, "batch_dims isn't built in")
	}
	return func(in []*tensor) ([]*tensor, error) {
		data := in[0]
		indices, err := ints(in[1])
		if err != nil {
			return nil, err
		}
		depth := int(in[1].Shape[len(in[1].Shape)-1])
		own := strides(data.Shape)
		inner := count(data.Shape[depth:])
		var offsets []int
		for i := 0; i+depth <= len(indices); i += depth {
			start := 0
			for k := range depth {
				x, err := index(indices[i+k], data.Shape[k])
				if err != nil {
					return nil, err
				}
				start += x * own[k]
			}
			for k := range inner {
				offsets = append(offsets, start+k)
			}
		}
		shape := slices.Concat(in[1].Shape[:len(in[1].Shape)-1], data.Shape[depth:])
		return one(gathered(data, shape, offsets)), nil
	}, nil
}

func buildOneHot(n *graph.Node, _ int64) (kernel, error) {
	axis := n.Int("axis", -1)
	return func(in []*tensor) ([]*tensor, error) {
		indices, err := castTo(in[0], graph.Int64)
		if err != nil {
			return nil, err
		}
		d, err := castTo(in[1], graph.Int64)
		if err != nil {
			return nil, err
		}
		depth := d.Data.([]int64)[0]
		at, err := axisOf(axis, len(indices.Shape)+1)
		if err != nil {
			return nil, err
		}
		shape := slices.Insert(slices.Clone(indices.Shape), at, depth)
		size, err := limited(shape)
		if err != nil {
			return nil, err
		}
		inner := count(indices.Shape[at:])
		offsets := make([]int, size) // 0 picks the off value, 1 the on value
		for i, x := range indices.Data.([]int64) {
			if x < 0 {
				x += depth
			}
			if x >= 0 && x < depth {
				offsets[(i/inner*int(depth)+int(x))*inner+i%inner] = 1
			}
		}
		return one(gathered(in[2], shape, offsets)), nil
	}, nil
}

func buildNonZero(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		set, err := castTo(in[0], graph.Bool)
		if err != nil {
			return nil, err
		}
		own := strides(in[0].Shape)
		var at []int
		for i, b := range set.Data.([]bool) {
			if b {
				at = append(at, i)
			}
		}
		out := make([]int64, 0, len(own)*len(at))
		for d, s := range own {
			for _, i := range at {
				out = append(out, int64(i/s)%in[0].Shape[d])
			}
		}
		return one(newTensor([]int64{int64(len(own)), int64(len(at))}, out)), nil
	}, nil
}

func buildCumSum(n *graph.Node, _ int64) (kernel, error) {
	exclusive, reverse := n.Int("exclusive", 0) == 1, n.Int("reverse", 0) == 1
	return func(in []*tensor) ([]*tensor, error) {
		axes, err := ints(in[1])
		if err != nil {
			return nil, err
		}
		at, err := axisOf(axes[0], len(in[0].Shape))
		if err != nil {
			return nil, err
		}
		step, size := strides(in[0].Shape)[at], int(in[0].Shape[at])
		switch d := in[0].Data.(type) {
		case []float32:
			return one(like(in[0], running(d, step, size, exclusive, reverse))), nil
		case []float64:
			return one(like(in[0], running(d, step, size, exclusive, reverse))), nil
		case []int64:
			return one(like(in[0], running(d, step, size, exclusive, reverse))), nil
		case []int32:
			return one(like(in[0], running(d, step, size, exclusive, reverse))), nil
		}
		return nil, unsupportedType(in[0])
	}, nil
}

// running sums up along a dimension whose neighbours are step apart; an exclusive sum leaves
// the element itself out, a reverse one begins at the end.
func running[T number](d []T, step, size int, exclusive, reverse bool) []T {
	out := make([]T, len(d))
	for k := range out {
		i, before := k, k-step
		first := k/step%size == 0
		if reverse {
			i = len(out) - 1 - k
			before = i + step
			first = i/step%size == size-1
		}
		if !exclusive {
			out[i] = d[i]
		}
		if first {
			continue
		}
		out[i] += out[before]
		if exclusive {
			out[i] += d[before]
		}
	}
	return out
}
