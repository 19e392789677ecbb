package oip

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
)

// AppendRequest appends the body of an infer request to dst. binary says which inputs go in
// binary form; nil means none. jsonLen is the length of the JSON part, for the header
// HeaderLength, or WholeBody when no tensor is binary and the header must not be sent.
// FP16, BF16, and BYTES that aren't UTF-8 are errors of kind errdef.ErrInvalid unless binary.
func AppendRequest(dst []byte, r *InferRequest, binary func(input string) bool) (body []byte, jsonLen int, err error) {
	from := len(dst)
	e := encoder{dst: append(dst, '{')}
	e.optional("id", r.ID)
	var extra Parameters
	if r.BinaryOutput {
		extra = Parameters{"binary_data_output": true}
	}
	e.parameters(r.Parameters, extra)
	e.tensors("inputs", r.Inputs, binary)
	if len(r.Outputs) > 0 {
		e.key("outputs")
		e.dst = append(e.dst, '[')
		for i := range r.Outputs {
			e.open(i)
			e.optional("name", r.Outputs[i].Name)
			extra = nil
			if b := r.Outputs[i].Binary; b != nil {
				extra = Parameters{"binary_data": *b}
			}
			e.parameters(r.Outputs[i].Parameters, extra)
			e.dst = append(e.dst, '}')
		}
		e.dst = append(e.dst, ']')
	}
	return e.close(from)
}

// AppendResponse appends the body of the answer to an infer request, as AppendRequest does.
// InferRequest.WantsBinary is a binary to give.
func AppendResponse(dst []byte, r *InferResponse, binary func(output string) bool) (body []byte, jsonLen int, err error) {
	from := len(dst)
	e := encoder{dst: append(dst, '{')}
	e.optional("model_name", r.ModelName)
	e.optional("model_version", r.ModelVersion)
	e.optional("id", r.ID)
	e.parameters(r.Parameters, nil)
	e.tensors("outputs", r.Outputs, binary)
	return e.close(from)
}

// encoder appends to dst. After an error, which err keeps, the rest is of no use.
type encoder struct {
	dst  []byte
	blob []*Tensor
	err  error
}

func (e *encoder) close(from int) ([]byte, int, error) {
	body := e.dst
	body = append(body, '}')
	if e.err != nil || len(e.blob) == 0 {
		return body, WholeBody, e.err
	}
	jsonLen := len(body) - from
	size := 0
	for _, t := range e.blob {
		size += t.RawSize()
	}
	body = slices.Grow(body, size)
	for _, t := range e.blob {
		var err error
		if body, err = t.AppendRaw(body); err != nil {
			return body, WholeBody, err
		}
	}
	return body, jsonLen, nil
}

// key starts a member, after a comma when it isn't the first of its object.
func (e *encoder) key(name string) {
	if e.dst[len(e.dst)-1] != '{' {
		e.dst = append(e.dst, ',')
	}
	e.dst = append(append(append(e.dst, '"'), name...), '"', ':')
}

// open starts element i of an array of objects.
func (e *encoder) open(i int) {
	if i > 0 {
		e.dst = append(e.dst, ',')
	}
	e.dst = append(e.dst, '{')
}

func (e *encoder) optional(name, value string) {
	if value != "" {
		e.key(name)
		e.dst = jsonscan.AppendString(e.dst, []byte(value))
	}
}

func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// parameters writes both sets, sorted by name, so that equal messages have equal bytes.
func (e *encoder) parameters(p, extra Parameters) {
	if len(p)+len(extra) == 0 {
		return
	}
	if len(extra) > 0 {
		merged := maps.Clone(p)
		if merged == nil {
			merged = Parameters{}
		}
		maps.Copy(merged, extra)
		p = merged
	}
	e.key("parameters")
	e.dst = append(e.dst, '{')
	for i, name := range slices.Sorted(maps.Keys(p)) {
		if i > 0 {
			e.dst = append(e.dst, ',')
		}
		e.dst = append(jsonscan.AppendString(e.dst, []byte(name)), ':')
		switch v := p[name].(type) {
		case bool:
			e.dst = strconv.AppendBool(e.dst, v)
		case int64:
			e.dst = strconv.AppendInt(e.dst, v, 10)
		case uint64:
			e.dst = strconv.AppendUint(e.dst, v, 10)
		case string:
			e.dst = jsonscan.AppendString(e.dst, []byte(v))
		case float64:
			if math.IsNaN(v) || math.IsInf(v, 0) {
				e.fail(invalid("parameter %q is %v, which JSON can't say", name, v))
			}
			from := len(e.dst)
			e.dst = jsonscan.AppendFloat(e.dst, v, 64)
			if !slices.ContainsFunc(e.dst[from:], func(c byte) bool { return c == '.' || c == 'e' }) {
				e.dst = append(e.dst, ".0"...) // so that it stays a floating-point number
			}
		default:
			e.fail(invalid("parameter %q is of type %T; it must be a string, a number or a boolean", name, v))
		}
	}
	e.dst = append(e.dst, '}')
}

