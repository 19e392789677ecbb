// Package modelserver is the built-in model server: one ONNX model in a process of its own,
// over V1 REST, the Open Inference Protocol's REST and gRPC, with health and metrics.
package modelserver

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// Session is a loaded model. Run may be called from several goroutines at once, and not after
// or during Close.
type Session interface {
	// Inputs and Outputs describe the graph's tensors; -1 is a dimension of any size and a nil
	// shape is one of unknown rank.
	Inputs() []oip.TensorMetadata
	Outputs() []oip.TensorMetadata
	// Run computes the named outputs, in their order. The inputs are all that the model has,
	// checked against Inputs.
	Run(ctx context.Context, inputs []oip.Tensor, outputs []string) ([]oip.Tensor, error)
	// Backend names what executes the graph.
	Backend() string
	Close() error
}

// Config says what to serve and where. HTTP, Open, and either Model and Dir or Many are required.
type Config struct {
	// Model is the name under which the model answers.
	Model string
	// Dir holds the model; see Find.
	Dir string
	// Many, when set, serves the models of a list in place of Model and Dir.
	Many *Many
	// Open loads the file. It runs in a goroutine of Run's.
	Open func(ctx context.Context, path string) (Session, error)
	// HTTP and GRPC are addresses to listen on, host:port; port 0 takes a free one. The HTTP
	// port takes gRPC too, over HTTP/2 without TLS. An empty GRPC opens no second port.
	HTTP, GRPC string
	// Listening, when set, is called once with the addresses in use.
	Listening func(http, grpc string)
	// Log takes what happens; nil discards it.
	Log *slog.Logger
	// Version is that of the program, for the server's metadata.
	Version string

	// MaxBodyBytes bounds a request's body, unpacked; 0 means 64 MiB (Triton's limit for a body
	// with JSON).
	MaxBodyBytes int64
	// MaxHeldBytes bounds the bytes of all requests over 256 KiB that are read and not answered
	// yet; 0 means four times MaxBodyBytes. It can't be less than MaxBodyBytes. Decoded, a
	// request takes more for a moment: up to 8 times its JSON.
	MaxHeldBytes int64
	// HeldWait is how long a request may wait for others to be answered before its body is read
	// on, when they hold MaxHeldBytes; then it is refused. 0 means 2 s.
	HeldWait time.Duration
	// Stall is how long each 256 KiB of a body may take to come before the request fails; 0
	// means 30 s.
	Stall time.Duration
	// Parallel is how many requests run at once; 0 means as many as there are processors.
	Parallel int
	// Queue is how many more may wait; one beyond is refused at once. 0 means
	// 4096: what a gateway held for a sleeping service comes at once, and bytes have a bound of
	// their own.
	Queue int
	// Drain is how long requests in flight may take after Run's context ends; 0 means 30 s.
	Drain time.Duration
}

const (
	defaultMaxBody  = 64 << 20
	defaultHeld     = 4 // times the largest body
	defaultHeldWait = 2 * time.Second
	defaultStall    = 30 * time.Second
	defaultQueue    = 4096
	defaultDrain    = 30 * time.Second
	maxHeaderBytes  = 1 << 20
	readHeaderLimit = 10 * time.Second
	serverName      = "stationmaster-onnx"
)

// Server serves one model or many. It is made by New and run once.
type Server struct {
	cfg     Config
	log     *slog.Logger
	serves  served
	model   *model // the one; nil where there are many
	metrics *metrics
	held    *held
	// draining is set when Run's context has ended: what is asked is answered, and new
	// requests should go elsewhere.
	draining atomic.Bool
}

// ready is an error while requests should go elsewhere.
func (s *Server) ready() error {
	if s.draining.Load() {
		return errdef.New(errdef.ErrUnavailable, "the server is shutting down")
	}
	return s.serves.serving()
}

