// Package kubeapi is the Kubernetes API in this process: custom resources and a few built-in
// kinds over an embedded etcd, for any Kubernetes client on this machine.
package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// tidyAfter is how long after the start memory is given back to the system: past the first
// requests, which should not wait for it.
const tidyAfter = 5 * time.Second

// Config is what a Server needs. DataDir is required.
type Config struct {
	// DataDir keeps the objects, the keys and the kubeconfig across restarts. One server at a
	// time uses it.
	DataDir string
	// Listen is the address to serve on, host and port; empty means 127.0.0.1:6443, port 0 a free
	// port.
	Listen string
	// Logger may be nil for none. The Kubernetes libraries log through the first server's logger,
	// warnings and errors only.
	Logger *slog.Logger
	// CRDs are served when Ready is closed. Those of an earlier run that aren't among them stay.
	CRDs []*apiextensionsv1.CustomResourceDefinition
	// Admission is asked about each custom object before it is stored; nil admits all that their
	// schemas do.
	Admission Admission
}

// Server is the API. Its methods are safe for concurrent use.
type Server struct {
	cfg   Config
	log   *slog.Logger
	ready chan struct{} // closed by Run

	mu       sync.Mutex
	loopback *rest.Config
	addr     string
}

// New checks the configuration. It starts nothing and touches no file.
func New(cfg Config) (*Server, error) {
	if cfg.DataDir == "" {
		return nil, errdef.New(errdef.ErrInvalid, "the API needs a data directory: set DataDir")
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("%w: data directory %q: %w", errdef.ErrInvalid, cfg.DataDir, err)
	}
	cfg.DataDir = dir
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:6443"
	}
	if _, _, err := net.SplitHostPort(cfg.Listen); err != nil {
		return nil, fmt.Errorf("%w: API address %q: %w; give host:port", errdef.ErrInvalid, cfg.Listen, err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, log: cfg.Logger, ready: make(chan struct{})}, nil
}

// Ready is closed when every kind is served and the kubeconfig is written. It stays open where
// Run fails before.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// KubeconfigPath is where the administrator's kubeconfig lies, mode 0600, once Ready is closed.
func (s *Server) KubeconfigPath() string { return filepath.Join(s.cfg.DataDir, "kubeconfig") }

// Addr is the host and port that the API listens on, "" before Ready.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// RESTConfig returns a client configuration for this process, without a rate limit, nil before
// Ready. Its token is in memory only and ends with Run. The caller may change the result.
func (s *Server) RESTConfig() *rest.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loopback == nil {
		return nil
	}
	return rest.CopyConfig(s.loopback)
}

// Run serves until ctx is done and returns nil then, or the error that ended it. It blocks, and
// has stopped etcd and every listener when it returns. It runs once.
func (s *Server) Run(ctx context.Context) error {
	began := time.Now()
	step := func(what string) { s.log.Debug("api starts", "step", what, "after", time.Since(began)) }
	logOnce.Do(func() { klog.SetSlogLogger(slog.New(quiet{s.log.Handler()})) })
	dir := filepath.Join(s.cfg.DataDir, "api")
	if err := os.MkdirAll(dir, privateDirMode); err != nil {
		return fmt.Errorf("make the API's directory: %w", err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()

	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return errdef.New(errdef.ErrConflict, fmt.Sprintf("the address %s is taken: stop what listens there, or choose another with --api", s.cfg.Listen))
	}
	if err != nil {
		return fmt.Errorf("%w: listen for the API: %w; another --api address avoids what uses this one", errdef.ErrUnavailable, err)
	}
	defer l.Close() // the server closes it too
	addr, hosts := hostNames(s.cfg.Listen, l.Addr())
	creds, err := loadCredentials(filepath.Join(dir, "pki"), hosts, time.Now())
	if err != nil {
		return err
	}
	step("keys loaded")
	db, err := startStore(ctx, filepath.Join(dir, "etcd"), s.log)
	if err != nil {
		return quietWhenDone(ctx, err)
	}
	defer db.close()

	step("etcd open")
	a, err := newAPI(s.cfg, db, l, creds)
	if err != nil {
		return err
	}
	step("servers made")
	// The API's own parts are told to stop after those that use it.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	parts, partsCtx := errgroup.WithContext(ctx)
	server := make(chan error, 1) // one element when the server has stopped
	go func() { server <- a.run(serving) }()

	parts.Go(func() error { return db.failed(partsCtx) })
	parts.Go(func() error { return a.sweep(partsCtx, s.log) })
	parts.Go(func() error {
		if err := a.populate(partsCtx, s.cfg.CRDs, step); err != nil {
			return err
		}
		if err := writeKubeconfig(s.KubeconfigPath(), addr, creds); err != nil {
			return err
		}
		s.mu.Lock()
		s.loopback, s.addr = a.loopback, addr
		s.mu.Unlock()
		close(s.ready)
		s.log.Info("api ready", "addr", addr, "after", time.Since(began))
		// Building schemas and documents leaves about 40 MB of garbage that nothing soon reuses.
		select {
		case <-time.After(tidyAfter):
			debug.FreeOSMemory()
		case <-partsCtx.Done():
		}
		return nil
	})
	parts.Go(func() error {
		select {
		case err := <-server:
			server <- err
			if err == nil {
				err = errdef.New(errdef.ErrInternal, "the API server stopped by itself")
			}
			return err
		case <-partsCtx.Done():
			return nil
		}
	})
	err = parts.Wait()
	// The library ends the process when it is stopped before its start is complete.
	a.awaitStarted(serving, server)
	stopServing()
	return quietWhenDone(ctx, errors.Join(err, ignoreNil(<-server, err)))
}

// ignoreNil returns the server's own error unless the parts have reported it.
func ignoreNil(server, parts error) error {
	if errors.Is(parts, server) {
		return nil
	}
	return server
}

// quietWhenDone drops errors that only say that ctx ended.
func quietWhenDone(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return nil
	}
	return err
}

// hostNames returns the address that clients use and the host names that the certificate needs.
func hostNames(asked string, got net.Addr) (addr string, hosts []string) {
	host, _, _ := net.SplitHostPort(asked)
	port := "6443"
	if _, p, err := net.SplitHostPort(got.String()); err == nil {
		port = p
	}
	hosts = []string{"localhost", "127.0.0.1", "::1"}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port), hosts
	}
	if host != "localhost" && host != "127.0.0.1" && host != "::1" {
		hosts = append(hosts, host)
	}
	return net.JoinHostPort(host, port), hosts
}

// lock takes the file for this process, so that two servers never share a data directory.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, secretMode)
	if err != nil {
		return nil, fmt.Errorf("open the API's lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: %s is held by another process: stop it, or use another --data-dir", errdef.ErrConflict, path)
	}
	return func() { _ = f.Close() }, nil
}

var logOnce sync.Once

// quiet passes warnings and errors on: the Kubernetes libraries call much else information.
type quiet struct{ slog.Handler }

// Enabled drops what is below a warning.
func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && q.Handler.Enabled(ctx, l)
}

// WithAttrs keeps the threshold.
func (q quiet) WithAttrs(as []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(as)} }

// WithGroup keeps the threshold.
func (q quiet) WithGroup(n string) slog.Handler { return quiet{q.Handler.WithGroup(n)} }
