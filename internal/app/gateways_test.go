package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/internal/demand"
)

// heard keeps what was reported last, by gateway.
type heard struct {
	mu      sync.Mutex
	seconds map[string]uint64
}

func (h *heard) Report(gateway string, r *demand.Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seconds[gateway] = r.Second
}

func (h *heard) Gone(gateway string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.seconds, gateway)
}

func (h *heard) until(t *testing.T, gateway string, want uint64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		h.mu.Lock()
		got := h.seconds[gateway]
		h.mu.Unlock()
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("gateway %s: second %d, want %d", gateway, got, want)
		}
	}
}

func TestReportsOfGatewaysAreFollowedThroughBreaks(t *testing.T) {
	var mu sync.Mutex
	asked := 0
	serve := func(offset int) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			asked++
			n := asked
			mu.Unlock()
			fmt.Fprintf(w, "{\"second\":%d}\n", n+offset)
			_ = http.NewResponseController(w).Flush()
			if n > 1 {
				<-r.Context().Done()
			}
		}))
		t.Cleanup(s.Close)
		return s
	}
	first, second := serve(0), serve(100)
	h := &heard{seconds: map[string]uint64{}}
	g := newGateways("system", "gateway", h, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g.set(ctx, "a", first.URL)
	h.until(t, "a", 2) // the first stream broke off, and what it held counts no more meanwhile
	g.set(ctx, "a", first.URL)
	g.set(ctx, "a", second.URL) // the pod has another address
	h.until(t, "a", 103)
	g.set(ctx, "a", "")
	h.until(t, "a", 0)
	g.set(ctx, "b", second.URL)
	h.until(t, "b", 104)
	cancel()
	g.parts.Wait()
	h.until(t, "b", 0)
	g.client.CloseIdleConnections()
}

func TestWhereReportsAre(t *testing.T) {
	pod := func(phase corev1.PodPhase, ip, port string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Status.Phase, p.Status.PodIP = phase, ip
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: port, ContainerPort: 9191}}}}
		return p
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"a running gateway":       {pod(corev1.PodRunning, "10.0.0.7", "admin"), "http://10.0.0.7:9191/demand"},
		"one with an address v6":  {pod(corev1.PodRunning, "fd00::7", "admin"), "http://[fd00::7]:9191/demand"},
		"one that has no address": {pod(corev1.PodRunning, "", "admin"), ""},
		"one that ended":          {pod(corev1.PodSucceeded, "10.0.0.7", "admin"), ""},
		"one without the port":    {pod(corev1.PodRunning, "10.0.0.7", "metrics"), ""},
	} {
		if got := reportsOf(tc.pod); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
