package ort

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// Values of ONNXType.
const (
	kindTensor   = 1
	kindSequence = 2
	kindMap      = 3
)

// Session is a model that onnxruntime has loaded. Run is safe for concurrent use; Close must
// come after the last.
type Session struct {
	lib    *Library
	handle uintptr
}

// Open loads the model at path, with the library's defaults: all graph optimisations and a
// thread for each processor. Errors are of kind errdef.ErrInvalid for a file that is damaged,
// and ErrUnsupported for an operator that the library lacks.
func (l *Library) Open(path string) (*Session, error) {
	var options uintptr
	if err := l.do(fnCreateSessionOptions, ptr(&options)); err != nil {
		return nil, err
	}
	defer l.release(fnReleaseSessionOptions, options)
	s := &Session{lib: l}
	name := cString(path)
	err := l.do(fnCreateSession, l.env, ptr(&name[0]), options, ptr(&s.handle))
	runtime.KeepAlive(name)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Backend is "onnxruntime" and its version.
func (s *Session) Backend() string { return "onnxruntime " + s.lib.Version }

// Close frees the model.
func (s *Session) Close() error {
	s.lib.release(fnReleaseSession, s.handle)
	s.handle = 0
	return nil
}

// Run computes the outputs by name; the inputs must fit the model. When ctx ends, the library
// is told to stop, which it does between operators. A sequence of maps comes back as a tensor
// of [rows, keys], by the order of the keys.
func (s *Session) Run(ctx context.Context, inputs map[string]*graph.Tensor, outputs []string) (_ []*graph.Tensor, err error) {
	l := s.lib
	var options uintptr
	if err := l.do(fnCreateRunOptions, ptr(&options)); err != nil {
		return nil, err
	}
	defer l.release(fnReleaseRunOptions, options)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = l.do(fnRunOptionsSetTerminate, options) // can't fail
	})
	defer func() {
		if !stop() {
			<-stopped
			err = errors.Join(context.Cause(ctx), err)
		}
	}()

	var pins runtime.Pinner
	defer pins.Unpin()
	var inNames, outNames, inValues []uintptr
	name := func(text string) uintptr {
		b := cString(text)
		pins.Pin(&b[0])
		return uintptr(unsafe.Pointer(&b[0]))
	}
	defer func() {
		for _, v := range inValues {
			l.release(fnReleaseValue, v)
		}
	}()
	for _, key := range sortedKeys(inputs) {
		v, err := l.toValue(inputs[key], &pins)
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", key, err)
		}
		inNames, inValues = append(inNames, name(key)), append(inValues, v)
	}
	for _, o := range outputs {
		outNames = append(outNames, name(o))
	}
	outValues := make([]uintptr, len(outputs))
	defer func() {
		for _, v := range outValues {
			l.release(fnReleaseValue, v)
		}
	}()
	err = l.do(fnRun, s.handle, options, first(inNames), first(inValues), uintptr(len(inValues)),
		first(outNames), uintptr(len(outNames)), first(outValues))
	runtime.KeepAlive(inNames)
	runtime.KeepAlive(inValues)
	runtime.KeepAlive(outNames)
	if err != nil {
		return nil, err
	}
	results := make([]*graph.Tensor, len(outputs))
	for i, v := range outValues {
		t, err := l.fromValue(v)
		if err != nil {
			return nil, fmt.Errorf("output %q: %w", outputs[i], err)
		}
		t.Name = outputs[i]
		results[i] = t
	}
	return results, nil
}

func sortedKeys(m map[string]*graph.Tensor) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// first is the address of a slice's first element, 0 for none.
func first[T any](s []T) uintptr {
	if len(s) == 0 {
		return 0
	}
	return ptr(&s[0])
}

// toValue makes an OrtValue, which shares the tensor's elements until pins are taken off, but
// for strings, which the library copies.
func (l *Library) toValue(t *graph.Tensor, pins *runtime.Pinner) (uintptr, error) {
	code := uintptr(t.Type.ONNX())
	var value uintptr
	if texts, ok := t.Data.([]string); ok {
		return l.toStrings(t, texts, code)
	}
	p, bytes := memory(t.Data)
	if p == nil {
		p = unsafe.Pointer(new(uint64)) // no elements, and yet an address is wanted
	}
	pins.Pin(p)
	err := l.do(fnCreateTensorWithDataAsOrtValue, l.memory, uintptr(p), uintptr(bytes),
		first(t.Shape), uintptr(len(t.Shape)), code, ptr(&value))
	runtime.KeepAlive(t)
	return value, err
}

func (l *Library) toStrings(t *graph.Tensor, texts []string, code uintptr) (uintptr, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	addresses := make([]uintptr, len(texts))
	for i, s := range texts {
		if strings.IndexByte(s, 0) >= 0 {
			return 0, errdef.New(errdef.ErrInvalid, fmt.Sprintf("element %d has a zero byte, which onnxruntime's strings can't hold", i))
		}
		b := cString(s)
		pins.Pin(&b[0])
		addresses[i] = uintptr(unsafe.Pointer(&b[0]))
	}
	var value uintptr
	if err := l.do(fnCreateTensorAsOrtValue, l.allocator, first(t.Shape), uintptr(len(t.Shape)), code, ptr(&value)); err != nil {
		return 0, err
	}
	if len(texts) == 0 {
		return value, nil
	}
	if err := l.do(fnFillStringTensor, value, first(addresses), uintptr(len(addresses))); err != nil {
		l.release(fnReleaseValue, value)
		return 0, err
	}
	runtime.KeepAlive(addresses)
	return value, nil
}

