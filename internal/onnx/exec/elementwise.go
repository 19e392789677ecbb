package exec

import (
	"fmt"
	"math"
	"slices"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// zip applies f to two broadcast slices. The common layouts run without index arithmetic.
func zip[A, R any](a []A, as []int64, b []A, bs []int64, f func(A, A) R) ([]R, []int64, error) {
	if slices.Equal(as, bs) {
		out := make([]R, len(a))
		for i, x := range a {
			out[i] = f(x, b[i])
		}
		return out, as, nil
	}
	shape, err := broadcastShape(as, bs)
	if err != nil {
		return nil, nil, err
	}
	n, err := limited(shape)
	if err != nil {
		return nil, nil, err
	}
	out := make([]R, n)
	switch {
	case len(b) == 1 && len(a) == len(out):
		y := b[0]
		for i, x := range a {
			out[i] = f(x, y)
		}
	case len(a) == len(out) && len(b) > 0 && isSuffix(bs, as):
		for i := 0; i < len(a); i += len(b) {
			for j, y := range b {
				out[i+j] = f(a[i+j], y)
			}
		}
	default:
		walk(shape, broadcastStrides(as, shape), broadcastStrides(bs, shape), func(i, x, y int) { out[i] = f(a[x], b[y]) })
	}
	return out, shape, nil
}

// isSuffix reports whether b, less its leading ones, ends a.
func isSuffix(b, a []int64) bool {
	for len(b) > 0 && b[0] == 1 {
		b = b[1:]
	}
	return len(b) <= len(a) && slices.Equal(b, a[len(a)-len(b):])
}

// arith is one arithmetic operation on every type of number that it has.
type arith struct {
	f32 func(a, b float32) float32
	f64 func(a, b float64) float64
	i64 func(a, b int64) int64
	i32 func(a, b int32) int32
	u8  func(a, b uint8) uint8
	// runs, where it isn't nil, is f32 for rows.
	runs *runs
}

var (
	arithAdd = arith{add[float32], add[float64], add[int64], add[int32], add[uint8], runsAdd}
	arithSub = arith{sub[float32], sub[float64], sub[int64], sub[int32], sub[uint8], runsSub}
	arithMul = arith{mul[float32], mul[float64], mul[int64], mul[int32], mul[uint8], runsMul}
	arithDiv = arith{div[float32], div[float64], intDiv[int64], intDiv[int32], intDiv[uint8], runsDiv}
	arithMax = arith{maxOf[float32], maxOf[float64], maxOf[int64], maxOf[int32], maxOf[uint8], nil}
	arithMin = arith{minOf[float32], minOf[float64], minOf[int64], minOf[int32], minOf[uint8], nil}
	arithPow = arith{
		f32: func(a, b float32) float32 {
			if b == 2 {
				return a * a
			}
			return float32(math.Pow(float64(a), float64(b)))
		},
		f64: math.Pow,
		i64: func(a, b int64) int64 { return int64(math.Pow(float64(a), float64(b))) },
		i32: func(a, b int32) int32 { return int32(math.Pow(float64(a), float64(b))) },
	}
	arithMod = arith{
		f32: func(a, b float32) float32 { return float32(math.Mod(float64(a), float64(b))) },
		f64: math.Mod, i64: floorMod[int64], i32: floorMod[int32],
	}
	// arithFmod has the sign of the left operand, as C's fmod.
	arithFmod = arith{f32: arithMod.f32, f64: math.Mod, i64: remainder[int64], i32: remainder[int32]}
)

func add[T number](a, b T) T   { return a + b }
func sub[T number](a, b T) T   { return a - b }
func mul[T number](a, b T) T   { return a * b }
func div[T number](a, b T) T   { return a / b }
func maxOf[T number](a, b T) T { return max(a, b) }
func minOf[T number](a, b T) T { return min(a, b) }

// intDiv panics on a zero divisor with a text for step.run's message.
func intDiv[T number](a, b T) T {
	if b == 0 {
		panic("integer division by zero")
	}
	return a / b
}

func floorMod[T int32 | int64](a, b T) T {
	if b == 0 {
		panic("modulo by zero")
	}
	m := a % b
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	return m
}

func remainder[T int32 | int64](a, b T) T {
	if b == 0 {
		panic("modulo by zero")
	}
	return a % b
}

func buildMod(n *graph.Node, opset int64) (kernel, error) {
	if n.Int("fmod", 0) == 1 {
		return arithmetic(arithFmod)(n, opset)
	}
	return arithmetic(arithMod)(n, opset)
}

func (o arith) apply(a, b *tensor) (*tensor, error) {
	if a.Type != b.Type {
		// Pow alone may mix types; the result has the first one's.
		cast, err := castTo(b, a.Type)
		if err != nil {
			return nil, err
		}
		b = cast
	}
	switch x := a.Data.(type) {
	case []float32:
		if o.runs != nil {
			if out, shape, ok := o.runs.apply(x, a.Shape, b.Data.([]float32), b.Shape); ok {
				return newTensor(shape, out), nil
			}
		}
		return zipped(o.f32, x, a, b)
	case []float64:
		return zipped(o.f64, x, a, b)
	case []int64:
		return zipped(o.i64, x, a, b)
	case []int32:
		return zipped(o.i32, x, a, b)
	case []uint8:
		return zipped(o.u8, x, a, b)
	}
	return nil, unsupportedType(a)
}

func zipped[T number](f func(a, b T) T, x []T, a, b *tensor) (*tensor, error) {
	if f == nil {
		return nil, unsupportedType(a)
	}
	out, shape, err := zip(x, a.Shape, b.Data.([]T), b.Shape, f)
	if err != nil {
		return nil, err
	}
	return newTensor(shape, out), nil
}

func arithmetic(o arith) builder {
	return func(*graph.Node, int64) (kernel, error) {
		return func(in []*tensor) ([]*tensor, error) {
			t, err := o.apply(in[0], in[1])
			return one(t), err
		}, nil
	}
}

func variadic(o arith) builder {
	return func(*graph.Node, int64) (kernel, error) {
		return func(in []*tensor) (_ []*tensor, err error) {
			acc := in[0]
			for _, t := range in[1:] {
				if acc, err = o.apply(acc, t); err != nil {
					return nil, err
				}
			}
			return one(acc), nil
		}, nil
	}
}

func buildMean(n *graph.Node, opset int64) (kernel, error) {
	sum, err := variadic(arithAdd)(n, opset)
	if err != nil {
		return nil, err
	}
	return func(in []*tensor) ([]*tensor, error) {
		out, err := sum(in)
		if err != nil {
			return nil, err
		}
		by, err := castTo(newTensor(nil, []int64{int64(len(in))}), out[0].Type)
		if err != nil {
			return nil, err
		}
		t, err := arithDiv.apply(out[0], by)
		return one(t), err
	}, nil
}

// ordering is one comparison.
type ordering func(cmp int, equal bool) bool

func cmpEqual(_ int, eq bool) bool     { return eq }
func cmpGreater(c int, _ bool) bool    { return c > 0 }
func cmpLess(c int, _ bool) bool       { return c < 0 }
func cmpGreaterEq(c int, eq bool) bool { return c > 0 || eq }
func cmpLessEq(c int, eq bool) bool    { return c < 0 || eq }
func compared[T number | string](o ordering) func(a, b T) bool {
	return func(a, b T) bool {
		c := 0
		switch {
		case a < b:
			c = -1
		case a > b:
			c = 1
		}
		return o(c, a == b)
	}
}

func comparison(o ordering) builder {
	return func(*graph.Node, int64) (kernel, error) {
		return func(in []*tensor) ([]*tensor, error) {
			a, b := in[0], in[1]
			var out []bool
			var shape []int64
			var err error
			switch x := a.Data.(type) {
			case []float32:
				out, shape, err = zip(x, a.Shape, b.Data.([]float32), b.Shape, compared[float32](o))
			case []float64:
				out, shape, err = zip(x, a.Shape, b.Data.([]float64), b.Shape, compared[float64](o))
			case []int64:
				out, shape, err = zip(x, a.Shape, b.Data.([]int64), b.Shape, compared[int64](o))
			case []int32:
				out, shape, err = zip(x, a.Shape, b.Data.([]int32), b.Shape, compared[int32](o))
			case []string:
				out, shape, err = zip(x, a.Shape, b.Data.([]string), b.Shape, compared[string](o))
			case []bool:
				out, shape, err = zip(x, a.Shape, b.Data.([]bool), b.Shape, func(p, q bool) bool { return o(0, p == q) })
			default:
				return nil, unsupportedType(a)
			}
			if err != nil {
				return nil, err
			}
			return one(newTensor(shape, out)), nil
		}, nil
	}
}

func logical(f func(a, b bool) bool) builder {
	return func(*graph.Node, int64) (kernel, error) {
		return func(in []*tensor) ([]*tensor, error) {
			out, shape, err := zip(in[0].Data.([]bool), in[0].Shape, in[1].Data.([]bool), in[1].Shape, f)
			if err != nil {
				return nil, err
			}
			return one(newTensor(shape, out)), nil
		}, nil
	}
}

func buildNot(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		return one(like(in[0], mapped(in[0].Data.([]bool), func(b bool) bool { return !b }))), nil
	}, nil
}

