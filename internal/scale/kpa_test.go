package scale_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/scale"
)

var t0 = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func at(second int) time.Time { return t0.Add(time.Duration(second) * time.Second) }

// failer is a *testing.T, a *testing.B or a *rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
}

func newScaler(t failer, o scale.Observed, change func(*scale.Config)) *scale.Scaler {
	t.Helper()
	cfg := scale.Default()
	if change != nil {
		change(&cfg)
	}
	s, err := scale.New(cfg, t0, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// world runs a scaler with replicas that are ready at once.
type world struct {
	s   *scale.Scaler
	o   scale.Observed
	now int
}

// run passes seconds with the same load and decides each other second; a negative load is
// silence. It returns the last decision.
func (w *world) run(seconds int, load float64) scale.Decision {
	var d scale.Decision
	for range seconds {
		w.now++
		if load >= 0 {
			w.s.Record(at(w.now), scale.Sample{Concurrency: load, RPS: load})
		}
		if w.now%2 == 0 {
			d = w.decide()
		}
	}
	return d
}

func (w *world) decide() scale.Decision {
	d := w.s.Decide(at(w.now), w.o)
	w.o.Asked, w.o.Ready, w.o.Initialized = d.Replicas, d.Replicas, d.Initialized
	return d
}

func TestNewRevisionStartsWithItsInitialScale(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*scale.Config)
		want   int
	}{
		"one by default":                         {nil, 1},
		"five when asked":                        {func(c *scale.Config) { c.InitialScale = 5 }, 5},
		"the minimum when that is more":          {func(c *scale.Config) { c.InitialScale, c.MinScale = 2, 3 }, 3},
		"the maximum when that is less":          {func(c *scale.Config) { c.InitialScale, c.MaxScale = 5, 4 }, 4},
		"none when that is allowed":              {func(c *scale.Config) { c.InitialScale, c.AllowZeroInitialScale = 0, true }, 0},
		"the minimum though the initial is none": {func(c *scale.Config) { c.InitialScale, c.MinScale = 0, 2 }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScaler(t, scale.Observed{}, tc.change)
			if d := s.Decide(at(1), scale.Observed{}); d.Replicas != tc.want {
				t.Errorf("without data: %d replicas, want %d (%v)", d.Replicas, tc.want, d)
			}
			s.Record(at(2), scale.Sample{})
			if d := s.Decide(at(2), scale.Observed{}); d.Replicas != tc.want {
				t.Errorf("without load: %d replicas, want %d (%v)", d.Replicas, tc.want, d)
			}
		})
	}
}

func TestInitialScaleHoldsUntilReachedOnce(t *testing.T) {
	w := &world{s: newScaler(t, scale.Observed{}, func(c *scale.Config) { c.InitialScale = 5 })}
	d := w.run(2, 1)
	if d.Replicas != 5 || d.Initialized {
		t.Fatalf("before the five were ready: %+v", d)
	}
	if d = w.run(2, 1); d.Replicas != 2 || !d.Initialized {
		t.Errorf("as soon as the five are ready: %d replicas, initialized %v; want 2, which is half, and true (%v)", d.Replicas, d.Initialized, d)
	}
	d = w.run(70, 1)
	if d.Replicas != 1 || !d.Initialized {
		t.Errorf("after: %d replicas, initialized %v; want 1 and true (%v)", d.Replicas, d.Initialized, d)
	}

	restarted := newScaler(t, scale.Observed{Initialized: true}, func(c *scale.Config) { c.InitialScale = 5 })
	if d := restarted.Decide(at(1), scale.Observed{Initialized: true}); d.Replicas != 0 {
		t.Errorf("a revision at zero got %d replicas from a restart (%v)", d.Replicas, d)
	}
}

