package measure

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/engine/adapter"
)

const (
	// maxTold is the most replicas of which metrics are told, so that their labels don't grow
	// without bound.
	maxTold = 500
	// staleAfter is the age at which what an engine said isn't told any more.
	staleAfter = 3 * SamplePeriod
)

var (
	engineLabels = []string{"namespace", "service", "revision", "replica", "engine"}
	upDesc       = prometheus.NewDesc(adapter.Prefix+"up", "1 if the last look at an engine's page of metrics succeeded.", engineLabels, nil)
	leftOutDesc  = prometheus.NewDesc(adapter.Prefix+"replicas_left_out", "Replicas of which no metrics are told, since there are too many.", nil, nil)
	engineDescs  = descs()
)

func descs() map[adapter.Name]*prometheus.Desc {
	out := map[adapter.Name]*prometheus.Desc{}
	for _, n := range slices.Concat(adapter.Scalars(), adapter.Histograms()) {
		out[n] = prometheus.NewDesc(string(n), n.Help(), engineLabels, nil)
	}
	return out
}

// Describe implements prometheus.Collector.
func (s *Sampler) Describe(out chan<- *prometheus.Desc) {
	out <- upDesc
	out <- leftOutDesc
	for _, d := range engineDescs {
		out <- d
	}
}

// Collect implements prometheus.Collector: what each engine said last, under the names that hold for
// all of them.
func (s *Sampler) Collect(out chan<- prometheus.Metric) {
	all := s.Samples().All()
	told := all[:min(len(all), maxTold)]
	out <- prometheus.MustNewConstMetric(leftOutDesc, prometheus.GaugeValue, float64(len(all)-len(told)))
	now := time.Now()
	for _, sample := range told {
		sample.collect(now, out)
	}
}

func (s *Sample) collect(now time.Time, out chan<- prometheus.Metric) {
	if s.Reading == nil && s.Problem == "" {
		return // it wasn't looked at yet
	}
	labels := []string{s.Service.Namespace, s.Service.Name, s.Revision, s.Replica, s.Engine}
	up := 1.
	if s.Problem != "" {
		up = 0
	}
	out <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up, labels...)
	if s.Reading == nil || now.Sub(s.At) > staleAfter {
		return
	}
	for _, n := range adapter.Scalars() {
		v, ok := s.Value(n)
		if !ok {
			continue
		}
		kind := prometheus.GaugeValue
		if n.Counter() {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(engineDescs[n], kind, v, labels...)
	}
	for n, h := range map[adapter.Name]*adapter.Counts{adapter.FirstToken: s.Reading.FirstToken, adapter.PerToken: s.Reading.PerToken} {
		if h == nil {
			continue
		}
		buckets := make(map[float64]uint64, len(h.Buckets))
		for _, b := range h.Buckets {
			buckets[b.Bound] = b.Count
		}
		out <- prometheus.MustNewConstHistogram(engineDescs[n], h.Count, h.Sum, buckets, labels...)
	}
}
