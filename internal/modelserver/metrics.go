package modelserver

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// clientGone is the status under which requests count whose client went away, as in nginx's
// logs: nobody saw an answer, and it is no failure of the server's.
const clientGone = 499

type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	batch    prometheus.Histogram
}

func newMetrics(m *model) *metrics {
	const ns = "stationmaster_runtime"
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
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: ns + name, Help: help}, value)
	}
	s.registry.MustRegister(
		s.requests, s.duration, s.batch,
		gauge("_requests_in_flight", "Requests that run now.", func() float64 { return float64(len(m.slots)) }),
		gauge("_requests_waiting", "Requests that wait for their turn.", func() float64 { return float64(m.waiting.Load()) }),
		gauge("_model_load_seconds", "How long the last load of the model took.", func() float64 {
			return time.Duration(m.loadTime.Load()).Seconds()
		}),
		gauge("_model_ready", "1 while the model can infer.", func() float64 {
			if m.ready() {
				return 1
			}
			return 0
		}),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return s
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
