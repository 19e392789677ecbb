package oip

import (
	"math"
	"strconv"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
)

// HeaderLength is the HTTP header that says how long the JSON part of a body is when binary
// tensors follow it (Triton, extension_binary_data.md).
const HeaderLength = "Inference-Header-Content-Length"

// WholeBody as a JSON length says that the body is JSON to its end.
const WholeBody = -1

// ParseHeaderLength reads the values of the header HeaderLength; none, or an empty one, means
// WholeBody. Values that differ are refused, as two readers could follow different ones.
func ParseHeaderLength(values ...string) (int, error) {
	if len(values) == 0 {
		return WholeBody, nil
	}
	value := values[0]
	for _, v := range values {
		if v != value {
			return 0, invalid("%s comes twice, as %q and as %q", HeaderLength, value, v)
		}
	}
	if value == "" {
		return WholeBody, nil
	}
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0, invalid("%s is %q; it must be the length of the JSON part in bytes", HeaderLength, value)
	}
	return int(n), nil
}

// DecodeRequest reads the body of an infer request. jsonLen is the length of its JSON part,
// or WholeBody. Fields that the protocol doesn't have are passed over; ModelName and
// ModelVersion stay empty, as they are in the path. Data may be flat, or nested as the shape
// says. Memory use is bounded by the body's size, whatever shapes it claims.
func DecodeRequest(body []byte, jsonLen int) (*InferRequest, error) {
	var r InferRequest
	m := message{id: &r.ID, parameters: &r.Parameters, tensors: &r.Inputs, tensorsKey: "inputs"}
	m.other = func(s *jsonscan.Scanner, key string) (bool, error) {
		if key != "outputs" {
			return false, nil
		}
		outputs, err := decodeOutputs(s)
		r.Outputs = outputs
		return true, err
	}
	if err := m.decode(body, jsonLen); err != nil {
		return nil, err
	}
	var err error
	r.BinaryOutput, _, err = takeBool(r.Parameters, "binary_data_output")
	return &r, err
}

// DecodeResponse reads the body of an answer to an infer request, as DecodeRequest does.
func DecodeResponse(body []byte, jsonLen int) (*InferResponse, error) {
	var r InferResponse
	m := message{id: &r.ID, parameters: &r.Parameters, tensors: &r.Outputs, tensorsKey: "outputs"}
	m.other = func(s *jsonscan.Scanner, key string) (bool, error) {
		var err error
		switch key {
		case "model_name":
			r.ModelName, err = text(s, key)
		case "model_version":
			r.ModelVersion, err = text(s, key)
		default:
			return false, nil
		}
		return true, err
	}
	if err := m.decode(body, jsonLen); err != nil {
		return nil, err
	}
	return &r, nil
}

// message is what requests and responses have in common.
type message struct {
	id         *string
	parameters *Parameters
	tensors    *[]Tensor
	tensorsKey string
	// other reads the value of a key that only one of the two has, and says whether it did.
	other func(s *jsonscan.Scanner, key string) (bool, error)

	// binary has an entry for each tensor: the size of its binary part, or -1 for none.
	binary []int64
}

func (m *message) decode(body []byte, jsonLen int) error {
	if jsonLen == WholeBody {
		jsonLen = len(body)
	}
	if jsonLen < 0 || jsonLen > len(body) {
		return invalid("%s says %d bytes of JSON, the body has %d", HeaderLength, jsonLen, len(body))
	}
	s := jsonscan.New(body[:jsonLen:jsonLen])
	seen := seenKeys{}
	found := false
	err := s.Object(func(key []byte) error {
		k := string(key)
		var err error
		switch k {
		case "id":
			*m.id, err = text(s, k)
		case "parameters":
			*m.parameters, err = decodeParameters(s)
		case m.tensorsKey:
			found = true
			err = m.decodeTensors(s)
		default:
			known, err := m.other(s, k)
			if known || err != nil {
				return seen.once(k, err)
			}
			_, err = s.Skip()
			return err
		}
		return seen.once(k, err)
	})
	if err == nil {
		err = s.End()
	}
	if err != nil {
		return err
	}
	if !found {
		return invalid("the body has no %q", m.tensorsKey)
	}
	return m.takeBinary(body[jsonLen:])
}