func mapped[A, B any](a []A, f func(A) B) []B {
	out := make([]B, len(a))
	for i, x := range a {
		out[i] = f(x)
	}
	return out
}

func buildWhere(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		cond, x, y := in[0], in[1], in[2]
		shape, err := broadcastShape(x.Shape, y.Shape)
		if err == nil {
			shape, err = broadcastShape(shape, cond.Shape)
		}
		if err != nil {
			return nil, err
		}
		n, err := limited(shape)
		if err != nil {
			return nil, err
		}
		pick := make([]bool, n)
		c := cond.Data.([]bool)
		none := make([]int, len(shape))
		walk(shape, broadcastStrides(cond.Shape, shape), none, func(i, a, _ int) { pick[i] = c[a] })
		sx, sy := broadcastStrides(x.Shape, shape), broadcastStrides(y.Shape, shape)
		switch dx := x.Data.(type) {
		case []float32:
			return one(newTensor(shape, where(shape, pick, dx, y.Data.([]float32), sx, sy))), nil
		case []float64:
			return one(newTensor(shape, where(shape, pick, dx, y.Data.([]float64), sx, sy))), nil
		case []int64:
			return one(newTensor(shape, where(shape, pick, dx, y.Data.([]int64), sx, sy))), nil
		case []int32:
			return one(newTensor(shape, where(shape, pick, dx, y.Data.([]int32), sx, sy))), nil
		case []string:
			return one(newTensor(shape, where(shape, pick, dx, y.Data.([]string), sx, sy))), nil
		case []bool:
			return one(newTensor(shape, where(shape, pick, dx, y.Data.([]bool), sx, sy))), nil
		}
		return nil, unsupportedType(x)
	}, nil
}

