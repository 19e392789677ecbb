package plan

import (
	"fmt"
	"slices"
	"time"

	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/plan/guard"
)

// Guarded is how far a guarded rollout of Latest has come. The zero Guarded means that there is
// none.
//
//	starting ─both ready─► baking ─bake over─► waiting (for requests) ─enough─► the next step
//	    ▲                    │ ▲                  │
//	    └───replicas lost────┘ └──held by Canary──┤
//	                           a limit exceeded ──┴─► rolled back, until Latest is another
type Guarded struct {
	Phase GuardPhase
	// Step is the place in Guard.Steps; their number means that all are passed.
	Step int
	// Share is the percent that the step's evidence is about, and Since is since when it has been
	// in effect with all replicas ready; zero while it isn't.
	Share int
	Since time.Time
	// Base is what was counted before Share was in effect.
	Base evidence.Counts
	// Why says in words why it is where it is, with the numbers, as of At; Readings are those.
	Why      string
	At       time.Time
	Readings []guard.Reading
	// Passed is the last step that was passed; of a rollout that has come to its end, in the plan
	// that ends it, it is all that is left. Nil means none.
	Passed *Passed
}

// Passed is what decided that a guarded rollout went on.
type Passed struct {
	// Share is the percent that was judged.
	Share    int
	Why      string
	At       time.Time
	Readings []guard.Reading
}

// GuardPhase is what a guarded rollout does.
type GuardPhase string

// The phases.
const (
	// GuardStarting waits for replicas.
	GuardStarting GuardPhase = "Starting"
	// GuardBaking lets time pass.
	GuardBaking GuardPhase = "Baking"
	// GuardWaiting waits for requests, or for the stable revision to go back to.
	GuardWaiting GuardPhase = "Waiting"
	// GuardHeld is where canaryTrafficPercent keeps it.
	GuardHeld GuardPhase = "Held"
	// GuardRolledBack has no traffic any more.
	GuardRolledBack GuardPhase = "RolledBack"
)

// lookAgain is how often a guarded rollout's evidence is judged, and tellAgain how often its
// numbers are told while nothing else changes; tellHeld is that where it may stay for days.
const (
	lookAgain = time.Second
	tellAgain = 5 * time.Second
	tellHeld  = time.Minute
)

// guard judges what was counted of Latest, and sets the percent that it may have now.
func (r *rollout) guard() {
	g, stable := &r.next.Guarded, r.next.RolledOut
	if r.Last.Latest != r.Latest {
		*g = Guarded{}
	}
	if stable == "" || stable == r.Latest || r.Promoted {
		*g = Guarded{}
		return
	}
	if g.Phase == GuardRolledBack {
		r.percent, r.Over, r.Recreate = 0, 0, false
		return
	}
	if r.Guard == nil {
		*g = Guarded{}
		return
	}
	r.most, r.Over, r.Recreate = r.percent, 0, false
	if g.Phase == "" && r.Last.Latest == r.Latest && r.Last.RolledOut == stable {
		for g.Step < len(r.Guard.Steps) && r.Guard.Steps[g.Step] < r.Last.Share {
			g.Step++ // it had as much before it was guarded
		}
	}
	g.Step = min(g.Step, len(r.Guard.Steps))
	if g.Share == 0 && r.ready(stable) == 0 && !r.Last.Asleep.IsZero() {
		// Beside nothing it would have all. Where the stable one failed, that is as it should be.
		r.percent = 0
		g.tell(r.now, GuardStarting, "waits for revision "+stable+" to wake")
		return
	}
	if g.Share > 0 {
		r.judge()
	}
	if g.Phase == GuardRolledBack {
		r.percent = 0
		return
	}
	r.percent = min(r.percent, r.stepPercent())
}

// stop makes a step that isn't under way any more begin anew when it is.
func (g *Guarded) stop() {
	if g.Phase != "" && g.Phase != GuardRolledBack {
		g.Phase, g.Since, g.Share = GuardStarting, time.Time{}, 0
	}
}

// stepPercent is what the step that was reached gives Latest.
func (r *rollout) stepPercent() int {
	if s := r.next.Guarded.Step; s < len(r.Guard.Steps) {
		return r.Guard.Steps[s]
	}
	return 100
}

