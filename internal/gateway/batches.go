package gateway

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/batch"
	"stationmaster.dev/stationmaster/internal/gateway/meter"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Bounds of batching. What is beyond goes alone, at once.
const (
	// maxBatched is the most bytes that a body may have to wait in a batch.
	maxBatched = 1 << 20
	// maxBatch is how many bytes a batch of several may have, and maxWaiting all that wait.
	maxBatch   = 16 << 20
	maxWaiting = 256 << 20
	// maxBatchAnswer bounds the answer to a batch.
	maxBatchAnswer = 256 << 20
)

// BatchHeader names the batch that a request went in: a header of its answer, and metadata under
// the same name in lower case.
const BatchHeader = "X-Stationmaster-Batch"

// batches are the requests that wait to go together.
type batches struct {
	mu    sync.Mutex
	queue batch.Queue[waiter]
}

// waiter is a request in a batch, whatever was spoken.
type waiter interface {
	base() *member
	// run asks for the whole batch, whose members speak the same, and answers each. The first
	// knows how.
	run(ctx context.Context, id string, members []waiter)
}

// member is what all waiters have.
type member struct {
	// gone says that nobody waits for the answer.
	gone atomic.Bool
	// full is closed when the batch that this member began is full.
	full chan struct{}
}

func (m *member) base() *member { return m }

// batchable reports whether requests that match are put together.
func (g *Gateway) batchable(m *route.Match, err error) bool {
	return err == nil && m.Backend != nil && m.Backend.Batch != nil
}

// join puts a request, which was found in v, into a batch. It reports false where too much waits
// already.
func (g *Gateway) join(key string, w waiter, rows, bytes int, m *route.Match, v *view) bool {
	b := m.Backend.Batch
	limits := batch.Limits{MaxRows: b.MaxSize, MaxBytes: maxBatch, MaxWait: b.MaxLatency}
	w.base().full = make(chan struct{})
	g.batches.mu.Lock()
	defer g.batches.mu.Unlock()
	if g.batches.queue.Bytes()+bytes > maxWaiting {
		return false
	}
	full, opened := g.batches.queue.Add(key, w, rows, bytes, limits, time.Now())
	for _, f := range full {
		close(f.Items[0].base().full)
	}
	if opened != nil {
		owner := metricsOwner{m.Service.Key, m.Component}
		due, isFull := opened.Due, w.base().full
		var wake *meter.Load
		if m.Backend.Cold {
			wake = v.wakes(m.Backend)
		}
		g.relays.Go(func() {
			g.await(due, isFull, wake)
			g.send(opened, owner)
		})
	}
	return true
}

// await blocks until a batch is due, full, or the gateway ends. What it goes to is started
// meanwhile where nothing runs of it; wake is nil where something does.
func (g *Gateway) await(due time.Time, full <-chan struct{}, wake *meter.Load) {
	now := time.Now()
	if wake != nil {
		h := hold{g: g, start: now}
		h.awaits(wake, true)
		defer func() { h.end(time.Now()) }()
	}
	timer := time.NewTimer(due.Sub(now))
	defer timer.Stop()
	select {
	case <-full:
	case <-timer.C:
	case <-g.stopping:
	}
}

// send closes a batch and asks for those of it who still wait. It isn't bound to any one of them.
func (g *Gateway) send(b *batch.Group[waiter], owner metricsOwner) {
	g.batches.mu.Lock()
	g.batches.queue.Take(b) // from here on nobody adds to it
	g.batches.mu.Unlock()
	var live []waiter
	for _, w := range b.Items {
		if !w.base().gone.Load() {
			live = append(live, w)
		}
	}
	if len(live) == 0 {
		return
	}
	g.metrics.batched.size.WithLabelValues(owner.labels()...).Observe(float64(len(live)))
	live[0].run(g.copying, newUUID(), live)
}

// batchTimer bounds a batched request from its arrival; a nil channel never tells.
func batchTimer(b *spec.Batching, start time.Time) (<-chan time.Time, func() bool) {
	if b.Timeout <= 0 {
		return nil, func() bool { return true }
	}
	t := time.NewTimer(time.Until(start.Add(b.Timeout)))
	return t.C, t.Stop
}

// batchLeft is what a batcher leaves of a time-out to a request that came at start, also where it
// goes alone.
func batchLeft(b *spec.Batching, start time.Time, d time.Duration) time.Duration {
	if b.Timeout <= 0 {
		return d
	}
	return min(d, max(time.Until(start.Add(b.Timeout)), time.Millisecond))
}

// batchContext bounds the call for a whole batch.
func batchContext(ctx context.Context, b *spec.Batching) (context.Context, context.CancelFunc) {
	if b.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, b.Timeout)
}

func errBatchLate(m *route.Match) error {
	return errdef.New(errdef.ErrTimeout, fmt.Sprintf("the request wasn't answered within the %v that the batcher of the %s of %s allows",
		m.Backend.Batch.Timeout, m.Component, m.Service.Key))
}

// metricsOwner is whose batches are counted.
type metricsOwner struct {
	service   spec.ServiceKey
	component spec.Component
}

func (o metricsOwner) labels() []string {
	return []string{o.service.Namespace, o.service.Name, string(o.component)}
}

// batchMetrics are the series of batches.
type batchMetrics struct {
	size  *prometheus.HistogramVec
	alone *prometheus.CounterVec
}

func newBatchMetrics() batchMetrics {
	labels := []string{"namespace", "service", "component"}
	return batchMetrics{
		size: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "stationmaster_batch_requests",
			Help:    "Requests that went to an engine as one.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256},
		}, labels),
		alone: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stationmaster_batch_retried_alone_total",
			Help: "Requests that were sent once more by themselves, for the batch that they went in failed or its answer couldn't be split.",
		}, labels),
	}
}

func (m *batchMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.size, m.alone}
}

// forget drops the series of a service that is gone.
func (m *batchMetrics) forget(key spec.ServiceKey) {
	labels := prometheus.Labels{"namespace": key.Namespace, "service": key.Name}
	m.size.DeletePartialMatch(labels)
	m.alone.DeletePartialMatch(labels)
}
