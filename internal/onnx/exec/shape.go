package exec

import (
	"fmt"
	"slices"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

func buildShape(n *graph.Node, _ int64) (kernel, error) {
	start, end := n.Int("start", 0), n.Int("end", 1<<31)
	return func(in []*tensor) ([]*tensor, error) {
		rank := int64(len(in[0].Shape))
		from, to := clampIndex(start, rank), clampIndex(end, rank)
		return one(newTensor([]int64{max(to-from, 0)}, append([]int64{}, in[0].Shape[from:max(to, from)]...))), nil
	}, nil
}

func clampIndex(i, rank int64) int64 {
	if i < 0 {
		i += rank
	}
	return max(0, min(i, rank))
}

func buildSize(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		return one(newTensor([]int64{}, []int64{int64(count(in[0].Shape))})), nil
	}, nil
}

// reshaped gives the same elements another shape.
func reshaped(t *tensor, shape []int64) *tensor {
	return &tensor{Type: t.Type, Shape: shape, Data: t.Data}
}

func buildReshape(n *graph.Node, _ int64) (kernel, error) {
	fixed, keepZero := n.Ints("shape"), n.Int("allowzero", 0) == 1
	return func(in []*tensor) ([]*tensor, error) {
		want := fixed
		if len(in) > 1 {
			var err error
			if want, err = ints(in[1]); err != nil {
				return nil, err
			}
		}
		shape := append([]int64{}, want...)
		open, known := -1, int64(1)
		for i, d := range shape {
			switch {
			case d == 0 && !keepZero:
				shape[i] = in[0].Shape[i]
			case d == -1:
				open = i
				continue
			}
			known *= shape[i]
		}
		total := int64(count(in[0].Shape))
		if open >= 0 {
			shape[open] = 0
			if known != 0 {
				shape[open] = total / known
			}
			known *= shape[open]
		}
		if known != total {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the shape %v can't become %v", in[0].Shape, want))
		}
		return one(reshaped(in[0], shape)), nil
	}, nil
}

func buildFlatten(n *graph.Node, _ int64) (kernel, error) {
	axis := n.Int("axis", 1)
	return func(in []*tensor) ([]*tensor, error) {
		at := clampIndex(axis, int64(len(in[0].Shape)))
		return one(reshaped(in[0], []int64{int64(count(in[0].Shape[:at])), int64(count(in[0].Shape[at:]))})), nil
	}, nil
}

// axesOf reads axes from an attribute (old opsets) or from the input at i (newer ones).
func axesOf(n *graph.Node, in []*tensor, i int) ([]int64, error) {
	if n.Has("axes") {
		return n.Ints("axes"), nil
	}
	if len(in) > i && in[i] != nil {
		return ints(in[i])
	}
	return nil, nil
}

func buildSqueeze(n *graph.Node, _ int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		axes, err := axesOf(n, in, 1)
		if err != nil {
			return nil, err
		}
		drop := map[int]bool{}
		for _, a := range axes {
			at, err := axisOf(a, len(in[0].Shape))
			if err != nil {
				return nil, err
			}
			if in[0].Shape[at] != 1 {
				return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("dimension %d of %v isn't 1", at, in[0].Shape))
			}
			drop[at] = true
		}
		shape := []int64{}
		for i, d := range in[0].Shape {
			if drop[i] || (axes == nil && d == 1) {
				continue
			}
			shape = append(shape, d)
		}
		return one(reshaped(in[0], shape)), nil
	}, nil
}

func buildUnsqueeze(n *graph.Node, _ int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		axes, err := axesOf(n, in, 1)
		if err != nil {
			return nil, err
		}
		rank := len(in[0].Shape) + len(axes)
		fresh := map[int]bool{}
		for _, a := range axes {
			at, err := axisOf(a, rank)
			if err != nil {
				return nil, err
			}
			fresh[at] = true
		}
		shape, rest := make([]int64, rank), in[0].Shape
		for i := range shape {
			if fresh[i] {
				shape[i] = 1
				continue
			}
			shape[i], rest = rest[0], rest[1:]
		}
		return one(reshaped(in[0], shape)), nil
	}, nil
}

// gathered makes a tensor of the elements of t at the given offsets.
func gathered(t *tensor, shape []int64, offsets []int) *tensor {
	out := &tensor{Type: t.Type, Shape: shape}
	switch d := t.Data.(type) {
	case []float32:
		out.Data = pick(d, offsets)
	case []float64:
		out.Data = pick(d, offsets)
	case []int64:
		out.Data = pick(d, offsets)
	case []int32:
		out.Data = pick(d, offsets)
	case []int16:
		out.Data = pick(d, offsets)
	case []int8:
		out.Data = pick(d, offsets)
	case []uint8:
		out.Data = pick(d, offsets)
	case []uint16:
		out.Data = pick(d, offsets)
	case []uint32:
		out.Data = pick(d, offsets)
	case []uint64:
		out.Data = pick(d, offsets)
	case []bool:
		out.Data = pick(d, offsets)
	case []string:
		out.Data = pick(d, offsets)
	}
	return out
}