func TestNoDataIsNotZero(t *testing.T) {
	w := &world{s: newScaler(t, scale.Observed{}, nil)}
	if d := w.run(60, 280); d.Replicas != 4 {
		t.Fatalf("under load: %d replicas, want 4 (%v)", d.Replicas, d)
	}
	d := w.run(20, -1)
	if d.Replicas != 4 || !d.Reasons.Has(scale.StaleData) {
		t.Errorf("20 s without samples: %v", d)
	}
	d = w.run(3600, -1)
	if d.Replicas != 4 || !d.Reasons.Has(scale.NoData) || d.Wanted != -1 {
		t.Errorf("an hour without samples: %v", d)
	}
	if want := "keep 4 replicas: no data on concurrency"; d.String() != want {
		t.Errorf("says %q, want %q", d, want)
	}
	if d := w.run(200, 0); d.Replicas != 0 {
		t.Errorf("after zeros that were reported: %v", d)
	}
}

// TestBlackoutKeepsWhatIs states where we differ from Knative by default: while nothing has
// reported for 10 s the replicas never fall, and are never fewer than Knative's.
func TestBlackoutKeepsWhatIs(t *testing.T) {
	dark := 0
	for _, tr := range load(t) {
		if !strings.HasPrefix(tr.Name, "blackout") {
			continue
		}
		for i, d := range replay(t, tr, 10*time.Second) {
			if d.Reasons&(scale.NoData|scale.StaleData) != 0 {
				dark++
				if d.Replicas < d.From {
					t.Errorf("%s, %d s: went down without data: %v", tr.Name, tr.At[i], d)
				}
			}
			if d.Replicas < tr.Replicas[i] {
				t.Errorf("%s, %d s: %d replicas, and Knative has %d", tr.Name, tr.At[i], d.Replicas, tr.Replicas[i])
			}
		}
	}
	if dark < 100 {
		t.Errorf("%d decisions in the dark, want most of two times two minutes", dark)
	}
}

func TestFirstDemandWakes(t *testing.T) {
	w := &world{s: newScaler(t, scale.Observed{}, nil)}
	w.run(2, 10)
	if d := w.run(200, 0); d.Replicas != 0 || !d.Hold {
		t.Fatalf("idle: %d replicas, hold %v; want 0 and true (%v)", d.Replicas, d.Hold, d)
	}
	w.now++
	if w.s.Record(at(w.now), scale.Sample{}) {
		t.Error("a sample of zero woke it")
	}
	w.now++
	if !w.s.Record(at(w.now), scale.Sample{Concurrency: 1e-7}) {
		t.Error("demand didn't wake it")
	}
	if d := w.decide(); d.Replicas != 1 || !d.Reasons.Has(scale.Demanded) {
		t.Errorf("the least demand: %v", d)
	}
	if w.s.Record(at(w.now), scale.Sample{Concurrency: 1}) {
		t.Error("it was woken twice")
	}
}

func TestHeldRequestsWakeWithoutASample(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*scale.Config)
		want   int
	}{
		"one replica":              {nil, 1},
		"as many as activation":    {func(c *scale.Config) { c.ActivationScale = 3 }, 3},
		"at most as many as bound": {func(c *scale.Config) { c.ActivationScale, c.MaxScale = 2, 2 }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			o := scale.Observed{Initialized: true}
			s := newScaler(t, o, tc.change)
			if d := s.Decide(at(1), o); d.Replicas != 0 {
				t.Fatalf("nobody waits: %v", d)
			}
			o.Held = 1
			d := s.Decide(at(1), o)
			if d.Replicas != tc.want {
				t.Errorf("%d replicas, want %d (%v)", d.Replicas, tc.want, d)
			}
			// The client gave up: what starts isn't taken away at once.
			o.Held, o.Asked = 0, d.Replicas
			s.Record(at(2), scale.Sample{})
			if d := s.Decide(at(2), o); d.Replicas != tc.want || !d.Reasons.Has(scale.Activating) {
				t.Errorf("after the client left: %v", d)
			}
		})
	}
}

