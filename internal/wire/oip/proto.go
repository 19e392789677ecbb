package oip

import (
	"math"

	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/wire/brief"
)

// RequestFromProto reads a gRPC request. Data stays in the form in which it came: with raw
// contents each input has Raw, otherwise Data. That raw is used for all inputs or for none, that
// the one field that goes with the datatype holds as many elements as the shape says, is checked.
func RequestFromProto(m *pb.ModelInferRequest) (*InferRequest, error) {
	r := &InferRequest{ModelName: m.GetModelName(), ModelVersion: m.GetModelVersion(), ID: m.GetId()}
	var err error
	if r.Parameters, err = parametersFromProto(m.GetParameters()); err != nil {
		return nil, err
	}
	// The binary data extension is REST's; over gRPC its parameters say nothing.
	delete(r.Parameters, "binary_data_output")
	r.Inputs, err = tensorsFromProto("inputs", m.GetInputs(), m.GetRawInputContents(), "raw_input_contents")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i, o := range m.GetOutputs() {
		switch {
		case o.GetName() == "":
			return nil, invalid("outputs[%d]: no name is given", i)
		case names[o.GetName()]:
			return nil, invalid("outputs[%d]: the name %q comes twice", i, o.GetName())
		}
		names[o.GetName()] = true
		p, err := parametersFromProto(o.GetParameters())
		if err != nil {
			return nil, brief.Errorf("outputs[%d] %q: %w", i, o.GetName(), err)
		}
		delete(p, "binary_data")
		r.Outputs = append(r.Outputs, RequestedOutput{Name: o.GetName(), Parameters: p})
	}
	return r, nil
}

// ResponseFromProto reads a gRPC response, as RequestFromProto does.
func ResponseFromProto(m *pb.ModelInferResponse) (*InferResponse, error) {
	r := &InferResponse{ModelName: m.GetModelName(), ModelVersion: m.GetModelVersion(), ID: m.GetId()}
	var err error
	if r.Parameters, err = parametersFromProto(m.GetParameters()); err != nil {
		return nil, err
	}
	r.Outputs, err = tensorsFromProto("outputs", m.GetOutputs(), m.GetRawOutputContents(), "raw_output_contents")
	if err != nil {
		return nil, err
	}
	return r, nil
}

// RequestToProto makes a gRPC request. Raw contents are used for all inputs when raw is true,
// and when one of them is FP16 or BF16, which have no other form.
func RequestToProto(r *InferRequest, raw bool) (*pb.ModelInferRequest, error) {
	m := &pb.ModelInferRequest{ModelName: r.ModelName, ModelVersion: r.ModelVersion, Id: r.ID}
	var err error
	if m.Parameters, err = parametersToProto(r.Parameters); err != nil {
		return nil, err
	}
	raw = raw || needsRaw(r.Inputs)
	for i := range r.Inputs {
		t := &r.Inputs[i]
		p, err := parametersToProto(t.Parameters)
		if err != nil {
			return nil, t.wrap(err)
		}
		in := &pb.ModelInferRequest_InferInputTensor{Name: t.Name, Datatype: string(t.Datatype), Shape: t.Shape, Parameters: p}
		if raw {
			m.RawInputContents, err = appendRawContents(m.RawInputContents, t)
		} else {
			in.Contents, err = contents(t)
		}
		if err != nil {
			return nil, err
		}
		m.Inputs = append(m.Inputs, in)
	}
	for i := range r.Outputs {
		p, err := parametersToProto(r.Outputs[i].Parameters)
		if err != nil {
			return nil, brief.Errorf("outputs[%d] %q: %w", i, r.Outputs[i].Name, err)
		}
		m.Outputs = append(m.Outputs, &pb.ModelInferRequest_InferRequestedOutputTensor{Name: r.Outputs[i].Name, Parameters: p})
	}
	return m, nil
}

