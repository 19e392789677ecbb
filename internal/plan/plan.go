// Package plan decides what should run next: how many replicas of which revision, and which
// revision gets the traffic. It is pure; control applies what it says and calls it again.
package plan

import (
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

// DrainDelay is how long a revision keeps running after its traffic moved away, so that a
// request routed by the table of a moment ago still finds it. Kubernetes gives the same
// time by the lag between endpoint removal and SIGTERM; one second is ample in one process.
const DrainDelay = time.Second

// Desired is what a service's manifest asks for.
type Desired struct {
	Components []Component
}

// Component is one component's wish and its history.
type Component struct {
	Name spec.Component
	// Latest is the revision that the manifest asks for now. Empty when it couldn't be
	// compiled; then what serves goes on serving.
	Latest string
	// RolledOut is the revision that carried all traffic last; empty at first.
	RolledOut string
	// Previous is the one before RolledOut; it runs until RolledOutAt+DrainDelay.
	Previous    string
	RolledOutAt time.Time
	// Replicas wanted of the revision that serves; zero stops the component.
	Replicas int
}

// Assignment asks for replicas of one revision.
type Assignment struct {
	Component spec.Component
	Revision  string
	Replicas  int
}

// Share is a revision's part of a component's traffic.
type Share struct {
	Component spec.Component
	Revision  string
	// Percent, 0 to 100. Those of one component sum to 100, or there are none.
	Percent int
}

// Rollout is how far a component has come; control stores it and gives it back in Component.
type Rollout struct {
	Component   spec.Component
	RolledOut   string
	Previous    string
	RolledOutAt time.Time
}

// Plan is what to do. Its lists follow the order of Desired.Components.
type Plan struct {
	Assignments []Assignment
	Traffic     []Share
	Rollouts    []Rollout
	// Again is when to plan anew even if nothing changes; zero means not by itself.
	Again time.Time
}

// Next returns the plan for one service. Applying it and asking again with what it reported
// gives the same plan until something observed or the clock changes.
//
//	latest not ready ─► run both, traffic stays on rolled-out
//	latest ready     ─► traffic moves, latest becomes rolled-out, the old one runs DrainDelay on
func Next(d Desired, o spec.Observed, now time.Time) Plan {
	var p Plan
	for _, c := range d.Components {
		p.component(c, o, now)
	}
	return p
}

func (p *Plan) component(c Component, o spec.Observed, now time.Time) {
	latest := c.Latest
	if latest == "" {
		latest = c.RolledOut
	}
	if latest == "" {
		return
	}
	roll := Rollout{Component: c.Name, RolledOut: c.RolledOut, Previous: c.Previous, RolledOutAt: c.RolledOutAt}
	if c.Replicas == 0 {
		p.Rollouts = append(p.Rollouts, roll)
		return
	}
	if latest != roll.RolledOut && readyCount(o, latest) >= c.Replicas {
		roll = Rollout{Component: c.Name, RolledOut: latest, Previous: c.RolledOut, RolledOutAt: now}
	}
	p.assign(c, latest, c.Replicas)
	serving := roll.RolledOut
	if serving == "" {
		serving = latest
	}
	if serving != latest {
		p.assign(c, serving, c.Replicas)
	}
	if roll.Previous != "" && roll.Previous != serving && roll.Previous != latest {
		if drainAt := roll.RolledOutAt.Add(DrainDelay); now.Before(drainAt) {
			p.assign(c, roll.Previous, max(readyCount(o, roll.Previous), 1))
			if p.Again.IsZero() || drainAt.Before(p.Again) {
				p.Again = drainAt
			}
		}
	}
	if readyCount(o, serving) > 0 {
		p.Traffic = append(p.Traffic, Share{Component: c.Name, Revision: serving, Percent: 100})
	}
	p.Rollouts = append(p.Rollouts, roll)
}

func (p *Plan) assign(c Component, revision string, replicas int) {
	p.Assignments = append(p.Assignments, Assignment{Component: c.Name, Revision: revision, Replicas: replicas})
}

func readyCount(o spec.Observed, revision string) int {
	n := 0
	for _, r := range o.Replicas {
		if r.Revision.Name == revision && r.Phase == spec.Ready {
			n++
		}
	}
	return n
}
