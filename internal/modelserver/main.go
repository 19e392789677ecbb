package modelserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/modelstore"
	"stationmaster.dev/stationmaster/internal/runtimecmd"
)

// Main is the command `stationmaster runtime onnx`: args are those after these words. It serves
// until SIGTERM or an interrupt, and returns the exit status: 0 after that, 1 when the model
// can't be loaded or served, with the reason on stderr, and 2 for bad arguments. Its log goes
// to stderr.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return command(ctx, args, stdout, stderr)
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := runtimecmd.New("stationmaster runtime onnx", stderr)
	flags := cmd.Flags
	var (
		name     = flags.String("model_name", "", "name under which the model answers (required without --models_config)")
		dir      = flags.String("model_dir", "", "folder with model.onnx, one *.onnx file or N/model.onnx (required without --models_config)")
		list     = flags.String("models_config", "", "file that lists many models to serve, each loaded when a request names it (KServe's models.json)")
		store    = flags.String("model_store", "", "folder for the bytes of the models of --models_config; empty for one of their own, which goes with the server")
		budget   = flags.String("memory_budget", "", "memory for the models of --models_config, such as 512Mi; the least recently used make room for others. Empty for three quarters of --memory_limit")
		limit    = flags.String("memory_limit", "", "memory of the whole server, such as 2Gi: it gives --memory_budget its default, which without both is 1Gi, and what is no longer used is collected in time to stay below it")
		loadWait = flags.Duration("load_wait", defaultLoadWait, "time that a request waits for its model to be loaded")
		host     = flags.String("host", "127.0.0.1", "address to listen on; 0.0.0.0 for all")
		httpPort = flags.Uint("http_port", 8080, "port for REST, metrics and gRPC without TLS; 0 takes a free one")
		grpcPort = flags.Uint("grpc_port", 8081, "port for gRPC alone; 0 for none")
		maxBody  = flags.Int64("max_body", defaultMaxBody, "largest body of a request, in bytes")
		maxHeld  = flags.Int64("max_held", 0, "bytes of all requests over 256 KiB that are read and not answered yet; 0 for four times --max_body")
		workers  = flags.Int("workers", 0, "requests that run at once; 0 for one for each processor")
		queue    = flags.Int("queue", defaultQueue, "requests that may wait; more are refused")
		drain    = flags.Duration("drain", defaultDrain, "time for requests in flight after SIGTERM")
		library  = flags.String("onnxruntime", "", "path of an onnxruntime shared library; searched for when empty")
		backend  = flags.String("backend", "", "what should run the graph where it can: stationmaster (built in) or onnxruntime (its shared library); empty takes the built-in one, and the library for what that can't run")
	)
	log, status := cmd.Parse(args, "--model_name")
	if log == nil {
		return status
	}
	const maxPort = 1<<16 - 1
	if *httpPort > maxPort || *grpcPort > maxPort {
		return cmd.Misused(fmt.Errorf("a port is over %d", maxPort))
	}
	cfg := Config{
		Model: *name, Dir: *dir, Open: opener(*library, *backend),
		HTTP:    net.JoinHostPort(*host, strconv.FormatUint(uint64(*httpPort), 10)),
		Log:     log,
		Version: version(), MaxBodyBytes: *maxBody, MaxHeldBytes: *maxHeld, Parallel: *workers, Queue: *queue, Drain: *drain,
		Listening: func(http, grpc string) { fmt.Fprintf(stdout, "listening http=%s grpc=%s\n", http, grpc) },
	}
	if *grpcPort != 0 {
		cfg.GRPC = net.JoinHostPort(*host, strconv.FormatUint(uint64(*grpcPort), 10))
	}
	subject := "model " + *name
	if *list != "" {
		bytes, most, err := memoryFor(*budget, *limit)
		if err != nil {
			return cmd.Misused(err)
		}
		if most > 0 && os.Getenv("GOMEMLIMIT") == "" {
			// Garbage may be as much as what is in use, unless the collector knows its limit.
			debug.SetMemoryLimit(most / 10 * 9)
		}
		bytesOf, closeStore, err := fetcher(*store, cfg.Log)
		if err != nil {
			return cmd.Failed(err)
		}
		defer closeStore()
		cfg.Many = &Many{List: *list, Fetch: bytesOf, Budget: bytes, Wait: *loadWait}
		subject = "models of " + *list
	} else if *budget != "" || *store != "" {
		return cmd.Misused(errors.New("--memory_budget and --model_store are for many models; set --models_config, too"))
	}
	s, err := New(cfg)
	if err != nil {
		return cmd.Misused(err)
	}
	start := time.Now()
	if err := s.Run(ctx); err != nil {
		return cmd.Failed(fmt.Errorf("%s, after %s: %w", subject, time.Since(start).Round(time.Millisecond), err))
	}
	return runtimecmd.OK
}

// memoryFor is the memory for models and that of the whole server by what the flags say; 0 where
// they say nothing.
func memoryFor(budget, limit string) (models, all int64, err error) {
	if limit != "" {
		if all, err = modellist.ParseBytes(limit); err != nil {
			return 0, 0, fmt.Errorf("--memory_limit: %w", err)
		}
	}
	if budget == "" {
		return all / 4 * 3, all, nil
	}
	if models, err = modellist.ParseBytes(budget); err != nil {
		return 0, 0, fmt.Errorf("--memory_budget: %w", err)
	}
	return models, all, nil
}

// fetcher opens the store that models' bytes are brought to, in a folder of its own where dir is
// empty.
func fetcher(dir string, log *slog.Logger) (fetch func(ctx context.Context, uri, digest string) (string, string, func(), error), closeStore func(), err error) {
	remove := func() error { return nil }
	if dir == "" {
		if dir, err = os.MkdirTemp("", "stationmaster-models-"); err != nil {
			return nil, nil, fmt.Errorf("make a folder for models: %w", err)
		}
		remove = func() error { return os.RemoveAll(dir) }
	}
	store, err := modelstore.Open(modelstore.Config{Dir: dir, HTTP: modelstore.HTTPConfigFromEnv(os.Getenv), Logger: log})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the model store: %w", err), remove())
	}
	closeStore = func() {
		if err := errors.Join(store.Close(), remove()); err != nil {
			log.Warn("close the model store", "err", err)
		}
	}
	return store.For("").Fetch, closeStore, nil
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return strings.Trim(info.Main.Version, "()") // (devel) when built in its own tree
	}
	return ""
}