func pick[T any](d []T, offsets []int) []T {
	out := make([]T, len(offsets))
	for i, o := range offsets {
		out[i] = d[o]
	}
	return out
}

// viewed makes a tensor by walking t with the given strides and first offset.
func viewed(t *tensor, shape []int64, by []int, first int) (*tensor, error) {
	n, err := limited(shape)
	if err != nil {
		return nil, err
	}
	if d, ok := t.Data.([]float32); ok && len(shape) > 0 && n > 0 {
		return newTensor(shape, stretched(d, shape, by, first)), nil
	}
	offsets := make([]int, n)
	walk(shape, by, make([]int, len(shape)), func(i, a, _ int) { offsets[i] = first + a })
	return gathered(t, shape, offsets), nil
}

func buildTranspose(n *graph.Node, _ int64) (kernel, error) {
	perm := n.Ints("perm")
	return func(in []*tensor) ([]*tensor, error) {
		rank := len(in[0].Shape)
		order := perm
		if order == nil {
			for i := range rank {
				order = append(order, int64(rank-1-i))
			}
		}
		own := strides(in[0].Shape)
		shape, by := make([]int64, rank), make([]int, rank)
		for i, p := range order {
			shape[i], by[i] = in[0].Shape[p], own[p]
		}
		t, err := viewed(in[0], shape, by, 0)
		return one(t), err
	}, nil
}

func buildExpand(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		want, err := ints(in[1])
		if err != nil {
			return nil, err
		}
		shape, err := broadcastShape(in[0].Shape, want)
		if err != nil {
			return nil, err
		}
		t, err := viewed(in[0], shape, broadcastStrides(in[0].Shape, shape), 0)
		return one(t), err
	}, nil
}

func buildTile(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		repeats, err := ints(in[1])
		if err != nil {
			return nil, err
		}
		// Each dimension becomes two, (repeat, dimension), the first with stride 0.
		own := strides(in[0].Shape)
		var wide []int64
		var by []int
		shape := make([]int64, len(in[0].Shape))
		for i, d := range in[0].Shape {
			wide, by = append(wide, repeats[i], d), append(by, 0, own[i])
			shape[i] = repeats[i] * d
		}
		t, err := viewed(in[0], wide, by, 0)
		if err != nil {
			return nil, err
		}
		return one(reshaped(t, shape)), nil
	}, nil
}

func buildConcat(n *graph.Node, _ int64) (kernel, error) {
	axis := n.Int("axis", 0)
	return func(in []*tensor) ([]*tensor, error) {
		first := in[0]
		at, err := axisOf(axis, len(first.Shape))
		if err != nil {
			return nil, err
		}
		shape := slices.Clone(first.Shape)
		shape[at] = 0
		for _, t := range in {
			if t.Type != first.Type || len(t.Shape) != len(shape) {
				return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s%v and %s%v can't be joined", first.Type, first.Shape, t.Type, t.Shape))
			}
			shape[at] += t.Shape[at]
		}
		outer := count(shape[:at])
		switch first.Data.(type) {
		case []float32:
			return one(newTensor(shape, joined[float32](in, at, outer))), nil
		case []float64:
			return one(newTensor(shape, joined[float64](in, at, outer))), nil
		case []int64:
			return one(newTensor(shape, joined[int64](in, at, outer))), nil
		case []int32:
			return one(newTensor(shape, joined[int32](in, at, outer))), nil
		case []string:
			return one(newTensor(shape, joined[string](in, at, outer))), nil
		case []bool:
			return one(newTensor(shape, joined[bool](in, at, outer))), nil
		case []uint8:
			return one(newTensor(shape, joined[uint8](in, at, outer))), nil
		}
		return nil, unsupportedType(first)
	}, nil
}

func joined[T any](in []*tensor, axis, outer int) []T {
	var out []T
	for o := range outer {
		for _, t := range in {
			d := t.Data.([]T)
			width := count(t.Shape[axis:])
			out = append(out, d[o*width:(o+1)*width]...)
		}
	}
	if out == nil {
		out = []T{}
	}
	return out
}

func buildSplit(n *graph.Node, _ int64) (kernel, error) {
	axis, outputs := n.Int("axis", 0), int64(len(n.Outputs))
	return func(in []*tensor) ([]*tensor, error) {
		at, err := axisOf(axis, len(in[0].Shape))
		if err != nil {
			return nil, err
		}
		sizes := n.Ints("split")
		if len(in) > 1 && in[1] != nil {
			if sizes, err = ints(in[1]); err != nil {
				return nil, err
			}
		}
		if sizes == nil {
			total := in[0].Shape[at]
			each := (total + outputs - 1) / outputs
			for left := total; len(sizes) < int(outputs); left -= each {
				sizes = append(sizes, min(each, max(left, 0)))
			}
		}
		own := strides(in[0].Shape)
		var out []*tensor
		from := 0
		for _, size := range sizes {
			shape := slices.Clone(in[0].Shape)
			shape[at] = size
			t, err := viewed(in[0], shape, own, from*own[at])
			if err != nil {
				return nil, err
			}
			out = append(out, t)
			from += int(size)
		}
		return out, nil
	}, nil
}

