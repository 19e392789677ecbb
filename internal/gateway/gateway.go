package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"stationmaster.dev/stationmaster/internal/gateway/grpcpool"
	"stationmaster.dev/stationmaster/internal/gateway/listen"
	"stationmaster.dev/stationmaster/internal/gateway/meter"
	"stationmaster.dev/stationmaster/internal/gateway/payloads"
	"stationmaster.dev/stationmaster/internal/gateway/tunnel"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/gateway/wait"
	"stationmaster.dev/stationmaster/internal/pick"
)

// Gateway serves requests by the latest table. It is safe for concurrent use.
type Gateway struct {
	cfg     Config
	log     *slog.Logger
	pool    *upstream.Pool
	metrics *metrics
	drop    func(name string) bool // dropped, made once
	// dropPrivate drops credentials as well.
	dropPrivate func(name string) bool
	grpc        *grpc.Server
	// grpcOnHTTP serves the calls that come to the HTTP ports. It is apart because a server
	// with such calls can't drain.
	grpcOnHTTP *grpc.Server
	dialer     *grpcpool.Pool

	current  atomic.Pointer[view]
	building sync.Mutex

	// tunnels are upgraded connections, which outlive their handlers' servers.
	tunnels tunnel.Tunnels
	// places are those of the current view, which the next one takes over; building guards them.
	places map[placesKey]*wait.Places
	// groups are what is known of the replicas of the current view, kept as places are.
	groups map[targetKey]*pick.Group
	// queues are those of the current view's revisions, kept as places are.
	queues map[targetKey]*wait.Queue

	// crowd is the requests that wait, and seed is for telling their callers apart; stopping is closed
	// when none shall wait.
	crowd    *wait.Crowd
	seed     maphash.Seed
	stopping chan struct{}
	loads    meter.Loads
	models   models
	// answers are counted for guarded rollouts.
	answers meter.AllAnswers
	// turns are the requests' places in the order in which revisions are chosen.
	turns turns
	// cold has a token when a request began to wait for something to be started.
	cold chan struct{}
	// outside calls URLs that graphs name and that aren't ours.
	outside *http.Client
	// relays send the messages of client streams, and copies of requests.
	relays sync.WaitGroup
	// copies bounds the mirrored requests; copying ends when the gateway has drained.
	copies     chan struct{}
	copying    context.Context //nolint:containedctx // it lives as long as the gateway
	endCopying context.CancelFunc
	// payloads tells collectors what went through.
	payloads *payloads.Emitter
	// batches are requests that wait to go together.
	batches batches
}

// New checks the configuration and makes a gateway. It starts nothing.
func New(cfg Config) (*Gateway, error) {
	cfg, err := cfg.validated()
	if err != nil {
		return nil, err
	}
	g := &Gateway{
		cfg: cfg, log: cfg.Logger, pool: upstream.NewPool(cfg.Upstream), stopping: make(chan struct{}),
		crowd: wait.NewCrowd(cfg.MaxHeld), seed: maphash.MakeSeed(), cold: make(chan struct{}, 1),
	}
	if g.metrics, err = newMetrics(cfg.Metrics); err != nil {
		return nil, err
	}
	if g.payloads, err = payloads.New(payloads.Config{Objects: cfg.Objects, Metrics: cfg.Metrics, Logger: cfg.Logger}); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g.turns.begin(rand.Uint32())
	g.drop = g.dropped
	g.dropPrivate = func(name string) bool { return private(name) || g.dropped(name) }
	g.outside = newOutside()
	g.copies = make(chan struct{}, maxCopies)
	g.copying, g.endCopying = context.WithCancel(context.Background())
	g.dialer = grpcpool.New(cfg.MaxMessage)
	g.grpc, g.grpcOnHTTP = g.newGRPCServer(), g.newGRPCServer()
	return g, nil
}

// Addrs are where a gateway listens; empty strings stand for listeners that it lacks.
type Addrs struct{ HTTP, HTTPS, GRPC, GRPCS string }

