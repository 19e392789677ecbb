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

	"stationmaster.dev/stationmaster/internal/objectstore"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Objects takes files. Errors are as objectstore.Stores has them.
type Objects interface {
	Put(ctx context.Context, p objectstore.Place, from objectstore.Source, key, contentType string, data []byte) error
}

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
	// Objects takes the files of events that are stored; nil refuses them.
	Objects Objects
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
	failed    = "failed"   // the collector or the store couldn't be reached, or failed, each time
	rejected  = "rejected" // the collector or the store doesn't want it
)

// Emitter sends events to their collectors and stores. Without events it costs nothing: a sink has
// goroutines only while something is due for it. It is safe for concurrent use.
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
	sinks  map[place]*sink
	// seen are the services that have a series.
	seen  map[spec.ServiceKey]bool
	count int
	bytes int
	// gathering is how many events wait for others to fill a file.
	gathering int
}

// place is where events go together: a collector or, with store, the files of one kind of one
// component, whose names say that.
type place struct {
	url       string
	store     spec.PayloadStore
	service   spec.ServiceKey
	component spec.Component
	kind      Kind
}

func placeOf(ev *Event) place {
	if ev.Store == nil {
		return place{url: ev.URL}
	}
	return place{ev.URL, *ev.Store, ev.Service, ev.Component, ev.Kind}
}

// sink is what waits for one place.
type sink struct {
	at place
	// gathered are events that wait for others; timer ends that, and is nil while there are none.
	gathered      []*Event
	gatheredBytes int
	timer         *time.Timer
	// queue are parcels that are due: single events for a collector, files' worth for a store.
	queue   [][]*Event
	count   int // gathered, due, or on their way
	bytes   int
	senders int
	failing bool
}

// New makes an emitter. It starts nothing before the first event; Close ends it.
func New(cfg Config) (*Emitter, error) {
	e := &Emitter{
		cfg: cfg.withDefaults(), sinks: map[place]*sink{}, seen: map[spec.ServiceKey]bool{},
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
	at, cost := placeOf(ev), len(ev.Data)+eventCost
	e.mu.Lock()
	s := e.sinks[at]
	if s == nil {
		s = &sink{at: at}
	}
	if e.closed || e.count >= e.cfg.MaxEvents || e.bytes+cost > e.cfg.MaxBytes ||
		2*s.count >= e.cfg.MaxEvents || 2*(s.bytes+cost) > e.cfg.MaxBytes {
		e.mu.Unlock()
		e.counted(ev, dropped)
		return
	}
	e.sinks[at] = s
	e.count, s.count = e.count+1, s.count+1
	e.bytes, s.bytes = e.bytes+cost, s.bytes+cost
	e.queued.Set(float64(e.count))
	s.gathered, s.gatheredBytes = append(s.gathered, ev), s.gatheredBytes+cost
	e.gathering++
	switch {
	case 2*e.count >= e.cfg.MaxEvents || 2*e.bytes >= e.cfg.MaxBytes:
		// What waits for others must not take the room of what could go.
		e.due(s)
		if e.gathering > 0 {
			for _, other := range e.sinks {
				e.due(other)
			}
		}
	case e.full(s):
		e.due(s)
	case s.timer == nil:
		e.wg.Add(1)
		s.timer = time.AfterFunc(at.patience(), func() {
			defer e.wg.Done()
			e.mu.Lock()
			defer e.mu.Unlock()
			s.timer = nil
			e.due(s)
		})
	}
	e.mu.Unlock()
}

// longestWait is how long an entry waits for others where the logger names no interval.
const longestWait = 5 * time.Minute

// patience is how long an event waits for others there.
func (p *place) patience() time.Duration {
	if p.store.BatchInterval > 0 {
		return p.store.BatchInterval
	}
	return longestWait
}

// maxGathered bounds one file's events in bytes.
const maxGathered = 8 << 20

// full reports whether what a sink has gathered goes now. Called with e.mu held.
func (e *Emitter) full(s *sink) bool {
	n := len(s.gathered)
	return n >= s.at.store.BatchSize || s.gatheredBytes >= maxGathered ||
		4*n >= e.cfg.MaxEvents || 4*s.gatheredBytes >= e.cfg.MaxBytes
}

// due ends the gathering of a sink. Called with e.mu held.
func (e *Emitter) due(s *sink) {
	if s.timer != nil && s.timer.Stop() {
		s.timer = nil
		e.wg.Done()
	}
	if len(s.gathered) == 0 {
		return
	}
	e.gathering -= len(s.gathered)
	s.queue = append(s.queue, s.gathered)
	s.gathered, s.gatheredBytes = nil, 0
	if s.senders < e.cfg.Senders {
		s.senders++
		e.wg.Go(func() { e.send(s) })
	}
}

// Prune drops the series of services that keep doesn't want, so that labels stay bounded, and lets
// go what waits of them.
func (e *Emitter) Prune(keep func(spec.ServiceKey) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for at, s := range e.sinks {
		if at.service != (spec.ServiceKey{}) && !keep(at.service) {
			e.due(s)
			if s.count == 0 {
				delete(e.sinks, at)
			}
		}
	}
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
	for _, s := range e.sinks {
		e.due(s)
	}
	e.mu.Unlock()
	stop := context.AfterFunc(ctx, e.end)
	e.wg.Wait()
	stop()
	e.end()
	e.client.CloseIdleConnections()
}

// send takes parcels from a sink's queue until it is empty.
func (e *Emitter) send(s *sink) {
	for {
		e.mu.Lock()
		if len(s.queue) == 0 {
			s.senders--
			s.queue = nil
			e.mu.Unlock()
			return
		}
		parcel := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		e.mu.Unlock()

		result, err := e.deliver(&s.at, parcel)
		cost := 0
		for _, ev := range parcel {
			e.counted(ev, result)
			cost += len(ev.Data) + eventCost
		}

		e.mu.Lock()
		e.count, s.count = e.count-len(parcel), s.count-len(parcel)
		e.bytes, s.bytes = e.bytes-cost, s.bytes-cost
		e.queued.Set(float64(e.count))
		first := err != nil && !s.failing && result != dropped
		if result != dropped {
			s.failing = err != nil
		}
		if s.count == 0 && !s.failing {
			delete(e.sinks, s.at)
		}
		e.mu.Unlock()
		if first {
			e.cfg.Logger.Warn("a collector or a store of payloads takes no events; those that fail are counted",
				"service", parcel[0].Service.String(), "component", string(parcel[0].Component), "err", err)
		}
	}
}

// deliver sends a parcel until its place has it, refuses it, or the tries are used up.
func (e *Emitter) deliver(at *place, parcel []*Event) (result string, err error) {
	try := func() (bool, error) { return e.post(parcel[0]) }
	if at.store != (spec.PayloadStore{}) {
		f := &file{events: parcel}
		try = func() (bool, error) { return e.put(f) }
	}
	pause := e.cfg.Pause
	for tries := 1; ; tries++ {
		if e.ctx.Err() != nil {
			return dropped, err
		}
		var again bool
		if again, err = try(); err == nil {
			return delivered, nil
		}
		switch {
		case e.ctx.Err() != nil:
			return dropped, err
		case !again:
			return rejected, err
		case tries >= e.cfg.Tries:
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
	case retryable(resp.StatusCode):
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
