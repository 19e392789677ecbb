package modelagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/modelstore"
	"stationmaster.dev/stationmaster/internal/runtimecmd"
)

// ReadyPath answers with 200 once the engine has what was on the list when it started.
const ReadyPath = "/ready"

// Main is the command `stationmaster runtime agent`: args are those after these words. It works
// until SIGTERM or an interrupt, and returns the exit status: 0 after that, 1 when it can't work,
// with the reason on stderr, and 2 for bad arguments. Its log goes to stderr.
func Main(args []string, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cmd := runtimecmd.New("stationmaster runtime agent", stderr)
	flags := cmd.Flags
	var (
		list       = flags.String("models_config", "", "file that lists the models (KServe's models.json)")
		repository = flags.String("repository", "", "the engine's model repository")
		layout     = flags.String("layout", "", "how models lie there: triton or mlserver")
		class      = flags.String("implementation", "", "MLServer's implementation for models that name none")
		engine     = flags.String("engine", "127.0.0.1:8080", "the engine's address for HTTP")
		host       = flags.String("host", "127.0.0.1", "address to listen on")
		port       = flags.Uint("http_port", 9081, "port on which it tells of its models")
	)
	log, status := cmd.Parse(args, "--repository")
	if log == nil {
		return status
	}
	cfg := Config{List: *list, Repository: *repository, Layout: Layout(*layout), Class: *class, Engine: *engine, Log: log}
	if err := work(ctx, cfg, net.JoinHostPort(*host, strconv.FormatUint(uint64(*port), 10))); err != nil {
		return cmd.Failed(err)
	}
	return runtimecmd.OK
}

// fetcher fetches each model through a store of its own, which goes when the model was laid out: the
// repository has the bytes then, and once.
func fetcher(cfg *Config) func(ctx context.Context, uri string) (string, func(), error) {
	return func(ctx context.Context, uri string) (string, func(), error) {
		base := filepath.Join(cfg.Repository, own, "new")
		dir, err := os.MkdirTemp(base, ".fetch-")
		if err != nil {
			return "", nil, fmt.Errorf("make a folder for a model: %w", err)
		}
		store, err := modelstore.Open(modelstore.Config{Dir: dir, HTTP: modelstore.HTTPConfigFromEnv(os.Getenv), Logger: cfg.Log})
		if err != nil {
			return "", nil, errors.Join(fmt.Errorf("open a model store: %w", err), os.RemoveAll(dir))
		}
		done := func() {
			if err := errors.Join(store.Close(), os.RemoveAll(dir)); err != nil {
				cfg.Log.Warn("the folder that a model was fetched to can't be removed", "err", err)
			}
		}
		path, _, release, err := store.Fetch(ctx, "", uri, "")
		if err != nil {
			done()
			return "", nil, err
		}
		return path, func() { release(); done() }, nil
	}
}

// work serves and follows until ctx ends.
func work(ctx context.Context, cfg Config, at string) error {
	cfg.Fetch = fetcher(&cfg)
	a, err := New(cfg)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", at)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", at, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	server := &http.Server{Handler: a.handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug)}
	group.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error { return a.Run(ctx) })
	return group.Wait()
}

// handler tells whether the replica is ready, and how far each model is.
func (a *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+ReadyPath, func(w http.ResponseWriter, _ *http.Request) {
		if err := a.ready(); err != nil {
			http.Error(w, told(err), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET "+modellist.ReportPath, func(w http.ResponseWriter, r *http.Request) {
		text, etag, err := a.report().Encode()
		if err != nil {
			http.Error(w, told(err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Etag", etag)
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // a client that went away needs none
	})
	return mux
}