// seenKeys refuses a key that comes twice, which two readers could understand differently.
type seenKeys map[string]bool

func (k seenKeys) once(key string, err error) error {
	if err == nil && k[key] {
		return invalid("the key %q comes twice", key)
	}
	k[key] = true
	return err
}

func (m *message) decodeTensors(s *jsonscan.Scanner) error {
	*m.tensors = []Tensor{}
	names := map[string]bool{}
	return s.Array(func(i int) error {
		t, size, err := decodeTensor(s)
		if err != nil {
			if t.Name == "" {
				return brief.Errorf("%s[%d]: %w", m.tensorsKey, i, err)
			}
			return brief.Errorf("%s[%d] %q: %w", m.tensorsKey, i, t.Name, err)
		}
		if names[t.Name] {
			return invalid("%s[%d]: the name %q comes twice", m.tensorsKey, i, t.Name)
		}
		names[t.Name] = true
		*m.tensors = append(*m.tensors, t)
		m.binary = append(m.binary, size)
		return nil
	})
}

// takeBinary hands each tensor its part of what follows the JSON.
func (m *message) takeBinary(rest []byte) error {
	for i := range *m.tensors {
		t, size := &(*m.tensors)[i], m.binary[i]
		if size < 0 {
			continue
		}
		if size > int64(len(rest)) {
			return t.errorf("binary_data_size is %d, and %d bytes are left of the body", size, len(rest))
		}
		t.Raw, rest = rest[:size:size], rest[size:]
		if err := t.Check(); err != nil {
			return err
		}
	}
	if len(rest) > 0 {
		return invalid("%d bytes follow the last binary tensor", len(rest))
	}
	return nil
}

// decodeTensor returns the tensor and its binary_data_size, or -1. The JSON keys may come in
// any order; data that comes before its datatype is read when that is known.
func decodeTensor(s *jsonscan.Scanner) (Tensor, int64, error) {
	var t Tensor
	var early *jsonscan.Scanner // at data that came before its datatype
	var hasShape, hasData bool
	seen := seenKeys{}
	err := s.Object(func(key []byte) error {
		var err error
		k := string(key)
		switch k {
		case "name":
			t.Name, err = text(s, k)
		case "datatype":
			var d string
			if d, err = text(s, k); err == nil {
				t.Datatype = Datatype(d)
				if t.Datatype.Size() < 0 {
					err = invalid("datatype %q is unknown; use one of %s", d, datatypeNames)
				}
			}
		case "shape":
			hasShape = true
			t.Shape, err = decodeShape(s)
		case "parameters":
			t.Parameters, err = decodeParameters(s)
		case "data":
			hasData = true
			if t.Datatype == "" || !hasShape {
				s.Peek()
				at := s.Pos()
				var data []byte
				data, err = s.Skip()
				early = jsonscan.NewAt(data, at)
			} else {
				err = t.decodeData(s)
			}
		default:
			_, err = s.Skip()
			return err
		}
		return seen.once(k, err)
	})
	switch {
	case err != nil:
	case t.Name == "":
		err = invalid("no name is given")
	case t.Datatype == "":
		err = invalid("no datatype is given; use one of %s", datatypeNames)
	case !hasShape:
		err = invalid("no shape is given")
	case early != nil:
		err = t.decodeData(early)
	}
	if err != nil {
		return t, -1, err
	}
	size, binary, err := takeSize(t.Parameters)
	switch {
	case err != nil:
	case binary && hasData:
		err = invalid("both data and binary_data_size are given")
	case !binary && !hasData:
		err = invalid("neither data nor binary_data_size is given")
	}
	return t, size, err
}

