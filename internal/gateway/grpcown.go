package gateway

import (
	"context"
	"net"
	"net/textproto"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/gateway/frame"
)

func canonicalKey(k string) string { return textproto.CanonicalMIMEHeaderKey(k) }

func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// serveWhole answers a call that is for a server as a whole from the table.
func (c *call) serveWhole() error {
	c.identify(nil)
	s := scope{table: c.view.table, service: c.match.Service}
	var ask, answer proto.Message
	switch c.oip {
	case "ServerLive":
		ask, answer = &oip.ServerLiveRequest{}, &oip.ServerLiveResponse{Live: true}
	case "ServerReady":
		ask, answer = &oip.ServerReadyRequest{}, &oip.ServerReadyResponse{Ready: s.unready() == nil}
	case "ServerMetadata":
		ask = &oip.ServerMetadataRequest{}
		answer = &oip.ServerMetadataResponse{Name: "stationmaster", Version: c.g.cfg.Version, Extensions: extensions}
	case "RepositoryIndex":
		ask = &oip.RepositoryIndexRequest{}
	default:
		panic("BUG: no answer for " + c.method)
	}
	var f frame.Frame
	if err := c.stream.RecvMsg(&f); err != nil {
		return c.requestError(err)
	}
	if err := c.decode(f.Take(), ask); err != nil {
		return err
	}
	if r, ok := ask.(*oip.RepositoryIndexRequest); ok {
		index := &oip.RepositoryIndexResponse{}
		for _, m := range s.index(r.GetReady()) {
			index.Models = append(index.Models, &oip.RepositoryIndexResponse_ModelIndex{
				Name: m.Name, State: m.State, Reason: m.Reason,
			})
		}
		answer = index
	}
	return c.stream.SendMsg(answer)
}

// health answers grpc.health.v1: for the empty service whether the gateway routes at all,
// for "namespace/name" or a model's name whether that service is ready.
type health struct {
	healthpb.UnimplementedHealthServer
	g *Gateway
}

func (h *health) status(service string) (healthpb.HealthCheckResponse_ServingStatus, bool) {
	table := h.g.cfg.Table.Load()
	if service == "" || service == oip.GRPCInferenceService_ServiceDesc.ServiceName {
		if table == nil {
			return healthpb.HealthCheckResponse_NOT_SERVING, true
		}
		return healthpb.HealthCheckResponse_SERVING, true
	}
	m, err := byKey(table, service, "/")
	if err != nil {
		if m, err = table.Model(service, "/"); err != nil {
			return healthpb.HealthCheckResponse_SERVICE_UNKNOWN, false
		}
	}
	if ready, _ := readiness(table, m.Service); !ready {
		return healthpb.HealthCheckResponse_NOT_SERVING, true
	}
	return healthpb.HealthCheckResponse_SERVING, true
}

// Check implements grpc.health.v1.Health.
func (h *health) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s, known := h.status(r.GetService())
	if !known {
		return nil, status.Errorf(codes.NotFound,
			"no service %.100q here: ask for the empty name, namespace/name or a model's name", r.GetService())
	}
	return &healthpb.HealthCheckResponse{Status: s}, nil
}

// Watch implements grpc.health.v1.Health: it sends the status now and at each change.
func (h *health) Watch(r *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	last := healthpb.HealthCheckResponse_ServingStatus(-1)
	for {
		_, changed := h.g.cfg.Table.Watch()
		if s, _ := h.status(r.GetService()); s != last {
			last = s
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: s}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}
