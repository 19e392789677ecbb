package exec

import (
	"fmt"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// buildOneHotEncoder makes a column for each category. An unknown category gives zeros, or an
// error where the node says so.
func buildOneHotEncoder(n *graph.Node, _ int64) (kernel, error) {
	labels, err := classesOf(n, "cats_int64s", "cats_strings")
	if err != nil {
		return nil, err
	}
	k, zeros := labels.count(), n.Int("zeros", 1) != 0
	ofText, ofInt := map[string]int{}, map[int64]int{}
	for i, s := range labels.texts {
		ofText[s] = i
	}
	for i, x := range labels.ints {
		ofInt[x] = i
	}
	return func(in []*tensor) ([]*tensor, error) {
		elements := count(in[0].Shape)
		out := make([]float32, elements*k)
		mark := func(i, category int, known bool) error {
			if known {
				out[i*k+category] = 1
			} else if !zeros {
				return errdef.New(errdef.ErrInvalid, fmt.Sprintf("element %d is none of the model's categories", i))
			}
			return nil
		}
		if texts, ok := in[0].Data.([]string); ok {
			for i, s := range texts {
				category, known := ofText[s]
				if err := mark(i, category, known); err != nil {
					return nil, err
				}
			}
		} else {
			t, err := castTo(in[0], graph.Int64)
			if err != nil {
				return nil, err
			}
			for i, x := range t.Data.([]int64) {
				category, known := ofInt[x]
				if err := mark(i, category, known); err != nil {
					return nil, err
				}
			}
		}
		return one(newTensor(append(append([]int64{}, in[0].Shape...), int64(k)), out)), nil
	}, nil
}

// labelList reads one side of a label encoder: the attributes prefix+"_strings" and so on, or
// prefix+"_tensor"; nil where there is none.
func labelList(n *graph.Node, prefix string) any {
	switch {
	case n.Has(prefix + "_strings"):
		return n.Strings(prefix + "_strings")
	case n.Has(prefix + "_int64s"):
		return n.Ints(prefix + "_int64s")
	case n.Has(prefix + "_floats"):
		return n.Floats(prefix + "_floats")
	case n.Attrs[prefix+"_tensor"].T != nil:
		return n.Attrs[prefix+"_tensor"].T.Data
	}
	return nil
}

func buildLabelEncoder(n *graph.Node, opset int64) (kernel, error) {
	if opset < 2 {
		// The first version maps strings to their places in classes_strings, and back.
		return stringsAndPlaces(n.Strings("classes_strings"), nil, n)
	}
	keys, values := labelList(n, "keys"), labelList(n, "values")
	switch k := keys.(type) {
	case []string:
		return encodeFrom(n, k, values)
	case []int64:
		return encodeFrom(n, k, values)
	case []float32:
		return encodeFrom(n, k, values)
	case []float64:
		return encodeFrom(n, k, values)
	case []int32:
		return encodeFrom(n, k, values)
	case []int16:
		return encodeFrom(n, k, values)
	case []bool:
		return encodeFrom(n, k, values)
	}
	return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("keys of type %T aren't built in", keys))
}

func encodeFrom[K comparable](n *graph.Node, keys []K, values any) (kernel, error) {
	fallback := n.Attrs["default_tensor"].T
	switch v := values.(type) {
	case []string:
		return encode(keys, v, defaultOr(fallback, n.Text("default_string", "_Unused")))
	case []int64:
		return encode(keys, v, defaultOr(fallback, n.Int("default_int64", -1)))
	case []float32:
		return encode(keys, v, defaultOr(fallback, n.Float("default_float", 0)))
	case []float64:
		return encode(keys, v, defaultOr(fallback, 0.0))
	case []int32:
		return encode(keys, v, defaultOr(fallback, int32(-1)))
	case []int16:
		return encode(keys, v, defaultOr(fallback, int16(-1)))
	case []bool:
		return encode(keys, v, defaultOr(fallback, false))
	}
	return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("values of type %T aren't built in", values))
}

func defaultOr[V any](t *tensor, otherwise V) V {
	if t != nil {
		if d, ok := t.Data.([]V); ok && len(d) == 1 {
			return d[0]
		}
	}
	return otherwise
}

func encode[K comparable, V any](keys []K, values []V, fallback V) (kernel, error) {
	if len(keys) != len(values) {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d keys and %d values", len(keys), len(values)))
	}
	of := make(map[K]V, len(keys))
	var ofNaN *V // NaN is a key that equals itself here
	for i, k := range keys {
		if k != k { //nolint:gocritic // only NaN differs from itself
			ofNaN = &values[i]
			continue
		}
		of[k] = values[i]
	}
	return func(in []*tensor) ([]*tensor, error) {
		d, ok := in[0].Data.([]K)
		if !ok {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("elements are %s and the keys %T", in[0].Type, keys))
		}
		return one(like(in[0], mapped(d, func(k K) V {
			if v, ok := of[k]; ok {
				return v
			}
			if ofNaN != nil && k != k { //nolint:gocritic // as above
				return *ofNaN
			}
			return fallback
		}))), nil
	}, nil
}

func buildCategoryMapper(n *graph.Node, _ int64) (kernel, error) {
	return stringsAndPlaces(n.Strings("cats_strings"), n.Ints("cats_int64s"), n)
}

// stringsAndPlaces maps strings to integers and integers to strings; places nil stands for
// 0, 1, 2 ….
func stringsAndPlaces(texts []string, places []int64, n *graph.Node) (kernel, error) {
	if places == nil {
		for i := range texts {
			places = append(places, int64(i))
		}
	}
	to, err := encode(texts, places, n.Int("default_int64", -1))
	if err != nil {
		return nil, err
	}
	back, err := encode(places, texts, n.Text("default_string", "_Unused"))
	if err != nil {
		return nil, err
	}
	return func(in []*tensor) ([]*tensor, error) {
		if in[0].Type == graph.String {
			return to(in)
		}
		return back(in)
	}, nil
}
