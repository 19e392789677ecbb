package gateway

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"stationmaster.dev/stationmaster/internal/gateway/meter"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// protocol is the metric label that says what was spoken; the set is closed.
type protocol uint8

const (
	protoHTTP protocol = iota
	protoV1
	protoV2
	protoGRPCV2
	protoGRPC
	protocols
)

var protocolNames = [protocols]string{"http", "v1", "v2", "grpc-v2", "grpc"}

// maxGRPCCode is the greatest code that gRPC defines.
const maxGRPCCode = int(codes.Unauthenticated)

// statusClientGone is what nginx logs when a client left before the answer.
const statusClientGone = 499

// slots are the codes that get a series of their own: gRPC's seventeen by their number, and
// the HTTP statuses that net/http has a text for. Every other code shares slot 0.
const slots = 80

var httpSlots = func() (index [600]uint8) {
	next := uint8(1)
	for code := range index {
		if http.StatusText(code) != "" || code == statusClientGone {
			index[code] = next
			next++
		}
	}
	if next > slots {
		panic("BUG: more HTTP statuses than slots")
	}
	return index
}()

type targetKey = meter.Key

// metrics holds the gateway's series. A nil registerer keeps them unregistered.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inflight *prometheus.GaugeVec
	errors   *prometheus.CounterVec
	mirrored *prometheus.CounterVec
	// generated are the series of generated text.
	generated tokenMetrics
	batched   batchMetrics
	prefills  *prometheus.CounterVec
	// steps are the series of graphs' steps.
	steps stepMetrics

	mu      sync.Mutex
	targets map[targetKey]*targetMetrics
	// gateway counts what led to no service.
	gateway *targetMetrics
}

// targetMetrics are the series of one revision, looked up once.
type targetMetrics struct {
	all      *metrics
	key      targetKey
	inflight prometheus.Gauge
	seconds  [protocols]atomic.Pointer[prometheus.Observer]
	requests [protocols][slots]atomic.Pointer[prometheus.Counter]
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stationmaster_gateway_requests_total",
			Help: "Requests answered, by service, revision, protocol and code (HTTP status or gRPC code).",
		}, []string{"namespace", "service", "revision", "protocol", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "stationmaster_gateway_request_duration_seconds",
			Help:    "Time from a request's head to the end of its response.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"namespace", "service", "revision", "protocol"}),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stationmaster_gateway_requests_in_flight",
			Help: "Requests under way.",
		}, []string{"namespace", "service", "revision"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stationmaster_gateway_upstream_errors_total",
			Help: "Failures on the engine's side, by the stage of the exchange.",
		}, []string{"namespace", "service", "revision", "stage"}),
		mirrored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stationmaster_mirror_total",
			Help: "Requests mirrored to a revision, by how its answer compares with the client's.",
		}, []string{"namespace", "service", "revision", "result"}),
		generated: newTokenMetrics(),
		batched:   newBatchMetrics(),
		prefills:  newPrefillMetric(),
		steps:     newStepMetrics(),
		targets:   map[targetKey]*targetMetrics{},
	}
	m.gateway = m.newTarget(targetKey{})
	if r == nil {
		return m, nil
	}
	all := append([]prometheus.Collector{m.requests, m.seconds, m.inflight, m.errors, m.mirrored, m.prefills, m.steps.total, m.steps.seconds}, m.generated.collectors()...)
	for _, c := range append(all, m.batched.collectors()...) {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("gateway: register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) of(key targetKey) *targetMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.targets[key]
	if t == nil {
		t = m.newTarget(key)
		m.targets[key] = t
	}
	return t
}

// counting is where a request counts: with the revision that it reached, with its service alone if it
// reached none of them, or with none.
func (m *metrics) counting(reached *targetMetrics, s *route.Service) *targetMetrics {
	if reached != m.gateway || s == nil {
		return reached
	}
	return m.of(targetKey{Service: s.Key})
}

func (m *metrics) newTarget(key targetKey) *targetMetrics {
	return &targetMetrics{
		all: m, key: key,
		inflight: m.inflight.WithLabelValues(key.Service.Namespace, key.Service.Name, key.Revision),
	}
}

// prune drops the series of revisions that are gone, so that labels stay bounded by what the
// table holds.
func (m *metrics) prune(keep func(targetKey) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := map[spec.ServiceKey]bool{}
	defer func() {
		for key := range m.targets {
			delete(gone, key.Service)
		}
		for key := range gone {
			m.batched.forget(key)
		}
	}()
	for key := range m.targets {
		if keep(key) {
			continue
		}
		delete(m.targets, key)
		gone[key.Service] = true
		labels := prometheus.Labels{
			"namespace": key.Service.Namespace, "service": key.Service.Name, "revision": key.Revision,
		}
		m.requests.DeletePartialMatch(labels)
		m.seconds.DeletePartialMatch(labels)
		m.inflight.DeletePartialMatch(labels)
		m.errors.DeletePartialMatch(labels)
		m.mirrored.DeletePartialMatch(labels)
		m.prefills.DeletePartialMatch(labels)
		m.generated.prune(labels)
		if key.Revision == "" {
			m.steps.prune(key.Service)
		}
	}
}

func (t *targetMetrics) begin() { t.inflight.Inc() }

// end counts a request. code is an HTTP status, or a gRPC code for the gRPC protocols.
func (t *targetMetrics) end(p protocol, code int, took time.Duration, began bool) {
	if began {
		t.inflight.Dec()
	}
	grpc := p >= protoGRPCV2
	at := uint8(0)
	switch {
	case grpc && code >= 0 && code <= maxGRPCCode:
		at = uint8(code)
	case grpc:
		at, code = uint8(codes.Unknown), int(codes.Unknown)
	case code >= 0 && code < len(httpSlots):
		at = httpSlots[code]
	}
	slot := &t.requests[p][at]
	counter := slot.Load()
	if counter == nil {
		label := strconv.Itoa(code)
		if grpc {
			label = codes.Code(code).String()
		} else if at == 0 {
			label = "other"
		}
		c := t.all.requests.WithLabelValues(t.key.Service.Namespace, t.key.Service.Name, t.key.Revision, protocolNames[p], label)
		counter = &c
		slot.Store(counter)
	}
	(*counter).Inc()
	observer := t.seconds[p].Load()
	if observer == nil {
		o := t.all.seconds.WithLabelValues(t.key.Service.Namespace, t.key.Service.Name, t.key.Revision, protocolNames[p])
		observer = &o
		t.seconds[p].Store(observer)
	}
	(*observer).Observe(took.Seconds())
}

func (t *targetMetrics) upstreamError(stage string) {
	t.all.errors.WithLabelValues(t.key.Service.Namespace, t.key.Service.Name, t.key.Revision, stage).Inc()
}