func TestHeldRequestsKeepTheLastReplica(t *testing.T) {
	w := &world{s: newScaler(t, scale.Observed{}, func(c *scale.Config) { c.Metric = scale.RPS })}
	w.run(2, 1)
	w.o.Held = 1
	if d := w.run(200, 0); d.Replicas != 1 || !d.Reasons.Has(scale.Demanded) {
		t.Errorf("no request begins and one is held: %v", d)
	}
}

func TestRestartDoesntShrink(t *testing.T) {
	o := scale.Observed{Ready: 6, Asked: 6, Initialized: true}
	w := &world{s: newScaler(t, o, nil), o: o}
	if d := w.run(60, 1); d.Replicas != 6 || d.Mode != scale.Panic {
		t.Errorf("within a stable window: %v", d)
	}
	if d := w.run(10, 1); d.Replicas != 1 {
		t.Errorf("after it: %v", d)
	}
}

func TestToZero(t *testing.T) {
	const never = 0
	for name, tc := range map[string]struct {
		change func(*scale.Config)
		// zero is the second of the decision for zero; never is no second. There was a request
		// until 2, and the replica is found ready at 4.
		zero int
		why  scale.Reasons
	}{
		// Active for a stable window at 64. The gateway was in the path all along.
		"after the stable window": {nil, 64, scale.LastReplica},
		// The gateway is in the path only from 64 on, since there was room for a burst.
		"after the grace period": {func(c *scale.Config) { c.TargetBurstCapacity = 0 }, 94, scale.InGrace},
		"after the retention":    {func(c *scale.Config) { c.Retention = 50 * time.Second }, 114, scale.Retained},
		"never when that is off": {func(c *scale.Config) { c.ScaleToZero = false }, never, scale.NeverZero},
		"never with a minimum":   {func(c *scale.Config) { c.MinScale = 1 }, never, scale.AtMinScale},
		// One replica was last wanted at 60.
		"after the delay": {func(c *scale.Config) { c.ScaleDownDelay = 20 * time.Second }, 80, scale.Delayed},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{s: newScaler(t, scale.Observed{}, tc.change)}
			last := w.run(2, 1)
			var zero int
			for w.now < 500 {
				d := w.run(2, 0)
				if d.Replicas == 0 && zero == 0 {
					zero = w.now
				}
				if zero == 0 {
					last = d
				}
			}
			if zero != tc.zero {
				t.Errorf("it went to zero at %d, want %d", zero, tc.zero)
			}
			if !last.Reasons.Has(tc.why) {
				t.Errorf("the last replica stayed for %v, want %v", last.Reasons, tc.why)
			}
		})
	}
}

func TestStartingReplicasAreNotTakenAway(t *testing.T) {
	o := scale.Observed{Initialized: true}
	s := newScaler(t, o, func(c *scale.Config) { c.ActivationTimeout = 5 * time.Minute })
	s.Record(at(1), scale.Sample{Concurrency: 1})
	o.Asked = s.Decide(at(1), o).Replicas
	if o.Asked != 1 {
		t.Fatalf("asked for %d replicas, want 1", o.Asked)
	}
	gone := 0
	for sec := 2; sec < 400 && gone == 0; sec++ {
		s.Record(at(sec), scale.Sample{})
		if d := s.Decide(at(sec), o); d.Replicas == 0 {
			gone = sec
			if !d.Reasons.Has(scale.ActivationFailed) {
				t.Errorf("given up for %v", d.Reasons)
			}
		}
	}
	if gone != 302 {
		t.Errorf("given up at %d, want 302: just over five minutes after the start", gone)
	}
}

