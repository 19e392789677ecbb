package autoscale

import (
	"fmt"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

// BenchmarkTick10k is what the loop does in two seconds with 10,000 services: two reports of a
// gateway, and a decision on each.
func BenchmarkTick10k(b *testing.B) {
	const services = 10_000
	var board demand.Board
	l := New(&board, nil)
	r := &demand.Report{Samples: make([]demand.Sample, services)}
	cfg := scale.Default()
	cfg.MaxScale = 10
	for i := range services {
		key := spec.ServiceKey{Namespace: "default", Name: fmt.Sprintf("s%05d", i)}
		revision := key.Name + "-predictor-00001"
		board.Subjects.Store(key, []demand.Subject{{Revision: revision, Component: spec.Predictor, Config: cfg, Ready: 1, Asked: 1, RolledOut: true}})
		r.Samples[i] = demand.Sample{Service: key, Revision: revision, Concurrency: float64(i % 70)}
	}
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		for range 2 {
			next := *r
			next.Second++
			r = &next
			l.Report("gateway", r)
		}
		now = now.Add(scale.Tick)
		l.tick(now)
	}
	b.ReportMetric(float64(services*b.N)/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/scale.Tick.Seconds()*100, "%core")
}
