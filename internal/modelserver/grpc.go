package modelserver

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress
	protobuf "google.golang.org/grpc/encoding/proto"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// rpc answers over gRPC.
type rpc struct {
	pb.UnimplementedGRPCInferenceServiceServer
	*Server
}

// newGRPC makes the gRPC server with the inference, health and reflection services.
func (s *Server) newGRPC() *grpc.Server {
	g := grpc.NewServer(
		grpc.MaxRecvMsgSize(int(s.cfg.MaxBodyBytes)),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.UnaryInterceptor(s.asStatus),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(protobuf.Name)}),
	)
	r := registrar{Server: g, held: s.held}
	pb.RegisterGRPCInferenceServiceServer(r, &rpc{Server: s})
	healthpb.RegisterHealthServer(r, &healthService{server: s})
	reflection.Register(r)
	return g
}

// asStatus gives errors the code of their kind, and keeps a panic to the call.
func (s *Server) asStatus(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (res any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.ErrorContext(ctx, "call panicked", "method", info.FullMethod, "panic", p)
			res, err = nil, status.Error(codes.Internal, "the server panicked")
		}
	}()
	res, err = handler(ctx, req)
	if err == nil {
		return res, nil
	}
	if _, ok := status.FromError(err); ok && errdef.KindOf(err) == errdef.ErrInternal {
		return nil, err
	}
	_, code := oip.Status(err)
	return nil, status.Error(code, told(err))
}

func (r *rpc) ServerLive(context.Context, *pb.ServerLiveRequest) (*pb.ServerLiveResponse, error) {
	return &pb.ServerLiveResponse{Live: true}, nil
}

func (r *rpc) ServerReady(context.Context, *pb.ServerReadyRequest) (*pb.ServerReadyResponse, error) {
	return &pb.ServerReadyResponse{Ready: r.ready() == nil}, nil
}

func (r *rpc) ModelReady(_ context.Context, q *pb.ModelReadyRequest) (*pb.ModelReadyResponse, error) {
	if err := r.serves.check(q.GetName(), q.GetVersion()); err != nil {
		return nil, err
	}
	return &pb.ModelReadyResponse{Ready: r.serves.checkReady(q.GetName(), q.GetVersion()) == nil}, nil
}

func (r *rpc) ServerMetadata(context.Context, *pb.ServerMetadataRequest) (*pb.ServerMetadataResponse, error) {
	return r.metadata().ToProto(), nil
}

func (r *rpc) ModelMetadata(ctx context.Context, q *pb.ModelMetadataRequest) (*pb.ModelMetadataResponse, error) {
	md, err := r.serves.describe(ctx, q.GetName(), q.GetVersion())
	if err != nil {
		return nil, err
	}
	return md.ToProto(), nil
}

func (r *rpc) ModelInfer(ctx context.Context, q *pb.ModelInferRequest) (*pb.ModelInferResponse, error) {
	req, err := oip.RequestFromProto(q)
	if err != nil {
		r.metrics.observe("grpc-v2", &oip.InferRequest{}, err, 0)
		return nil, err
	}
	res, err := r.infer(ctx, "grpc-v2", req)
	if err != nil {
		return nil, err
	}
	return oip.ResponseToProto(res, len(q.GetRawInputContents()) > 0)
}

func (r *rpc) RepositoryIndex(_ context.Context, q *pb.RepositoryIndexRequest) (*pb.RepositoryIndexResponse, error) {
	return oip.IndexToProto(r.serves.index(q.GetReady())), nil
}

func (r *rpc) RepositoryModelLoad(ctx context.Context, q *pb.RepositoryModelLoadRequest) (*pb.RepositoryModelLoadResponse, error) {
	name := oip.RepositoryModel(q)
	if err := r.serves.load(ctx, name); err != nil {
		return nil, err
	}
	return &pb.RepositoryModelLoadResponse{ModelName: name, IsLoaded: true}, nil
}

func (r *rpc) RepositoryModelUnload(ctx context.Context, q *pb.RepositoryModelUnloadRequest) (*pb.RepositoryModelUnloadResponse, error) {
	name := oip.RepositoryModel(q)
	if err := r.serves.unload(ctx, name); err != nil {
		return nil, err
	}
	return &pb.RepositoryModelUnloadResponse{ModelName: name, IsUnloaded: true}, nil
}

// healthService is gRPC's own health check, of the server and of each model by its name.
type healthService struct {
	healthpb.UnimplementedHealthServer
	server *Server
}

func (h *healthService) Check(_ context.Context, q *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	err := h.server.ready()
	switch name := q.GetService(); name {
	case "", pb.GRPCInferenceService_ServiceDesc.ServiceName:
	default:
		if h.server.serves.check(name, "") != nil {
			return nil, status.Error(codes.NotFound, brief.Sprintf("there is no service %q", name))
		}
		if err == nil && h.server.cfg.Many != nil {
			err = h.server.serves.checkReady(name, "")
		}
	}
	s := healthpb.HealthCheckResponse_NOT_SERVING
	if err == nil {
		s = healthpb.HealthCheckResponse_SERVING
	}
	return &healthpb.HealthCheckResponse{Status: s}, nil
}
