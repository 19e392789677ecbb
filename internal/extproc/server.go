// Package extproc serves as the endpoint picker of an InferencePool: a proxy asks it over Envoy's
// external processing protocol where each request is to go, and passes requests and answers through
// it, so that it counts what is under way as the gateway does.
package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"stationmaster.dev/stationmaster/internal/extproc/pool"
	"stationmaster.dev/stationmaster/internal/pick"
	topics "stationmaster.dev/stationmaster/internal/state"
)

// Config is what an endpoint picker needs to know. Pool and Samples are required.
type Config struct {
	// Pool is what it picks from, Samples what engines tell of themselves.
	Pool    *topics.Topic[pool.Pool]
	Samples *topics.Topic[pick.Samples]
	// Picking is how endpoints of a pool are chosen that doesn't say; empty means as is best for
	// language models.
	Picking string
	// MaxBody bounds the body of a request, in bytes; 0 means 256 MiB. MaxRead is how much of it is
	// read before an endpoint is picked; 0 means 1 MiB.
	MaxBody int64
	MaxRead int
	// Limit is how many requests an endpoint may have under way: where all have, a request gets 429.
	// 0 means no limit.
	Limit int
	// Fallback has proxies told of a second endpoint, for when they can't reach the first. Not all take
	// a list: Envoy's clusters of the type ORIGINAL_DST take one address.
	Fallback bool
	// TLS is nil for plain text.
	TLS *tls.Config
	// Metrics may be nil.
	Metrics *Metrics
	Logger  *slog.Logger

	metrics *poolMetrics
}

const (
	defaultMaxBody = 256 << 20
	defaultMaxRead = 1 << 20
	// drain is how long requests under way have at the end.
	drain = 30 * time.Second
	// window is how much of one request a proxy may send ahead: a long prompt, without waiting.
	window = 1 << 20
)

// Server is the endpoint picker of one pool. Make it with New and drive it with Run.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer
	cfg    Config
	picker *picker
	health *health.Server
}

// New makes a server; it starts nothing.
func New(cfg Config) *Server {
	if cfg.MaxBody == 0 {
		cfg.MaxBody = defaultMaxBody
	}
	if cfg.MaxRead == 0 {
		cfg.MaxRead = defaultMaxRead
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	cfg.metrics = cfg.Metrics.of(cfg.Pool)
	s := &Server{cfg: cfg, health: health.NewServer()}
	s.picker = newPicker(&s.cfg)
	return s
}

// Run serves on a listener until ctx ends, lets what is under way end, and has joined all that it
// started when it returns.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(s.cfg.MaxBody) + 1<<20), // of a proxy that sends a body in one piece
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(16 * window),
		grpc.ReadBufferSize(64 << 10), grpc.WriteBufferSize(64 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	if s.cfg.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.cfg.TLS)))
	}
	g := grpc.NewServer(options...)
	extprocv3.RegisterExternalProcessorServer(g, s)
	healthv1.RegisterHealthServer(g, s.health)
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	parts.Go(func() { s.picker.learn(ctx) })
	parts.Go(func() { s.tellHealth(ctx) })
	ended := make(chan struct{})
	parts.Go(func() {
		defer close(ended)
		<-ctx.Done()
		s.health.Shutdown()
		late := time.AfterFunc(drain, g.Stop)
		g.GracefulStop()
		late.Stop()
	})
	err := g.Serve(ln)
	cancel()
	<-ended
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve the endpoint picker: %w", err)
	}
	return nil
}

// The services whose health is asked for, beside all ("").
var healthOf = [...]string{"", "readiness", extprocv3.ExternalProcessor_ServiceDesc.ServiceName}

// tellHealth says that the server is ready while it knows its pool: one without endpoints is for
// requests to find out.
func (s *Server) tellHealth(ctx context.Context) {
	s.health.SetServingStatus("liveness", healthv1.HealthCheckResponse_SERVING)
	for {
		p, changed := s.cfg.Pool.Watch()
		is := healthv1.HealthCheckResponse_NOT_SERVING
		if p != nil && p.Known {
			is = healthv1.HealthCheckResponse_SERVING
		}
		for _, name := range healthOf {
			s.health.SetServingStatus(name, is)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Process is one request's stream.
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	x := &exchange{state: states.Get().(*state), p: s.picker, send: stream.Send}
	defer x.release()
	var req extprocv3.ProcessingRequest
	for {
		err := stream.RecvMsg(&req)
		switch {
		case errors.Is(err, io.EOF), status.Code(err) == codes.Canceled:
			return nil // the proxy is done, or the client went away
		case err != nil:
			return err
		}
		if req.GetObservabilityMode() {
			return status.Error(codes.FailedPrecondition, "an endpoint picker's answers aren't for observing")
		}
		if err := x.take(&req); err != nil {
			if _, sent := status.FromError(err); sent {
				return err // sending failed
			}
			return s.refuse(x, err)
		}
	}
}

// refuse answers a request in the engines' stead.
func (s *Server) refuse(x *exchange, why error) error {
	code, body := refusalOf(why)
	s.cfg.metrics.refused(code)
	return x.send(immediate(code, body, code == 429))
}

var _ prometheus.Collector = (*Metrics)(nil)
