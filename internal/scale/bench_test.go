package scale_test

import (
	"runtime"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/scale"
)

// BenchmarkDecide10k is one tick of 10,000 services: each takes the samples of two seconds and
// is decided on. A tick is 2 s; what it takes of one core is what matters.
func BenchmarkDecide10k(b *testing.B) {
	const services = 10_000
	scalers := make([]*scale.Scaler, services)
	asked := make([]scale.Observed, services)
	before := heap()
	for i := range scalers {
		scalers[i] = newScaler(b, scale.Observed{}, nil)
	}
	bytes := float64(heap()-before) / services
	now := t0
	b.ReportAllocs()
	for b.Loop() {
		for range 2 {
			now = now.Add(time.Second)
			for i, s := range scalers {
				s.Record(now, scale.Sample{Concurrency: float64((i + now.Second()) % 400)})
			}
		}
		for i, s := range scalers {
			d := s.Decide(now, asked[i])
			asked[i].Asked, asked[i].Ready, asked[i].Initialized = d.Replicas, d.Replicas, d.Initialized
		}
	}
	b.ReportMetric(float64(services*b.N)/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/scale.Tick.Seconds()*100, "%core")
	b.ReportMetric(bytes, "B/scaler")
}

// heap returns the bytes that are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkHPADecide10k is one pass over 10,000 services on two metrics.
func BenchmarkHPADecide10k(b *testing.B) {
	const services = 10_000
	scalers := make([]*scale.HPA, services)
	asked := make([]scale.Observed, services)
	for i := range scalers {
		asked[i].Asked, asked[i].Ready = 1, 1
		scalers[i] = newHPA(b, asked[i], func(c *scale.HPAConfig) {
			c.Metrics = append(c.Metrics, scale.MetricTarget{Name: "tokens", Type: scale.AverageValue, Target: 50})
		})
	}
	now := t0
	measured := make([]scale.Measurement, 2)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(scale.Tick)
		for i, h := range scalers {
			measured[0] = scale.Measurement{Value: float64((i + now.Second()) % 90), Known: true}
			measured[1] = scale.Measurement{Value: float64((i + now.Second()) % 400), Known: true}
			d := h.Decide(now, asked[i], measured)
			asked[i].Asked, asked[i].Ready = d.Replicas, d.Replicas
		}
	}
	b.ReportMetric(float64(services*b.N)/b.Elapsed().Seconds(), "decisions/s")
}