func TestBoundsHoldWithoutData(t *testing.T) {
	o := scale.Observed{Asked: 4, Ready: 4, Initialized: true}
	s := newScaler(t, o, nil)
	for _, tc := range []struct{ low, high, want int }{{0, 0, 4}, {6, 0, 6}, {1, 3, 3}} {
		cfg := scale.Default()
		cfg.MinScale, cfg.MaxScale = tc.low, tc.high
		if err := s.Update(cfg); err != nil {
			t.Fatal(err)
		}
		if d := s.Decide(at(100), o); d.Replicas != tc.want {
			t.Errorf("between %d and %d: %v", tc.low, tc.high, d)
		}
	}
}

func TestUpdateKeepsWhatIsKnown(t *testing.T) {
	w := &world{s: newScaler(t, scale.Observed{}, nil)}
	w.run(60, 280)
	for _, window := range []time.Duration{2 * time.Minute, 30 * time.Second, time.Minute} {
		cfg := scale.Default()
		cfg.Window = window
		if err := w.s.Update(cfg); err != nil {
			t.Fatal(err)
		}
		if d := w.decide(); d.Stable.Value != 280 || d.Panic.Value != 280 {
			t.Errorf("with a window of %v: %v", window, d)
		}
	}
	cfg := scale.Default()
	cfg.Metric = scale.RPS
	if err := w.s.Update(cfg); err != nil {
		t.Fatal(err)
	}
	if d := w.decide(); !d.Reasons.Has(scale.NoData) || d.Replicas != 4 {
		t.Errorf("with another metric: %v", d)
	}
	cfg.Window = time.Second
	if err := w.s.Update(cfg); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("a window of a second: %v, want an error of kind invalid", err)
	}
}

func TestClockThatIsSetBack(t *testing.T) {
	for _, delay := range []time.Duration{0, 30 * time.Second} {
		w := &world{now: 7200, s: newScaler(t, scale.Observed{}, func(c *scale.Config) { c.ScaleDownDelay = delay })}
		if d := w.run(120, 280); d.Replicas != 4 {
			t.Fatalf("under load: %v", d)
		}
		w.now -= 3600
		if d := w.run(20, 280); d.Replicas != 4 {
			t.Errorf("an hour earlier: %v", d)
		}
		if d := w.run(150, 70); d.Replicas != 1 {
			t.Errorf("with less load: %v", d)
		}
	}
}

func TestNumbersThatAreNoneAreNoData(t *testing.T) {
	s := newScaler(t, scale.Observed{}, nil)
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
		if s.Record(at(1), scale.Sample{Concurrency: v}) {
			t.Errorf("%v woke it", v)
		}
	}
	if d := s.Decide(at(1), scale.Observed{}); !d.Reasons.Has(scale.NoData) {
		t.Errorf("took one of them: %v", d)
	}
	s.Record(at(1), scale.Sample{Concurrency: math.MaxFloat64})
	if d := s.Decide(at(1), scale.Observed{Ready: 1 << 30}); d.Replicas != math.MaxInt32 {
		t.Errorf("an absurd load: %v", d)
	}
}

func TestTargetValue(t *testing.T) {
	for name, tc := range map[string]struct {
		change        func(*scale.Config)
		target, total float64
	}{
		"concurrency by default":                 {nil, 70, 100},
		"rps by default":                         {func(c *scale.Config) { c.Metric = scale.RPS }, 140, 200},
		"as asked":                               {func(c *scale.Config) { c.Target = 20 }, 14, 20},
		"the hard limit":                         {func(c *scale.Config) { c.ContainerConcurrency = 4 }, 2.8, 4},
		"the hard limit caps":                    {func(c *scale.Config) { c.ContainerConcurrency, c.Target = 4, 20 }, 2.8, 4},
		"the hard limit doesn't raise":           {func(c *scale.Config) { c.ContainerConcurrency, c.Target = 40, 20 }, 14, 20},
		"the hard limit has no say in rps":       {func(c *scale.Config) { c.Metric, c.ContainerConcurrency = scale.RPS, 4 }, 140, 200},
		"utilization":                            {func(c *scale.Config) { c.Utilization = 1 }, 100, 100},
		"never less than a hundredth of request": {func(c *scale.Config) { c.Target, c.Utilization = 0.01, 0.1 }, 0.01, 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := scale.Default()
			if tc.change != nil {
				tc.change(&cfg)
			}
			target, total := cfg.TargetValue()
			if math.Abs(target-tc.target) > 1e-9 || total != tc.total {
				t.Errorf("target %v of %v, want %v of %v", target, total, tc.target, tc.total)
			}
		})
	}
}

