package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAdminAnswersAndEndsWithItsContext(t *testing.T) {
	reg := prometheus.NewRegistry()
	hits := prometheus.NewCounter(prometheus.CounterOpts{Name: "hits_total", Help: "hits"})
	reg.MustRegister(hits)
	var ready atomic.Bool
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, ln, Config{Metrics: reg, Ready: func() error {
			if ready.Load() {
				return nil
			}
			return errors.New("the API isn't up yet")
		}})
	}()
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + ln.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, body := get("/readyz"); code != 503 || !strings.Contains(body, "the API isn't up yet") {
		t.Errorf("not ready: %d %q", code, body)
	}
	ready.Store(true)
	for path, want := range map[string]string{"/readyz": "ok", "/healthz": "ok", "/metrics": "hits_total 0", "/debug/pprof/": "goroutine"} {
		if code, body := get(path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want %q in it", path, code, body, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("ended with %v", err)
	}
}