// ResponseToProto makes a gRPC response, as RequestToProto does.
func ResponseToProto(r *InferResponse, raw bool) (*pb.ModelInferResponse, error) {
	m := &pb.ModelInferResponse{ModelName: r.ModelName, ModelVersion: r.ModelVersion, Id: r.ID}
	var err error
	if m.Parameters, err = parametersToProto(r.Parameters); err != nil {
		return nil, err
	}
	raw = raw || needsRaw(r.Outputs)
	for i := range r.Outputs {
		t := &r.Outputs[i]
		p, err := parametersToProto(t.Parameters)
		if err != nil {
			return nil, t.wrap(err)
		}
		out := &pb.ModelInferResponse_InferOutputTensor{Name: t.Name, Datatype: string(t.Datatype), Shape: t.Shape, Parameters: p}
		if raw {
			m.RawOutputContents, err = appendRawContents(m.RawOutputContents, t)
		} else {
			out.Contents, err = contents(t)
		}
		if err != nil {
			return nil, err
		}
		m.Outputs = append(m.Outputs, out)
	}
	return m, nil
}

func needsRaw(tensors []Tensor) bool {
	for i := range tensors {
		if tensors[i].Datatype.halfFloat() {
			return true
		}
	}
	return false
}

// protoTensor is what the generated input and output tensors have in common.
type protoTensor interface {
	GetName() string
	GetDatatype() string
	GetShape() []int64
	GetParameters() map[string]*pb.InferParameter
	GetContents() *pb.InferTensorContents
}

func tensorsFromProto[T protoTensor](what string, in []T, raw [][]byte, rawField string) ([]Tensor, error) {
	if len(raw) > 0 && len(raw) != len(in) {
		return nil, invalid("%s has %d entries for %d %s; use it for all of them or for none", rawField, len(raw), len(in), what)
	}
	tensors := make([]Tensor, 0, len(in))
	names := map[string]bool{}
	for i, p := range in {
		t := Tensor{Name: p.GetName(), Datatype: Datatype(p.GetDatatype()), Shape: p.GetShape()}
		switch {
		case t.Name == "":
			return nil, invalid("%s[%d]: no name is given", what, i)
		case names[t.Name]:
			return nil, invalid("%s[%d]: the name %q comes twice", what, i, t.Name)
		}
		names[t.Name] = true
		var err error
		if t.Parameters, err = parametersFromProto(p.GetParameters()); err != nil {
			return nil, brief.Errorf("%s[%d] %q: %w", what, i, t.Name, err)
		}
		delete(t.Parameters, "binary_data_size")
		if len(raw) > 0 {
			if proto.Size(p.GetContents()) > 0 { // MLServer sends them empty beside what is raw
				return nil, t.errorf("both contents and %s are given", rawField)
			}
			if t.Raw = raw[i]; t.Raw == nil {
				t.Raw = []byte{}
			}
		} else if t.Data, err = dataFromContents(t.Datatype, p.GetContents()); err != nil {
			return nil, t.wrap(err)
		}
		if err := t.Check(); err != nil {
			return nil, err
		}
		tensors = append(tensors, t)
	}
	return tensors, nil
}

// contentsField is the name of the field that goes with a datatype.
func contentsField(d Datatype) string {
	switch d {
	case Bool:
		return "bool_contents"
	case Int8, Int16, Int32:
		return "int_contents"
	case Int64:
		return "int64_contents"
	case Uint8, Uint16, Uint32:
		return "uint_contents"
	case Uint64:
		return "uint64_contents"
	case FP32:
		return "fp32_contents"
	case FP64:
		return "fp64_contents"
	case Bytes:
		return "bytes_contents"
	}
	return ""
}

func dataFromContents(d Datatype, c *pb.InferTensorContents) (any, error) {
	want := contentsField(d)
	if want == "" {
		if d.halfFloat() {
			return nil, invalid("%s has no contents field; use raw contents for all tensors", d)
		}
		return nil, invalid("datatype %q is unknown; use one of %s", d, datatypeNames)
	}
	for field, n := range map[string]int{
		"bool_contents": len(c.GetBoolContents()), "int_contents": len(c.GetIntContents()),
		"int64_contents": len(c.GetInt64Contents()), "uint_contents": len(c.GetUintContents()),
		"uint64_contents": len(c.GetUint64Contents()), "fp32_contents": len(c.GetFp32Contents()),
		"fp64_contents": len(c.GetFp64Contents()), "bytes_contents": len(c.GetBytesContents()),
	} {
		if n > 0 && field != want {
			return nil, invalid("%s holds elements; those of %s go in %s", field, d, want)
		}
	}
	switch d {
	case Bool:
		return notNil(c.GetBoolContents()), nil
	case Int8:
		return narrow[int8](d, c.GetIntContents(), math.MinInt8, math.MaxInt8)
	case Int16:
		return narrow[int16](d, c.GetIntContents(), math.MinInt16, math.MaxInt16)
	case Int32:
		return notNil(c.GetIntContents()), nil
	case Int64:
		return notNil(c.GetInt64Contents()), nil
	case Uint8:
		return narrow[uint8](d, c.GetUintContents(), 0, math.MaxUint8)
	case Uint16:
		return narrow[uint16](d, c.GetUintContents(), 0, math.MaxUint16)
	case Uint32:
		return notNil(c.GetUintContents()), nil
	case Uint64:
		return notNil(c.GetUint64Contents()), nil
	case FP32:
		return notNil(c.GetFp32Contents()), nil
	case FP64:
		return notNil(c.GetFp64Contents()), nil
	default: // BYTES, the only one left
		return notNil(c.GetBytesContents()), nil
	}
}

