package gateway

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// frame is one gRPC message as it came. Sending it gives its buffers away.
type frame struct{ data mem.BufferSlice }

// frameCodec passes frames through and leaves other messages to the protobuf codec, so that
// the gateway's own services work on the same server.
type frameCodec struct{ encoding.CodecV2 }

func newFrameCodec() encoding.CodecV2 { return frameCodec{encoding.GetCodecV2(proto.Name)} }

func (c frameCodec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		data := f.data
		f.data = nil
		return data, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		data.Ref()
		f.data = data
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// field returns the value of a top-level string or bytes field. Serialisers write fields in
// order, so the first buffer nearly always has it; only a message that begins otherwise is
// searched whole. Of several occurrences the last counts, as protobuf wants it, within what
// was searched.
func (f *frame) field(num protowire.Number) (string, error) {
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

// override sets a string field by appending it: of several values of one field the last
// counts (protobuf encoding, "Last One Wins"), so nothing has to be copied.
func (f *frame) override(num protowire.Number, value string) {
	tail := protowire.AppendTag(nil, num, protowire.BytesType)
	tail = protowire.AppendString(tail, value)
	f.data = append(f.data, mem.SliceBuffer(tail))
}
