// Package plan decides what should run next: how many replicas of which revision, and which
// revision gets the traffic. It is pure; control applies what it says and calls it again.
package plan

import (
	"cmp"
	"slices"
	"time"

	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/spec"
)

// DrainDelay is how long a revision keeps running after its traffic moved away, where Desired
// doesn't say, so that a request routed by the table of a moment ago still finds it. Kubernetes
// gives the same time by the lag between endpoint removal and SIGTERM; one second is ample in one
// process.
const DrainDelay = time.Second

// Desired is what a service's manifest asks for.
type Desired struct {
	Components []Component
	// Drain is how long a revision keeps running after its traffic moved away; zero means
	// DrainDelay. Where those who route hear later of it, it has to be longer.
	Drain time.Duration
}

// Component is one component's wish and its history.
type Component struct {
	Name spec.Component
	// Latest is the revision that the manifest asks for now. Empty when it couldn't be
	// compiled; then what serves goes on serving.
	Latest string
	// Canary is the percent of the traffic that Latest is to get beside the revision that was
	// rolled out last, 0 to 100. Nil means 100: Latest is rolled out.
	Canary *int
	// Variants take shares of their own from all that Latest and its predecessor have. While Latest
	// is empty those of the last plan stay.
	Variants []Variant
	// Revisions are all that exist of the component; Recreate waits for the end of their replicas.
	Revisions []string
	// Replicas wanted of the revision that serves; zero stops the component.
	Replicas int
	// Wants is how many replicas an autoscaler wants of a revision; those that it doesn't hold get
	// what Replicas and their share say. Zero lets the one that was rolled out sleep.
	Wants map[string]int
	// Over is how long traffic takes to move to Latest, percent by percent; zero moves it at once.
	Over time.Duration
	// Recreate stops the revision that was rolled out before Latest starts, where one takes over all
	// traffic: for what hasn't room for both. Requests are refused meanwhile.
	Recreate bool
	// Rolling is how Latest takes over where it gets all traffic at once; an edit on
	// the way turns it to where that leads, replica by replica from what is ready then.
	Rolling Rolling
	// Guard, if there is one, moves traffic to Latest step by step, as far as Canary lets it, and
	// takes it back where what was counted exceeds a limit; Over and Recreate don't count then.
	// Promoted lets Latest have all that Canary says nevertheless.
	Guard    *spec.Guard
	Promoted bool
	// Seen is what was counted of Latest's answers, from any beginning that stays the same.
	Seen evidence.Counts
	// Last is what the last plan said of this component; zero at first.
	Last Rollout
}

// Variant is a revision with a share of its own.
type Variant struct {
	Revision string
	// Percent, 0 to 100; those of one component sum to at most 100.
	Percent int
	// Replicas wanted; zero means what the share needs, and one at least.
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
	// Percent, 0 to 100. Those of one component sum to 100, or there are none. A share of 0 is
	// that of a revision which is ready and reached by its tag alone.
	Percent int
}

// Rollout is how far a component has come; control stores it and gives it back in Component.
type Rollout struct {
	Component spec.Component
	// Latest is the revision that was to be rolled out.
	Latest string
	// RolledOut is the revision that carried all traffic last; empty at first.
	RolledOut string
	// Previous is the one that was rolled out before RolledOut, or RolledOut itself where there
	// is nothing to go back to.
	Previous string
	// Share is the percent of the traffic that Latest gets while it and RolledOut are ready.
	Share int
	// Shift is the gradual move of traffic that is under way; zero means none.
	Shift Shift
	// Guarded is how far Guard has let it come.
	Guarded Guarded
	// Variants are those that run.
	Variants []Variant
	// Aside are revisions that took over in part, by Component.Rolling, before the manifest asked for
	// another: what is ready of them has its share until Latest can do without.
	Aside []string
	// Draining are revisions that lost their traffic and run on for Desired.Drain.
	Draining []Drain
	// Asleep is since when nothing is wanted of RolledOut, though it has its share still, until a
	// replica of it is ready again; zero while it is awake.
	Asleep time.Time
	// Settled says that all is as the manifest asks. Next doesn't read it.
	Settled bool
}

// Shift is a gradual move of traffic to the latest revision.
type Shift struct {
	Since time.Time
	// From and To are Latest's percent at its beginning and end.
	From, To int
}

