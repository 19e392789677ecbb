package modelserver

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"stationmaster.dev/stationmaster/internal/wire/brief"
)

// registrar registers services whose methods answer a message that can't be read with
// INVALID_ARGUMENT, where grpc would say INTERNAL as if it were the server's fault, and count
// what they hold of a message until it is answered. The server must have the codec.
type registrar struct {
	*grpc.Server
	held *held
}

// RegisterService registers a copy of desc with wrapped handlers.
func (g registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods = slices.Clone(desc.Methods)
	for i := range d.Methods {
		d.Methods[i].Handler = g.method(d.Methods[i].Handler)
	}
	d.Streams = slices.Clone(desc.Streams)
	for i := range d.Streams {
		handle := d.Streams[i].Handler
		d.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
			return handle(srv, readable{stream})
		}
	}
	g.Server.RegisterService(&d, impl)
}

// method wraps a handler. grpc reads the message before its size is known here, so that one too
// many is refused when it has been read, without waiting while it takes memory.
func (g registrar) method(handle grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, read func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		s := share{held: g.held}
		defer s.free()
		return handle(srv, ctx, func(message any) error {
			return receive(read, &received{message: message, share: &s})
		}, interceptor)
	}
}

// readable is a stream whose errors of reading say whose fault they are.
type readable struct{ grpc.ServerStream }

// RecvMsg is grpc.ServerStream's.
func (r readable) RecvMsg(message any) error {
	return receive(r.ServerStream.RecvMsg, &received{message: message})
}

// received is a message to read, and what came of it. Once the codec fails, grpc has answered,
// so the codec leaves its error here.
type received struct {
	message any
	share   *share // takes the message's size; nil to count nothing
	err     error
}

func receive(read func(any) error, r *received) error {
	if err := read(r); err != nil {
		return err
	}
	return r.err
}

// codec is grpc's for protocol buffers, and knows received.
type codec struct{ encoding.CodecV2 }

// Unmarshal is encoding.CodecV2's.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if n := data.Len(); r.share != nil && n > readStep {
		if err := r.share.tryGrow(int64(n)); err != nil {
			r.err = status.Error(codes.ResourceExhausted, told(err))
			return nil
		}
	}
	if err := c.CodecV2.Unmarshal(data, r.message); err != nil {
		r.err = unreadable(err, r.message)
	}
	return nil
}

func unreadable(err error, message any) error {
	what := "a message"
	if m, ok := message.(proto.Message); ok {
		what = string(m.ProtoReflect().Descriptor().FullName())
	}
	reason := strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
	return status.Error(codes.InvalidArgument, brief.Sprintf("the request can't be read as %s: %s", what, reason))
}