func buildSlice(n *graph.Node, _ int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		rank := len(in[0].Shape)
		starts, ends, axes := n.Ints("starts"), n.Ints("ends"), n.Ints("axes")
		var steps []int64
		for i, into := range []*[]int64{nil, &starts, &ends, &axes, &steps} {
			if i > 0 && len(in) > i && in[i] != nil {
				var err error
				if *into, err = ints(in[i]); err != nil {
					return nil, err
				}
			}
		}
		shape, by := slices.Clone(in[0].Shape), strides(in[0].Shape)
		first := 0
		for i := range starts {
			at, step := i, int64(1)
			var err error
			if axes != nil {
				if at, err = axisOf(axes[i], rank); err != nil {
					return nil, err
				}
			}
			if steps != nil {
				step = steps[i]
			}
			from, n, err := sliceRange(starts[i], ends[i], step, in[0].Shape[at])
			if err != nil {
				return nil, err
			}
			if n > 0 {
				first += int(from) * by[at]
			}
			shape[at], by[at] = n, by[at]*int(step)
		}
		t, err := viewed(in[0], shape, by, first)
		return one(t), err
	}, nil
}

// sliceRange is where a slice starts and how many elements it takes.
func sliceRange(start, end, step, size int64) (from, n int64, err error) {
	if step == 0 {
		return 0, 0, errdef.New(errdef.ErrInvalid, "a slice has the step 0")
	}
	lowest, highest := int64(0), size
	if step < 0 {
		lowest, highest = -1, size-1
	}
	clamp := func(i int64) int64 {
		if i < 0 {
			i += size
		}
		return max(lowest, min(i, highest))
	}
	from, to := clamp(start), clamp(end)
	if step < 0 && end < -size {
		to = -1
	}
	n = (to - from + step - sign64(step)) / step
	return from, max(n, 0), nil
}

func sign64(x int64) int64 {
	if x < 0 {
		return -1
	}
	return 1
}

func buildConstant(n *graph.Node, _ int64) (kernel, error) {
	var t *tensor
	switch {
	case n.Has("value"):
		t = n.Attrs["value"].T
	case n.Has("value_float"):
		t = newTensor([]int64{}, []float32{n.Attrs["value_float"].F})
	case n.Has("value_int"):
		t = newTensor([]int64{}, []int64{n.Attrs["value_int"].I})
	case n.Has("value_string"):
		t = newTensor([]int64{}, []string{n.Attrs["value_string"].S})
	case n.Has("value_floats"):
		t = newTensor([]int64{int64(len(n.Floats("value_floats")))}, n.Floats("value_floats"))
	case n.Has("value_ints"):
		t = newTensor([]int64{int64(len(n.Ints("value_ints")))}, n.Ints("value_ints"))
	case n.Has("value_strings"):
		t = newTensor([]int64{int64(len(n.Strings("value_strings")))}, n.Strings("value_strings"))
	}
	if t == nil {
		return nil, errdef.New(errdef.ErrUnsupported, "the constant has no dense value")
	}
	return func([]*tensor) ([]*tensor, error) { return one(t), nil }, nil
}

func buildConstantOfShape(n *graph.Node, _ int64) (kernel, error) {
	value := newTensor([]int64{1}, []float32{0})
	if a, ok := n.Attrs["value"]; ok && a.T != nil {
		value = a.T
	}
	if count(value.Shape) != 1 {
		return nil, errdef.New(errdef.ErrInvalid, "the value to fill with isn't a single one")
	}
	return func(in []*tensor) ([]*tensor, error) {
		shape, err := ints(in[0])
		if err != nil {
			return nil, err
		}
		t, err := viewed(value, append([]int64{}, shape...), make([]int, len(shape)), 0)
		return one(t), err
	}, nil
}

func buildRange(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		switch in[0].Data.(type) {
		case []int64:
			return ranged[int64](in)
		case []int32:
			return ranged[int32](in)
		case []float32:
			return ranged[float32](in)
		case []float64:
			return ranged[float64](in)
		}
		return nil, unsupportedType(in[0])
	}, nil
}

func ranged[T int32 | int64 | float32 | float64](in []*tensor) ([]*tensor, error) {
	start, limit, delta := in[0].Data.([]T)[0], in[1].Data.([]T)[0], in[2].Data.([]T)[0]
	if delta == 0 {
		return nil, errdef.New(errdef.ErrInvalid, "a range has the step 0")
	}
	steps := float64(limit-start) / float64(delta)
	n := int64(max(steps, 0))
	if float64(n) < steps {
		n++
	}
	if _, err := limited([]int64{n}); err != nil {
		return nil, err
	}
	out := make([]T, n)
	for i := range out {
		out[i] = start + T(i)*delta
	}
	return one(newTensor([]int64{n}, out)), nil
}
