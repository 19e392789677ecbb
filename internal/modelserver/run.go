package modelserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Run listens, loads the model or reads the list of many, and serves until ctx ends; then it lets
// the requests in flight finish within Config.Drain and frees what it loaded. It answers from the
// start, not ready until then. It returns nil after ctx ended, and an error when it can't listen,
// load the one model or read the list. It has joined all it started when it returns.
func (s *Server) Run(ctx context.Context) error {
	httpListener, err := listen(ctx, s.cfg.HTTP, "--http_port")
	if err != nil {
		return err
	}
	defer httpListener.Close() // closed by its server already, but for errors in between
	var grpcListener net.Listener
	grpcAddr := ""
	if s.cfg.GRPC != "" {
		if grpcListener, err = listen(ctx, s.cfg.GRPC, "--grpc_port"); err != nil {
			return err
		}
		defer grpcListener.Close() // as above
		grpcAddr = grpcListener.Addr().String()
	}
	if s.cfg.Listening != nil {
		s.cfg.Listening(httpListener.Addr().String(), grpcAddr)
	} else {
		s.log.InfoContext(ctx, "listening", "http", httpListener.Addr().String(), "grpc", grpcAddr)
	}

	group, run := errgroup.WithContext(ctx)
	s.serveHTTP(run, group, httpListener)
	if grpcListener != nil {
		s.serveGRPC(run, group, grpcListener)
	}
	group.Go(func() error {
		if err := s.serves.run(run); err != nil && ctx.Err() == nil { // else told to stop while loading
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-run.Done()
		s.draining.Store(true)
		return nil
	})
	err = group.Wait()
	if closeErr := s.serves.close(); closeErr != nil {
		s.log.WarnContext(ctx, "freeing the model failed", "err", closeErr)
	}
	return err
}

func listen(ctx context.Context, addr, flag string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errdef.New(errdef.ErrConflict, fmt.Sprintf("the address %s is taken by another program; choose another %s", addr, flag))
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s (%s): %w", addr, flag, err)
	}
	return l, nil
}

func (s *Server) logLoaded(ctx context.Context, m *model) {
	st := m.status.Load()
	if st.metadata == nil {
		return
	}
	s.log.LogAttrs(ctx, slog.LevelInfo, "model loaded",
		slog.String("backend", st.metadata.Properties["backend"]), slog.String("version", st.version),
		slog.Duration("took", time.Duration(m.loadTime.Load())))
}

// serveHTTP serves REST, and gRPC over HTTP/2 without TLS, on l until ctx ends.
func (s *Server) serveHTTP(ctx context.Context, group *errgroup.Group, l net.Listener) {
	// Its own gRPC server: one whose calls come through net/http can't be stopped gracefully,
	// and needn't be, as the HTTP server waits for them.
	g := s.newGRPC()
	web := &rest{Server: s, metricsPage: s.metrics.handler()}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
				g.ServeHTTP(w, r)
				return
			}
			web.ServeHTTP(w, r)
		}),
		Protocols:         &protocols,
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: readHeaderLimit,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	group.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve HTTP: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		drain, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.cfg.Drain, errors.New("the time to drain is over"))
		defer cancel()
		if err := server.Shutdown(drain); err != nil {
			s.log.WarnContext(ctx, "requests were cut off", "err", err)
			_ = server.Close() // it closes all that is left, and there is nothing to do about an error
		}
		g.Stop()
		return nil
	})
}

// serveGRPC serves gRPC on l until ctx ends.
func (s *Server) serveGRPC(ctx context.Context, group *errgroup.Group, l net.Listener) {
	g := s.newGRPC()
	group.Go(func() error {
		if err := g.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve gRPC: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		cut := time.AfterFunc(s.cfg.Drain, g.Stop)
		defer cut.Stop()
		g.GracefulStop()
		return nil
	})
}
