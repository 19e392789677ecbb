// Package v1 holds the codecs of KServe's V1 protocol (TensorFlow Serving's REST form), and its
// translation to and from tensors of the Open Inference Protocol.
//
// Values share the memory of the bodies that they were read from. Errors are of kind
// errdef.ErrInvalid.
package v1

import (
	"bytes"
	"slices"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// Request is the body of a :predict or :explain call. Instances or Inputs is set.
type Request struct {
	// Instances is the JSON array of "instances": one entry for each row of the batch.
	Instances []byte
	// Inputs is the JSON value of "inputs": columns by input name, or as Instances.
	Inputs []byte
	// Parameters is the JSON value of "parameters", which some clients send beside them; nil for none.
	Parameters []byte
	// Others are the names of all other fields, in order.
	Others []string
}

// DecodeRequest reads the body of a call. Of other fields (signature_name, say) the names
// alone are kept.
func DecodeRequest(body []byte) (*Request, error) {
	var r Request
	err := fields(body, func(key string, value []byte) error {
		switch key {
		case "instances":
			if value[0] != '[' {
				return invalid("instances must be an array")
			}
			r.Instances = value
		case "inputs":
			if value[0] != '[' && value[0] != '{' {
				return invalid("inputs must be an array or an object")
			}
			r.Inputs = value
		case "parameters":
			r.Parameters = value
		default:
			r.Others = append(r.Others, key)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case r.Instances != nil && r.Inputs != nil:
		return nil, invalid(`the body has both "instances" and "inputs"; give one`)
	case r.Instances == nil && r.Inputs == nil:
		return nil, invalid(`the body has neither "instances" nor "inputs"`)
	}
	return &r, nil
}

// Append appends the body of the call to dst.
func (r *Request) Append(dst []byte) []byte {
	if r.Instances != nil {
		return append(append(append(dst, `{"instances":`...), r.Instances...), '}')
	}
	return append(append(append(dst, `{"inputs":`...), r.Inputs...), '}')
}

// DecodePredictions reads the body of an answer and returns the JSON value of "predictions".
func DecodePredictions(body []byte) ([]byte, error) {
	var predictions []byte
	err := fields(body, func(key string, value []byte) error {
		if key == "predictions" {
			predictions = value
		}
		return nil
	})
	if err == nil && predictions == nil {
		err = invalid(`the body has no "predictions"`)
	}
	return predictions, err
}

func fields(body []byte, field func(key string, value []byte) error) error {
	s := jsonscan.New(body)
	seen := map[string]bool{}
	err := s.Object(func(k []byte) error {
		key := string(k)
		value, err := s.Skip()
		if err != nil {
			return err
		}
		if seen[key] {
			return invalid("the key %q comes twice", key)
		}
		seen[key] = true
		return field(key, value)
	})
	if err != nil {
		return err
	}
	return s.End()
}

// Tensors makes the model's inputs of the request. A model with one input takes instances (or
// inputs) as they nest; any model takes a list of objects with a value for each input, or inputs
// as an object with a column for each. A last dimension of 1 that the model has may be left out.
func (r *Request) Tensors(inputs []oip.TensorMetadata) ([]oip.Tensor, error) {
	what, value := "instances", r.Instances
	if value == nil {
		what, value = "inputs", r.Inputs
	}
	columns, err := split(what, value, inputs)
	if err != nil {
		return nil, err
	}
	tensors := make([]oip.Tensor, 0, len(inputs))
	for i, in := range inputs {
		data, dims, err := oip.DecodeData(jsonscan.New(columns[i]), in.Datatype, nil)
		if err != nil {
			return nil, brief.Errorf("%s: input %q: %w", what, in.Name, err)
		}
		shape, ok := fit(dims, in.Shape)
		if !ok {
			return nil, invalid("%s: input %q takes the shape %v, and the values are nested as %v; give a list with one entry for each row", what, in.Name, in.Shape, dims)
		}
		tensors = append(tensors, oip.Tensor{Name: in.Name, Datatype: in.Datatype, Shape: shape, Data: data})
	}
	return tensors, nil
}

// fit makes the dimensions of what came agree in number with the model's, where they differ by
// a last dimension of 1. A nil model shape, of unknown rank, takes anything.
func fit(dims, model []int64) ([]int64, bool) {
	switch last := len(model) - 1; {
	case model == nil || len(dims) == len(model):
		return dims, true
	case len(dims) == last && model[last] == 1:
		return append(dims, 1), true
	case len(dims) == len(model)+1 && dims[len(dims)-1] == 1:
		return dims[:len(dims)-1], true
	}
	return dims, false
}

// split returns the JSON of each input's values, with one entry for each row.
func split(what string, value []byte, inputs []oip.TensorMetadata) ([][]byte, error) {
	index := make(map[string]int, len(inputs))
	for i, in := range inputs {
		index[in.Name] = i
	}
	columns := make([][]byte, len(inputs))
	set := func(s *jsonscan.Scanner, got []bool, key []byte, take func(i int, v []byte)) error {
		i, ok := index[string(key)]
		if !ok {
			return invalid("the model has no input %q; it takes %v", key, names(inputs))
		}
		if got[i] {
			return invalid("input %q comes twice", key)
		}
		got[i] = true
		v, err := s.Skip()
		take(i, v)
		return err
	}
	s := jsonscan.New(value)
	if value[0] == '{' {
		got := make([]bool, len(inputs))
		err := s.Object(func(key []byte) error {
			return set(s, got, key, func(i int, v []byte) { columns[i] = v })
		})
		if err == nil {
			err = missing(got, inputs)
		}
		if err != nil {
			return nil, brief.Errorf("%s: %w", what, err)
		}
		return columns, nil
	}
	if first := bytes.TrimLeft(value[1:], " \t\r\n"); first[0] != '{' {
		if len(inputs) != 1 {
			return nil, invalid("the model has the inputs %v; give each entry of %s as an object with a value for each", names(inputs), what)
		}
		columns[0] = value
		return columns, nil
	}
	err := s.Array(func(row int) error {
		got := make([]bool, len(inputs))
		err := s.Object(func(key []byte) error {
			return set(s, got, key, func(i int, v []byte) {
				columns[i] = append(append(columns[i], "[,"[min(row, 1)]), v...)
			})
		})
		if err == nil {
			err = missing(got, inputs)
		}
		if err != nil {
			return brief.Errorf("%s[%d]: %w", what, row, err)
		}
		return nil
	})
	for i := range columns {
		columns[i] = append(columns[i], ']')
	}
	return columns, err
}

func missing(got []bool, inputs []oip.TensorMetadata) error {
	if i := slices.Index(got, false); i >= 0 {
		return invalid("input %q is missing", inputs[i].Name)
	}
	return nil
}

func names(inputs []oip.TensorMetadata) []string {
	out := make([]string, 0, len(inputs))
	for _, in := range inputs {
		out = append(out, in.Name)
	}
	return out
}

// AppendPredictions appends the body of an answer: for one output its values, nested as its
// shape; for several with the same first dimension a list of objects, one for each row; else
// an object with an entry for each output.
func AppendPredictions(dst []byte, outputs []oip.Tensor) ([]byte, error) {
	return appendValues(dst, "predictions", "output", outputs)
}

// AppendInstances appends the body of a call, nested as AppendPredictions nests an answer's.
func AppendInstances(dst []byte, inputs []oip.Tensor) ([]byte, error) {
	return appendValues(dst, "instances", "input", inputs)
}

func appendValues(dst []byte, key, what string, outputs []oip.Tensor) ([]byte, error) {
	nests := make([]nest, len(outputs))
	sameRows := len(outputs) > 1
	for i := range outputs {
		n, one, err := outputs[i].Elements()
		if err != nil {
			return dst, err
		}
		if count, err := oip.Count(outputs[i].Shape); err != nil || count != int64(n) {
			return dst, invalid("%s %q has the shape %v and %d elements", what, outputs[i].Name, outputs[i].Shape, n)
		}
		nests[i] = nest{shape: outputs[i].Shape, one: one}
		sameRows = sameRows && len(outputs[i].Shape) > 0 && outputs[i].Shape[0] == outputs[0].Shape[0]
	}
	dst = append(append(append(dst, `{"`...), key...), `":`...)
	switch {
	case len(outputs) == 1:
		dst = nests[0].all(dst)
	case sameRows:
		dst = append(dst, '[')
		for row := range outputs[0].Shape[0] {
			if row > 0 {
				dst = append(dst, ',')
			}
			dst = object(dst, outputs, func(dst []byte, i int) []byte { return nests[i].next(dst, 1) })
		}
		dst = append(dst, ']')
	default:
		dst = object(dst, outputs, func(dst []byte, i int) []byte { return nests[i].all(dst) })
	}
	return append(dst, '}'), nil
}

func object(dst []byte, outputs []oip.Tensor, value func(dst []byte, i int) []byte) []byte {
	dst = append(dst, '{')
	for i := range outputs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsonscan.AppendString(dst, []byte(outputs[i].Name)), ':')
		dst = value(dst, i)
	}
	return append(dst, '}')
}

// nest writes elements nested as a shape, from where it last stopped.
type nest struct {
	shape []int64
	one   func(dst []byte, i int) []byte
	at    int
}

func (n *nest) all(dst []byte) []byte { return n.next(dst, 0) }

// next writes one array of the level depth, or one element at the last level.
func (n *nest) next(dst []byte, depth int) []byte {
	if depth == len(n.shape) {
		n.at++
		return n.one(dst, n.at-1)
	}
	dst = append(dst, '[')
	for i := range n.shape[depth] {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = n.next(dst, depth+1)
	}
	return append(dst, ']')
}

func invalid(format string, args ...any) error {
	return errdef.New(errdef.ErrInvalid, brief.Sprintf(format, args...))
}