// New checks the configuration. It starts nothing and opens nothing.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Many != nil && (cfg.Model != "" || cfg.Dir != ""):
		return nil, errdef.New(errdef.ErrInvalid, "--models_config names all models; leave --model_name and --model_dir out")
	case cfg.Many != nil && (cfg.Many.List == "" || cfg.Many.Fetch == nil):
		return nil, errdef.New(errdef.ErrInvalid, "many models need a list and something that fetches them; set --models_config")
	case cfg.Many != nil && (cfg.Many.Budget < 0 || cfg.Many.Wait < 0):
		return nil, errdef.New(errdef.ErrInvalid, "the memory or the time for loading models is negative; set --memory_budget and --load_wait to more than 0")
	case cfg.Many == nil && cfg.Model == "":
		return nil, errdef.New(errdef.ErrInvalid, "no model name is given; set --model_name")
	case cfg.Many == nil && cfg.Dir == "":
		return nil, errdef.New(errdef.ErrInvalid, "no model directory is given; set --model_dir")
	case cfg.HTTP == "":
		return nil, errdef.New(errdef.ErrInvalid, "no HTTP address is given; set --http_port")
	case cfg.Open == nil:
		return nil, errdef.New(errdef.ErrInvalid, "nothing is given that opens models")
	case cfg.MaxBodyBytes < 0 || cfg.MaxHeldBytes < 0 || cfg.HeldWait < 0 || cfg.Stall < 0 || cfg.Parallel < 0 || cfg.Queue < 0 || cfg.Drain < 0:
		return nil, errdef.New(errdef.ErrInvalid, "a limit is negative; set it to more than 0, or to 0 for its default")
	}
	if cfg.MaxBodyBytes == 0 {
		cfg.MaxBodyBytes = defaultMaxBody
	}
	if cfg.MaxHeldBytes == 0 {
		cfg.MaxHeldBytes = defaultHeld * cfg.MaxBodyBytes
	}
	if cfg.MaxHeldBytes < cfg.MaxBodyBytes {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("a body may have %d bytes, and all of them only %d; raise --max_held or lower --max_body", cfg.MaxBodyBytes, cfg.MaxHeldBytes))
	}
	if cfg.HeldWait == 0 {
		cfg.HeldWait = defaultHeldWait
	}
	if cfg.Stall == 0 {
		cfg.Stall = defaultStall
	}
	if cfg.Parallel == 0 {
		cfg.Parallel = runtime.GOMAXPROCS(0)
	}
	if cfg.Queue == 0 {
		cfg.Queue = defaultQueue
	}
	if cfg.Drain == 0 {
		cfg.Drain = defaultDrain
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, log: log, held: newHeld(cfg.MaxHeldBytes, cfg.HeldWait)}
	t := newTurns(cfg.Parallel, cfg.Queue)
	s.metrics = newMetrics(t)
	if cfg.Many != nil {
		f := newFleet(&s.cfg, t, log)
		s.metrics.ofFleet(f)
		s.serves = f
		return s, nil
	}
	s.log = log.With("model", cfg.Model)
	s.model = newModel(cfg.Model, cfg.Dir, cfg.Open, t)
	s.metrics.ofModel(s.model)
	s.serves = single{s, s.model}
	return s, nil
}

// metadata describes this server.
func (s *Server) metadata() *oip.ServerMetadata {
	version := s.cfg.Version
	if version == "" {
		version = "devel"
	}
	return &oip.ServerMetadata{
		Name: serverName, Version: version,
		Extensions: []string{oip.ExtensionBinaryData, oip.ExtensionRepository},
	}
}

// infer answers one request of either protocol edge and counts it.
func (s *Server) infer(ctx context.Context, protocol string, req *oip.InferRequest) (*oip.InferResponse, error) {
	start := time.Now()
	res, err := s.serves.infer(ctx, req)
	s.metrics.observe(protocol, req, err, time.Since(start))
	if err != nil && errdef.KindOf(err) == errdef.ErrInternal {
		s.log.LogAttrs(ctx, slog.LevelError, "inference failed", slog.Any("err", err))
	}
	return res, err
}
