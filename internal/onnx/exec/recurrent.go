package exec

import (
	"fmt"
	"math"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// cell is a kind of recurrent layer: its number of gates and its activations, by direction.
type cell struct {
	op          string
	gates       int
	activations []string
}

var (
	cellRNN  = cell{"RNN", 1, []string{"Tanh"}}
	cellGRU  = cell{"GRU", 3, []string{"Sigmoid", "Tanh"}}
	cellLSTM = cell{"LSTM", 4, []string{"Sigmoid", "Tanh", "Tanh"}}
)

// recurrence is one node's attributes.
type recurrence struct {
	cell
	directions []bool // whether each runs backwards
	acts       []func(float64) float64
	clip       float64
	// resetAfter is GRU's linear_before_reset: the reset gate works on the product with the
	// recurrent weights, not on the state before it.
	resetAfter bool
}

func recurrent(c cell) builder {
	return func(n *graph.Node, _ int64) (kernel, error) {
		r := recurrence{cell: c, clip: math.Inf(1), resetAfter: n.Int("linear_before_reset", 0) != 0}
		switch direction := n.Text("direction", "forward"); direction {
		case "forward":
			r.directions = []bool{false}
		case "reverse":
			r.directions = []bool{true}
		case "bidirectional":
			r.directions = []bool{false, true}
		default:
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the direction %q isn't one", direction))
		}
		if n.Int("layout", 0) != 0 || n.Int("input_forget", 0) != 0 {
			return nil, errdef.New(errdef.ErrUnsupported, "layout and input_forget other than 0 aren't built in")
		}
		if n.Has("clip") {
			r.clip = float64(n.Float("clip", 0))
		}
		names := n.Strings("activations")
		if names == nil {
			for range r.directions {
				names = append(names, c.activations...)
			}
		}
		if len(names) != len(c.activations)*len(r.directions) {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d activations are given and %d are needed", len(names), len(c.activations)*len(r.directions)))
		}
		for _, name := range names {
			f, ok := map[string]func(float64) float64{
				"Sigmoid": sigmoid, "Tanh": math.Tanh, "Relu": func(x float64) float64 { return max(x, 0) },
			}[name]
			if !ok {
				return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the activation %q isn't built in", name))
			}
			r.acts = append(r.acts, f)
		}
		return func(in []*tensor) ([]*tensor, error) {
			switch x := in[0].Data.(type) {
			case []float32:
				return recur(&r, in, x)
			case []float64:
				return recur(&r, in, x)
			}
			return nil, unsupportedType(in[0])
		}, nil
	}
}

// part returns an optional input's elements for one direction, checked against a size in
// elements for each direction; nil where it is left out.
func part[T any](in []*tensor, i, direction, directions, size int) ([]T, error) {
	if len(in) <= i || in[i] == nil {
		return nil, nil
	}
	d, ok := in[i].Data.([]T)
	if !ok || len(d) != directions*size {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("input %d is %s%v; %d directions of %d elements are needed", i, in[i].Type, in[i].Shape, directions, size))
	}
	return d[direction*size : (direction+1)*size], nil
}

// recur computes Y, Y_h and, for LSTM, Y_c.
func recur[T float32 | float64](r *recurrence, in []*tensor, x []T) ([]*tensor, error) {
	if len(in[0].Shape) != 3 || len(in[2].Shape) != 3 {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("inputs of %v and %v; [steps, batch, features] and [directions, gates, hidden] are needed", in[0].Shape, in[2].Shape))
	}
	steps, batch, features := int(in[0].Shape[0]), int(in[0].Shape[1]), int(in[0].Shape[2])
	hidden, directions := int(in[2].Shape[2]), len(r.directions)
	lengths := make([]int64, batch)
	for i := range lengths {
		lengths[i] = int64(steps)
	}
	if len(in) > 4 && in[4] != nil {
		given, err := ints(in[4])
		if err != nil {
			return nil, err
		}
		for i := range lengths {
			if lengths[i] = given[i]; given[i] < 0 || given[i] > int64(steps) {
				return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("a sequence is %d long, of %d steps", given[i], steps))
			}
		}
	}
	wide := []int64{int64(steps), int64(directions), int64(batch), int64(hidden)}
	size, err := limited(wide)
	if err != nil {
		return nil, err
	}
	all := make([]T, size)
	h, c := make([]T, directions*batch*hidden), make([]T, directions*batch*hidden)
	for d, backwards := range r.directions {
		l := layer[T]{
			recurrence: r, direction: d, steps: steps, batch: batch, hidden: hidden,
			h: h[d*batch*hidden:][:batch*hidden], c: c[d*batch*hidden:][:batch*hidden],
		}
		if err := l.prepare(in, x, features); err != nil {
			return nil, err
		}
		for s := range steps {
			l.step(func(b int) (int, bool) {
				at := s
				if backwards {
					at = int(lengths[b]) - 1 - s
				}
				return at, s < int(lengths[b])
			}, all)
		}
	}
	last := wide[1:]
	return []*tensor{newTensor(wide, all), newTensor(last, h), newTensor(last, c)}, nil
}

// layer is one direction at work. given is the inputs' part of all gates and steps,
// [steps, batch, gates*hidden], biases included.
type layer[T float32 | float64] struct {
	*recurrence
	direction, steps, batch, hidden int

	given      []T
	recurrent  []T // [hidden, gates*hidden]
	resetBias  []T // the recurrent bias of GRU's last gate, when resetAfter
	peepholes  []T // of the gates i, o, f
	h, c       []T
	pre, gated []T // products with the state, and with the state behind GRU's reset gate
}

