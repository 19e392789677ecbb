package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// tokenMetrics are the series of generated text.
type tokenMetrics struct {
	tokens *prometheus.CounterVec
	first  *prometheus.HistogramVec
	gap    *prometheus.HistogramVec
	// unread counts answers whose usage isn't known, by the reasons below.
	unread *prometheus.CounterVec
}

// Why an answer's usage isn't known.
const (
	unreadEncoding = "encoding"
	unreadSize     = "size"
)

// The buckets are those of OpenTelemetry's gen_ai.server.time_to_first_token and
// time_per_output_token.
func newTokenMetrics() tokenMetrics {
	labels := []string{"namespace", "service", "revision"}
	return tokenMetrics{
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stationmaster_tokens_total",
			Help: "Tokens of prompts and completions, as engines tell their usage; of a stream that broke off before, its frames.",
		}, []string{"namespace", "service", "revision", "kind"}),
		first: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "stationmaster_time_to_first_token_seconds",
			Help:    "Time from a request's head to the first data of its stream.",
			Buckets: []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 30, 60},
		}, labels),
		gap: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "stationmaster_inter_token_seconds",
			Help:    "Time from one piece of data of a stream to the next.",
			Buckets: []float64{.0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5},
		}, labels),
		unread: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stationmaster_usage_unread_total",
			Help: "Answers that may tell a usage and weren't read: of an encoding that the gateway doesn't know, or of a size beyond what it keeps.",
		}, []string{"namespace", "service", "revision", "reason"}),
	}
}

func (m *tokenMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.tokens, m.first, m.gap, m.unread}
}

func (m *tokenMetrics) prune(labels prometheus.Labels) {
	m.tokens.DeletePartialMatch(labels)
	m.first.DeletePartialMatch(labels)
	m.gap.DeletePartialMatch(labels)
	m.unread.DeletePartialMatch(labels)
}

// tally counts what one answer says.
type tally struct {
	start, last time.Time
	frames      int64
	usage       openai.Usage
	// told says that the engine told the usage.
	told  bool
	first prometheus.Observer
	gap   prometheus.Observer
}

// frame notes a frame with data that came now.
func (t *tally) frame(x *exchange, now time.Time) {
	if t.frames++; t.frames == 1 {
		k := &x.target.metrics.key
		all := &x.g.metrics.generated
		t.first = all.first.WithLabelValues(k.Service.Namespace, k.Service.Name, k.Revision)
		t.gap = all.gap.WithLabelValues(k.Service.Namespace, k.Service.Name, k.Revision)
		t.first.Observe(now.Sub(t.start).Seconds())
		x.target.answers.Began(now.Sub(t.start))
	} else {
		t.gap.Observe(now.Sub(t.last).Seconds())
	}
	t.last = now
	x.hold.picked.charge.Streamed(1)
}

// count adds the answer to the counters. A stream that ended without its usage counts for as many
// tokens as it had frames: engines send one with each.
func (t *tally) count(g *Gateway, of *target) {
	if !t.told {
		t.usage.Completion = t.frames
	}
	k := &of.metrics.key
	for kind, n := range map[string]int64{"prompt": t.usage.Prompt, "completion": t.usage.Completion} {
		if n > 0 {
			g.metrics.generated.tokens.WithLabelValues(k.Service.Namespace, k.Service.Name, k.Revision, kind).Add(float64(n))
		}
	}
}