func where[T any](shape []int64, pick []bool, x, y []T, sx, sy []int) []T {
	out := make([]T, len(pick))
	walk(shape, sx, sy, func(i, a, b int) {
		if pick[i] {
			out[i] = x[a]
		} else {
			out[i] = y[b]
		}
	})
	return out
}

// each applies f to floats; integers pass through it as well, which is exact below 2^53.
func each(t *tensor, f func(float64) float64) (*tensor, error) {
	switch d := t.Data.(type) {
	case []float32:
		out := make([]float32, len(d))
		parallel(len(d), 1, func(from, to int) {
			for i, x := range d[from:to] {
				out[from+i] = float32(f(float64(x)))
			}
		})
		return like(t, out), nil
	case []float64:
		return like(t, mapped(d, f)), nil
	case []int64:
		return like(t, mapped(d, func(x int64) int64 { return int64(f(float64(x))) })), nil
	case []int32:
		return like(t, mapped(d, func(x int32) int32 { return int32(f(float64(x))) })), nil
	}
	return nil, unsupportedType(t)
}

func unary(f func(float64) float64) builder {
	return func(*graph.Node, int64) (kernel, error) {
		return func(in []*tensor) ([]*tensor, error) {
			t, err := each(in[0], f)
			return one(t), err
		}, nil
	}
}