// Addrs returns the listeners' addresses, also before Run.
func (g *Gateway) Addrs() Addrs {
	of := func(l net.Listener) string {
		if l == nil {
			return ""
		}
		return l.Addr().String()
	}
	return Addrs{of(g.cfg.HTTP), of(g.cfg.HTTPS), of(g.cfg.GRPC), of(g.cfg.GRPCS)}
}

// Run serves until ctx ends, then takes no more connections and waits for what is under way,
// at most Timeouts.Drain. It returns nil after a drain, complete or not, and the error of a
// listener that failed. All that it started has ended when it returns.
func (g *Gateway) Run(ctx context.Context) error {
	server := g.newHTTPServer()
	group, ctx := errgroup.WithContext(ctx)
	serve := func(what string, l net.Listener, f func(net.Listener) error) {
		if l == nil {
			return
		}
		group.Go(func() error {
			err := f(l)
			if errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) || err == nil {
				return nil
			}
			return fmt.Errorf("gateway: serve %s on %s: %w", what, l.Addr(), err)
		})
	}
	serve("HTTP", listen.Plain(g.cfg.HTTP, refusal), server.Serve)
	if g.cfg.HTTPS != nil {
		serve("HTTPS", listen.TLS(g.cfg.HTTPS, g.tlsConfig("h2", "http/1.1"), g.cfg.Timeouts.Head, refusal), server.Serve)
	}
	serve("gRPC", g.cfg.GRPC, g.grpc.Serve)
	if g.cfg.GRPCS != nil {
		serve("gRPC", tls.NewListener(g.cfg.GRPCS, g.tlsConfig("h2")), g.grpc.Serve)
	}
	group.Go(func() error { return g.housekeep(ctx) })
	if g.cfg.Samples != nil {
		group.Go(func() error { return g.learn(ctx) })
	}
	if g.cfg.Demand != nil {
		group.Go(func() error { return g.measure(ctx) })
	}
	group.Go(func() error {
		<-ctx.Done()
		g.drain(context.WithoutCancel(ctx), server)
		return nil
	})
	return group.Wait()
}

func (g *Gateway) tlsConfig(protocols ...string) *tls.Config {
	cfg := g.cfg.TLS.Clone()
	cfg.NextProtos = protocols
	if cfg.MinVersion == 0 {
		cfg.MinVersion = tls.VersionTLS12
	}
	return cfg
}

func (g *Gateway) newHTTPServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           http.HandlerFunc(g.serveHTTP),
		ReadHeaderTimeout: g.cfg.Timeouts.Head,
		IdleTimeout:       g.cfg.Timeouts.KeepAlive,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          1000,
			MaxReceiveBufferPerConnection: 4 << 20,
			MaxReceiveBufferPerStream:     1 << 20,
			SendPingTimeout:               30 * time.Second,
		},
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
}

// drain stops the servers within the time for it.
func (g *Gateway) drain(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeouts.Drain)
	defer cancel()
	close(g.stopping)
	var wg sync.WaitGroup
	wg.Go(func() {
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		g.grpcOnHTTP.Stop()
	})
	wg.Go(func() {
		stop := context.AfterFunc(ctx, g.grpc.Stop)
		g.grpc.GracefulStop()
		stop()
	})
	wg.Go(func() { g.tunnels.Drain(ctx) })
	wg.Wait()
	g.endCopying()
	g.relays.Wait()
	g.tellRest(ctx)
	g.pool.Close()
	g.outside.CloseIdleConnections()
	g.dialer.Close()
}

// housekeep follows the table and drops connections that nobody will use.
func (g *Gateway) housekeep(ctx context.Context) error {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		_, changed := g.cfg.Table.Watch()
		v := g.view()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case now := <-ticker.C:
			g.pool.Sweep(now)
			g.dialer.Prune(v.hasGRPC)
		}
	}
}
