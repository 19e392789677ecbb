package modelserver

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// clientGone is the status under which requests count whose client went away, as in nginx's
// logs: nobody saw an answer, and it is no failure of the server's.
const clientGone = 499

// ns begins every metric's name.
const ns = "stationmaster_runtime"

type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	batch    prometheus.Histogram
}

func newMetrics(t *turns) *metrics {
	s := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: ns + "_requests_total",
			Help: "Inference requests answered, by protocol and the HTTP status of their outcome.",
		}, []string{"protocol", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    ns + "_request_duration_seconds",
			Help:    "Time from a decoded request to its result, waiting included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 14),
		}, []string{"protocol"}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    ns + "_batch_size",
			Help:    "First dimension of a request's first input.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}),
	}
	s.registry.MustRegister(
		s.requests, s.duration, s.batch,
		gauge("_requests_in_flight", "Requests that run now.", func() float64 { return float64(len(t.slots)) }),
		gauge("_requests_waiting", "Requests that wait for their turn.", func() float64 { return float64(t.waiting.Load()) }),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return s
}

func gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: ns + name, Help: help}, value)
}

// ofModel adds what there is to tell of a server's one model.
func (s *metrics) ofModel(m *model) {
	s.registry.MustRegister(
		gauge("_model_load_seconds", "How long the last load of the model took.", func() float64 {
			return time.Duration(m.loadTime.Load()).Seconds()
		}),
		gauge("_model_ready", "1 while the model can infer.", func() float64 {
			if m.ready() {
				return 1
			}
			return 0
		}),
	)
}

// ofFleet adds what there is to tell of many models.
func (s *metrics) ofFleet(f *fleet) {
	counter := func(name, help string, value *atomic.Int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: ns + name, Help: help}, func() float64 { return float64(value.Load()) })
	}
	of := func(value func() int64) func() float64 {
		return func() float64 {
			f.mu.Lock()
			defer f.mu.Unlock()
			return float64(value())
		}
	}
	s.registry.MustRegister(
		gauge("_models", "Models of the list.", of(func() int64 { return int64(len(f.models)) })),
		gauge("_models_loaded", "Models in memory.", of(func() int64 { return int64(f.set.Resident()) })),
		gauge("_models_waiting", "Models that wait for memory.", of(func() int64 { return int64(f.set.Waiting()) })),
		gauge("_models_bytes", "Memory set aside for the models that are loaded, being loaded or being freed.", of(f.set.Taken)),
		gauge("_models_budget_bytes", "The most that _models_bytes may be.", of(f.set.Budget)),
		counter("_model_loads_total", "Models that were loaded.", &f.loads),
		counter("_model_load_failures_total", "Loads of models that failed.", &f.failures),
		counter("_model_evictions_total", "Models that were freed to make room for others.", &f.evictions),
		counter("_model_unloads_total", "Models that were freed at a client's wish or because they left the list.", &f.unloads),
		f.loadTimes,
	)
}

func (s *metrics) observe(protocol string, req *oip.InferRequest, err error, took time.Duration) {
	code, _ := oip.Status(err)
	if errors.Is(err, context.Canceled) {
		code = clientGone
	}
	s.requests.WithLabelValues(protocol, strconv.Itoa(code)).Inc()
	s.duration.WithLabelValues(protocol).Observe(took.Seconds())
	if len(req.Inputs) > 0 && len(req.Inputs[0].Shape) > 0 {
		s.batch.Observe(float64(req.Inputs[0].Shape[0]))
	}
}

func (s *metrics) handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{})
}
