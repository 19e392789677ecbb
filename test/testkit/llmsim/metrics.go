package llmsim

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are vLLM's, under the names of its V1 or those of its V0. Times in them are what the
// engine's clients see, that is, scaled.
type metrics struct {
	registry                                *prometheus.Registry
	ttft, tpot, queued, e2e                 prometheus.Histogram
	queries, hits, prompts, made, preempted prometheus.Counter
	success                                 *prometheus.CounterVec
}

func newMetrics(e *Engine) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	labels := prometheus.Labels{"model_name": e.cfg.Model, "engine": "0"}
	gauge := func(name, help string, f func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 {
			e.mu.Lock()
			defer e.mu.Unlock()
			return f()
		}))
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets ...float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: buckets})
		m.registry.MustRegister(h)
		return h
	}
	usage, prefix, tpot := "vllm:kv_cache_usage_perc", "vllm:prefix_cache_", "vllm:inter_token_latency_seconds"
	if e.cfg.OldMetrics {
		usage, prefix, tpot = "vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_", "vllm:time_per_output_token_seconds"
	}
	gauge("vllm:num_requests_running", "Requests in the batch.", func() float64 { return float64(len(e.sched.running)) })
	gauge("vllm:num_requests_waiting", "Requests that wait.", func() float64 { return float64(len(e.sched.waiting)) })
	gauge(usage, "Share of the KV cache's blocks that requests hold.", func() float64 { return e.sched.cache.usage() })
	m.queries = counter(prefix+"queries_total", "Tokens that were looked up in the prefix cache.")
	m.hits = counter(prefix+"hits_total", "Tokens that were found in the prefix cache.")
	m.prompts = counter("vllm:prompt_tokens_total", "Tokens of prompts.")
	m.made = counter("vllm:generation_tokens_total", "Tokens of answers.")
	m.preempted = counter("vllm:num_preemptions_total", "Requests that lost their blocks.")
	m.success = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vllm:request_success_total", Help: "Requests that ended well.", ConstLabels: labels,
	}, []string{"finished_reason"})
	m.registry.MustRegister(m.success)
	times := []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	m.ttft = histogram("vllm:time_to_first_token_seconds", "Time to the first token.", times...)
	m.tpot = histogram(tpot, "Time between tokens.", 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
	m.queued = histogram("vllm:request_queue_time_seconds", "Time until a request ran.", times...)
	m.e2e = histogram("vllm:e2e_request_latency_seconds", "Time until the last token.", times...)
	m.registry.MustRegister(infos{e})
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) admitted(q *sequence, now time.Time) {
	m.queries.Add(float64(q.prompt))
	m.hits.Add(float64(q.cached))
	m.prompts.Add(float64(q.prompt))
	m.queued.Observe(now.Sub(q.arrived).Seconds())
}

func (m *metrics) stepped(o outcome) {
	m.made.Add(float64(o.tokens))
	m.preempted.Add(float64(o.preempted))
	for _, q := range o.first {
		m.ttft.Observe(o.at.Sub(q.arrived).Seconds())
	}
	for _, d := range o.gaps {
		m.tpot.Observe(d.Seconds())
	}
	for _, q := range o.finished {
		reason := "length"
		if q.stop {
			reason = "stop"
		}
		m.success.WithLabelValues(reason).Inc()
		m.e2e.Observe(o.at.Sub(q.arrived).Seconds())
	}
}

// infos are the metrics whose labels tell something.
type infos struct{ *Engine }

// Describe tells nothing, since labels change.
func (infos) Describe(chan<- *prometheus.Desc) {}

// Collect tells of the cache's size and, where there are adapters, of those that are used.
func (i infos) Collect(out chan<- prometheus.Metric) {
	e := i.Engine
	e.mu.Lock()
	running, waiting := adaptersOf(e.sched.running), adaptersOf(e.sched.waiting)
	e.mu.Unlock()
	tell := func(name, help string, value float64, labels ...string) {
		l := prometheus.Labels{}
		for i := 0; i < len(labels); i += 2 {
			l[labels[i]] = labels[i+1]
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, l), prometheus.GaugeValue, value)
	}
	tell("vllm:cache_config_info", "The cache.", 1, "block_size", strconv.Itoa(e.cfg.BlockSize), "num_gpu_blocks", strconv.Itoa(e.cfg.Blocks))
	if e.cfg.LoRA.Slots > 0 {
		tell("vllm:lora_requests_info", "Adapters of the requests.", float64(time.Now().UnixNano())/1e9, "max_lora", strconv.Itoa(e.cfg.LoRA.Slots),
			"running_lora_adapters", strings.Join(running, ","), "waiting_lora_adapters", strings.Join(waiting, ","))
	}
}