func (l *layer[T]) prepare(in []*tensor, x []T, features int) error {
	n, width := len(l.directions), l.gates*l.hidden
	weights, err := part[T](in, 1, l.direction, n, width*features)
	if err != nil {
		return err
	}
	again, err := part[T](in, 2, l.direction, n, width*l.hidden)
	if err != nil {
		return err
	}
	bias, err := part[T](in, 3, l.direction, n, 2*width)
	if err != nil {
		return err
	}
	h, err := part[T](in, 5, l.direction, n, l.batch*l.hidden)
	if err != nil {
		return err
	}
	copy(l.h, h)
	if l.op == "LSTM" {
		c, err := part[T](in, 6, l.direction, n, l.batch*l.hidden)
		if err != nil {
			return err
		}
		copy(l.c, c)
		if l.peepholes, err = part[T](in, 7, l.direction, n, 3*l.hidden); err != nil {
			return err
		}
	}
	if weights == nil || again == nil {
		return errdef.New(errdef.ErrInvalid, "the weights are left out")
	}
	l.given = make([]T, l.steps*l.batch*width)
	multiply(l.given, x, flipped(weights, width, features), l.steps*l.batch, features, width)
	if bias != nil {
		both := make([]T, width)
		for i := range both {
			both[i] = bias[i] + bias[width+i]
			if l.resetAfter && i >= 2*l.hidden {
				both[i] = bias[i]
			}
		}
		if l.resetAfter {
			l.resetBias = bias[width+2*l.hidden:]
		}
		for row := range l.steps * l.batch {
			for i, b := range both {
				l.given[row*width+i] += b
			}
		}
	}
	l.recurrent = flipped(again, width, l.hidden)
	l.pre = make([]T, l.batch*width)
	return nil
}

// flipped transposes a matrix.
func flipped[T any](d []T, rows, cols int) []T {
	out := make([]T, len(d))
	for i := range rows {
		for j := range cols {
			out[j*rows+i] = d[i*cols+j]
		}
	}
	return out
}

// activate applies the direction's activation i to a sum, clipped before.
func (l *layer[T]) activate(i int, x T) T {
	f := l.acts[l.direction*len(l.activations)+i]
	return T(f(max(-l.clip, min(l.clip, float64(x)))))
}

// step moves the state of each sequence on by the input at where it says, and files it in all.
func (l *layer[T]) step(where func(b int) (int, bool), all []T) {
	width := l.gates * l.hidden
	clear(l.pre)
	multiply(l.pre, l.h, l.recurrent, l.batch, l.hidden, width)
	for b := range l.batch {
		at, going := where(b)
		if !going {
			continue
		}
		given, pre := l.given[(at*l.batch+b)*width:][:width], l.pre[b*width:(b+1)*width]
		h, c := l.h[b*l.hidden:(b+1)*l.hidden], l.c[b*l.hidden:(b+1)*l.hidden]
		switch l.op {
		case "RNN":
			for j := range h {
				h[j] = l.activate(0, given[j]+pre[j])
			}
		case "GRU":
			l.gru(given, pre, h)
		case "LSTM":
			l.lstm(given, pre, h, c)
		}
		copy(all[((at*len(l.directions)+l.direction)*l.batch+b)*l.hidden:], h)
	}
}

// gru has the gates in the order z (update), r (reset), h (candidate).
func (l *layer[T]) gru(given, pre, h []T) {
	n := l.hidden
	if l.gated == nil {
		l.gated = make([]T, 2*n)
	}
	reset, product := l.gated[:n], l.gated[n:]
	for j := range n {
		reset[j] = l.activate(0, given[n+j]+pre[n+j])
	}
	if l.resetAfter {
		for j := range n {
			y := pre[2*n+j]
			if l.resetBias != nil {
				y += l.resetBias[j]
			}
			product[j] = reset[j] * y
		}
	} else {
		for j := range n {
			reset[j] *= h[j]
		}
		clear(product)
		for k, x := range reset {
			line := l.recurrent[k*3*n+2*n:][:n]
			for j, y := range line {
				product[j] += x * y
			}
		}
	}
	for j := range n {
		update := l.activate(0, given[j]+pre[j])
		candidate := l.activate(1, given[2*n+j]+product[j])
		h[j] = (1-update)*candidate + update*h[j]
	}
}

// lstm has the gates in the order i (input), o (output), f (forget), c (cell).
func (l *layer[T]) lstm(given, pre, h, c []T) {
	n := l.hidden
	for j := range n {
		i, o, f := given[j]+pre[j], given[n+j]+pre[n+j], given[2*n+j]+pre[2*n+j]
		if l.peepholes != nil {
			i += l.peepholes[j] * c[j]
			f += l.peepholes[2*n+j] * c[j]
		}
		c[j] = l.activate(0, f)*c[j] + l.activate(0, i)*l.activate(1, given[3*n+j]+pre[3*n+j])
		if l.peepholes != nil {
			o += l.peepholes[n+j] * c[j]
		}
		h[j] = l.activate(0, o) * T(l.acts[l.direction*len(l.activations)+2](float64(c[j])))
	}
}
