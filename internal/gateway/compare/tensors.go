package compare

import (
	"math"
	"slices"
	"strings"

	"github.com/x448/float16"
	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// packedOutputs reads the outputs of a V2 answer with binary tensors, of which so many bytes are
// JSON, sorted by name.
func packedOutputs(body []byte, jsonLen int) ([]output, bool) {
	answer, err := oip.DecodeResponse(body, jsonLen)
	if err != nil {
		return nil, false
	}
	return tensorOutputs(answer.Outputs)
}

// messageOutputs reads the outputs of a ModelInferResponse, typed or raw, sorted by name.
func messageOutputs(message []byte) ([]output, bool) {
	var m pb.ModelInferResponse
	if proto.Unmarshal(message, &m) != nil {
		return nil, false
	}
	answer, err := oip.ResponseFromProto(&m)
	if err != nil {
		return nil, false
	}
	return tensorOutputs(answer.Outputs)
}

// tensorOutputs are tensors as JSON has them: numbers as float64, bytes as strings.
func tensorOutputs(tensors []oip.Tensor) ([]output, bool) {
	out := make([]output, len(tensors))
	for i := range tensors {
		t := &tensors[i]
		values, err := t.Values()
		if err != nil {
			return nil, false
		}
		out[i] = output{Name: t.Name, Datatype: string(t.Datatype), Shape: make([]int, len(t.Shape)), Data: decoded(t.Datatype, values)}
		for d, n := range t.Shape {
			out[i].Shape[d] = int(n)
		}
	}
	slices.SortStableFunc(out, func(a, b output) int { return strings.Compare(a.Name, b.Name) })
	return out, true
}

// decoded are a tensor's elements as a JSON decoder gives them.
func decoded(d oip.Datatype, values any) []any {
	switch v := values.(type) {
	case []bool:
		return each(v, func(b bool) any { return b })
	case []uint8:
		return each(v, number[uint8])
	case []uint16:
		switch d {
		case oip.FP16:
			return each(v, func(bits uint16) any { return float64(float16.Frombits(bits).Float32()) })
		case oip.BF16:
			return each(v, func(bits uint16) any { return float64(math.Float32frombits(uint32(bits) << 16)) })
		}
		return each(v, number[uint16])
	case []uint32:
		return each(v, number[uint32])
	case []uint64:
		return each(v, number[uint64])
	case []int8:
		return each(v, number[int8])
	case []int16:
		return each(v, number[int16])
	case []int32:
		return each(v, number[int32])
	case []int64:
		return each(v, number[int64])
	case []float32:
		return each(v, number[float32])
	case []float64:
		return each(v, number[float64])
	case [][]byte:
		return each(v, func(b []byte) any { return string(b) })
	}
	return nil
}

func each[T any](values []T, as func(T) any) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = as(v)
	}
	return out
}

func number[T uint8 | uint16 | uint32 | uint64 | int8 | int16 | int32 | int64 | float32 | float64](v T) any {
	return float64(v)
}
