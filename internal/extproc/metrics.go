package extproc

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/extproc/pool"
	topics "stationmaster.dev/stationmaster/internal/state"
)

// Metrics counts what the endpoint pickers of a process do. Register it once.
type Metrics struct {
	requests, produced *prometheus.CounterVec
	endpoints          *prometheus.GaugeVec
	pools              []*poolMetrics
}

// NewMetrics makes metrics without any pool.
func NewMetrics() *Metrics {
	return &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stationmaster_endpoint_picker_requests_total",
			Help: "Requests that an endpoint picker led to an endpoint (code 200), or refused with a status.",
		}, []string{"namespace", "pool", "code"}),
		produced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stationmaster_endpoint_picker_tokens_total",
			Help: "Tokens of prompts and completions in answers that passed an endpoint picker.",
		}, []string{"namespace", "pool", "kind"}),
		endpoints: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stationmaster_endpoint_picker_endpoints",
			Help: "Ready endpoints of an InferencePool.",
		}, []string{"namespace", "pool"}),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	m.requests.Describe(to)
	m.produced.Describe(to)
	m.endpoints.Describe(to)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, p := range m.pools {
		if latest := p.pool.Load(); latest != nil {
			m.endpoints.WithLabelValues(latest.Key.Namespace, latest.Key.Name).Set(float64(len(latest.Endpoints)))
		}
	}
	m.requests.Collect(to)
	m.produced.Collect(to)
	m.endpoints.Collect(to)
}

// poolMetrics counts for one pool.
type poolMetrics struct {
	m    *Metrics
	pool *topics.Topic[pool.Pool]
}

// of returns the counters of a pool. It must not be called once the metrics are collected.
func (m *Metrics) of(p *topics.Topic[pool.Pool]) *poolMetrics {
	out := &poolMetrics{m, p}
	m.pools = append(m.pools, out)
	return out
}

func (p *poolMetrics) name() (namespace, name string) {
	if latest := p.pool.Load(); latest != nil {
		return latest.Key.Namespace, latest.Key.Name
	}
	return "", ""
}

func (p *poolMetrics) picked() { p.refused(200) }

func (p *poolMetrics) refused(code int) {
	namespace, name := p.name()
	p.m.requests.WithLabelValues(namespace, name, strconv.Itoa(code)).Inc()
}

func (p *poolMetrics) tokens(prompt, produced int64) {
	namespace, name := p.name()
	for kind, n := range map[string]int64{"prompt": prompt, "completion": produced} {
		if n > 0 {
			p.m.produced.WithLabelValues(namespace, name, kind).Add(float64(n))
		}
	}
}