func (e *encoder) tensors(key string, tensors []Tensor, binary func(string) bool) {
	e.key(key)
	e.dst = append(e.dst, '[')
	for i := range tensors {
		t := &tensors[i]
		e.open(i)
		e.optional("name", t.Name)
		e.optional("datatype", string(t.Datatype))
		e.key("shape")
		e.dst = append(e.dst, '[')
		for j, d := range t.Shape {
			if j > 0 {
				e.dst = append(e.dst, ',')
			}
			e.dst = strconv.AppendInt(e.dst, d, 10)
		}
		e.dst = append(e.dst, ']')
		if binary != nil && binary(t.Name) {
			e.parameters(t.Parameters, Parameters{"binary_data_size": int64(t.RawSize())})
			e.blob = append(e.blob, t)
		} else {
			e.parameters(t.Parameters, nil)
			e.key("data")
			dst, err := t.AppendData(e.dst)
			if e.dst = dst; err != nil {
				e.fail(err)
			}
		}
		e.dst = append(e.dst, '}')
	}
	e.dst = append(e.dst, ']')
}

// AppendData appends the elements as a flat JSON array. FP16, BF16, and BYTES that aren't UTF-8
// are errors of kind errdef.ErrInvalid.
func (t *Tensor) AppendData(dst []byte) ([]byte, error) {
	if v, ok := t.Data.([]float32); ok && t.Datatype == FP32 {
		return jsonscan.AppendFloats(dst, v), nil
	}
	n, one, err := t.Elements()
	if err != nil {
		return dst, err
	}
	dst = append(dst, '[')
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = one(dst, i)
	}
	return append(dst, ']'), nil
}

// Elements returns how many elements there are, and a function that appends the JSON of
// element i. It fails as AppendData does.
func (t *Tensor) Elements() (int, func(dst []byte, i int) []byte, error) {
	if t.Datatype.halfFloat() {
		return 0, nil, t.wrap(halfFloatInJSON(t.Datatype))
	}
	data, err := t.Values()
	if err != nil {
		return 0, nil, err
	}
	switch v := data.(type) {
	case []bool:
		return len(v), func(dst []byte, i int) []byte { return strconv.AppendBool(dst, v[i]) }, nil
	case []uint8:
		return len(v), unsignedAt(v), nil
	case []uint16:
		return len(v), unsignedAt(v), nil
	case []uint32:
		return len(v), unsignedAt(v), nil
	case []uint64:
		return len(v), unsignedAt(v), nil
	case []int8:
		return len(v), signedAt(v), nil
	case []int16:
		return len(v), signedAt(v), nil
	case []int32:
		return len(v), signedAt(v), nil
	case []int64:
		return len(v), signedAt(v), nil
	case []float32:
		return len(v), func(dst []byte, i int) []byte { return jsonscan.AppendFloat(dst, float64(v[i]), 32) }, nil
	case []float64:
		return len(v), func(dst []byte, i int) []byte { return jsonscan.AppendFloat(dst, v[i], 64) }, nil
	case [][]byte:
		for i, e := range v {
			if !utf8.Valid(e) {
				return 0, nil, t.errorf("element %d of BYTES isn't UTF-8; send or ask for it in binary form (the binary data extension), or use gRPC", i)
			}
		}
		return len(v), func(dst []byte, i int) []byte { return jsonscan.AppendString(dst, v[i]) }, nil
	}
	return 0, nil, t.errorf("datatype %s can't hold %s", t.Datatype, typeOf(data))
}

func signedAt[T int8 | int16 | int32 | int64](v []T) func([]byte, int) []byte {
	return func(dst []byte, i int) []byte { return strconv.AppendInt(dst, int64(v[i]), 10) }
}

func unsignedAt[T uint8 | uint16 | uint32 | uint64](v []T) func([]byte, int) []byte {
	return func(dst []byte, i int) []byte { return strconv.AppendUint(dst, uint64(v[i]), 10) }
}
