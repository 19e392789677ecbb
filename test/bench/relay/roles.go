package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/measure"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
	"stationmaster.dev/stationmaster/test/testkit/llmsim"
)

const (
	// framesHeader and paceHeader tell the engine how many frames to answer with, and the time
	// between them; without a pace they come as fast as they can be written.
	framesHeader = "X-Bench-Frames"
	paceHeader   = "X-Bench-Pace"
	done         = "data: [DONE]\n\n"
	// maxFrames is the most that an answer has.
	maxFrames = 20_000
	// model is the name of both the service and the engine's model, as KServe's runtimes have it.
	model = "llm"
)

// frame is one token's, as vLLM writes it; only the number in it changes.
func frame(n int) []byte {
	return fmt.Appendf(nil, `data: {"id":"chatcmpl-5f1c7a3e9d2b4c60","object":"chat.completion.chunk","created":1760000000,"model":"`+model+`",`+
		`"choices":[{"index":0,"delta":{"content":"%06d"},"logprobs":null,"finish_reason":null}]}`+"\n\n", n)
}

// newEngine answers each chat request with a stream, and thinks for no time.
func newEngine() http.Handler {
	frames := make([][]byte, maxFrames)
	for i := range frames {
		frames[i] = frame(i)
	}
	buffers := sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		buffer := buffers.Get().(*[]byte) //nolint:forcetypeassert // it has nothing else
		_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, *buffer)
		buffers.Put(buffer)
		n, bad := strconv.Atoi(r.Header.Get(framesHeader))
		if err != nil || bad != nil || n > maxFrames {
			http.Error(w, "the bench's engine can't read this", http.StatusBadRequest)
			return
		}
		pace, _ := time.ParseDuration(r.Header.Get(paceHeader))
		w.Header().Set("Content-Type", "text/event-stream")
		flush := w.(http.Flusher).Flush //nolint:forcetypeassert // net/http's can
		for i, f := range frames[:n] {
			if pace > 0 && i > 0 {
				select {
				case <-time.After(pace):
				case <-r.Context().Done():
					return
				}
			}
			if _, err := w.Write(f); err != nil {
				return
			}
			flush()
		}
		_, _ = io.WriteString(w, done)
	})
}

// looksPath is where the engines' pages tell how often they were looked at.
const looksPath = "/looks"

// pagesOfEngines is what idle engines tell of themselves.
func pagesOfEngines() http.Handler {
	sim := llmsim.New(llmsim.Config{})
	var looks atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == looksPath {
			_, _ = fmt.Fprint(w, looks.Load())
			return
		}
		looks.Add(1)
		sim.ServeHTTP(w, r)
	})
}

// reverseProxy is the bare one, but for connections that it keeps. Full duplex keeps net/http from
// closing a large body while the transport still looks for its end.
func reverseProxy(engines []string) http.Handler {
	var turn atomic.Uint64
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 4096, 4096
	p := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: engines[turn.Add(1)%uint64(len(engines))]})
		r.SetXForwarded()
	}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		p.ServeHTTP(w, r)
	})
}

// serveGateway runs the gateway before one service, whose replicas are the engines.
func serveGateway(engines []string, picking string, pages bool, profile string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is there at once
	if err != nil {
		return err
	}
	target := route.Target{
		Revision: model + "-00001", Weight: 100, Digest: "sha256:" + strings.Repeat("0", 64), ModelName: model,
		OpenAI: "/", Engine: "vllm", Picking: picking,
	}
	for i, e := range engines {
		endpoint := route.Endpoint{Replica: fmt.Sprint(model, "-", i), HTTP: e}
		if pages {
			endpoint.Metrics = "http://" + e + "/metrics"
		}
		target.Endpoints = append(target.Endpoints, endpoint)
	}
	var table state.Topic[route.Table]
	table.Publish(route.Compile([]route.Service{{
		Key: spec.ServiceKey{Namespace: "default", Name: model}, BareNames: []string{model}, Entry: spec.Predictor,
		Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{target}}},
	}}))
	var samples state.Topic[pick.Samples]
	g, err := gateway.New(gateway.Config{
		HTTP: l, Table: &table, Metrics: prometheus.NewRegistry(), Samples: &samples, Timeouts: gateway.Timeouts{Drain: time.Second},
	})
	if err != nil {
		return err
	}
	if profile != "" {
		f, err := os.Create(profile) //nolint:gosec // whoever runs the bench names it
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	fmt.Println(l.Addr())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.Run(ctx) })
	sampler := measure.NewSampler(&table, nil)
	group.Go(func() error { return sampler.Run(ctx) })
	group.Go(func() error { return tell(ctx, sampler, &samples) })
	return group.Wait()
}

// tell gives the gateway what the sampler finds, as the product does.
func tell(ctx context.Context, from *measure.Sampler, to *state.Topic[pick.Samples]) error {
	for {
		found, changed := from.Watch()
		out := pick.Samples{}
		for _, s := range found.All() {
			if s.Reading == nil {
				continue
			}
			sample := pick.Sample{At: s.At, KVUse: -1, Running: -1, Waiting: -1}
			for n, to := range map[adapter.Name]*float64{
				adapter.KVCacheUsage: &sample.KVUse, adapter.Running: &sample.Running, adapter.Waiting: &sample.Waiting,
			} {
				if v, ok := s.Value(n); ok {
					*to = v
				}
			}
			out[s.Address] = sample
		}
		to.Publish(&out)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