// Drain is a revision that lost its traffic.
type Drain struct {
	Revision string
	Since    time.Time
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
//	latest not ready       ─► run both, traffic stays on rolled-out
//	latest ready, canary N ─► latest gets N, rolled-out the rest; both run on
//	latest ready           ─► traffic moves, latest becomes rolled-out, the old one runs Drain on
//	canary after all moved ─► previous starts; when it is ready, it is rolled-out again
func Next(d Desired, o spec.Observed, now time.Time) Plan {
	var p Plan
	drain := cmp.Or(d.Drain, DrainDelay)
	for _, c := range d.Components {
		p.component(c, o, now, drain)
		p.scale(c, o, now, drain)
	}
	return p
}

func (p *Plan) component(c Component, o spec.Observed, now time.Time, drain time.Duration) {
	r := rollout{Component: c, next: c.Last, o: o, now: now, delay: drain, percent: 100}
	r.next.Component, r.next.Settled = c.Name, false
	if c.Canary != nil {
		r.percent = *c.Canary
	}
	if r.frozen = c.Latest == ""; r.frozen {
		r.freeze()
	}
	if r.Latest == "" {
		return
	}
	if c.Replicas == 0 {
		r.next.Latest, r.next.Draining = r.Latest, nil
		r.next.Guarded.stop()
		p.Rollouts = append(p.Rollouts, r.next)
		return
	}
	r.begin()
	r.back = r.rollBack()
	r.guard()
	if !r.recreate(p) {
		r.step(p)
	}
}

// rollout is one component's plan in the making.
type rollout struct {
	Component
	next    Rollout
	o       spec.Observed
	now     time.Time
	delay   time.Duration // between the end of a revision's traffic and its own
	percent int           // Latest is to get
	most    int           // of it, where it is guarded
	frozen  bool          // the manifest can't be compiled
	back    string        // must become ready to be the stable one again
}

// freeze keeps what runs, at the shares it has, while the manifest can't be compiled.
func (r *rollout) freeze() {
	if r.Last.RolledOut == "" && r.ready(r.Last.Latest) == 0 && len(r.Last.Variants) == 0 {
		return
	}
	r.Variants, r.Recreate = r.Last.Variants, false
	r.Latest, r.percent = cmp.Or(r.Last.Latest, r.Last.RolledOut), r.Last.Share
	if r.Latest == r.Last.RolledOut {
		r.percent = 100
	}
}

// begin mends a history in which nothing was rolled out yet.
func (r *rollout) begin() {
	if r.next.RolledOut == "" {
		r.next.Previous = ""
	}
	if old := r.Last.Latest; r.next.RolledOut == "" && old != r.Latest && r.ready(old) > 0 {
		r.next.RolledOut = old // it carries all traffic, though not all of its replicas were ready yet
	}
}

// recreate handles the time in which the old revision stops to make room for Latest, and reports
// whether it did.
func (r *rollout) recreate(p *Plan) bool {
	old := r.next.RolledOut
	r.Recreate = r.Recreate || r.makesRoom()
	if !r.Recreate || r.percent != 100 || old == "" || old == r.Latest {
		return false
	}
	r.Over = 0
	if r.ready(r.Latest) >= r.Replicas {
		return false
	}
	r.next = Rollout{Component: r.Name, Latest: r.Latest, RolledOut: old, Previous: r.next.Previous}
	if r.exists(func(rev string) bool { return rev != r.Latest }) && r.ready(r.Latest) == 0 {
		p.Rollouts = append(p.Rollouts, r.next)
		return true
	}
	p.assign(r.Component, r.Latest, r.Replicas)
	if r.ready(r.Latest) > 0 {
		p.Traffic = append(p.Traffic, Share{Component: r.Name, Revision: r.Latest, Percent: 100})
	}
	p.Rollouts = append(p.Rollouts, r.next)
	return true
}

// exists reports whether any replica is there of a revision of the component for which is holds.
func (r *rollout) exists(is func(revision string) bool) bool {
	return slices.ContainsFunc(r.o.Replicas, func(replica spec.Replica) bool {
		return slices.Contains(r.Revisions, replica.Revision.Name) && is(replica.Revision.Name)
	})
}

func (r *rollout) step(p *Plan) {
	n := r.replicasOfLatest()
	r.setAside()
	rolling := r.rolls()
	all := r.ready(r.Latest) >= n
	enough := all || rolling && r.turned()
	rolling = rolling && !enough
	stable := r.next.RolledOut
	shifting := enough && stable != "" && stable != r.Latest && r.shift()
	if !shifting {
		r.next.Shift = Shift{}
	}
	base := r.shares
	if rolling {
		base = r.byReady
	}
	switch {
	case shifting:
	case rolling:
		r.next.Share = 0
		if by := r.byReady(); len(by) > 0 && by[0].Revision == r.Latest {
			r.next.Share = by[0].Percent
		}
	case stable == r.Latest:
		r.next.Share = 100
	case enough && (stable == "" || r.percent == 100):
		if stable != "" {
			r.next.Previous = stable
			r.drain(stable)
		}
		r.next.RolledOut, r.next.Share = r.Latest, 100
	case enough:
		r.next.Share = r.percent
	case r.Last.Latest != r.Latest: // a variant that is promoted keeps its share meanwhile
		r.next.Share = 0
		for _, v := range r.Last.Variants {
			if v.Revision == r.Latest {
				r.next.Share = min(v.Percent, r.percent)
			}
		}
	default: // it lost replicas, or gets more of them: it keeps what it had
		r.next.Share = min(r.Last.Share, r.percent)
	}
	r.next.Latest = r.Latest
	r.next.Settled = all && r.back == "" && (r.next.RolledOut == r.Latest || r.next.Share == r.percent)
	r.begun(p, enough)

	stays := r.Replicas
	var aside []int
	if rolling {
		n, stays, aside = r.turns()
	}
	if n > 0 {
		p.assign(r.Component, r.Latest, n)
	}
	if serving := r.next.RolledOut; serving != "" && serving != r.Latest {
		p.assign(r.Component, serving, stays)
	}
	for i, n := range aside {
		p.assign(r.Component, r.next.Aside[i], n)
	}
	if r.back != "" {
		p.assign(r.Component, r.back, r.Replicas)
	}
	p.again(r.nextStep())
	r.variants(p)
	r.keepDraining(p)
	p.Traffic = append(p.Traffic, r.withVariants(base())...)
	p.Rollouts = append(p.Rollouts, r.next)
}

// rollBack handles a canary percent that is set on a revision which has all the traffic: that
// makes the one before it the stable one again, as KServe has it. It returns the revision that
// must become ready for that, if there is one. A canary that was withdrawn by restoring the stable
// manifest asks for no such thing, though it leaves the same percent behind.
func (r *rollout) rollBack() string {
	next := &r.next
	if next.RolledOut != r.Latest || r.percent == 100 {
		return ""
	}
	if r.Last.Latest != "" && r.Last.Latest != r.Latest {
		next.Previous = next.RolledOut
	}
	if next.Previous == "" || next.Previous == next.RolledOut {
		return ""
	}
	if r.ready(next.Previous) < r.Replicas {
		return next.Previous
	}
	next.RolledOut = next.Previous
	return ""
}

// replicasOfLatest are those that Latest's share needs, and one at least: a revision without
// traffic runs too, so that it is known to work and its tag leads somewhere. The stable revision
// keeps all of its own until it is replaced.
func (r *rollout) replicasOfLatest() int {
	if r.next.RolledOut == "" || r.next.RolledOut == r.Latest {
		return r.Replicas
	}
	return r.needs(r.percent)
}

// needs is how many replicas a share needs.
func (r *rollout) needs(percent int) int { return max(1, (r.Replicas*percent+99)/100) }

// variants assigns the variants, and lets those go that are no more.
func (r *rollout) variants(p *Plan) {
	for _, v := range r.Variants {
		p.assign(r.Component, v.Revision, cmp.Or(v.Replicas, r.needs(v.Percent)))
	}
	for _, v := range r.Last.Variants {
		r.drain(v.Revision)
	}
	r.next.Variants = r.Variants
}

// withVariants gives ready variants their shares, and the rest to what base has; all of it where
// base has nothing.
func (r *rollout) withVariants(base []Share) []Share {
	ready, taken := []Share(nil), 0
	for _, v := range r.Variants {
		if r.ready(v.Revision) > 0 {
			ready = append(ready, Share{Component: r.Name, Revision: v.Revision, Percent: v.Percent})
			taken += v.Percent
		}
	}
	switch {
	case len(ready) == 0 || len(base) == 0 && taken == 0:
		return base
	case len(base) == 0:
		toSum(ready, 100)
	default:
		toSum(base, 100-taken)
	}
	for _, v := range ready {
		same := slices.IndexFunc(base, func(s Share) bool { return s.Revision == v.Revision })
		if same < 0 {
			base = append(base, v)
		} else {
			base[same].Percent += v.Percent
		}
	}
	return base
}

// toSum makes shares sum to total in the proportions that they have; the last gets what rounding
// leaves.
func toSum(shares []Share, total int) {
	sum, left := 0, total
	for _, s := range shares {
		sum += s.Percent
	}
	for i := range shares {
		shares[i].Percent = shares[i].Percent * total / sum
		left -= shares[i].Percent
	}
	shares[len(shares)-1].Percent += left
}

// shares divides the traffic among the two revisions as far as they are ready. Nothing else gets
// the share of a pinned service's stable revision.
func (r *rollout) shares() (out []Share) {
	add := func(revision string, percent int) {
		out = append(out, Share{Component: r.Name, Revision: revision, Percent: percent})
	}
	stable, latest := r.next.RolledOut, r.ready(r.Latest) > 0
	switch {
	case stable == "" || stable == r.Latest:
		if latest {
			add(r.Latest, 100)
		}
	case r.ready(stable) == 0:
		if latest && r.percent > 0 {
			add(r.Latest, 100)
		}
	case !latest:
		add(stable, 100)
	default:
		add(r.Latest, r.next.Share)
		add(stable, 100-r.next.Share)
	}
	return out
}

// drain notes that a revision lost its traffic.
func (r *rollout) drain(revision string) {
	if revision == "" || r.ready(revision) == 0 {
		return
	}
	// The last plan's list isn't ours to change.
	kept := slices.DeleteFunc(slices.Clone(r.next.Draining), func(d Drain) bool { return d.Revision == revision })
	kept = append(kept, Drain{Revision: revision, Since: r.now})
	r.next.Draining = kept
}

// keepDraining assigns what drains and isn't wanted otherwise, and forgets what has drained.
func (r *rollout) keepDraining(p *Plan) {
	var kept []Drain
	for _, d := range r.next.Draining {
		end := d.Since.Add(r.delay)
		if !r.now.Before(end) || p.assigns(r.Name, d.Revision) {
			continue
		}
		kept = append(kept, d)
		p.assign(r.Component, d.Revision, max(r.ready(d.Revision), 1))
		p.again(end)
	}
	r.next.Draining = kept
}

// leastStep is the shortest time between two steps of a gradual move.
const leastStep = time.Second

// shift sets Latest's share on the way to its percent, and reports whether it is still on it.
func (r *rollout) shift() bool {
	next := &r.next
	held := r.Last.Share
	if r.Last.Latest != r.Latest {
		held = 0
	}
	if r.Over <= 0 || held >= r.percent || r.percent == 1 {
		return false
	}
	if r.Last.Latest != r.Latest || next.Shift.To != r.percent {
		next.Shift = Shift{Since: r.now, From: held, To: r.percent}
	}
	elapsed := r.now.Sub(next.Shift.Since)
	if elapsed >= r.Over {
		return false
	}
	at := next.Shift.From + int(int64(next.Shift.To-next.Shift.From)*int64(elapsed)/int64(r.Over))
	next.Share = min(max(at, 1), next.Shift.To)
	return true
}

// nextStep is when a gradual move goes on; zero where none is under way.
func (r *rollout) nextStep() time.Time {
	s := r.next.Shift
	if s.Since.IsZero() {
		return time.Time{}
	}
	step := max(r.Over/time.Duration(s.To-s.From), leastStep)
	next := r.now.Add(step - r.now.Sub(s.Since)%step)
	if end := s.Since.Add(r.Over); end.Before(next) {
		return end
	}
	return next
}

func (p *Plan) again(at time.Time) {
	if at.IsZero() {
		return
	}
	if p.Again.IsZero() || at.Before(p.Again) {
		p.Again = at
	}
}

func (p *Plan) assigns(c spec.Component, revision string) bool {
	return slices.ContainsFunc(p.Assignments, func(a Assignment) bool { return a.Component == c && a.Revision == revision })
}

// assign asks for replicas; of two wishes for one revision the greater counts.
func (p *Plan) assign(c Component, revision string, replicas int) {
	for i := range p.Assignments {
		if a := &p.Assignments[i]; a.Component == c.Name && a.Revision == revision {
			a.Replicas = max(a.Replicas, replicas)
			return
		}
	}
	p.Assignments = append(p.Assignments, Assignment{Component: c.Name, Revision: revision, Replicas: replicas})
}

func (r *rollout) ready(revision string) int {
	n := 0
	for _, replica := range r.o.Replicas {
		if replica.Revision.Name == revision && replica.Phase == spec.Ready {
			n++
		}
	}
	return n
}
