package translate

import (
	"bytes"

	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
	"stationmaster.dev/stationmaster/internal/wire/oip"
	"stationmaster.dev/stationmaster/internal/wire/v1"
)

// PredictToV2 gives a V1 request as one of V2, for a model with this metadata. Errors are ErrInvalid, also
// for fields that have no counterpart (signature_name is passed over), and ErrUnsupported for a model that
// doesn't tell its inputs.
func PredictToV2(body []byte, meta *oip.ModelMetadata) (*oip.InferRequest, error) {
	r, err := v1.DecodeRequest(body)
	if err != nil {
		return nil, err
	}
	if len(meta.Inputs) == 0 {
		return nil, unsupported("the model's metadata tells no inputs, so that a V1 request can't be given as tensors: ask over /v2")
	}
	for _, field := range r.Others {
		if field != "signature_name" {
			return nil, invalid("%q has no counterpart in the protocol of this model's engine: leave it out", field)
		}
	}
	infer := new(oip.InferRequest)
	if r.Parameters != nil {
		if infer.Parameters, err = oip.DecodeParameters(jsonscan.New(r.Parameters)); err != nil {
			return nil, brief.Errorf("parameters: %w", err)
		}
	}
	infer.Inputs, err = r.Tensors(meta.Inputs)
	return infer, err
}

// PredictFromV2 is the body of a V1 answer; half floats become the numbers that they are. Errors are Broken
// ones.
func PredictFromV2(out *oip.InferResponse) ([]byte, error) {
	outputs, err := widened(out.Outputs)
	if err != nil {
		return nil, Broken(err)
	}
	body, err := v1.AppendPredictions(nil, outputs)
	if err != nil {
		return nil, Broken(err)
	}
	return body, nil
}

// predictions is the name of the output for V1's, which have none.
const predictions = "predictions"

// InferToV1 gives a V2 request as the body of one of V1: instances of the one input, or with a value
// for each of several. Errors are ErrInvalid: V1 has no outputs to ask for and no parameters, and a
// row of each input for each row of another.
func InferToV1(r *oip.InferRequest) ([]byte, error) {
	switch {
	case len(r.Inputs) == 0:
		return nil, invalid("the request has no inputs")
	case len(r.Parameters) > 0:
		return nil, invalid("the parameter %q has no place in V1, which this model's engine speaks", sorted(r.Parameters)[0])
	}
	for i := range r.Inputs {
		t := &r.Inputs[i]
		if err := t.Check(); err != nil {
			return nil, err
		}
		if len(t.Shape) == 0 || t.Shape[0] != r.Inputs[0].Shape[0] {
			return nil, invalid("input %q has the shape %v: V1, which this model's engine speaks, has a row of each input for each instance", t.Name, t.Shape)
		}
	}
	return v1.AppendInstances(nil, r.Inputs)
}

// InferFromV1 gives a V1 answer as tensors, for what was asked: one for each name where predictions
// are objects, else one named predictions, or as the one output that was asked for. Whole numbers are
// INT64, others FP64, words BOOL, and texts BYTES. Errors are Broken ones, and ErrInvalid for an
// output that isn't there.
func InferFromV1(asked *oip.InferRequest, body []byte) (*oip.InferResponse, error) {
	value, err := v1.DecodePredictions(body)
	if err != nil {
		return nil, Broken(err)
	}
	columns, order, err := split(value)
	if err != nil {
		return nil, Broken(err)
	}
	if columns == nil {
		name := predictions
		if len(asked.Outputs) == 1 {
			name = asked.Outputs[0].Name
		}
		columns, order = map[string][]byte{name: value}, []string{name}
	}
	out := &oip.InferResponse{ID: asked.ID}
	if len(asked.Outputs) > 0 {
		order = order[:0]
		for _, o := range asked.Outputs {
			if columns[o.Name] == nil {
				return nil, invalid("the model has no output %q", o.Name)
			}
			order = append(order, o.Name)
		}
	}
	for _, name := range order {
		t, err := guess(name, columns[name])
		if err != nil {
			return nil, Broken(err)
		}
		out.Outputs = append(out.Outputs, t)
	}
	return out, nil
}

// split makes columns of a list of objects, or of an object of lists; nil for anything else.
func split(value []byte) (columns map[string][]byte, order []string, err error) {
	s := jsonscan.New(value)
	add := func(row int) error {
		n := 0
		err := s.Object(func(key []byte) error {
			v, err := s.Skip()
			if err != nil {
				return err
			}
			n++
			name := string(key)
			if columns == nil {
				columns = map[string][]byte{}
			}
			switch _, known := columns[name]; {
			case row < 0:
				columns[name] = v
			case !known && row > 0:
				return invalid("the row %d has %q, which rows before have not", row, name)
			case !known:
				columns[name] = append([]byte("["), v...)
			default:
				columns[name] = append(append(columns[name], ','), v...)
			}
			if len(order) < len(columns) {
				order = append(order, name)
			}
			return nil
		})
		if err == nil && n != len(columns) {
			err = invalid("the row %d has %d values, and the rows before %d", row, n, len(columns))
		}
		return err
	}
	if s.Peek() == '{' {
		err = add(-1)
		return columns, order, err
	}
	if value[0] != '[' || !bytes.HasPrefix(bytes.TrimLeft(value[1:], " \t\r\n"), []byte("{")) {
		return nil, nil, nil
	}
	if err := s.Array(add); err != nil {
		return nil, nil, err
	}
	for name, c := range columns {
		columns[name] = append(c, ']')
	}
	return columns, order, nil
}

// guess reads values in the narrowest datatype that holds them all as they are.
func guess(name string, value []byte) (oip.Tensor, error) {
	types := []oip.Datatype{oip.FP64}
	first := bytes.TrimLeft(value, "[ \t\r\n")
	switch {
	case len(first) == 0:
	case first[0] == '"':
		types = []oip.Datatype{oip.Bytes}
	case first[0] == 't' || first[0] == 'f':
		types = []oip.Datatype{oip.Bool}
	case bytes.ContainsAny(value, ".eE"):
	default:
		types = []oip.Datatype{oip.Int64, oip.FP64}
	}
	var last error
	for _, d := range types {
		s := jsonscan.New(value)
		data, dims, err := oip.DecodeData(s, d, nil)
		if err == nil {
			err = s.End()
		}
		if err == nil {
			if len(dims) == 0 {
				dims = []int64{1}
			}
			return oip.Tensor{Name: name, Datatype: d, Shape: dims, Data: data}, nil
		}
		last = err
	}
	return oip.Tensor{}, last
}
