package exec

import (
	"fmt"
	"math"
	"slices"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// window is how Conv and the pools move over the spatial dimensions of [batch, channels, …], as
// the node's attributes have it. Nil lists mean ones, and for pads zeros.
type window struct {
	kernel, stride, dilation, pads []int64
	autoPad                        string
	ceil                           bool
}

func windowOf(n *graph.Node) (window, error) {
	w := window{
		kernel: n.Ints("kernel_shape"), stride: n.Ints("strides"), dilation: n.Ints("dilations"), pads: n.Ints("pads"),
		autoPad: n.Text("auto_pad", "NOTSET"), ceil: n.Int("ceil_mode", 0) == 1,
	}
	switch w.autoPad {
	case "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER":
		return w, nil
	}
	return w, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("auto_pad %q isn't built in", w.autoPad))
}

// sweep is a window's way along one dimension: sizes in elements, before is the padding in front.
type sweep struct {
	in, kernel, stride, dilation, before, out int
}

// sweeps fits the window to an input's spatial dimensions.
func (w *window) sweeps(spatial, kernel []int64) ([]sweep, error) {
	if len(kernel) != len(spatial) {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("a window of %v can't move over %v", kernel, spatial))
	}
	out := make([]sweep, len(spatial))
	for i, size := range spatial {
		s := sweep{in: int(size), kernel: int(kernel[i]), stride: 1, dilation: 1}
		after := 0
		if w.stride != nil {
			s.stride = int(w.stride[i])
		}
		if w.dilation != nil {
			s.dilation = int(w.dilation[i])
		}
		if w.pads != nil && w.autoPad == "NOTSET" {
			s.before, after = int(w.pads[i]), int(w.pads[i+len(spatial)])
		}
		if s.kernel < 1 || s.stride < 1 || s.dilation < 1 || s.before < 0 || after < 0 {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("a window of %d, step %d, dilation %d and padding %d and %d makes no sense", s.kernel, s.stride, s.dilation, s.before, after))
		}
		reach := (s.kernel-1)*s.dilation + 1
		if w.autoPad == "SAME_UPPER" || w.autoPad == "SAME_LOWER" {
			s.out = (s.in + s.stride - 1) / s.stride
			total := max((s.out-1)*s.stride+reach-s.in, 0)
			s.before = total / 2
			if w.autoPad == "SAME_LOWER" {
				s.before = total - total/2
			}
			out[i] = s
			continue
		}
		free := s.in + s.before + after - reach
		if free < 0 {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("a window that reaches over %d elements doesn't fit into %d", reach, s.in+s.before+after))
		}
		s.out = free/s.stride + 1
		if w.ceil {
			s.out = (free+s.stride-1)/s.stride + 1
			if (s.out-1)*s.stride >= s.in+s.before {
				s.out-- // the last window must begin within the input or the padding before it
			}
		}
		out[i] = s
	}
	return out, nil
}

// spatialOut is the output's spatial shape, and the elements of a plane before and after.
func spatialOut(sweeps []sweep) (shape []int64, in, kernel, out int, err error) {
	in, kernel = 1, 1
	for _, s := range sweeps {
		shape = append(shape, int64(s.out))
		in, kernel = in*s.in, kernel*s.kernel
	}
	out, err = limited(shape)
	return shape, in, kernel, out, err
}

// slideKind is what slide does with the elements it meets.
type slideKind uint8

const (
	slideCopy slideKind = iota
	slideAdd
	slideMax
)