func takeSize(p Parameters) (int64, bool, error) {
	v, ok := p["binary_data_size"]
	if !ok {
		return -1, false, nil
	}
	size, ok := v.(int64)
	if !ok || size < 0 {
		return -1, false, invalid("binary_data_size is %v; it must be a size in bytes", v)
	}
	delete(p, "binary_data_size")
	return size, true, nil
}

func takeBool(p Parameters, name string) (value, given bool, err error) {
	v, given := p[name]
	if !given {
		return false, false, nil
	}
	value, ok := v.(bool)
	if !ok {
		return false, true, invalid("parameter %q is %v; it must be true or false", name, v)
	}
	delete(p, name)
	return value, true, nil
}

func decodeShape(s *jsonscan.Scanner) ([]int64, error) {
	shape := []int64{}
	err := s.Array(func(i int) error {
		if i == MaxRank {
			return errRank
		}
		d, err := s.Int(0, math.MaxInt64)
		if err != nil {
			return brief.Errorf("shape[%d]: %w", i, err)
		}
		shape = append(shape, d)
		return nil
	})
	if err == nil {
		_, err = Count(shape)
	}
	return shape, err
}

func decodeOutputs(s *jsonscan.Scanner) ([]RequestedOutput, error) {
	if s.Literal("null") {
		return nil, nil
	}
	var outputs []RequestedOutput
	names := map[string]bool{}
	err := s.Array(func(i int) error {
		var o RequestedOutput
		seen := seenKeys{}
		err := s.Object(func(key []byte) error {
			var err error
			k := string(key)
			switch k {
			case "name":
				o.Name, err = text(s, k)
			case "parameters":
				o.Parameters, err = decodeParameters(s)
			default:
				_, err = s.Skip()
				return err
			}
			return seen.once(k, err)
		})
		if err == nil && o.Name == "" {
			err = invalid("no name is given")
		}
		if err == nil && names[o.Name] {
			err = invalid("the name %q comes twice", o.Name)
		}
		if err == nil {
			var v, given bool
			if v, given, err = takeBool(o.Parameters, "binary_data"); given {
				o.Binary = &v
			}
		}
		if err != nil {
			return brief.Errorf("outputs[%d]: %w", i, err)
		}
		names[o.Name] = true
		outputs = append(outputs, o)
		return nil
	})
	return outputs, err
}

// text reads a string; null counts as absent, as some clients write what they leave out.
func text(s *jsonscan.Scanner, key string) (string, error) {
	if s.Literal("null") {
		return "", nil
	}
	b, err := s.String()
	if err != nil {
		return "", brief.Errorf("%s: %w", key, err)
	}
	return string(b), nil
}

// DecodeParameters reads an object of parameters, or null, which is nil.
func DecodeParameters(s *jsonscan.Scanner) (Parameters, error) { return decodeParameters(s) }

func decodeParameters(s *jsonscan.Scanner) (Parameters, error) {
	if s.Literal("null") {
		return nil, nil
	}
	p := Parameters{}
	err := s.Object(func(key []byte) error {
		k := string(key)
		v, err := decodeParameter(s)
		if err != nil {
			return brief.Errorf("parameter %q: %w", k, err)
		}
		if _, twice := p[k]; twice {
			return invalid("the parameter %q comes twice", k)
		}
		if v != nil {
			p[k] = v
		}
		return nil
	})
	return p, err
}

