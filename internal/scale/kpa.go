package scale

import (
	"math"
	"time"
)

// Sample is what the gateways saw of a revision in the second before now. Report one each
// second and gateway while the revision has replicas, also when it is zero: silence means
// that nothing is known. Samples of the same second add up.
type Sample struct {
	// Concurrency is the average number of requests in flight, held ones included.
	Concurrency float64
	// RPS is the number of requests that began, divided by the seconds that it spans.
	RPS float64
}

// Scaler decides for one revision, as Knative's KPA does. It holds 8 bytes for each second of
// the stable window and 16 for each tick of the scale-down delay: 930 bytes in all with the
// defaults, 60 KB at most, whatever the load. It is not safe for concurrent use.
//
//	             first ready ≥ active threshold
//	activating ─────────────────────────────────► active ◄───────────────┐
//	    ▲  │ too long, nothing wanted               │ idle for a stable   │ wanted and ready
//	    │  └──────────► inactive ◄──────────────────┘ window              │
//	    │ wanted            │ ├───────────────────────────────────────────┘
//	    └───────────────────┘ └─► zero replicas after grace and retention
type Scaler struct {
	cfg           Config
	target, total float64
	samples       averages
	delay         peak

	panicking bool
	panicAt   time.Time
	panicMost int

	phase       phase
	since       time.Time
	initialized bool
	holding     bool
	heldSince   time.Time
	excess      int
	asked       int
}

// New returns a scaler for a revision as it is observed now. One that already runs more than
// one replica starts in panic mode, so that a restarted control plane doesn't shrink it
// before it knows the load. The error is that of Config.Validate.
func New(cfg Config, now time.Time, o Observed) (*Scaler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Scaler{
		cfg:         cfg,
		samples:     newAverages(cfg.Window, cfg.PanicWindow()),
		since:       now,
		initialized: o.Initialized,
		// Until more is known, traffic is held to be in the gateway's hands.
		holding:   true,
		heldSince: now,
		asked:     o.Asked,
	}
	s.configure(cfg)
	s.excess = s.excessBurst(cfg.InitialScale, 0)
	if o.Ready > 1 {
		s.panicking, s.panicAt, s.panicMost = true, now, o.Ready
	}
	if o.Initialized && o.Asked == 0 && o.Ready == 0 {
		s.phase = inactive
	}
	return s, nil
}

// Update changes the settings and keeps what is known. After an error (that of
// Config.Validate) nothing has changed. Another metric forgets the samples.
func (s *Scaler) Update(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	switch {
	case cfg.Metric != s.cfg.Metric:
		s.samples = newAverages(cfg.Window, cfg.PanicWindow())
	case cfg.Window != s.cfg.Window || cfg.PanicWindow() != s.cfg.PanicWindow():
		s.samples = s.samples.resized(cfg.Window, cfg.PanicWindow())
	}
	s.configure(cfg)
	return nil
}

func (s *Scaler) configure(cfg Config) {
	if cfg.ScaleDownDelay != s.cfg.ScaleDownDelay || s.delay.ring == nil {
		s.delay = peak{}
		if cfg.ScaleDownDelay > 0 {
			s.delay = newPeak(cfg.ScaleDownDelay)
		}
	}
	s.cfg = cfg
	s.target, s.total = cfg.TargetValue()
}

// Record takes a sample. A value that isn't a finite number of zero or more is no data and is
// dropped. It reports whether the revision stood at zero and this is demand: then decide at
// once and don't wait for the next tick.
func (s *Scaler) Record(now time.Time, sample Sample) (wake bool) {
	v := sample.Concurrency
	if s.cfg.Metric == RPS {
		v = sample.RPS
	}
	if !within(v, 0, math.MaxFloat64) {
		return false
	}
	s.samples.record(now.Unix(), min(v, maxValue))
	return v > 0 && s.asked == 0
}

// Decide returns how many replicas the revision should have. Call it each Tick, and at once
// when Record says so or a request is held at zero. Its work grows with the stable window
// alone, and it allocates nothing.
func (s *Scaler) Decide(now time.Time, o Observed) Decision {
	d := Decision{
		From:   o.Asked,
		Ready:  o.Ready,
		Mode:   Stable,
		Metric: string(s.cfg.Metric),
		Target: s.target,
		Wanted: unknown,
	}
	if o.Initialized {
		s.initialized = true
	}
	if r := s.ignorance(now); r != 0 {
		d.Reasons = r
		if s.panicking {
			d.Mode = Panic
		}
	} else {
		s.want(now, o, &d)
	}
	d.ExcessBurst = s.excess
	if d.Wanted < 1 && s.demanded(now, o, d.Wanted) {
		d.Wanted = max(1, s.cfg.ActivationScale)
		d.Reasons |= Demanded
	}
	s.settle(now, o, &d)
	s.asked = d.Replicas
	return d
}