// slide goes over all places of the window and brings the element of plane that lies under
// the window's element at into row. Where that is padding, row stays as it is.
func slide[T float32 | float64](kind slideKind, row, plane []T, sweeps []sweep, at []int) {
	s := sweeps[0]
	// The outputs whose element lies within the input: from ≤ o < to.
	shift := at[0]*s.dilation - s.before
	from, to := 0, s.out
	if shift < 0 {
		from = (-shift + s.stride - 1) / s.stride
	}
	if last := s.in - 1 - shift; last < 0 {
		return
	} else if last/s.stride+1 < to {
		to = last/s.stride + 1
	}
	if len(sweeps) > 1 {
		wide, deep := len(row)/s.out, len(plane)/s.in
		for o := from; o < to; o++ {
			i := o*s.stride + shift
			slide(kind, row[o*wide:(o+1)*wide], plane[i*deep:(i+1)*deep], sweeps[1:], at[1:])
		}
		return
	}
	if from >= to {
		return
	}
	switch kind {
	case slideCopy:
		if s.stride == 1 {
			copy(row[from:to], plane[from+shift:])
			return
		}
		for o := from; o < to; o++ {
			row[o] = plane[o*s.stride+shift]
		}
	case slideAdd:
		for o := from; o < to; o++ {
			row[o] += plane[o*s.stride+shift]
		}
	case slideMax:
		for o := from; o < to; o++ {
			row[o] = max(row[o], plane[o*s.stride+shift])
		}
	}
}