// memory is where a slice's elements lie, and how many bytes they take.
func memory(data any) (unsafe.Pointer, int) {
	switch d := data.(type) {
	case []bool:
		return span(d)
	case []uint8:
		return span(d)
	case []uint16:
		return span(d)
	case []uint32:
		return span(d)
	case []uint64:
		return span(d)
	case []int8:
		return span(d)
	case []int16:
		return span(d)
	case []int32:
		return span(d)
	case []int64:
		return span(d)
	case []float32:
		return span(d)
	case []float64:
		return span(d)
	}
	return nil, 0
}

func span[T any](s []T) (unsafe.Pointer, int) {
	var zero T
	if len(s) == 0 {
		return nil, 0
	}
	return unsafe.Pointer(&s[0]), len(s) * int(unsafe.Sizeof(zero))
}

// fromValue copies an OrtValue into Go's memory.
func (l *Library) fromValue(v uintptr) (*graph.Tensor, error) {
	var kind int32
	if err := l.do(fnGetValueType, v, ptr(&kind)); err != nil {
		return nil, err
	}
	switch kind {
	case kindTensor:
		return l.fromTensor(v)
	case kindSequence:
		return l.fromSequence(v)
	}
	return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("it is of the ONNX type %d; only tensors and sequences of maps can be returned", kind))
}

func (l *Library) fromTensor(v uintptr) (*graph.Tensor, error) {
	var info uintptr
	if err := l.do(fnGetTensorTypeAndShape, v, ptr(&info)); err != nil {
		return nil, err
	}
	defer l.release(fnReleaseTensorInfo, info)
	typ, shape, err := l.typeAndShape(info)
	if err != nil {
		return nil, err
	}
	t := &graph.Tensor{Type: typ, Shape: shape}
	n, ok := graph.Count(shape)
	if !ok {
		return nil, fmt.Errorf("%w: onnxruntime returned the shape %v", errdef.ErrInternal, shape)
	}
	if typ == graph.String {
		t.Data, err = l.fromStrings(v, n)
		return t, err
	}
	var p uintptr
	if err := l.do(fnGetTensorMutableData, v, ptr(&p)); err != nil {
		return nil, err
	}
	switch typ {
	case graph.Bool:
		t.Data = copied[bool](p, n)
	case graph.Uint8:
		t.Data = copied[uint8](p, n)
	case graph.Uint16, graph.FP16, graph.BF16:
		t.Data = copied[uint16](p, n)
	case graph.Uint32:
		t.Data = copied[uint32](p, n)
	case graph.Uint64:
		t.Data = copied[uint64](p, n)
	case graph.Int8:
		t.Data = copied[int8](p, n)
	case graph.Int16:
		t.Data = copied[int16](p, n)
	case graph.Int32:
		t.Data = copied[int32](p, n)
	case graph.Int64:
		t.Data = copied[int64](p, n)
	case graph.FP32:
		t.Data = copied[float32](p, n)
	case graph.FP64:
		t.Data = copied[float64](p, n)
	default:
		return nil, errdef.New(errdef.ErrUnsupported, "it has an element type that no inference protocol carries")
	}
	return t, nil
}

func copied[T any](address uintptr, n int) []T {
	out := make([]T, n)
	if n > 0 {
		copy(out, unsafe.Slice(at[T](address, 0), n))
	}
	return out
}

func (l *Library) fromStrings(v uintptr, n int) ([]string, error) {
	out := make([]string, n)
	if n == 0 {
		return out, nil
	}
	var size uintptr
	if err := l.do(fnGetStringTensorDataLength, v, ptr(&size)); err != nil {
		return nil, err
	}
	content, offsets := make([]byte, size+1), make([]uintptr, n)
	if err := l.do(fnGetStringTensorContent, v, first(content), size, first(offsets), uintptr(n)); err != nil {
		return nil, err
	}
	for i, from := range offsets {
		to := size
		if i+1 < n {
			to = offsets[i+1]
		}
		out[i] = string(content[from:to])
	}
	return out, nil
}

// fromSequence turns a sequence of maps, all with the same keys, into rows.
func (l *Library) fromSequence(v uintptr) (*graph.Tensor, error) {
	var n uintptr
	if err := l.do(fnGetValueCount, v, ptr(&n)); err != nil {
		return nil, err
	}
	var all []float32
	cols := 0
	for i := range n {
		row, err := l.mapValues(v, i)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			cols = len(row)
		}
		if len(row) != cols {
			return nil, errdef.New(errdef.ErrUnsupported, "it is a sequence of maps of different sizes")
		}
		all = append(all, row...)
	}
	return &graph.Tensor{Type: graph.FP32, Shape: []int64{int64(n), int64(cols)}, Data: append([]float32{}, all...)}, nil
}

// mapValues returns the values of map i of a sequence; the library keeps them by key.
func (l *Library) mapValues(sequence, i uintptr) ([]float32, error) {
	var m, values uintptr
	if err := l.do(fnGetValue, sequence, i, l.allocator, ptr(&m)); err != nil {
		return nil, err
	}
	defer l.release(fnReleaseValue, m)
	var kind int32
	if err := l.do(fnGetValueType, m, ptr(&kind)); err != nil {
		return nil, err
	}
	if kind != kindMap {
		return nil, errdef.New(errdef.ErrUnsupported, "it is a sequence of something other than maps")
	}
	const valuesOf = 1 // 0 would be the keys
	if err := l.do(fnGetValue, m, valuesOf, l.allocator, ptr(&values)); err != nil {
		return nil, err
	}
	defer l.release(fnReleaseValue, values)
	t, err := l.fromTensor(values)
	if err != nil {
		return nil, err
	}
	row, ok := t.Data.([]float32)
	if !ok {
		return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("it is a sequence of maps to %s", t.Type))
	}
	return row, nil
}