// decodeParameter keeps whole numbers apart from floating-point ones by how they are written.
// null is returned as nil.
func decodeParameter(s *jsonscan.Scanner) (any, error) {
	switch c := s.Peek(); {
	case c == '"':
		b, err := s.String()
		return string(b), err
	case c == 't' || c == 'f':
		return s.Bool()
	case c == 'n' && s.Literal("null"):
		return nil, nil
	case c == '{' || c == '[':
		return nil, invalid("it must be a string, a number or a boolean")
	}
	number, integer, err := s.Number()
	if err != nil {
		return nil, err
	}
	if !integer {
		f, err := strconv.ParseFloat(string(number), 64)
		if err != nil {
			return nil, invalid("%s is out of the range of a double", number)
		}
		return f, nil
	}
	if i, err := strconv.ParseInt(string(number), 10, 64); err == nil {
		return i, nil
	}
	u, err := strconv.ParseUint(string(number), 10, 64)
	if err != nil {
		return nil, invalid("%s is out of the range of 64 bits", number)
	}
	return u, nil
}

// decodeData reads the elements in JSON; name, datatype and shape are known.
func (t *Tensor) decodeData(s *jsonscan.Scanner) error {
	if t.Datatype.halfFloat() {
		return halfFloatInJSON(t.Datatype)
	}
	data, dims, err := DecodeData(s, t.Datatype, t.Shape)
	if err != nil {
		return err
	}
	t.Data = data
	n, _ := dataLen(t.Datatype, data)
	want, err := Count(t.Shape)
	if err != nil {
		return err
	}
	if int64(n) != want {
		return invalid("shape %v has %d elements and the data %d", t.Shape, want, n)
	}
	// Flat data has one level, and fits any shape of its size.
	if len(dims) <= 1 || equal(dims, t.Shape) {
		return nil
	}
	return invalid("the data is nested as %v and the shape is %v; nest it as the shape says, or not at all", dims, t.Shape)
}

func equal(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func halfFloatInJSON(d Datatype) error {
	return errdef.New(errdef.ErrInvalid, string(d)+" has no JSON form; send or ask for it in binary form (the binary data extension), or use gRPC")
}

// DecodeData reads a JSON array, nested or flat, or a bare value, into elements of the datatype
// (see Tensor.Data) and the dimensions of the nesting. shape is a hint of the size and may be
// nil. Whole numbers stay exact up to 64 bits. FP16 and BF16 are refused.
func DecodeData(s *jsonscan.Scanner, d Datatype, shape []int64) (data any, dims []int64, err error) {
	hint := 16
	if n, err := Count(shape); err == nil && shape != nil {
		hint = int(min(n, math.MaxInt32))
	}
	switch d {
	case Bool:
		return elements(jsonscan.Nested(s, hint, (*jsonscan.Scanner).Bool))
	case Uint8:
		return elements(jsonscan.Uints[uint8](s, hint, math.MaxUint8))
	case Uint16:
		return elements(jsonscan.Uints[uint16](s, hint, math.MaxUint16))
	case Uint32:
		return elements(jsonscan.Uints[uint32](s, hint, math.MaxUint32))
	case Uint64:
		return elements(jsonscan.Uints[uint64](s, hint, math.MaxUint64))
	case Int8:
		return elements(jsonscan.Ints[int8](s, hint, math.MinInt8, math.MaxInt8))
	case Int16:
		return elements(jsonscan.Ints[int16](s, hint, math.MinInt16, math.MaxInt16))
	case Int32:
		return elements(jsonscan.Ints[int32](s, hint, math.MinInt32, math.MaxInt32))
	case Int64:
		return elements(jsonscan.Ints[int64](s, hint, math.MinInt64, math.MaxInt64))
	case FP32:
		return elements(jsonscan.Float32s(s, hint))
	case FP64:
		return elements(jsonscan.Float64s(s, hint))
	case Bytes:
		return elements(jsonscan.Nested(s, hint, (*jsonscan.Scanner).String))
	case FP16, BF16:
		return nil, nil, halfFloatInJSON(d)
	}
	return nil, nil, invalid("datatype %q is unknown; use one of %s", d, datatypeNames)
}

func elements[T any](e jsonscan.Elements[T], err error) (any, []int64, error) {
	if err != nil {
		return nil, nil, brief.Errorf("data[%d]: %w", len(e.Values), err)
	}
	return e.Values, e.Dims, nil
}
