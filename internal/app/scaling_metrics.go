package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/spec"
)

var (
	replicasDesc = prometheus.NewDesc("stationmaster_scaling_replicas",
		"Replicas of a revision that scales by itself: those that are wanted, asked of the platform, and ready.",
		[]string{"namespace", "service", "revision", "state"}, nil)
	missingDesc = prometheus.NewDesc("stationmaster_scaling_metric_missing",
		"1 while a metric that a revision scales on isn't known, so that its replicas may not follow.",
		[]string{"namespace", "service", "revision"}, nil)
)

// scalingMetrics tells of the decisions on a board, and of what came of them.
type scalingMetrics struct{ board *demand.Board }

// Describe implements prometheus.Collector.
func (scalingMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- replicasDesc
	out <- missingDesc
}

// Collect implements prometheus.Collector.
func (c scalingMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for service, subjects := range c.board.Subjects.All() {
		for i := range subjects {
			s := &subjects[i]
			want, decided := c.board.Wants.Load(spec.RevisionKey{Namespace: service.Namespace, Name: s.Revision})
			if decided {
				gauge(replicasDesc, want.Replicas, service.Namespace, service.Name, s.Revision, "wanted")
			}
			gauge(replicasDesc, s.Asked, service.Namespace, service.Name, s.Revision, "asked")
			gauge(replicasDesc, s.Ready, service.Namespace, service.Name, s.Revision, "ready")
			if s.Metrics == nil {
				continue
			}
			missing := 0
			if want.Missing != "" {
				missing = 1
			}
			gauge(missingDesc, missing, service.Namespace, service.Name, s.Revision)
		}
	}
}
