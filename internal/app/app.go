// Package app is the composition root: it builds the rooms, joins them, owns every goroutine
// and stops them in order. Nearly nothing may import it.
package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sys/unix"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Config is what `up` was asked for. Addresses are "host:port"; port 0 takes a free one.
type Config struct {
	DataDir string
	HTTP    string
	GRPC    string
	API     string
	Admin   string
	// Apply lists manifests, or folders of them, to apply at start.
	Apply []string
	// Domain is the last part of service hosts.
	Domain string
	// MaxBodyBytes bounds a request's body; RequestTimeout the wait for an answer's first
	// byte. Zero means the gateway's default.
	MaxBodyBytes   int64
	RequestTimeout time.Duration
	// OpenAIPrefix is what may stand before /v1 in the OpenAI API's paths; empty means "/openai".
	OpenAIPrefix string
	// TLSCert and TLSKey are PEM files; with them HTTPS and GRPCS are served as well.
	TLSCert, TLSKey string
	HTTPS, GRPCS    string
	// Path lists folders to look in for engines before PATH.
	Path    []string
	Version string
	// Out gets what a person reads; Logger the rest.
	Out    io.Writer
	Logger *slog.Logger
}

// lockDataDir takes the data dir for this process alone; the lock ends with the process, even
// with one that is killed.
func lockDataDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data dir: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of data dir: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		f.Close()
		return nil, errdef.New(errdef.ErrConflict, fmt.Sprintf(
			"another stationmaster runs on the data dir %s: stop it, or give this one another --data-dir", dir))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock data dir: %w", err)
	}
	return f, nil
}

// listen opens a listener and names the flag to change when the address is taken.
func listen(flag, addr string) (net.Listener, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s %q: want host:port, e.g. 127.0.0.1:8080, or port 0 for a free one", flag, addr))
	}
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errdef.New(errdef.ErrConflict, fmt.Sprintf("the address %s is taken: stop what listens there, or choose another with %s", addr, flag))
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s (%s): %w", addr, flag, err)
	}
	return ln, nil
}

// serverTLS reads what a gateway shows of itself.
func serverTLS(cert, key string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("read --tls-cert and --tls-key: %w: %w", errdef.ErrInvalid, err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// group runs parts that live until their context ends and remembers the first that failed.
type group struct {
	ctx    context.Context //nolint:containedctx // the group is the owner of this lifetime
	cancel context.CancelCauseFunc
	done   []chan struct{}
	log    *slog.Logger
}

func newGroup(ctx context.Context, log *slog.Logger) *group {
	ctx, cancel := context.WithCancelCause(ctx)
	return &group{ctx: ctx, cancel: cancel, log: log}
}

// run starts a part. When it returns before it was asked to, the whole group ends.
func (g *group) run(name string, part func(context.Context) error) {
	done := make(chan struct{})
	g.done = append(g.done, done)
	go func() {
		defer close(done)
		err := part(g.ctx)
		switch {
		case g.ctx.Err() != nil && err != nil && !errors.Is(err, context.Canceled):
			g.log.Warn("part ended with an error while stopping", "part", name, "err", err)
		case g.ctx.Err() == nil && err == nil:
			g.cancel(fmt.Errorf("%s ended by itself", name))
		case g.ctx.Err() == nil:
			g.cancel(fmt.Errorf("%s: %w", name, err))
		}
	}()
}

// stop ends the parts and waits for them.
func (g *group) stop() {
	g.cancel(context.Canceled)
	for _, d := range g.done {
		<-d
	}
}

// err is why the group ended, nil when it was told to.
func (g *group) err() error {
	if cause := context.Cause(g.ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
