package exec

import (
	"fmt"
	"math"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// columns is how many columns a tensor has: its last dimension.
func columns(t *tensor) int {
	if len(t.Shape) == 0 {
		return 1
	}
	return int(t.Shape[len(t.Shape)-1])
}

// perColumn checks that a list has one value for each column or one for all, and returns what
// picks from it.
func perColumn[T any](name string, values []T, cols int) (func(i int) T, error) {
	switch len(values) {
	case 1:
		return func(int) T { return values[0] }, nil
	case cols:
		return func(i int) T { return values[i%cols] }, nil
	}
	return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s has %d values and the input %d columns", name, len(values), cols))
}

func buildScaler(n *graph.Node, _ int64) (kernel, error) {
	offset, scale := n.Floats("offset"), n.Floats("scale")
	if len(offset) == 0 {
		offset = []float32{0}
	}
	if len(scale) == 0 {
		scale = []float32{1}
	}
	return func(in []*tensor) ([]*tensor, error) {
		x, err := floats(in[0])
		if err != nil {
			return nil, err
		}
		off, err := perColumn("offset", offset, columns(in[0]))
		if err != nil {
			return nil, err
		}
		factor, err := perColumn("scale", scale, columns(in[0]))
		if err != nil {
			return nil, err
		}
		out := make([]float32, len(x))
		for i, v := range x {
			out[i] = (v - off(i)) * factor(i)
		}
		return one(like(in[0], out)), nil
	}, nil
}

// buildNormalizer divides rows by their norm; a row of norm 0 stays as it is.
func buildNormalizer(n *graph.Node, _ int64) (kernel, error) {
	norm := n.Text("norm", "MAX")
	if norm != "MAX" && norm != "L1" && norm != "L2" {
		return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the norm %q isn't built in", norm))
	}
	return func(in []*tensor) ([]*tensor, error) {
		x, err := floats(in[0])
		if err != nil {
			return nil, err
		}
		count, cols := rows(in[0])
		out := make([]float32, len(x))
		for i := range count {
			row := x[i*cols : (i+1)*cols]
			by := 0.0
			for j, v := range row {
				switch f := float64(v); {
				case norm == "L1":
					by += math.Abs(f)
				case norm == "L2":
					by += f * f
				case j == 0 || f > by:
					by = f
				}
			}
			if norm == "L2" {
				by = math.Sqrt(by)
			}
			if by == 0 {
				by = 1
			}
			for j, v := range row {
				out[i*cols+j] = float32(float64(v) / by)
			}
		}
		return one(like(in[0], out)), nil
	}, nil
}

func buildImputer(n *graph.Node, _ int64) (kernel, error) {
	imputedFloats, imputedInts := n.Floats("imputed_value_floats"), n.Ints("imputed_value_int64s")
	missingFloat, missingInt := n.Float("replaced_value_float", 0), n.Int("replaced_value_int64", 0)
	if (len(imputedFloats) > 0) == (len(imputedInts) > 0) {
		return nil, errdef.New(errdef.ErrInvalid, "imputed values must be either floats or integers")
	}
	return func(in []*tensor) ([]*tensor, error) {
		if d, ok := in[0].Data.([]int64); ok {
			by, err := perColumn("imputed_value_int64s", imputedInts, columns(in[0]))
			if err != nil {
				return nil, err
			}
			return one(like(in[0], imputed(d, by, func(x int64) bool { return x == missingInt }))), nil
		}
		x, err := floats(in[0])
		if err != nil {
			return nil, err
		}
		by, err := perColumn("imputed_value_floats", imputedFloats, columns(in[0]))
		if err != nil {
			return nil, err
		}
		isNaN := missingFloat != missingFloat
		return one(like(in[0], imputed(x, by, func(x float32) bool { return x == missingFloat || (isNaN && x != x) }))), nil
	}, nil
}

func imputed[T any](d []T, by func(int) T, missing func(T) bool) []T {
	out := make([]T, len(d))
	for i, x := range d {
		if out[i] = x; missing(x) {
			out[i] = by(i)
		}
	}
	return out
}

func buildBinarizer(n *graph.Node, _ int64) (kernel, error) {
	threshold := n.Float("threshold", 0)
	return func(in []*tensor) ([]*tensor, error) {
		x, err := floats(in[0])
		if err != nil {
			return nil, err
		}
		return one(like(in[0], mapped(x, func(v float32) float32 {
			if v > threshold {
				return 1
			}
			return 0
		}))), nil
	}, nil
}

// buildFeatureVectorizer puts the inputs' columns side by side, as floats.
func buildFeatureVectorizer(n *graph.Node, _ int64) (kernel, error) {
	widths := n.Ints("inputdimensions")
	return func(in []*tensor) ([]*tensor, error) {
		if len(widths) != len(in) {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d inputs and %d widths", len(in), len(widths)))
		}
		count, _ := rows(in[0])
		total := 0
		for i, w := range widths {
			if c, cols := rows(in[i]); c != count || int64(cols) < w || w < 0 {
				return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("input %d has the shape %v and should be %d by %d", i, in[i].Shape, count, w))
			}
			total += int(w)
		}
		out := make([]float32, 0, count*total)
		all := make([][]float32, len(in))
		for i, t := range in {
			x, err := floats(t)
			if err != nil {
				return nil, err
			}
			all[i] = x
		}
		for r := range count {
			for i, x := range all {
				_, cols := rows(in[i])
				out = append(out, x[r*cols:r*cols+int(widths[i])]...)
			}
		}
		return one(newTensor([]int64{int64(count), int64(total)}, out)), nil
	}, nil
}

// buildArrayFeatureExtractor picks columns of the last dimension.
func buildArrayFeatureExtractor(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		picks, err := ints(in[1])
		if err != nil {
			return nil, err
		}
		cols := columns(in[0])
		for _, p := range picks {
			if p < 0 || p >= int64(cols) {
				return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("column %d of %d", p, cols))
			}
		}
		shape := []int64{1, int64(len(picks))}
		if rank := len(in[0].Shape); rank > 1 {
			shape = append(append([]int64{}, in[0].Shape[:rank-1]...), int64(len(picks)))
		}
		switch d := in[0].Data.(type) {
		case []float32:
			return one(newTensor(shape, pickColumns(d, cols, picks))), nil
		case []float64:
			return one(newTensor(shape, pickColumns(d, cols, picks))), nil
		case []int64:
			return one(newTensor(shape, pickColumns(d, cols, picks))), nil
		case []int32:
			return one(newTensor(shape, pickColumns(d, cols, picks))), nil
		case []string:
			return one(newTensor(shape, pickColumns(d, cols, picks))), nil
		}
		return nil, unsupportedType(in[0])
	}, nil
}

func pickColumns[T any](d []T, cols int, picks []int64) []T {
	if cols == 0 {
		return []T{}
	}
	out := make([]T, 0, len(d)/cols*len(picks))
	for at := 0; at < len(d); at += cols {
		for _, p := range picks {
			out = append(out, d[at+int(p)])
		}
	}
	return out
}
