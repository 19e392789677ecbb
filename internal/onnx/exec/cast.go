package exec

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/x448/float16"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// castTo converts a tensor's elements. Floats are cut towards zero on the way to integers,
// true is 1, and strings are read and written as Python's float and int do.
func castTo(t *tensor, to graph.DataType) (*tensor, error) {
	if t.Type == to {
		return t, nil
	}
	switch d := t.Data.(type) {
	case []float32:
		return castNumbers(t, d, to)
	case []float64:
		return castNumbers(t, d, to)
	case []int64:
		return castNumbers(t, d, to)
	case []int32:
		return castNumbers(t, d, to)
	case []int16:
		return castNumbers(t, d, to)
	case []int8:
		return castNumbers(t, d, to)
	case []uint8:
		return castNumbers(t, d, to)
	case []uint32:
		return castNumbers(t, d, to)
	case []uint64:
		return castNumbers(t, d, to)
	case []uint16:
		if t.Type == graph.FP16 {
			return castNumbers(t, mapped(d, func(b uint16) float32 { return float16.Frombits(b).Float32() }), to)
		}
		if t.Type == graph.Uint16 {
			return castNumbers(t, d, to)
		}
	case []bool:
		return castNumbers(t, mapped(d, func(b bool) int64 {
			if b {
				return 1
			}
			return 0
		}), to)
	case []string:
		return castStrings(t, d, to)
	}
	return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("a cast from %s to %s isn't built in", t.Type, to))
}

func castNumbers[T number](t *tensor, d []T, to graph.DataType) (*tensor, error) {
	switch to {
	case graph.FP32:
		return like(t, castSlice[T, float32](d)), nil
	case graph.FP64:
		return like(t, castSlice[T, float64](d)), nil
	case graph.Int64:
		return like(t, castSlice[T, int64](d)), nil
	case graph.Int32:
		return like(t, castSlice[T, int32](d)), nil
	case graph.Int16:
		return like(t, castSlice[T, int16](d)), nil
	case graph.Int8:
		return like(t, castSlice[T, int8](d)), nil
	case graph.Uint8:
		return like(t, castSlice[T, uint8](d)), nil
	case graph.Uint16:
		return like(t, castSlice[T, uint16](d)), nil
	case graph.Uint32:
		return like(t, castSlice[T, uint32](d)), nil
	case graph.Uint64:
		return like(t, castSlice[T, uint64](d)), nil
	case graph.Bool:
		return like(t, mapped(d, func(x T) bool { return x != 0 })), nil
	case graph.FP16:
		out := like(t, mapped(d, func(x T) uint16 { return float16.Fromfloat32(float32(x)).Bits() }))
		out.Type = graph.FP16
		return out, nil
	case graph.String:
		return like(t, mapped(d, text[T])), nil
	}
	return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("a cast from %s to %s isn't built in", t.Type, to))
}

func text[T number](x T) string {
	switch v := any(x).(type) {
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return fmt.Sprint(x)
}

func castStrings(t *tensor, d []string, to graph.DataType) (*tensor, error) {
	nums := make([]float64, len(d))
	for i, s := range d {
		x, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("element %d, %q, is no number", i, s))
		}
		nums[i] = x
	}
	return castNumbers(t, nums, to)
}
