package scale_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/scale"
)

// drawConfig draws settings that are valid.
func drawConfig(t *rapid.T) scale.Config {
	c := scale.Default()
	c.Metric = rapid.SampledFrom([]scale.Metric{scale.Concurrency, scale.RPS}).Draw(t, "metric")
	c.Aggregation = rapid.SampledFrom([]scale.Aggregation{scale.Linear, scale.WeightedExponential}).Draw(t, "aggregation")
	c.Target = rapid.Float64Range(0.01, 500).Draw(t, "target")
	c.ContainerConcurrency = rapid.IntRange(0, 20).Draw(t, "containerConcurrency")
	c.Window = time.Duration(rapid.IntRange(6, 120).Draw(t, "window")) * time.Second
	c.PanicWindowPercentage = rapid.Float64Range(1, 100).Draw(t, "panic window")
	c.PanicThresholdPercentage = rapid.Float64Range(110, 1000).Draw(t, "panic threshold")
	c.MaxScaleUpRate = rapid.Float64Range(1.01, 1000).Draw(t, "up rate")
	c.MaxScaleDownRate = rapid.Float64Range(1.01, 10).Draw(t, "down rate")
	c.MinScale = rapid.IntRange(0, 5).Draw(t, "min")
	if rapid.Bool().Draw(t, "bounded") {
		c.MaxScale = c.MinScale + rapid.IntRange(1, 20).Draw(t, "room")
	}
	c.InitialScale = rapid.IntRange(0, 6).Draw(t, "initial")
	if a := rapid.IntRange(2, 6).Draw(t, "activation"); a >= c.MinScale && (c.MaxScale == 0 || a <= c.MaxScale) {
		c.ActivationScale = a
	}
	c.ScaleToZero = rapid.Bool().Draw(t, "to zero")
	c.ScaleDownDelay = time.Duration(rapid.IntRange(0, 30).Draw(t, "delay")) * time.Second
	c.Retention = time.Duration(rapid.IntRange(0, 60).Draw(t, "retention")) * time.Second
	c.TargetBurstCapacity = float64(rapid.IntRange(-1, 300).Draw(t, "burst"))
	return c
}

// second is what happens in one second: a load, or silence where it is negative, and how many
// of the replicas are ready.
type second struct {
	load        float64
	ready       float64
	unreachable bool
	held        int
}

func drawSeconds(t *rapid.T) []second {
	var s []second
	for range rapid.IntRange(1, 12).Draw(t, "stretches") {
		one := second{
			load:        rapid.Float64Range(-100, 2000).Draw(t, "load"),
			ready:       rapid.Float64Range(0, 1).Draw(t, "ready"),
			unreachable: rapid.IntRange(0, 9).Draw(t, "unreachable") == 0,
			held:        rapid.IntRange(-5, 2).Draw(t, "held"),
		}
		if rapid.IntRange(0, 3).Draw(t, "idle") == 0 {
			one.load = 0
		}
		for range rapid.IntRange(1, 60).Draw(t, "length") {
			s = append(s, one)
		}
	}
	return s
}

func draw(t *rapid.T) (scale.Config, *scale.Scaler, []second) {
	cfg := drawConfig(t)
	s, err := scale.New(cfg, t0, scale.Observed{})
	if err != nil {
		t.Fatalf("settings that are valid: %v", err)
	}
	return cfg, s, drawSeconds(t)
}

// step passes one second and observes what the last decision made of the revision.
func step(s *scale.Scaler, sec int, in second, o *scale.Observed) scale.Decision {
	if in.load >= 0 {
		s.Record(at(sec), scale.Sample{Concurrency: in.load, RPS: in.load})
	}
	o.Ready = int(math.Round(in.ready * float64(o.Asked)))
	o.Unreachable, o.Held = in.unreachable, max(in.held, 0)
	d := s.Decide(at(sec), *o)
	o.Asked, o.Initialized = d.Replicas, d.Initialized
	return d
}

func TestDecisionsStayWithinTheBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, s, seconds := draw(t)
		var o scale.Observed
		for sec, in := range seconds {
			d := step(s, sec, in, &o)
			if !in.unreachable && d.Replicas < cfg.MinScale {
				t.Fatalf("at %d: %d replicas below the minimum of %d (%v)", sec, d.Replicas, cfg.MinScale, d)
			}
			if d.Replicas < 0 || (cfg.MaxScale > 0 && d.Replicas > cfg.MaxScale) {
				t.Fatalf("at %d: %d replicas above the maximum of %d (%v)", sec, d.Replicas, cfg.MaxScale, d)
			}
			if in.held > 0 && d.Replicas == 0 {
				t.Fatalf("at %d: none while %d requests are held (%v)", sec, in.held, d)
			}
			if d.Replicas == 0 && !d.Hold {
				t.Fatalf("at %d: none and the gateway isn't to hold (%v)", sec, d)
			}
		}
	})
}

func TestNeverDownWithoutData(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, s, seconds := draw(t)
		var o scale.Observed
		last := math.MinInt
		for sec, in := range seconds {
			if in.load >= 0 {
				last = sec
			}
			from := o.Asked
			d := step(s, sec, in, &o)
			stale := last == math.MinInt || time.Duration(sec-last)*time.Second > cfg.StaleAfter
			if stale != (d.Reasons&(scale.NoData|scale.StaleData) != 0) && cfg.Window >= cfg.StaleAfter {
				t.Fatalf("at %d, last sample at %d: reasons %v", sec, last, d.Reasons)
			}
			if stale && d.Replicas < from {
				t.Fatalf("at %d: down from %d without data since %d (%v)", sec, from, last, d)
			}
		}
	})
}

func TestOneStepIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		cfg.ActivationScale, cfg.ScaleDownDelay = 0, 0
		s, err := scale.New(cfg, t0, scale.Observed{})
		if err != nil {
			t.Fatal(err)
		}
		var o scale.Observed
		for sec, in := range drawSeconds(t) {
			d := step(s, sec, in, &o)
			if d.Wanted < 0 || d.Reasons.Has(scale.PanicHeld) || d.Reasons.Has(scale.Demanded) {
				continue
			}
			ready := max(1, float64(d.Ready))
			if most := math.Ceil(cfg.MaxScaleUpRate * ready); float64(d.Wanted) > most {
				t.Fatalf("at %d: wants %d with %v ready, above %v (%v)", sec, d.Wanted, ready, most, d)
			}
			if least := math.Floor(ready / cfg.MaxScaleDownRate); !in.unreachable && float64(d.Wanted) < least {
				t.Fatalf("at %d: wants %d with %v ready, below %v (%v)", sec, d.Wanted, ready, least, d)
			}
		}
	})
}

// TestMoreLoadNeverWantsLess feeds two scalers the same seconds, one with more load. What they
// see ready is the same.
func TestMoreLoadNeverWantsLess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, less, seconds := draw(t)
		more, err := scale.New(cfg, t0, scale.Observed{})
		if err != nil {
			t.Fatal(err)
		}
		for sec, in := range seconds {
			if in.load >= 0 {
				less.Record(at(sec), scale.Sample{Concurrency: in.load, RPS: in.load})
				load := in.load * (1 + in.ready)
				more.Record(at(sec), scale.Sample{Concurrency: load, RPS: load})
			}
			o := scale.Observed{Ready: int(10 * in.ready), Asked: 10, Unreachable: in.unreachable}
			a, b := less.Decide(at(sec), o), more.Decide(at(sec), o)
			if b.Wanted < a.Wanted {
				t.Fatalf("at %d: more load wants %d, less %d\nmore: %v\nless: %v", sec, b.Wanted, a.Wanted, b, a)
			}
		}
	})
}

// TestSamplesOutOfOrder: what arrives late by less than the window counts where it belongs.
func TestSamplesOutOfOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := newScaler(t, scale.Observed{}, nil), newScaler(t, scale.Observed{}, nil)
		order := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).Draw(t, "order")
		for i := range 10 {
			a.Record(at(i), scale.Sample{Concurrency: float64(i * i)})
			b.Record(at(order[i]), scale.Sample{Concurrency: float64(order[i] * order[i])})
		}
		x, y := a.Decide(at(9), scale.Observed{}), b.Decide(at(9), scale.Observed{})
		if x.Stable != y.Stable {
			t.Fatalf("in order %v: %v, as they came: %v", order, y.Stable, x.Stable)
		}
	})
}