func TestPanicWindow(t *testing.T) {
	for _, tc := range []struct {
		window  time.Duration
		percent float64
		want    time.Duration
	}{
		{time.Minute, 10, 6 * time.Second},
		{6 * time.Second, 10, time.Second},
		{6 * time.Second, 1, time.Second},
		{25 * time.Second, 10, 3 * time.Second},
		{time.Hour, 100, time.Hour},
	} {
		cfg := scale.Default()
		cfg.Window, cfg.PanicWindowPercentage = tc.window, tc.percent
		if got := cfg.PanicWindow(); got != tc.want {
			t.Errorf("%v %% of %v is %v, want %v", tc.percent, tc.window, got, tc.want)
		}
	}
}

func TestDecisionsSayWhy(t *testing.T) {
	w := &world{s: newScaler(t, scale.Observed{}, func(c *scale.Config) { c.MaxScale = 12 })}
	for _, step := range []struct {
		seconds int
		load    float64
		want    string
		reasons string
	}{
		{2, 10, "scale up from 0 to 1 replica: concurrency 10 at 70 a replica wants 1", "none"},
		{58, 10, "keep 1 replica: concurrency 10 at 70 a replica wants 1", "none"},
		{2, 700, "scale up from 1 to 4 replicas: concurrency 33 at 70 a replica wants 1, panic value 240 wants 4", "none"},
		{4, 7000, "keep 12 replicas: concurrency 499 at 70 a replica wants 8, panic value 4900 wants 70; limited by the maximum", "MaxScale"},
		{30, 0, "keep 12 replicas: concurrency 494 at 70 a replica wants 8, panic value 0 wants 0; not going down in panic, limited by the maximum", "PanicHold,MaxScale"},
		{90, 0, "keep 0 replicas: concurrency 0 at 70 a replica wants 0", "none"},
		{90, -1, "keep 0 replicas: no demand since it went to zero", "NoData"},
	} {
		d := w.run(step.seconds, step.load)
		if d.String() != step.want || d.Reasons.String() != step.reasons {
			t.Errorf("at %d s:\n says %q (%v)\nwant %q (%s)", w.now, d, d.Reasons, step.want, step.reasons)
		}
	}
}

func TestEveryReasonHasAName(t *testing.T) {
	seen := map[string]bool{}
	for bit := scale.NoData; bit <= scale.PolicyDisabled; bit <<= 1 {
		names := bit.List()
		if len(names) != 1 || names[0] == "" || seen[names[0]] {
			t.Errorf("reason %b has the names %q", bit, names)
			continue
		}
		seen[names[0]] = true
		if bit == scale.NoData || bit == scale.StaleData {
			continue
		}
		if d := (scale.Decision{Metric: "m", Reasons: bit}); d.String() == (scale.Decision{Metric: "m"}).String() {
			t.Errorf("%s isn't told in a sentence", names[0])
		}
	}
}

func TestDecideAllocatesNothing(t *testing.T) {
	s := newScaler(t, scale.Observed{}, func(c *scale.Config) { c.ScaleDownDelay = time.Minute })
	o := scale.Observed{Asked: 3, Ready: 3}
	sec := 0
	if n := testing.AllocsPerRun(500, func() {
		sec++
		s.Record(at(sec), scale.Sample{Concurrency: float64(sec)})
		o.Asked = s.Decide(at(sec), o).Replicas
	}); n != 0 {
		t.Errorf("%v allocations a decision, want none", n)
	}
}
