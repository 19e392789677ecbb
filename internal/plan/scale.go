package plan

import (
	"slices"
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

// scale gives a component's revisions the replicas that an autoscaler wants of them. Next has
// planned with Replicas, the number that a rollout needs; how far the load moves it beside that
// changes neither shares nor what counts as settled.
//
//	awake ──nothing wanted──► asleep: the share stays, requests wait; after Drain none runs
//	  ▲                          │ wanted
//	  └──────a replica ready── waking
func (p *Plan) scale(c Component, o spec.Observed, now time.Time, drain time.Duration) {
	i := slices.IndexFunc(p.Rollouts, func(r Rollout) bool { return r.Component == c.Name })
	if i < 0 {
		return
	}
	next := &p.Rollouts[i]
	stable := next.RolledOut
	want, scales := c.Wants[stable]
	if c.Replicas == 0 || stable == "" || !scales {
		next.Asleep = time.Time{}
		p.raise(c, "")
		return
	}
	// Beside another revision with a share it must be there to take its own.
	alone := len(next.Variants) == 0 && (next.Latest == stable || c.Canary == nil || *c.Canary == 100) && next.Guarded.Phase == "" &&
		!slices.ContainsFunc(p.Traffic, func(s Share) bool { return s.Component == c.Name && s.Revision != stable && s.Percent > 0 })
	if !alone {
		want = max(want, 1)
	}
	p.raise(c, stable)
	ready := 0
	for _, r := range o.Replicas {
		if r.Revision.Name == stable && r.Phase == spec.Ready {
			ready++
		}
	}
	switch {
	case want == 0 && next.Asleep.IsZero():
		next.Asleep = now
	case want > 0 && ready > 0:
		next.Asleep = time.Time{}
	}
	if end := next.Asleep.Add(drain); want == 0 && ready > 0 && now.Before(end) {
		want = 1 // requests that were routed to it a moment ago
		p.again(end)
	}
	for i := range p.Assignments {
		if a := &p.Assignments[i]; a.Component == c.Name && a.Revision == stable {
			a.Replicas = want
		}
	}
	if next.Asleep.IsZero() {
		return
	}
	if !slices.ContainsFunc(p.Traffic, func(s Share) bool { return s.Component == c.Name }) {
		p.Traffic = append(p.Traffic, Share{Component: c.Name, Revision: stable, Percent: 100})
	}
	if next.Latest == stable {
		next.Share, next.Settled = 100, true
	}
}

// raise gives revisions other than one more replicas than their shares need, where the load wants
// them.
func (p *Plan) raise(c Component, but string) {
	for i := range p.Assignments {
		if a := &p.Assignments[i]; a.Component == c.Name && a.Revision != but {
			a.Replicas = max(a.Replicas, c.Wants[a.Revision])
		}
	}
}
