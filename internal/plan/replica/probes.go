package replica

import (
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

// checks returns the probes of a running container that are due, by the kubelet's rules: the
// startup probe alone until it succeeds, then readiness and liveness side by side, each first
// after its initial delay and then once a period.
//
// One thing is quicker than the kubelet: until a container first answers well, its startup
// or readiness probe runs at short intervals (FastProbe, then a sixteenth of the time waited
// so far, at most the period). A failure still counts only once a period, so the thresholds
// take the time that the manifest gives them.
func (m *Machine) checks(i int, c *Container, now time.Time) []Action {
	if c.Hooking {
		return nil
	}
	s, _ := m.Spec(i)
	var acts []Action
	ask := func(kind ProbeKind, p *spec.Probe, k *Counter) {
		if p == nil || k.Asked {
			return
		}
		if k.Next.IsZero() {
			k.Next = c.StartedAt.Add(p.InitialDelay)
		}
		if !now.Before(k.Next) {
			k.Asked = true
			acts = append(acts, Action{Do: Check, Container: i, Incarnation: c.Incarnation, Probe: kind})
		}
	}
	if !c.StartedUp {
		ask(StartupProbe, s.Startup, &c.Startup)
		return acts
	}
	ask(ReadinessProbe, s.Readiness, &c.Readiness)
	ask(LivenessProbe, s.Liveness, &c.Liveness)
	return acts
}

func (m *Machine) checked(e Checked, c *Container, now time.Time) []Action {
	s, _ := m.Spec(e.Container)
	p, k := s.Startup, &c.Startup
	switch e.Probe {
	case ReadinessProbe:
		p, k = s.Readiness, &c.Readiness
	case LivenessProbe:
		p, k = s.Liveness, &c.Liveness
	}
	if p == nil || !k.Asked {
		return nil
	}
	k.Asked = false
	if c.At != Running {
		return nil
	}
	period := max(p.Period, time.Second)
	fast := e.Probe == StartupProbe || e.Probe == ReadinessProbe && !c.WasReady
	k.Next = now.Add(period)
	if e.Err == "" {
		k.Failures = 0
		k.Successes++
		if k.Successes >= max(p.SuccessThreshold, 1) {
			m.passed(e.Probe, s, c)
		}
		return nil
	}
	waited := now.Sub(c.StartedAt.Add(p.InitialDelay))
	if fast && k.Successes == 0 {
		counts := c.StartedAt.Add(p.InitialDelay + period)
		if !k.CountedAt.IsZero() {
			counts = k.CountedAt.Add(period)
		}
		shortest := m.t.FastProbe
		if p.Action.Exec != nil {
			shortest *= 10 // a process of its own costs more than a connection
		}
		k.Next = now.Add(min(max(waited/16, shortest), period))
		if now.Before(counts) {
			if counts.Before(k.Next) {
				k.Next = counts
			}
			return nil
		}
	}
	k.Successes = 0
	k.Failures++
	k.CountedAt = now
	if k.Failures < max(p.FailureThreshold, 1) {
		return nil
	}
	switch e.Probe {
	case ReadinessProbe:
		c.Ready = false
		return nil
	case LivenessProbe:
		return m.stop(e.Container, c, m.failure(e.Container, spec.LivenessFailed, "the liveness probe failed: "+e.Err, now), now)
	default:
		return m.stop(e.Container, c, m.failure(e.Container, spec.StartupTimeout, "the startup probe failed: "+e.Err, now), now)
	}
}

// passed takes note that a probe reached its success threshold.
func (m *Machine) passed(kind ProbeKind, s *spec.Container, c *Container) {
	switch kind {
	case StartupProbe:
		c.StartedUp = true
		c.Startup.Next = time.Time{}
		if s.Readiness == nil {
			c.Ready, c.WasReady = true, true
		}
	case ReadinessProbe:
		c.Ready, c.WasReady = true, true
	}
}
