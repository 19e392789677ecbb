package gateway_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// listen opens a loopback port that the test closes.
func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

// engine serves a handler over HTTP/1.1 and returns its address.
func engine(tb testing.TB, h http.HandlerFunc) string {
	tb.Helper()
	l := listen(tb)
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	tb.Cleanup(func() { _ = s.Close(); <-done })
	return l.Addr().String()
}

const digest = "sha256:4f2b"

// service is a table entry for an engine under the usual names.
func service(name string, endpoints ...route.Endpoint) route.Service {
	return route.Service{
		Key:        spec.ServiceKey{Namespace: "default", Name: name},
		Hosts:      []route.Host{{Name: name + "-default.localhost"}, {Name: name + "-predictor-default.localhost", Component: spec.Predictor}},
		PathPrefix: "/serving/default/" + name,
		BareNames:  []string{name},
		Entry:      spec.Predictor,
		Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{{
			Revision: name + "-00001", Weight: 100, Digest: digest, ModelName: name, Endpoints: endpoints,
		}}}},
	}
}

// running is a gateway under test.
type running struct {
	gateway.Addrs
	*gateway.Gateway
	table *state.Topic[route.Table]
	stop  func()
}

func (r *running) url(path string) string { return "http://" + r.HTTP + path }

// start runs a gateway over services until the test ends.
func start(tb testing.TB, change func(*gateway.Config), services ...route.Service) *running {
	tb.Helper()
	table := new(state.Topic[route.Table])
	table.Publish(route.Compile(services))
	cfg := gateway.Config{HTTP: listen(tb), GRPC: listen(tb), Table: table}
	if change != nil {
		change(&cfg)
	}
	g, err := gateway.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Run: %v", err)
		}
	}
	tb.Cleanup(stop)
	return &running{Addrs: g.Addrs(), Gateway: g, table: table, stop: stop}
}