func notNil[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}

func narrow[T int8 | int16 | uint8 | uint16, W int32 | uint32](d Datatype, wide []W, lo, hi W) ([]T, error) {
	out := make([]T, len(wide))
	for i, v := range wide {
		if v < lo || v > hi {
			return nil, invalid("element %d: %d is out of range for %s", i, v, d)
		}
		out[i] = T(v)
	}
	return out, nil
}

func widen[W int32 | uint32, T int8 | int16 | uint8 | uint16](in []T) []W {
	out := make([]W, len(in))
	for i, v := range in {
		out[i] = W(v)
	}
	return out
}

func contents(t *Tensor) (*pb.InferTensorContents, error) {
	data, err := t.Values()
	if err != nil {
		return nil, err
	}
	c := &pb.InferTensorContents{}
	switch v := data.(type) {
	case []bool:
		c.BoolContents = v
	case []int8:
		c.IntContents = widen[int32](v)
	case []int16:
		c.IntContents = widen[int32](v)
	case []int32:
		c.IntContents = v
	case []int64:
		c.Int64Contents = v
	case []uint8:
		c.UintContents = widen[uint32](v)
	case []uint16:
		c.UintContents = widen[uint32](v)
	case []uint32:
		c.UintContents = v
	case []uint64:
		c.Uint64Contents = v
	case []float32:
		c.Fp32Contents = v
	case []float64:
		c.Fp64Contents = v
	case [][]byte:
		c.BytesContents = v
	default:
		return nil, t.errorf("datatype %s can't hold %s", t.Datatype, typeOf(data))
	}
	return c, nil
}

func appendRawContents(dst [][]byte, t *Tensor) ([][]byte, error) {
	if t.Data == nil {
		return append(dst, t.Raw), nil
	}
	raw, err := t.AppendRaw(make([]byte, 0, t.RawSize()))
	return append(dst, raw), err
}

func parametersFromProto(in map[string]*pb.InferParameter) (Parameters, error) {
	if len(in) == 0 {
		return nil, nil
	}
	p := make(Parameters, len(in))
	for name, v := range in {
		switch c := v.GetParameterChoice().(type) {
		case *pb.InferParameter_BoolParam:
			p[name] = c.BoolParam
		case *pb.InferParameter_Int64Param:
			p[name] = c.Int64Param
		case *pb.InferParameter_StringParam:
			p[name] = c.StringParam
		case *pb.InferParameter_DoubleParam:
			p[name] = c.DoubleParam
		case *pb.InferParameter_Uint64Param:
			p[name] = c.Uint64Param
		default:
			return nil, invalid("parameter %q has no value", name)
		}
	}
	return p, nil
}

func parametersToProto(p Parameters) (map[string]*pb.InferParameter, error) {
	if len(p) == 0 {
		return nil, nil
	}
	out := make(map[string]*pb.InferParameter, len(p))
	for name, v := range p {
		switch v := v.(type) {
		case bool:
			out[name] = &pb.InferParameter{ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: v}}
		case int64:
			out[name] = &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: v}}
		case string:
			out[name] = &pb.InferParameter{ParameterChoice: &pb.InferParameter_StringParam{StringParam: v}}
		case float64:
			out[name] = &pb.InferParameter{ParameterChoice: &pb.InferParameter_DoubleParam{DoubleParam: v}}
		case uint64:
			out[name] = &pb.InferParameter{ParameterChoice: &pb.InferParameter_Uint64Param{Uint64Param: v}}
		default:
			return nil, invalid("parameter %q is of type %T; it must be a string, a number or a boolean", name, v)
		}
	}
	return out, nil
}
