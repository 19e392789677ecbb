package modelserver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The exit statuses of Main.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
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
	flags := flag.NewFlagSet("stationmaster runtime onnx", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var (
		name     = flags.String("model_name", "", "name under which the model answers (required)")
		dir      = flags.String("model_dir", "", "folder with model.onnx, one *.onnx file or N/model.onnx (required)")
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
		level    = flags.String("log_level", "info", "debug, info, warn or error")
	)
	usage := func(err error) int {
		fmt.Fprintf(stderr, "stationmaster runtime onnx: %v\n", err)
		return exitUsage
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(stderr)
		flags.Usage()
		return exitOK
	} else if err != nil {
		// Without the list of all flags, behind which a pod's status would lose the error.
		return usage(fmt.Errorf("%w; --help lists the flags", err))
	}
	if flags.NArg() > 0 {
		return usage(fmt.Errorf("unexpected argument %q; all are flags such as --model_name", flags.Arg(0)))
	}
	var logLevel slog.Level
	if err := logLevel.UnmarshalText([]byte(*level)); err != nil {
		return usage(fmt.Errorf("--log_level %q: use debug, info, warn or error", *level))
	}
	const maxPort = 1<<16 - 1
	if *httpPort > maxPort || *grpcPort > maxPort {
		return usage(fmt.Errorf("a port is over %d", maxPort))
	}
	cfg := Config{
		Model: *name, Dir: *dir, Open: opener(*library, *backend),
		HTTP:    net.JoinHostPort(*host, strconv.FormatUint(uint64(*httpPort), 10)),
		Log:     slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: logLevel})),
		Version: version(), MaxBodyBytes: *maxBody, MaxHeldBytes: *maxHeld, Parallel: *workers, Queue: *queue, Drain: *drain,
		Listening: func(http, grpc string) { fmt.Fprintf(stdout, "listening http=%s grpc=%s\n", http, grpc) },
	}
	if *grpcPort != 0 {
		cfg.GRPC = net.JoinHostPort(*host, strconv.FormatUint(uint64(*grpcPort), 10))
	}
	s, err := New(cfg)
	if err != nil {
		return usage(err)
	}
	start := time.Now()
	if err := s.Run(ctx); err != nil {
		fmt.Fprintf(stderr, "stationmaster runtime onnx: model %s, after %s: %v\n", *name, time.Since(start).Round(time.Millisecond), err)
		return exitError
	}
	return exitOK
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return strings.Trim(info.Main.Version, "()") // (devel) when built in its own tree
	}
	return ""
}
