package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// convertToGRPC answers a REST call of the Open Inference Protocol from an engine that
// speaks it over gRPC only.
func (x *exchange) convertToGRPC(e *route.Endpoint) {
	call := x.match.Call
	method := http.MethodGet
	switch call.Op {
	case route.Infer, route.Load, route.Unload, route.Explain, route.Generate, route.GenerateStream:
		method = http.MethodPost
	}
	if call.Op != route.OtherOfModel && x.r.Method != method {
		x.refuseMethod(method)
		return
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), x.timeout())
	defer cancel()
	var err error
	switch call.Op {
	case route.Infer:
		err = x.inferOverGRPC(ctx, e)
	case route.ModelMetadata:
		out := new(pb.ModelMetadataResponse)
		err = x.invoke(ctx, e, "ModelMetadata", func(model string) proto.Message {
			return &pb.ModelMetadataRequest{Name: model, Version: call.Version}
		}, out)
		if err == nil {
			x.answerBytes(http.StatusOK, "application/json", oip.Encode(oip.ModelMetadataFromProto(out)))
		}
	case route.ModelReady:
		out := new(pb.ModelReadyResponse)
		err = x.invoke(ctx, e, "ModelReady", func(model string) proto.Message {
			return &pb.ModelReadyRequest{Name: model, Version: call.Version}
		}, out)
		switch {
		case err != nil:
		case out.GetReady():
			x.answerBytes(http.StatusOK, "application/json", oip.Encode(oip.ModelReady{Name: call.Model, Ready: true}))
		default:
			err = errdef.New(errdef.ErrUnavailable, fmt.Sprintf("model %s isn't ready", call.Model))
		}
	case route.Load:
		err = x.invoke(ctx, e, "RepositoryModelLoad", func(model string) proto.Message {
			return &pb.RepositoryModelLoadRequest{ModelName: model}
		}, new(pb.RepositoryModelLoadResponse))
		if err == nil {
			x.answerBytes(http.StatusOK, "application/json", []byte("{}"))
		}
	case route.Unload:
		err = x.invoke(ctx, e, "RepositoryModelUnload", func(model string) proto.Message {
			return &pb.RepositoryModelUnloadRequest{ModelName: model}
		}, new(pb.RepositoryModelUnloadResponse))
		if err == nil {
			x.answerBytes(http.StatusOK, "application/json", []byte("{}"))
		}
	default:
		err = errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
			"the engine of %s answers only over gRPC, whose inference protocol has no call for %s", x.target.service, x.match.Path))
	}
	if err != nil {
		x.fail(err)
	}
}

func (x *exchange) inferOverGRPC(ctx context.Context, e *route.Endpoint) error {
	bytes, err := x.readBody()
	if err != nil {
		return err
	}
	body, err := convert.NewBody(x.r.Header, bytes)
	if err != nil {
		return err
	}
	infer, err := convert.NewToGRPC(body, x.match.Call.Version)
	if err != nil {
		return err
	}
	out := new(pb.ModelInferResponse)
	if err := x.invoke(ctx, e, "ModelInfer", infer.Message, out); err != nil {
		return err
	}
	answer, err := infer.Answer(out)
	if err != nil {
		return err
	}
	answer.Describe(x.w.Header())
	x.answerBytes(http.StatusOK, x.w.Header().Get("Content-Type"), answer.Bytes)
	return nil
}

// readBody reads the whole body within the gateway's limit; conversion needs all of it.
func (x *exchange) readBody() ([]byte, error) {
	limit := x.g.cfg.MaxBody
	if limit <= 0 {
		limit = -1
	}
	b := &limitedBody{
		r: x.r.Body, left: limit, limit: limit,
		rc: http.NewResponseController(x.w), wait: x.g.cfg.Timeouts.Body,
	}
	body, err := io.ReadAll(b)
	if err != nil {
		return nil, bodyError(err)
	}
	return body, nil
}

// invoke makes a unary call to an engine, and again where a replica can't be reached: to
// another one, or to what takes its place. in makes the request for the name by which the
// engine knows the model. Errors have the kind that the engine's code means.
func (x *exchange) invoke(ctx context.Context, e *route.Endpoint, method string, in func(model string) proto.Message, out proto.Message) error {
	md := metadata.Pairs("x-request-id", x.id,
		"kserve-isvc-name", x.match.Service.Key.Name, "kserve-isvc-namespace", x.match.Service.Key.Namespace)
	ctx = metadata.NewOutgoingContext(ctx, md)
	for first := true; ; first = false {
		model, _ := engineModel(&x.match, x.target.Target)
		unsent, err := x.invokeOn(ctx, e, method, in(model), out)
		x.hold.picked.ended(x.r.Context(), status.Code(err), unsent)
		if err == nil {
			return nil
		}
		if x.r.Context().Err() != nil {
			return context.Cause(x.r.Context())
		}
		if unsent && first {
			x.metric.upstreamError("dial")
		}
		if unsent && ctx.Err() == nil {
			if t, other := x.hold.another(ctx, e, first, &x.match, x.view, x.find); other != nil && other.GRPC != "" {
				x.choose(t)
				e = other
				continue
			}
		}
		s := status.Convert(err)
		return errdef.New(oip.KindOfCode(s.Code()), s.Message())
	}
}

func (x *exchange) invokeOn(ctx context.Context, e *route.Endpoint, method string, in, out proto.Message) (unsent bool, _ error) {
	conn, err := x.g.dialer.Begin(ctx, grpcPlace(e))
	if err != nil {
		return true, err
	}
	defer conn.End()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{}, oipPrefix+method)
	if err != nil {
		return status.Code(err) == codes.Unavailable, err
	}
	if err := stream.SendMsg(in); err != nil && err != io.EOF { //nolint:errorlint // grpc returns io.EOF itself
		return false, err
	}
	if err := stream.CloseSend(); err != nil {
		return false, err
	}
	return false, stream.RecvMsg(out)
}
