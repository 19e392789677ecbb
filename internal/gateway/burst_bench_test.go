package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
)

// BenchmarkBurst lets 500 requests wait, each on a connection of its own, and measures what it takes
// to answer them once their engine is there: the time to the median and the last answer, and the CPU
// time of all: gateway, engine and clients. dials and idle are MaxDials and MaxIdle of the connections to engines, of which conns is how many
// there were; straight is the same without a gateway: the clients' connections to the engine are opened within
// the time.
func BenchmarkBurst(b *testing.B) {
	const n = 500
	for _, slow := range []time.Duration{0, 20 * time.Millisecond} {
		for _, dials := range []int{8, 1 << 20} {
			for _, idle := range []int{64, 256} {
				b.Run(fmt.Sprintf("engine=%v/dials=%d/idle=%d", slow, dials, idle), func(b *testing.B) {
					var m burstMeasure
					for range b.N {
						m.through(b, n, dials, idle, slow)
					}
					m.report(b)
				})
			}
		}
	}
	b.Run("straight", func(b *testing.B) {
		var m burstMeasure
		for range b.N {
			m.straight(b, n)
		}
		m.report(b)
	})
}

type burstMeasure struct {
	medians, lasts, conns []float64
	cpu                   time.Duration
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// countedEngine answers after a time, and counts its connections.
func countedEngine(b *testing.B, slow time.Duration) (string, *atomic.Int64, func()) {
	b.Helper()
	l := listen(b)
	conns := new(atomic.Int64)
	s := &http.Server{
		ReadHeaderTimeout: time.Minute,
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				conns.Add(1)
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(slow)
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "{}")
		}),
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	return l.Addr().String(), conns, func() { _ = s.Close(); <-done }
}

func (m *burstMeasure) answered(b *testing.B, n int, began time.Time, ask func(i int) error) {
	b.Helper()
	times := make([]float64, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := ask(i); err != nil {
				b.Error(err)
			}
			times[i] = float64(time.Since(began)) / float64(time.Millisecond)
		})
	}
	wg.Wait()
	slices.Sort(times)
	m.medians, m.lasts = append(m.medians, times[n/2]), append(m.lasts, times[n-1])
}

func readAnswer(c net.Conn) error {
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", resp.Status)
	}
	return err
}

const burstRequest = "POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 86\r\n\r\n"

func (m *burstMeasure) through(b *testing.B, n, dials, idle int, slow time.Duration) {
	b.StopTimer()
	g := start(b, func(c *gateway.Config) { c.Upstream.MaxDials, c.Upstream.MaxIdle = dials, idle }, cold("iris"))
	defer g.stop()
	addr, conns, stop := countedEngine(b, slow)
	defer stop()
	clients := make([]net.Conn, n)
	for i := range clients {
		c, err := net.Dial("tcp", g.HTTP)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, burstRequest+strings.Repeat(" ", 86)); err != nil {
			b.Fatal(err)
		}
		clients[i] = c
	}
	for g.Held() < int64(n) {
		time.Sleep(time.Millisecond)
	}
	table := route.Compile([]route.Service{service("iris", route.Endpoint{HTTP: addr})})
	before, began := cpuTime(b), time.Now()
	b.StartTimer()
	g.table.Publish(table)
	m.answered(b, n, began, func(i int) error { return readAnswer(clients[i]) })
	b.StopTimer()
	m.cpu += cpuTime(b) - before
	m.conns = append(m.conns, float64(conns.Load()))
	b.StartTimer()
}

func (m *burstMeasure) straight(b *testing.B, n int) {
	b.StopTimer()
	addr, conns, stop := countedEngine(b, 0)
	defer stop()
	before, began := cpuTime(b), time.Now()
	b.StartTimer()
	m.answered(b, n, began, func(int) error {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, burstRequest+strings.Repeat(" ", 86)); err != nil {
			return err
		}
		return readAnswer(c)
	})
	b.StopTimer()
	m.cpu += cpuTime(b) - before
	m.conns = append(m.conns, float64(conns.Load()))
	b.StartTimer()
}

func (m *burstMeasure) report(b *testing.B) {
	mid := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	b.ReportMetric(mid(m.medians), "ms-median")
	b.ReportMetric(mid(m.lasts), "ms-last")
	b.ReportMetric(mid(m.conns), "conns")
	b.ReportMetric(float64(m.cpu.Milliseconds())/float64(b.N), "cpu-ms")
}
