package probe_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/probe"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func port(t *testing.T, addr net.Addr) int {
	t.Helper()
	return addr.(*net.TCPAddr).Port
}

func TestHTTPSucceedsFrom200To399(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/away":
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
		case "/bad":
			http.Error(w, "model is loading", http.StatusServiceUnavailable)
		case "/slow":
			<-r.Context().Done()
		case "/header":
			if r.Header.Get("X-Key") != "v" || r.Host != "model.example" {
				w.WriteHeader(http.StatusBadRequest)
			}
		}
	}))
	defer srv.Close()
	p := port(t, srv.Listener.Addr())
	for name, tc := range map[string]struct {
		path string
		want string
		kind error
	}{
		"plain":                        {path: "/ok"},
		"path without a slash":         {path: "ok"},
		"redirect on the host":         {path: "/moved"},
		"redirect elsewhere is a pass": {path: "/away"},
		"headers and host":             {path: "/header"},
		"not ready":                    {path: "/bad", want: "503: model is loading", kind: errdef.ErrUnavailable},
		"too slow":                     {path: "/slow", want: "no answer within 100ms", kind: errdef.ErrTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			a := spec.Action{HTTP: &spec.HTTPAction{Port: 8080, Path: tc.path, Headers: map[string]string{"x-key": "v", "host": "model.example"}}}
			err := probe.Do(t.Context(), a, probe.Target{Port: func(int) int { return p }}, 100*time.Millisecond)
			if tc.want == "" && err != nil {
				t.Fatal(err)
			}
			if tc.want != "" && (!errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q of kind %v", err, tc.want, tc.kind)
			}
		})
	}
}

func TestHTTPSSkipsVerification(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	a := spec.Action{HTTP: &spec.HTTPAction{Port: port(t, srv.Listener.Addr()), TLS: true}}
	if err := probe.Do(t.Context(), a, probe.Target{}, 5*time.Second); err != nil {
		t.Error(err)
	}
}

func TestTCPSucceedsWhereAConnectionOpens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := spec.Action{TCP: &spec.TCPAction{Port: port(t, l.Addr())}}
	if err := probe.Do(t.Context(), a, probe.Target{}, 0); err != nil {
		t.Error(err)
	}
	l.Close()
	if err := probe.Do(t.Context(), a, probe.Target{}, 0); !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("error %v, want unavailable", err)
	}
}

func TestGRPCAsksTheHealthService(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h, srv := health.NewServer(), grpc.NewServer()
	healthpb.RegisterHealthServer(srv, h)
	done := make(chan error)
	go func() { done <- srv.Serve(l) }()
	defer func() { srv.Stop(); <-done }()
	h.SetServingStatus("busy", healthpb.HealthCheckResponse_NOT_SERVING)
	for name, tc := range map[string]struct{ service, want string }{
		"whole server": {},
		"not serving":  {service: "busy", want: "NOT_SERVING"},
		"unknown":      {service: "nobody", want: "NotFound"},
	} {
		t.Run(name, func(t *testing.T) {
			a := spec.Action{GRPC: &spec.GRPCAction{Port: port(t, l.Addr()), Service: tc.service}}
			err := probe.Do(t.Context(), a, probe.Target{}, 5*time.Second)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestExecRunsThroughTheTarget(t *testing.T) {
	a := spec.Action{Exec: []string{"check", "x"}}
	if err := probe.Do(t.Context(), a, probe.Target{}, 0); !errors.Is(err, errdef.ErrUnsupported) {
		t.Errorf("error %v without a way to run commands, want unsupported", err)
	}
	for name, fail := range map[string]error{"good": nil, "bad": probe.ErrExit} {
		t.Run(name, func(t *testing.T) {
			run := func(_ context.Context, argv []string) (string, error) { return "said " + argv[1], fail }
			err := probe.Do(t.Context(), a, probe.Target{Exec: run}, 0)
			if !errors.Is(err, fail) || fail != nil && !strings.Contains(err.Error(), "said x") {
				t.Errorf("error %v, want %v with the output", err, fail)
			}
		})
	}
}