// demanded reports whether somebody waits whom the windows don't show: held requests, and at
// zero a sample that is too small to count beside a window of zeros.
func (s *Scaler) demanded(now time.Time, o Observed, wanted int) bool {
	if o.Asked > 0 {
		return o.Held > 0 && wanted == 0
	}
	return o.Held > 0 || s.samples.latest(now.Unix()) > 0
}

// unknown is a wish that is not known. (Knative: scaleUnknown.)
const unknown = -1

// ignorance returns why nothing is known of the load, or zero.
func (s *Scaler) ignorance(now time.Time) Reasons {
	sec := now.Unix()
	if s.samples.ahead(sec) {
		s.samples = newAverages(s.cfg.Window, s.cfg.PanicWindow())
	}
	if s.samples.empty(sec) {
		return NoData
	}
	if s.cfg.StaleAfter > 0 && time.Duration(sec-s.samples.last)*time.Second > s.cfg.StaleAfter {
		return StaleData
	}
	return 0
}

// want fills in what the windows ask for. (Knative: autoscaler.Scale.)
func (s *Scaler) want(now time.Time, o Observed, d *Decision) {
	ready := max(1, float64(o.Ready))
	d.Stable = s.reading(s.samples.stable(now.Unix(), s.cfg.Aggregation))
	d.Panic = s.reading(s.samples.panic(now.Unix(), s.cfg.Aggregation))

	// One step up is always allowed, since the ceiling is rounded up; one to zero as well,
	// since the floor is rounded down.
	most := count(math.Ceil(s.cfg.MaxScaleUpRate * ready))
	least := 0
	if !o.Unreachable {
		least = count(math.Floor(ready / s.cfg.MaxScaleDownRate))
	}
	var stableLimit, panicLimit Reasons
	stable := limit(d.Stable.Want, least, most, &stableLimit)
	panicked := limit(d.Panic.Want, least, most, &panicLimit)
	if a := s.cfg.ActivationScale; a > 1 {
		if d.Stable.Want > 0 && a > stable {
			stable, stableLimit = a, ActivationScaled
		}
		if d.Panic.Want > 0 && a > panicked {
			panicked, panicLimit = a, ActivationScaled
		}
	}

	switch over := float64(d.Panic.Want)/ready >= s.cfg.PanicThresholdPercentage/100; {
	case over:
		s.panicking, s.panicAt = true, now
	case s.panicking && s.panicAt.Add(s.cfg.Window).Before(now):
		s.panicking, s.panicMost = false, 0
	}
	d.Wanted, d.Reasons = stable, stableLimit
	if s.panicking {
		d.Mode = Panic
		if panicked > d.Wanted {
			d.Wanted, d.Reasons = panicked, panicLimit
		}
		if d.Wanted < s.panicMost {
			d.Wanted, d.Reasons = s.panicMost, PanicHeld
		}
		s.panicMost = d.Wanted
	}
	if s.delay.ring != nil && !o.Unreachable {
		if held := s.delay.record(now.Unix(), d.Wanted); held != d.Wanted {
			d.Wanted, d.Reasons = held, Delayed
		}
	}
	s.excess = s.excessBurst(o.Ready, d.Panic.Value)
}

func (s *Scaler) reading(value float64) Reading {
	return Reading{Value: value, Want: count(math.Ceil(value / s.target))}
}

func limit(want, least, most int, why *Reasons) int {
	switch {
	case want > most:
		*why = ScaleUpRate
		return most
	case want < least:
		*why = ScaleDownRate
		return least
	}
	return want
}

// excessBurst returns the room that is left for a burst.
func (s *Scaler) excessBurst(ready int, load float64) int {
	switch burst := s.cfg.TargetBurstCapacity; {
	case burst == 0:
		return 0
	case burst < 0:
		return -1
	default:
		room := math.Floor(float64(ready)*s.total - burst - load)
		return int(min(max(room, -maxReplicas), maxReplicas))
	}
}