// eachOffset calls f for every element of the window, in row-major order.
func eachOffset(sweeps []sweep, f func(k int, at []int)) {
	at := make([]int, len(sweeps))
	for k := 0; ; k++ {
		f(k, at)
		d := len(at) - 1
		for ; d >= 0; d-- {
			if at[d]++; at[d] < sweeps[d].kernel {
				break
			}
			at[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

func buildConv(n *graph.Node, _ int64) (kernel, error) {
	w, err := windowOf(n)
	if err != nil {
		return nil, err
	}
	group := int(n.Int("group", 1))
	return func(in []*tensor) ([]*tensor, error) {
		switch in[0].Data.(type) {
		case []float32:
			return convolve[float32](in, &w, group)
		case []float64:
			return convolve[float64](in, &w, group)
		}
		return nil, unsupportedType(in[0])
	}, nil
}

// convolve unfolds each group of channels into a matrix with a column for each output, which the
// weights are then multiplied by.
func convolve[T float32 | float64](in []*tensor, w *window, group int) ([]*tensor, error) {
	x, weights := in[0].Data.([]T), in[1].Data.([]T)
	xs, ws := in[0].Shape, in[1].Shape
	if len(xs) < 3 || len(ws) != len(xs) || group < 1 || xs[1] != ws[1]*int64(group) || ws[0]%int64(group) != 0 {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("weights of %v in %d groups don't fit an input of %v", ws, group, xs))
	}
	sweeps, err := w.sweeps(xs[2:], ws[2:])
	if err != nil {
		return nil, err
	}
	spatial, plane, kernel, places, err := spatialOut(sweeps)
	if err != nil {
		return nil, err
	}
	shape := slices.Concat(xs[:1], ws[:1], spatial)
	size, err := limited(shape)
	if err != nil {
		return nil, err
	}
	channels, filters := int(ws[1]), int(ws[0])/group
	depth := channels * kernel
	if _, err := limited([]int64{int64(depth), int64(places)}); err != nil {
		return nil, err
	}
	var bias []T
	if len(in) > 2 && in[2] != nil {
		bias = in[2].Data.([]T)
	}
	out := make([]T, size)
	same := kernel == 1 && plane == places // the window is one element: nothing to unfold
	for i, s := range sweeps {
		same = same && s.before == 0 && s.stride == 1 && int(xs[2+i]) == s.out
	}
	var columns []T
	if !same {
		columns = make([]T, depth*places)
	}
	for b := range int(xs[0]) {
		for g := range group {
			image := x[(b*group+g)*channels*plane:][:channels*plane]
			under := image
			if !same {
				under = columns
				clear(columns)
				eachOffset(sweeps, func(k int, at []int) {
					for c := range channels {
						slide(slideCopy, columns[(c*kernel+k)*places:][:places], image[c*plane:(c+1)*plane], sweeps, at)
					}
				})
			}
			to := out[(b*group+g)*filters*places:][:filters*places]
			multiply(to, weights[g*filters*depth:][:filters*depth], under, filters, depth, places)
			for f := range filters {
				if bias != nil {
					y := bias[g*filters+f]
					row := to[f*places : (f+1)*places]
					for i := range row {
						row[i] += y
					}
				}
			}
		}
	}
	return one(newTensor(shape, out)), nil
}

// pool is MaxPool or AveragePool; the global ones have a window as large as the input.
func pool(kind slideKind, global bool) builder {
	return func(n *graph.Node, _ int64) (kernel, error) {
		w, err := windowOf(n)
		if err != nil {
			return nil, err
		}
		withPadding := n.Int("count_include_pad", 0) == 1
		switch {
		case len(n.Outputs) > 1 && n.Outputs[1] != "":
			return nil, errdef.New(errdef.ErrUnsupported, "the places of the maxima aren't built in")
		case withPadding && w.ceil:
			return nil, errdef.New(errdef.ErrUnsupported, "count_include_pad together with ceil_mode isn't built in")
		}
		return func(in []*tensor) ([]*tensor, error) {
			switch d := in[0].Data.(type) {
			case []float32:
				return pooled(in[0], d, &w, kind, global, withPadding)
			case []float64:
				return pooled(in[0], d, &w, kind, global, withPadding)
			}
			return nil, unsupportedType(in[0])
		}, nil
	}
}

func pooled[T float32 | float64](t *tensor, d []T, w *window, kind slideKind, global, withPadding bool) ([]*tensor, error) {
	if len(t.Shape) < 3 {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("an input of %v has no spatial dimensions", t.Shape))
	}
	extent := w.kernel
	if global {
		extent = t.Shape[2:]
	}
	sweeps, err := w.sweeps(t.Shape[2:], extent)
	if err != nil {
		return nil, err
	}
	spatial, plane, kernel, places, err := spatialOut(sweeps)
	if err != nil {
		return nil, err
	}
	shape := slices.Concat(t.Shape[:2], spatial)
	size, err := limited(shape)
	if err != nil {
		return nil, err
	}
	out := make([]T, size)
	if kind == slideMax {
		for i := range out {
			out[i] = T(math.Inf(-1))
		}
	}
	planes := count(t.Shape[:2])
	eachOffset(sweeps, func(_ int, at []int) {
		for p := range planes {
			slide(kind, out[p*places:(p+1)*places], d[p*plane:(p+1)*plane], sweeps, at)
		}
	})
	if kind == slideAdd {
		under := make([]T, places)
		if withPadding {
			for i := range under {
				under[i] = T(kernel)
			}
		} else {
			ones := make([]T, plane)
			for i := range ones {
				ones[i] = 1
			}
			eachOffset(sweeps, func(_ int, at []int) { slide(slideAdd, under, ones, sweeps, at) })
		}
		for p := range planes {
			for i, n := range under {
				out[p*places+i] /= n
			}
		}
	}
	return one(newTensor(shape, out)), nil
}

// buildBatchNormalization folds the four vectors into a factor and an offset for each channel.
func buildBatchNormalization(n *graph.Node, opset int64) (kernel, error) {
	if n.Int("training_mode", 0) != 0 || opset < 9 && n.Int("spatial", 1) != 1 || opset < 7 && n.Int("is_test", 0) != 1 {
		return nil, errdef.New(errdef.ErrUnsupported, "batch normalisation for training isn't built in")
	}
	epsilon := float64(n.Float("epsilon", 1e-5))
	return func(in []*tensor) ([]*tensor, error) {
		switch d := in[0].Data.(type) {
		case []float32:
			return batchNormalized(in, d, epsilon)
		case []float64:
			return batchNormalized(in, d, epsilon)
		}
		return nil, unsupportedType(in[0])
	}, nil
}

func batchNormalized[T float32 | float64](in []*tensor, d []T, epsilon float64) ([]*tensor, error) {
	shape := in[0].Shape
	scale, bias, mean, variance := in[1].Data.([]T), in[2].Data.([]T), in[3].Data.([]T), in[4].Data.([]T)
	channels := 1
	if len(shape) > 1 {
		channels = int(shape[1])
	}
	out := make([]T, len(d))
	inner := len(d) / max(int(shape[0])*channels, 1)
	for p := range int(shape[0]) * channels {
		c := p % channels
		by := float64(scale[c]) / math.Sqrt(float64(variance[c])+epsilon)
		plus := float64(bias[c]) - float64(mean[c])*by
		for i := p * inner; i < (p+1)*inner; i++ {
			out[i] = T(float64(d[i])*by + plus)
		}
	}
	return one(like(in[0], out)), nil
}

// buildPad pads each dimension at both ends; negative padding cuts.
func buildPad(n *graph.Node, opset int64) (kernel, error) {
	mode := n.Text("mode", "constant")
	switch mode {
	case "constant", "reflect", "edge", "wrap":
	default:
		return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the padding mode %q isn't built in", mode))
	}
	return func(in []*tensor) ([]*tensor, error) {
		t, rank := in[0], len(in[0].Shape)
		pads, value := n.Ints("pads"), newTensor([]int64{}, []float32{n.Float("value", 0)})
		var err error
		if opset >= 11 {
			if pads, err = ints(in[1]); err != nil {
				return nil, err
			}
			if len(in) > 2 && in[2] != nil {
				value = in[2]
			}
		}
		before, after := make([]int64, rank), make([]int64, rank)
		axes := make([]int64, rank)
		for i := range axes {
			axes[i] = int64(i)
		}
		if len(in) > 3 && in[3] != nil {
			if axes, err = ints(in[3]); err != nil {
				return nil, err
			}
		}
		if len(pads) != 2*len(axes) {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d paddings for %d dimensions", len(pads), len(axes)))
		}
		for i, a := range axes {
			at, err := axisOf(a, rank)
			if err != nil {
				return nil, err
			}
			before[at], after[at] = pads[i], pads[i+len(axes)]
		}
		return padded(t, before, after, value, mode)
	}, nil
}

func padded(t *tensor, before, after []int64, value *tensor, mode string) ([]*tensor, error) {
	shape := slices.Clone(t.Shape)
	places := make([][]int64, len(shape)) // for each dimension, where an element comes from; -1 is the value
	for i, size := range t.Shape {
		if shape[i] += before[i] + after[i]; shape[i] < 0 {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("cutting %d and %d off %d leaves nothing", -before[i], -after[i], size))
		}
	}
	n, err := limited(shape)
	if err != nil {
		return nil, err
	}
	if len(t.Shape) > 0 && count(t.Shape) == 0 && mode != "constant" && n > 0 {
		return nil, errdef.New(errdef.ErrInvalid, "there is nothing to pad with")
	}
	for i, size := range t.Shape {
		places[i] = make([]int64, shape[i])
		for o := range places[i] {
			places[i][o] = padSource(int64(o)-before[i], size, mode)
		}
	}
	// The value goes behind the elements, so that all come from one slice.
	v, err := castTo(value, t.Type)
	if err != nil {
		return nil, err
	}
	all, err := appended(t, v)
	if err != nil {
		return nil, err
	}
	own, offsets := strides(t.Shape), make([]int, n)
	index := make([]int64, len(shape))
	for i := range offsets {
		offset := 0
		for d, o := range index {
			p := places[d][o]
			if p < 0 {
				offset = count(t.Shape)
				break
			}
			offset += int(p) * own[d]
		}
		offsets[i] = offset
		for d := len(index) - 1; d >= 0; d-- {
			if index[d]++; index[d] < shape[d] {
				break
			}
			index[d] = 0
		}
	}
	return one(gathered(all, shape, offsets)), nil
}

func padSource(i, size int64, mode string) int64 {
	if i >= 0 && i < size {
		return i
	}
	switch mode {
	case "edge":
		return max(0, min(i, size-1))
	case "wrap":
		return ((i % size) + size) % size
	case "reflect":
		if size == 1 {
			return 0
		}
		period := 2 * (size - 1)
		i = ((i % period) + period) % period
		return min(i, period-i)
	}
	return -1
}

// appended is t's elements and one more, as a vector.
func appended(t, last *tensor) (*tensor, error) {
	flat := reshaped(t, []int64{int64(count(t.Shape))})
	join, err := buildConcat(&graph.Node{}, 0)
	if err != nil {
		return nil, err
	}
	out, err := join([]*tensor{flat, reshaped(last, []int64{1})})
	if err != nil {
		return nil, err
	}
	return out[0], nil
}
