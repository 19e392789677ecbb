package oip

import (
	"encoding/binary"
	"math"
)

var le = binary.LittleEndian

// dataLen is how many elements data holds; false when its type isn't the datatype's.
func dataLen(d Datatype, data any) (int, bool) {
	switch v := data.(type) {
	case []bool:
		return len(v), d == Bool
	case []uint8:
		return len(v), d == Uint8
	case []uint16:
		return len(v), d == Uint16 || d.halfFloat()
	case []uint32:
		return len(v), d == Uint32
	case []uint64:
		return len(v), d == Uint64
	case []int8:
		return len(v), d == Int8
	case []int16:
		return len(v), d == Int16
	case []int32:
		return len(v), d == Int32
	case []int64:
		return len(v), d == Int64
	case []float32:
		return len(v), d == FP32
	case []float64:
		return len(v), d == FP64
	case [][]byte:
		return len(v), d == Bytes
	}
	return 0, false
}

// checkRaw says whether raw is exactly n elements.
func checkRaw(d Datatype, n int64, raw []byte) error {
	size := int64(d.Size())
	if size > 0 {
		if n > math.MaxInt64/size || n*size != int64(len(raw)) {
			return invalid("%d elements of %s take %d bytes each, %d bytes came", n, d, size, len(raw))
		}
		return nil
	}
	var i int64
	rest := raw
	for ; len(rest) > 0; i++ {
		if i == n {
			return invalid("%d bytes are left over after %d elements", len(rest), n)
		}
		if len(rest) < 4 {
			return invalid("element %d: its length takes 4 bytes, %d are left", i, len(rest))
		}
		size := int64(le.Uint32(rest))
		if rest = rest[4:]; size > int64(len(rest)) {
			return invalid("element %d: its length is %d bytes, %d are left", i, size, len(rest))
		}
		rest = rest[size:]
	}
	if i < n {
		return invalid("the bytes end after %d of %d elements", i, n)
	}
	return nil
}

// decodeRaw makes typed elements of raw. Those of BYTES and UINT8 share its memory.
func decodeRaw(d Datatype, n int64, raw []byte) (any, error) {
	if err := checkRaw(d, n, raw); err != nil {
		return nil, err
	}
	switch d {
	case Bool:
		return convert(raw, 1, func(b []byte) bool { return b[0] != 0 }), nil
	case Uint8:
		return raw[:len(raw):len(raw)], nil
	case Int8:
		return convert(raw, 1, func(b []byte) int8 { return int8(b[0]) }), nil
	case Uint16, FP16, BF16:
		return convert(raw, 2, le.Uint16), nil
	case Int16:
		return convert(raw, 2, func(b []byte) int16 { return int16(le.Uint16(b)) }), nil
	case Uint32:
		return convert(raw, 4, le.Uint32), nil
	case Int32:
		return convert(raw, 4, func(b []byte) int32 { return int32(le.Uint32(b)) }), nil
	case FP32:
		out := make([]float32, len(raw)/4)
		for i := range out {
			out[i] = math.Float32frombits(le.Uint32(raw[4*i:]))
		}
		return out, nil
	case Uint64:
		return convert(raw, 8, le.Uint64), nil
	case Int64:
		return convert(raw, 8, func(b []byte) int64 { return int64(le.Uint64(b)) }), nil
	case FP64:
		return convert(raw, 8, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) }), nil
	case Bytes:
		out := make([][]byte, 0, n)
		for rest := raw; len(rest) > 0; {
			end := 4 + int(le.Uint32(rest))
			out = append(out, rest[4:end:end])
			rest = rest[end:]
		}
		return out, nil
	}
	return nil, invalid("datatype %q is unknown; use one of %s", d, datatypeNames)
}

func convert[T any](raw []byte, size int, one func([]byte) T) []T {
	out := make([]T, len(raw)/size)
	for i := range out {
		out[i] = one(raw[i*size:])
	}
	return out
}

// RawSize is how many bytes AppendRaw appends.
func (t *Tensor) RawSize() int {
	switch v := t.Data.(type) {
	case nil:
		return len(t.Raw)
	case [][]byte:
		n := 4 * len(v)
		for _, b := range v {
			n += len(b)
		}
		return n
	}
	n, _ := dataLen(t.Datatype, t.Data)
	return n * t.Datatype.Size()
}

// AppendRaw appends the elements in raw form. An element of BYTES beyond 4 GiB is an error.
func (t *Tensor) AppendRaw(dst []byte) ([]byte, error) {
	switch v := t.Data.(type) {
	case nil:
		return append(dst, t.Raw...), nil
	case []bool:
		for _, e := range v {
			b := byte(0)
			if e {
				b = 1
			}
			dst = append(dst, b)
		}
	case []uint8:
		dst = append(dst, v...)
	case []int8:
		for _, e := range v {
			dst = append(dst, byte(e))
		}
	case []uint16:
		for _, e := range v {
			dst = le.AppendUint16(dst, e)
		}
	case []int16:
		for _, e := range v {
			dst = le.AppendUint16(dst, uint16(e))
		}
	case []uint32:
		for _, e := range v {
			dst = le.AppendUint32(dst, e)
		}
	case []int32:
		for _, e := range v {
			dst = le.AppendUint32(dst, uint32(e))
		}
	case []float32:
		for _, e := range v {
			dst = le.AppendUint32(dst, math.Float32bits(e))
		}
	case []uint64:
		for _, e := range v {
			dst = le.AppendUint64(dst, e)
		}
	case []int64:
		for _, e := range v {
			dst = le.AppendUint64(dst, uint64(e))
		}
	case []float64:
		for _, e := range v {
			dst = le.AppendUint64(dst, math.Float64bits(e))
		}
	case [][]byte:
		for i, e := range v {
			if len(e) > math.MaxUint32 {
				return dst, t.errorf("element %d has %d bytes, more than a length of 4 bytes can say", i, len(e))
			}
			dst = append(le.AppendUint32(dst, uint32(len(e))), e...)
		}
	default:
		return dst, t.errorf("datatype %s can't hold %s", t.Datatype, typeOf(t.Data))
	}
	return dst, nil
}
