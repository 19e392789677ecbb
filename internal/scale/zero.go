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
// reconciler; it comes back at once when the phase has changed, and so does this.)
func (s *Scaler) settle(now time.Time, o Observed, d *Decision) {
	for range 3 {
		before := s.phase
		want, apply := s.bounded(now, o, d)
		s.enter(now, o, want)
		s.hold(now, want, d)
		d.Replicas = want
		if !apply {
			d.Replicas = s.keep(o, d)
		}
		if s.phase == before {
			break
		}
	}
	if o.Held > 0 && d.Replicas == 0 {
		d.Replicas = s.cfg.clamp(0, max(1, s.cfg.ActivationScale))
		d.Reasons |= Demanded
	}
	d.Initialized = s.initialized
}

// bounded returns the number that the bounds and the way to zero make of the wish, and
// whether it is to be applied now.
func (s *Scaler) bounded(now time.Time, o Observed, d *Decision) (want int, apply bool) {
	d.Reasons &^= AtMinScale | AtMaxScale | AtInitialScale | settling
	want = d.Wanted
	if want == unknown {
		if s.phase == activating {
			d.Reasons |= Activating
		}
		return unknown, false
	}
	floor, why := s.floor(o)
	switch bounded := s.cfg.clamp(floor, want); {
	case bounded > want:
		want = bounded
		d.Reasons |= why
	case bounded < want:
		want = bounded
		d.Reasons |= AtMaxScale
	}
	if want > 0 {
		return want, true
	}
	return s.toZero(now, o, d)
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

// settling is the reasons that toZero may give.
const settling = Activating | ActivationFailed | LastReplica | InGrace | Retained | NeverZero

// toZero decides whether the last replica goes. (Knative: handleScaleToZero.)
func (s *Scaler) toZero(now time.Time, o Observed, d *Decision) (want int, apply bool) {
	if !s.cfg.ScaleToZero {
		d.Reasons |= NeverZero
		return 1, true
	}
	spent := now.Sub(s.since)
	switch s.phase {
	case activating:
		if spent > s.cfg.ActivationTimeout {
			d.Reasons |= ActivationFailed
			return 0, true
		}
		d.Reasons |= Activating
		return unknown, false
	case active:
		if spent >= s.cfg.Window {
			return 0, false
		}
		d.Reasons |= LastReplica
		return 1, true
	case inactive:
	}
	retention := s.cfg.Retention
	if o.Unreachable {
		retention = 0
	}
	switch {
	case spent >= max(s.cfg.GracePeriod, retention):
		return 0, true
	case spent < retention:
		d.Reasons |= Retained
		return 0, false
	case s.holding && now.Sub(s.heldSince) >= s.cfg.GracePeriod:
		return 0, true
	}
	d.Reasons |= InGrace
	return 0, false
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

// keep returns the number to stay at while the wish isn't applied: what is asked for, within
// the user's bounds, and for a new revision the replicas that it starts with.
func (s *Scaler) keep(o Observed, d *Decision) int {
	floor, why := s.floor(o)
	if s.phase == activating && !s.initialized && !o.Unreachable && s.cfg.InitialScale > floor {
		floor, why = s.cfg.InitialScale, AtInitialScale
	}
	n := s.cfg.clamp(floor, o.Asked)
	switch {
	case n > o.Asked:
		d.Reasons |= why
	case n < o.Asked:
		d.Reasons |= AtMaxScale
	}
	return n
}