func sigmoid(x float64) float64 {
	if x >= 0 {
		return 1 / (1 + math.Exp(-x))
	}
	e := math.Exp(x)
	return e / (1 + e)
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x
}

func buildLeakyRelu(n *graph.Node, opset int64) (kernel, error) {
	alpha := float64(n.Float("alpha", 0.01))
	return unary(func(x float64) float64 {
		if x < 0 {
			return alpha * x
		}
		return x
	})(n, opset)
}

func buildElu(n *graph.Node, opset int64) (kernel, error) {
	alpha := float64(n.Float("alpha", 1))
	return unary(func(x float64) float64 {
		if x < 0 {
			return alpha * math.Expm1(x)
		}
		return x
	})(n, opset)
}

// The defaults are float32 in the standard, as written in its text.
func buildSelu(n *graph.Node, opset int64) (kernel, error) {
	alpha, gamma := float64(n.Float("alpha", 1.67326319217681884765625)), float64(n.Float("gamma", 1.05070102214813232421875))
	return unary(func(x float64) float64 {
		if x < 0 {
			return gamma * alpha * math.Expm1(x)
		}
		return gamma * x
	})(n, opset)
}

// buildPRelu has a slope for negative elements that may differ by channel or place.
func buildPRelu(*graph.Node, int64) (kernel, error) {
	slope := arith{f32: leaky[float32], f64: leaky[float64]}
	return func(in []*tensor) ([]*tensor, error) {
		t, err := slope.apply(in[0], in[1])
		return one(t), err
	}, nil
}

func leaky[T float32 | float64](x, slope T) T {
	if x < 0 {
		return slope * x
	}
	return x
}

func buildHardSigmoid(n *graph.Node, opset int64) (kernel, error) {
	alpha, beta := float64(n.Float("alpha", 0.2)), float64(n.Float("beta", 0.5))
	return unary(func(x float64) float64 { return max(0, min(1, alpha*x+beta)) })(n, opset)
}

func buildGelu(n *graph.Node, opset int64) (kernel, error) {
	if n.Text("approximate", "none") == "tanh" {
		return unary(func(x float64) float64 {
			return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		})(n, opset)
	}
	return unary(func(x float64) float64 { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) })(n, opset)
}

func buildClip(n *graph.Node, _ int64) (kernel, error) {
	lowest, highest := math.Inf(-1), math.Inf(1)
	if n.Has("min") {
		lowest = float64(n.Float("min", 0))
	}
	if n.Has("max") {
		highest = float64(n.Float("max", 0))
	}
	return func(in []*tensor) ([]*tensor, error) {
		lo, hi := lowest, highest
		for i, bound := range []*float64{&lo, &hi} {
			if len(in) <= i+1 || in[i+1] == nil {
				continue
			}
			v, err := castTo(in[i+1], graph.FP64)
			if err != nil {
				return nil, err
			}
			*bound = v.Data.([]float64)[0]
		}
		t, err := each(in[0], func(x float64) float64 { return min(max(x, lo), hi) })
		return one(t), err
	}, nil
}

func buildIsNaN(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		switch d := in[0].Data.(type) {
		case []float32:
			return one(like(in[0], mapped(d, func(x float32) bool { return x != x }))), nil
		case []float64:
			return one(like(in[0], mapped(d, math.IsNaN))), nil
		}
		return nil, unsupportedType(in[0])
	}, nil
}

func buildIdentity(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) { return one(in[0]), nil }, nil
}

func buildCast(n *graph.Node, _ int64) (kernel, error) {
	to := graph.FromONNX(n.Int("to", 0))
	if to == graph.Undefined {
		return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("a cast to the ONNX type %d isn't built in", n.Int("to", 0)))
	}
	return func(in []*tensor) ([]*tensor, error) {
		t, err := castTo(in[0], to)
		return one(t), err
	}, nil
}