// judge takes the step on, or all back.
func (r *rollout) judge() {
	g := &r.next.Guarded
	began := g.Since
	if began.IsZero() {
		began = r.now
	}
	v := guard.Judge(r.Guard, r.Seen.Since(g.Base), began, r.now)
	held := r.frozen || r.most <= r.stepPercent() && r.most < 100
	switch {
	case v.Action == guard.RollBack && r.ready(r.next.RolledOut) == 0:
		v.Why += "; it stays, for no replica of revision " + r.next.RolledOut + " is ready to go back to"
		g.told(r.now, GuardWaiting, v)
	case v.Action == guard.RollBack:
		*g = Guarded{Phase: GuardRolledBack, Step: g.Step, Share: g.Share, Why: v.Why, At: r.now, Readings: v.Readings, Passed: g.Passed}
	case g.Since.IsZero(): // starting
		g.Readings = v.Readings
	case held:
		v.Why = "the manifest holds it here"
		if r.Canary != nil {
			v.Why = fmt.Sprintf("canaryTrafficPercent is %d", *r.Canary)
		}
		if v.Numbers != "" {
			v.Why += "; " + v.Numbers
		}
		g.told(r.now, GuardHeld, v)
	case v.Action == guard.Advance:
		g.Passed = &Passed{Share: g.Share, Why: v.Why, At: r.now, Readings: v.Readings}
		g.Step, g.Since, g.Phase = g.Step+1, time.Time{}, GuardStarting
		g.Why, g.At, g.Readings = v.Why, r.now, v.Readings
	case v.Waits:
		g.told(r.now, GuardWaiting, v)
	default:
		g.told(r.now, GuardBaking, v)
	}
}

// told writes a verdict down, its numbers not too often; that a limit is exceeded, or isn't any
// more, is told at once.
func (g *Guarded) told(now time.Time, p GuardPhase, v guard.Verdict) {
	if !slices.EqualFunc(g.Readings, v.Readings, func(a, b guard.Reading) bool { return a.Metric == b.Metric && a.Exceeds == b.Exceeds }) {
		g.Phase, g.Why, g.At, g.Readings = p, v.Why, now, v.Readings
		return
	}
	if g.tell(now, p, v.Why) {
		g.Readings = v.Readings
	}
}

func (g *Guarded) tell(now time.Time, p GuardPhase, why string) bool {
	again := tellAgain
	if p == GuardHeld {
		again = tellHeld
	}
	if g.Phase == p && (g.Why == why || now.Sub(g.At) < again) {
		return false
	}
	g.Phase, g.Why, g.At = p, why, now
	return true
}

// begun notes since when the step's share is in effect, after shares were set; enough says that
// Latest has the replicas that it needs.
func (r *rollout) begun(p *Plan, enough bool) {
	g := &r.next.Guarded
	switch r.next.RolledOut {
	case "": // the first revision: there is nothing to go back to
		*g = Guarded{}
		return
	case r.Latest:
		*g = Guarded{Passed: g.Passed}
		return
	}
	if r.Guard == nil || g.Phase == GuardRolledBack {
		if g.Phase == GuardRolledBack {
			r.next.Settled = false
		}
		return
	}
	share := r.next.Share
	switch {
	case !enough || share != r.percent:
		g.Since = time.Time{}
		if g.Phase != GuardStarting {
			g.Phase, g.At = GuardStarting, r.now
			g.Why = "waits for replicas of revision " + r.Latest
		}
	case share == 0 && r.Canary != nil && *r.Canary == 0:
		const why = "canaryTrafficPercent is 0"
		if g.Phase != GuardHeld || g.Why != why {
			*g = Guarded{Phase: GuardHeld, Step: g.Step, Why: why, At: r.now, Passed: g.Passed}
		}
	case share > 0 && (g.Since.IsZero() || g.Share != share):
		if g.Share != share {
			g.Base = r.Seen
		}
		g.Since, g.Share = r.now, share
		r.judge() // tells where it stands
	}
	r.next.Settled = r.next.Settled && g.Phase == GuardHeld
	if g.Share > 0 || share > 0 {
		p.again(r.now.Add(lookAgain))
		if !g.Since.IsZero() {
			if end := g.Since.Add(r.Guard.Bake); end.After(r.now) {
				p.again(end)
			}
		}
	}
}
