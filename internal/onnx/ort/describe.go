package ort

import (
	"fmt"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// Describe returns the model's inputs and outputs.
func (s *Session) Describe() (inputs, outputs []graph.Value, err error) {
	if inputs, err = s.values(fnSessionGetInputCount, fnSessionGetInputName, fnSessionGetInputTypeInfo); err != nil {
		return nil, nil, fmt.Errorf("inputs: %w", err)
	}
	if outputs, err = s.values(fnSessionGetOutputCount, fnSessionGetOutputName, fnSessionGetOutputTypeInfo); err != nil {
		return nil, nil, fmt.Errorf("outputs: %w", err)
	}
	return inputs, outputs, nil
}

func (s *Session) values(countFn, nameFn, typeFn int) ([]graph.Value, error) {
	l := s.lib
	var n uintptr
	if err := l.do(countFn, s.handle, ptr(&n)); err != nil {
		return nil, err
	}
	out := make([]graph.Value, n)
	for i := range n {
		var name, info uintptr
		if err := l.do(nameFn, s.handle, i, l.allocator, ptr(&name)); err != nil {
			return nil, err
		}
		out[i].Name = text(name)
		if err := l.do(fnAllocatorFree, l.allocator, name); err != nil {
			return nil, err
		}
		if err := l.do(typeFn, s.handle, i, ptr(&info)); err != nil {
			return nil, err
		}
		err := l.describe(info, &out[i])
		l.release(fnReleaseTypeInfo, info)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", out[i].Name, err)
		}
	}
	return out, nil
}

// describe reads an OrtTypeInfo, which the caller releases; what is cast from it lives as long.
func (l *Library) describe(info uintptr, into *graph.Value) (err error) {
	var kind int32
	if err := l.do(fnGetOnnxTypeFromTypeInfo, info, ptr(&kind)); err != nil {
		return err
	}
	switch kind {
	case kindTensor:
		var tensor uintptr
		if err := l.do(fnCastTypeInfoToTensorInfo, info, ptr(&tensor)); err != nil {
			return err
		}
		if into.Type, into.Shape, err = l.typeAndShape(tensor); err != nil {
			return err
		}
		names := make([]uintptr, len(into.Shape))
		if err := l.do(fnGetSymbolicDimensions, tensor, first(names), uintptr(len(names))); err != nil {
			return err
		}
		for _, n := range names {
			into.DimNames = append(into.DimNames, text(n))
		}
	case kindSequence:
		var sequence, element uintptr
		if err := l.do(fnCastTypeInfoToSequenceInfo, info, ptr(&sequence)); err != nil {
			return err
		}
		if err := l.do(fnGetSequenceElementType, sequence, ptr(&element)); err != nil {
			return err
		}
		defer l.release(fnReleaseTypeInfo, element)
		return l.describe(element, into)
	case kindMap:
		var m, value uintptr
		var key int32
		if err := l.do(fnCastTypeInfoToMapInfo, info, ptr(&m)); err != nil {
			return err
		}
		if err := l.do(fnGetMapKeyType, m, ptr(&key)); err != nil {
			return err
		}
		if err := l.do(fnGetMapValueType, m, ptr(&value)); err != nil {
			return err
		}
		defer l.release(fnReleaseTypeInfo, value)
		into.MapKey = graph.FromONNX(int64(key))
		return l.describe(value, into)
	default:
		return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("it is of the ONNX type %d; only tensors and sequences of maps can be served", kind))
	}
	return nil
}

// typeAndShape reads an OrtTensorTypeAndShapeInfo.
func (l *Library) typeAndShape(info uintptr) (graph.DataType, []int64, error) {
	var code int32
	if err := l.do(fnGetTensorElementType, info, ptr(&code)); err != nil {
		return graph.Undefined, nil, err
	}
	var rank uintptr
	if err := l.do(fnGetDimensionsCount, info, ptr(&rank)); err != nil {
		return graph.Undefined, nil, err
	}
	shape := make([]int64, rank)
	if err := l.do(fnGetDimensions, info, first(shape), rank); err != nil {
		return graph.Undefined, nil, err
	}
	return graph.FromONNX(int64(code)), shape, nil
}
