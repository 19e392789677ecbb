package graph

import (
	"encoding/binary"
	"fmt"
	"math"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// tensor puts the data into one slice of the element type. Its length comes from the bytes at
// hand; the shape must agree.
func (r *rawTensor) tensor() (*Tensor, error) {
	t := &Tensor{Name: r.name, Type: FromONNX(r.typ), Shape: append([]int64{}, r.dims...)}
	if t.Type == Undefined {
		return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("constant %s has the ONNX element type %d, which isn't supported", r.name, r.typ))
	}
	want, ok := Count(t.Shape)
	if !ok {
		return nil, malformed(fmt.Sprintf("constant %s has the shape %v", r.name, r.dims))
	}
	var got int
	if r.hasRaw && t.Type != String {
		t.Data, got = fromRaw(t.Type, r.raw)
	} else {
		t.Data, got = r.fromLists(t.Type)
	}
	if got != want {
		return nil, malformed(fmt.Sprintf("constant %s has %d elements and the shape %v, which needs %d", r.name, got, r.dims, want))
	}
	return t, nil
}

// Width is the bytes of one element in raw form; 0 for strings.
func (t DataType) Width() int {
	switch t {
	case Bool, Uint8, Int8:
		return 1
	case Uint16, Int16, FP16, BF16:
		return 2
	case Uint32, Int32, FP32:
		return 4
	case Uint64, Int64, FP64:
		return 8
	}
	return 0
}

func fromRaw(t DataType, raw []byte) (any, int) {
	w := t.Width()
	if len(raw)%w != 0 {
		return nil, -1
	}
	n := len(raw) / w
	le := binary.LittleEndian
	switch t {
	case Bool:
		return convert(n, func(i int) bool { return raw[i] != 0 }), n
	case Uint8:
		return append([]uint8{}, raw...), n
	case Int8:
		return convert(n, func(i int) int8 { return int8(raw[i]) }), n
	case Uint16, FP16, BF16:
		return convert(n, func(i int) uint16 { return le.Uint16(raw[2*i:]) }), n
	case Int16:
		return convert(n, func(i int) int16 { return int16(le.Uint16(raw[2*i:])) }), n
	case Uint32:
		return convert(n, func(i int) uint32 { return le.Uint32(raw[4*i:]) }), n
	case Int32:
		return convert(n, func(i int) int32 { return int32(le.Uint32(raw[4*i:])) }), n
	case FP32:
		return convert(n, func(i int) float32 { return math.Float32frombits(le.Uint32(raw[4*i:])) }), n
	case Uint64:
		return convert(n, func(i int) uint64 { return le.Uint64(raw[8*i:]) }), n
	case Int64:
		return convert(n, func(i int) int64 { return int64(le.Uint64(raw[8*i:])) }), n
	default: // FP64
		return convert(n, func(i int) float64 { return math.Float64frombits(le.Uint64(raw[8*i:])) }), n
	}
}

// fromLists reads the typed lists of a TensorProto; smaller integers travel in int32_data.
func (r *rawTensor) fromLists(t DataType) (any, int) {
	n := len(r.ints)
	switch t {
	case FP32:
		return orEmpty(r.floats), len(r.floats)
	case FP64:
		return orEmpty(r.doubles), len(r.doubles)
	case String:
		return orEmpty(r.strings), len(r.strings)
	case Bool:
		return convert(n, func(i int) bool { return r.ints[i] != 0 }), n
	case Uint8:
		return convert(n, func(i int) uint8 { return uint8(r.ints[i]) }), n
	case Int8:
		return convert(n, func(i int) int8 { return int8(r.ints[i]) }), n
	case Uint16, FP16, BF16:
		return convert(n, func(i int) uint16 { return uint16(r.ints[i]) }), n
	case Int16:
		return convert(n, func(i int) int16 { return int16(r.ints[i]) }), n
	case Uint32:
		return convert(n, func(i int) uint32 { return uint32(r.ints[i]) }), n
	case Int32:
		return convert(n, func(i int) int32 { return int32(r.ints[i]) }), n
	case Uint64:
		return convert(n, func(i int) uint64 { return uint64(r.ints[i]) }), n
	default: // Int64
		return orEmpty(r.ints), n
	}
}

func convert[T any](n int, at func(int) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = at(i)
	}
	return out
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
