// Package frame is the gateway's view of a gRPC message that passes through: bytes, with the
// name of a model in them.
package frame

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Frame is one gRPC message as it came. Sending it gives its buffers away.
type Frame struct{ data mem.BufferSlice }

// Take returns the message's bytes and gives its buffers away.
func (f *Frame) Take() []byte {
	b := f.data.Materialize()
	f.data.Free()
	f.data = nil
	return b
}

// Len is how many bytes the message has.
func (f *Frame) Len() int { return f.data.Len() }

// Peek returns a copy of the message's first bytes, at most so many, and keeps its buffers.
func (f *Frame) Peek(most int) []byte {
	out := make([]byte, 0, min(f.data.Len(), most))
	for _, part := range f.data {
		b := part.ReadOnlyData()
		out = append(out, b[:min(len(b), most-len(out))]...)
	}
	return out
}

// Free gives the message's buffers away.
func (f *Frame) Free() {
	f.data.Free()
	f.data = nil
}

// Of makes a frame of a message's bytes, which it shares.
func Of(message []byte) *Frame { return &Frame{mem.BufferSlice{mem.SliceBuffer(message)}} }

type codec struct{ encoding.CodecV2 }

// Codec passes frames through and leaves other messages to the protobuf codec, so that the
// gateway's own services work on the same server.
var Codec encoding.CodecV2 = codec{encoding.GetCodecV2(proto.Name)}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*Frame); ok {
		data := f.data
		f.data = nil
		return data, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*Frame); ok {
		data.Ref()
		f.data = data
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Field returns the value of a top-level string or bytes field. Serialisers write fields in
// order, so the first buffer nearly always has it; only a message that begins otherwise is
// searched whole. Of several occurrences the last counts, as protobuf wants it, within what
// was searched.
func (f *Frame) Field(num protowire.Number) (string, error) {
	if len(f.data) == 0 {
		return "", nil
	}
	if v, ok := leadingField(f.data[0].ReadOnlyData(), num); ok {
		return v, nil
	}
	b := f.data.Materialize()
	value := ""
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return "", fmt.Errorf("not a protobuf message: %w", protowire.ParseError(size))
		}
		b = b[size:]
		if n == num && typ == protowire.BytesType {
			v, size := protowire.ConsumeBytes(b)
			if size < 0 {
				return "", fmt.Errorf("not a protobuf message: %w", protowire.ParseError(size))
			}
			value = string(v)
			b = b[size:]
			continue
		}
		size = protowire.ConsumeFieldValue(n, typ, b)
		if size < 0 {
			return "", fmt.Errorf("not a protobuf message: %w", protowire.ParseError(size))
		}
		b = b[size:]
	}
	return value, nil
}

// leadingField looks for a field among those that come first and are whole in b.
func leadingField(b []byte, num protowire.Number) (string, bool) {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 || typ != protowire.BytesType || n > num {
			return "", false
		}
		v, vsize := protowire.ConsumeBytes(b[size:])
		if vsize < 0 {
			return "", false
		}
		if n == num {
			return string(v), true
		}
		b = b[size+vsize:]
	}
	return "", false
}

// Override sets a string field by appending it: of several values of one field the last
// counts (protobuf encoding, "Last One Wins"), so nothing has to be copied.
func (f *Frame) Override(num protowire.Number, value string) {
	tail := protowire.AppendTag(nil, num, protowire.BytesType)
	tail = protowire.AppendString(tail, value)
	f.data = append(f.data, mem.SliceBuffer(tail))
}
