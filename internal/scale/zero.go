package scale

import "time"

// phase is whether a revision serves. (Knative: the Active condition of a PodAutoscaler.)
type phase uint8

const (
	// activating: replicas are asked for, and too few are ready.
	activating phase = iota
	active
	// inactive: nothing is wanted; the last replica may still run.
	inactive
)

// settle turns what the metric asks for into the number to run: bounds first, then the way
// to zero, then the phase. (Knative: scaler.scale and computeActiveCondition of the KPA's
// reconciler. It comes back at once when its status has changed, and so does this.)
func (s *Scaler) settle(now time.Time, o Observed, d *Decision) {
	var why Reasons
	applied := false
	for range 4 {
		phase, initialized := s.phase, s.initialized
		want, reason, apply := s.bounded(now, o, d.Wanted)
		s.enter(now, o, want)
		s.hold(now, want, d)
		switch {
		case apply && (!applied || want != d.Replicas):
			d.Replicas, why, applied = want, reason, true
		case !applied:
			d.Replicas, why = s.keep(o)
			why |= reason
		}
		if s.phase == phase && s.initialized == initialized {
			break
		}
	}
	d.Reasons |= why
	d.Initialized = s.initialized
}

// bounded returns the number that the bounds and the way to zero make of the wish, why, and
// whether it is to be applied now.
func (s *Scaler) bounded(now time.Time, o Observed, wanted int) (want int, why Reasons, apply bool) {
	if wanted == unknown {
		if s.phase == activating {
			why = Activating
		}
		return unknown, why, false
	}
	floor, raised := s.floor(o)
	want = s.cfg.clamp(floor, wanted)
	switch {
	case want > wanted:
		why = raised
	case want < wanted:
		why = AtMaxScale
	case want == 0:
		return s.toZero(now, o)
	}
	return want, why, true
}

// floor returns the least number of replicas, and what says so.
func (s *Scaler) floor(o Observed) (int, Reasons) {
	if o.Unreachable {
		return 0, 0
	}
	if !s.initialized && s.cfg.InitialScale > 1 && s.cfg.InitialScale > s.cfg.MinScale {
		return s.cfg.InitialScale, AtInitialScale
	}
	return s.cfg.MinScale, AtMinScale
}

// toZero decides whether the last replica goes. (Knative: handleScaleToZero.)
func (s *Scaler) toZero(now time.Time, o Observed) (want int, why Reasons, apply bool) {
	if !s.cfg.ScaleToZero {
		return 1, NeverZero, true
	}
	spent := now.Sub(s.since)
	switch s.phase {
	case activating:
		if spent > s.cfg.ActivationTimeout {
			return 0, ActivationFailed, true
		}
		return unknown, Activating, false
	case active:
		if spent < s.cfg.Window {
			return 1, LastReplica, true
		}
		return 0, 0, false
	case inactive:
	}
	retention := s.cfg.Retention
	if o.Unreachable {
		retention = 0
	}
	switch {
	case spent >= max(s.cfg.GracePeriod, retention):
		return 0, 0, true
	case spent < retention:
		return 0, Retained, false
	case s.holding && now.Sub(s.heldSince) >= s.cfg.GracePeriod:
		return 0, 0, true
	}
	return 0, InGrace, false
}

// enter moves to the phase that what is wanted and what is ready make. (Knative:
// computeActiveCondition.)
func (s *Scaler) enter(now time.Time, o Observed, want int) {
	threshold := s.threshold(o)
	if o.Ready >= threshold {
		s.initialized = true
	}
	next := s.phase
	switch {
	case want == 0 || threshold == 0:
		next = inactive
	case want == unknown && s.phase == inactive:
	case o.Ready < threshold:
		next = activating
	default:
		next = active
	}
	if next != s.phase {
		s.phase, s.since = next, now
	}
}

// threshold returns how many replicas must be ready for the revision to be active.
func (s *Scaler) threshold(o Observed) int {
	least := 0
	if !o.Unreachable {
		least = s.cfg.MinScale
	}
	if !s.initialized {
		return max(least, s.cfg.InitialScale)
	}
	return max(least, 1)
}

// hold says whether all traffic must pass the gateway's queue, and since when it does. Where
// nothing is known of a revision that serves, it stays as it was. (Knative: the mode of a
// ServerlessService.)
func (s *Scaler) hold(now time.Time, want int, d *Decision) {
	d.Hold = want <= 0 || d.ExcessBurst < 0
	if want == unknown && s.phase == active {
		d.Hold = s.holding
	}
	if d.Hold && !s.holding {
		s.heldSince = now
	}
	s.holding = d.Hold
}

// keep returns the number to stay at while the wish isn't applied, and what changed it: what
// is asked for, within the user's bounds, and for a new revision the replicas that it starts
// with.
func (s *Scaler) keep(o Observed) (int, Reasons) {
	floor, raised := s.floor(o)
	if s.phase == activating && !s.initialized && !o.Unreachable && s.cfg.InitialScale > floor {
		floor, raised = s.cfg.InitialScale, AtInitialScale
	}
	switch n := s.cfg.clamp(floor, o.Asked); {
	case n > o.Asked:
		return n, raised
	case n < o.Asked:
		return n, AtMaxScale
	default:
		return n, 0
	}
}
