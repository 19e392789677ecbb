// Package admin serves the operator's side door on loopback: health, metrics and profiles.
package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/state"
)

// Config is what the admin server shows.
type Config struct {
	Metrics prometheus.Gatherer
	// Ready returns nil when the process serves; its error's text says what is missing.
	Ready func() error
	// Logs opens an engine's log; nil means there are none to show.
	Logs func(context.Context, LogQuery) (io.ReadCloser, error)
	// Demand is a gateway's load, streamed to whoever asks; nil means that there is none.
	Demand *state.Topic[demand.Report]
	// Engines answers what is below /engines/, the engines' own pages of metrics; nil means that
	// there are none.
	Engines http.Handler
	// Token is what a client must bear to read logs, which may hold what users sent.
	Token string
}

// Serve answers on ln until ctx ends, then closes it. Profiles are served only where ln is on
// a loopback address.
func Serve(ctx context.Context, ln net.Listener, cfg Config) error {
	srv := &http.Server{
		Handler: handler(ctx, cfg, isLoopback(ln.Addr())), ReadHeaderTimeout: 10 * time.Second,
		// Requests end with ctx, so that a log which is followed ends by a word and not by a cut.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve admin on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		// A profile or a scrape still runs; it isn't worth waiting for.
		err = srv.Close()
	}
	if served := <-done; err == nil && !errors.Is(served, http.ErrServerClosed) {
		err = served
	}
	return err
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// handler serves until serving ends.
func handler(serving context.Context, cfg Config, profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := cfg.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	if cfg.Demand != nil {
		mux.HandleFunc("GET /demand", load(serving, cfg.Demand))
	}
	if cfg.Engines != nil {
		mux.Handle("GET /engines/", cfg.Engines)
	}
	if cfg.Logs != nil {
		mux.Handle("GET /logs/{namespace}/{name}", authorized(cfg.Token, logs(serving, cfg.Logs)))
	}
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}
