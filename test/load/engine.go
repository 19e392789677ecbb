package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"stationmaster.dev/stationmaster/api/oip"
)

// Of a stream: how many chunks it has, and how long after one another they come.
const (
	chunks = 10
	pause  = 20 * time.Millisecond
)

// dirVar names, in an engine's environment, the folder in which it notes what it was given, and
// shapeVar what makes a revision of it.
const (
	dirVar   = "LOAD_DIR"
	shapeVar = "SHAPE"
)

// shapeHeader tells which shape answered.
const shapeHeader = "X-Shape"

// engine is a server that repeats what it is asked over REST, gRPC and in streams. It notes each
// request before it answers, so that one which was lost with it can be told from one that never
// came. It ends as engines do: SIGTERM has it finish what it has in hand. SIGUSR1 has it close
// its idle connections, SIGUSR2 all of them, as a network may.
type engine struct {
	oip.UnimplementedGRPCInferenceServiceServer
	shape  string
	notes  *os.File
	delay  time.Duration
	served atomic.Int64
}

func engineMain(args []string) error {
	f := flag.NewFlagSet("engine", flag.ContinueOnError)
	httpPort := f.Int("http_port", 0, "serve HTTP here")
	grpcPort := f.Int("grpc_port", 0, "serve gRPC here")
	delay := f.Duration("delay", 2*time.Millisecond, "how long an answer takes")
	load := f.Duration("load", 0, "how long the engine loads before it listens")
	if err := f.Parse(args); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	cut := make(chan os.Signal, 1)
	signal.Notify(cut, syscall.SIGUSR1, syscall.SIGUSR2)
	time.Sleep(*load)

	notes, err := os.OpenFile(notesOf(os.Getenv(dirVar), os.Getpid()), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	e := &engine{shape: os.Getenv(shapeVar), notes: notes, delay: *delay}
	g := grpc.NewServer()
	oip.RegisterGRPCInferenceServiceServer(g, e)
	calls, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(*grpcPort))
	if err != nil {
		return err
	}
	requests, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(*httpPort))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/health/ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /v2/models/{model}/infer", e.infer)
	mux.HandleFunc("POST /v1/chat/completions", e.chat)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 2)
	open := &connections{all: map[net.Conn]bool{}}
	go func() { ended <- g.Serve(&listener{calls, open}) }()
	go func() { ended <- server.Serve(&listener{requests, open}) }()
	for {
		select {
		case how := <-cut:
			if how == syscall.SIGUSR2 {
				open.reset()
				continue
			}
			server.SetKeepAlivesEnabled(false)
			server.SetKeepAlivesEnabled(true)
		case err := <-ended:
			return err
		case <-stop:
			ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
			defer cancel()
			err := server.Shutdown(ctx)
			g.GracefulStop()
			log.Printf("%d answers", e.served.Load())
			return err
		}
	}
}

// notesOf is the file in which a process notes what it was given.
func notesOf(dir string, pid int) string { return filepath.Join(dir, strconv.Itoa(pid)) }

// take notes a request; the note outlives this process.
func (e *engine) take(id string) {
	if _, err := e.notes.WriteString(id + "\n"); err != nil {
		log.Print(err)
	}
	e.served.Add(1)
	time.Sleep(e.delay)
}

func (e *engine) infer(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID     string            `json:"id"`
		Inputs []json.RawMessage `json:"inputs"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.take(in.ID)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set(shapeHeader, e.shape)
	_ = json.NewEncoder(w).Encode(map[string]any{"id": in.ID, "model_name": r.PathValue("model"), "outputs": in.Inputs})
}

func (e *engine) chat(w http.ResponseWriter, r *http.Request) {
	var in struct {
		User   string `json:"user"`
		Stream bool   `json:"stream"`
	}
	raw, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(raw, &in)
	}
	if err != nil || !in.Stream {
		http.Error(w, "streams only", http.StatusBadRequest)
		return
	}
	e.take(in.User)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set(shapeHeader, e.shape)
	flush := http.NewResponseController(w)
	for i := range chunks {
		if i > 0 {
			time.Sleep(pause)
		}
		_, _ = fmt.Fprintf(w, "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s-%d\"}}]}\n\n", in.User, i)
		if err := flush.Flush(); err != nil {
			return
		}
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

func (e *engine) ServerLive(context.Context, *oip.ServerLiveRequest) (*oip.ServerLiveResponse, error) {
	return &oip.ServerLiveResponse{Live: true}, nil
}

func (e *engine) ModelInfer(_ context.Context, r *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
	if r.GetId() == "" {
		return nil, errors.New("a request without id")
	}
	e.take(r.GetId())
	return &oip.ModelInferResponse{Id: r.GetId(), ModelName: r.GetModelName()}, nil
}
