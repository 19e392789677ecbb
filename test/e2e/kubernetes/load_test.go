package kubernetes

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// load is a steady stream of requests of which each is to succeed.
type load struct {
	ended   chan struct{}
	stop    context.CancelFunc
	pending sync.WaitGroup

	mu      sync.Mutex
	asked   int
	slowest time.Duration
	failed  []string
}

// request is one request; it fails unless the answer is right.
type request func(context.Context) error

// rest and grpc are the two requests that loads are made of.
func (s *installation) rest(namespace, name string) request {
	i := infer{url: "http://" + s.address + "/serving/" + namespace + "/" + name + "/v2/models/iris"}
	return func(ctx context.Context) error {
		_, err := i.rest(ctx)
		return err
	}
}

func (s *installation) grpc(t *testing.T, namespace, name string) request {
	conn := s.overGRPC(t)
	return func(ctx context.Context) error {
		_, err := inferGRPC(ctx, conn, namespace+"/"+name)
		return err
	}
}

// startLoad makes so many requests a second, of each kind in turn, whether or not earlier ones
// were answered.
func startLoad(t *testing.T, perSecond int, requests ...request) *load {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	l := &load{ended: make(chan struct{}), stop: stop}
	t.Cleanup(stop)
	go func() {
		defer close(l.ended)
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		began := time.Now()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
				l.pending.Go(func() { l.ask(context.WithoutCancel(ctx), time.Since(began), requests[n%len(requests)]) })
			case <-ctx.Done():
				return
			}
		}
	}()
	return l
}

func (l *load) ask(ctx context.Context, at time.Duration, r request) {
	began := time.Now()
	err := r(ctx)
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	l.slowest = max(l.slowest, took)
	if err != nil {
		l.failed = append(l.failed, fmt.Sprintf("asked at %.2f s, after %.2f s: %v", at.Seconds(), took.Seconds(), err))
	}
}

// end ends the load and fails the test where a request failed.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	<-l.ended
	l.pending.Wait()
	t.Logf("%d requests, %d failed, the slowest took %v", l.asked, len(l.failed), l.slowest.Round(time.Millisecond))
	if l.asked == 0 {
		t.Error("nothing was asked")
	}
	for _, f := range l.failed[:min(len(l.failed), 8)] {
		t.Errorf("a request failed: %s", f)
	}
}
