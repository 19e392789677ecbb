package payloads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/spec"
)

// Config is what an emitter needs. Zero fields mean the default given.
type Config struct {
	// MaxEvents and MaxBytes bound what waits, for all collectors together; 10,000 and 64 MiB. One
	// collector alone may have half of each. An event beyond is dropped, and counted.
	MaxEvents int
	MaxBytes  int
	// Senders is how many events are on their way to one collector at once; 8. So they arrive in
	// nearly, not strictly, the order in which they were told.
	Senders int
	// Tries is how often an event is sent at most; 4. Between them passes Pause, and twice that
	// each further time; 100 ms.
	Tries int
	Pause time.Duration
	// Timeout bounds one try; 10 s.
	Timeout time.Duration
	// Metrics takes the emitter's metrics; nil keeps them unregistered.
	Metrics prometheus.Registerer
	// Logger hears of collectors that fail, once for each streak of failures. Nil discards.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *int
		value int
	}{{&c.MaxEvents, 10_000}, {&c.MaxBytes, 64 << 20}, {&c.Senders, 8}, {&c.Tries, 4}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if c.Pause <= 0 {
		c.Pause = 100 * time.Millisecond
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Results of an event, as the metric has them.
const (
	delivered = "delivered"
	dropped   = "dropped"  // the queue was full, or the gateway ended
	failed    = "failed"   // the collector couldn't be reached, or failed, each time
	rejected  = "rejected" // the collector doesn't want it
)

// Emitter sends events to their collectors. Without events it costs nothing: a collector has
// goroutines only while something waits for it. It is safe for concurrent use.
type Emitter struct {
	cfg    Config
	client *http.Client
	events *prometheus.CounterVec
	queued prometheus.Gauge

	// ctx ends when nothing is sent any more.
	ctx context.Context //nolint:containedctx // it lives as long as the emitter
	end context.CancelFunc
	wg  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	sinks  map[string]*sink
	// seen are the services that have a series.
	seen  map[spec.ServiceKey]bool
	count int
	bytes int
}

// sink is what waits for one collector.
type sink struct {
	queue   []*Event
	count   int // waiting or on their way
	bytes   int
	senders int
	failing bool
}

// New makes an emitter. It starts nothing before the first event; Close ends it.
func New(cfg Config) (*Emitter, error) {
	e := &Emitter{
		cfg: cfg.withDefaults(), sinks: map[string]*sink{}, seen: map[spec.ServiceKey]bool{},
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stationmaster_payload_events_total",
			Help: "Logged requests and answers, by what became of their events.",
		}, []string{"namespace", "service", "component", "result"}),
		queued: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "stationmaster_payload_events_waiting",
			Help: "Events of logged requests and answers that wait for their collectors or are on their way.",
		}),
	}
	e.ctx, e.end = context.WithCancel(context.Background())
	e.client = &http.Client{
		// A collector answers for itself: what it redirects to was never named by the service.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{MaxIdleConnsPerHost: e.cfg.Senders, IdleConnTimeout: time.Minute, DisableCompression: true, Proxy: http.ProxyFromEnvironment},
	}
	if cfg.Metrics != nil {
		for _, c := range []prometheus.Collector{e.events, e.queued} {
			if err := cfg.Metrics.Register(c); err != nil {
				return nil, fmt.Errorf("payloads: register metrics: %w", err)
			}
		}
	}
	return e, nil
}

// eventCost is what an event counts beside its data.
const eventCost = 1 << 10

// Emit puts an event in line and never blocks. One that finds no room is dropped and counted.
func (e *Emitter) Emit(ev *Event) {
	cost := len(ev.Data) + eventCost
	e.mu.Lock()
	s := e.sinks[ev.URL]
	if s == nil {
		s = &sink{}
	}
	if e.closed || e.count >= e.cfg.MaxEvents || e.bytes+cost > e.cfg.MaxBytes ||
		2*s.count >= e.cfg.MaxEvents || 2*(s.bytes+cost) > e.cfg.MaxBytes {
		e.mu.Unlock()
		e.counted(ev, dropped)
		return
	}
	e.sinks[ev.URL] = s
	e.count, s.count = e.count+1, s.count+1
	e.bytes, s.bytes = e.bytes+cost, s.bytes+cost
	e.queued.Set(float64(e.count))
	s.queue = append(s.queue, ev)
	if s.senders < e.cfg.Senders {
		s.senders++
		e.wg.Go(func() { e.send(s) })
	}
	e.mu.Unlock()
}

// Prune drops the series of services that keep doesn't want, so that labels stay bounded.
func (e *Emitter) Prune(keep func(spec.ServiceKey) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key := range e.seen {
		if !keep(key) {
			delete(e.seen, key)
			e.events.DeletePartialMatch(prometheus.Labels{"namespace": key.Namespace, "service": key.Name})
		}
	}
}

// Close takes no more events, and waits until those that wait are sent, or ctx ends; then the rest
// is dropped and counted. When it returns, nothing of the emitter runs.
func (e *Emitter) Close(ctx context.Context) {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	stop := context.AfterFunc(ctx, e.end)
	e.wg.Wait()
	stop()
	e.end()
	e.client.CloseIdleConnections()
}

// send takes events from a collector's queue until it is empty.
func (e *Emitter) send(s *sink) {
	for {
		e.mu.Lock()
		if len(s.queue) == 0 {
			s.senders--
			s.queue = nil
			e.mu.Unlock()
			return
		}
		ev := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		e.mu.Unlock()

		result, err := e.deliver(ev)
		e.counted(ev, result)

		e.mu.Lock()
		cost := len(ev.Data) + eventCost
		e.count, s.count = e.count-1, s.count-1
		e.bytes, s.bytes = e.bytes-cost, s.bytes-cost
		e.queued.Set(float64(e.count))
		first := err != nil && !s.failing && result != dropped
		if result != dropped {
			s.failing = err != nil
		}
		if s.count == 0 && !s.failing {
			delete(e.sinks, ev.URL)
		}
		e.mu.Unlock()
		if first {
			e.cfg.Logger.Warn("a collector of payloads takes no events; those that fail are counted",
				"service", ev.Service.String(), "component", string(ev.Component), "err", err)
		}
	}
}

// deliver sends an event until the collector has it, refuses it, or the tries are used up.
func (e *Emitter) deliver(ev *Event) (result string, err error) {
	pause := e.cfg.Pause
	for try := 1; ; try++ {
		if e.ctx.Err() != nil {
			return dropped, err
		}
		var again bool
		if again, err = e.post(ev); err == nil {
			return delivered, nil
		}
		switch {
		case e.ctx.Err() != nil:
			return dropped, err
		case !again:
			return rejected, err
		case try >= e.cfg.Tries:
			return failed, err
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-e.ctx.Done():
			timer.Stop()
		}
		pause *= 2
	}
}

// maxAnswer bounds what is read of a collector's answer, so that its connection can be kept.
const maxAnswer = 64 << 10

// post sends an event once; again says whether another try may have more luck.
func (e *Emitter) post(ev *Event) (again bool, _ error) {
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.Timeout)
	defer cancel()
	r, err := ev.request(ctx)
	if err != nil {
		return false, err
	}
	resp, err := e.client.Do(r)
	if err != nil {
		return true, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	switch {
	case resp.StatusCode/100 == 2:
		return false, nil
	case resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusRequestTimeout:
		again = true
	}
	return again, errors.New("the collector answered " + resp.Status)
}

func (e *Emitter) counted(ev *Event, result string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen[ev.Service] = true
	e.events.WithLabelValues(ev.Service.Namespace, ev.Service.Name, string(ev.Component), result).Inc()
}
