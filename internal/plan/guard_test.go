package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/spec"
)

// world is a guarded service in simulated time: traffic flows by the plan's shares, replicas that
// are asked for become ready, and the plan is asked again when it says so.
type world struct {
	c     plan.Component
	ready map[string]int
	now   time.Time
	// rate is requests a second, in all; bad is the share of a revision's requests that fail.
	rate int
	bad  map[string]float64
	// seen is what was counted, failed what clients met.
	seen   map[string]evidence.Counts
	failed int
	owed   map[string]float64
	last   plan.Plan
	steps  []int
}

func newWorld() *world {
	return &world{
		c: plan.Component{
			Name: spec.Predictor, Latest: "r2", Replicas: 1, Revisions: []string{"r1", "r2", "r3"},
			Guard: &spec.Guard{
				Steps: []int{5, 25, 50}, Bake: time.Minute, MinRequests: 100,
				Limits: []spec.Limit{{Metric: spec.ErrorRatio, Max: .01}},
			},
			Last: plan.Rollout{Latest: "r1", RolledOut: "r1", Share: 100},
		},
		ready: map[string]int{"r1": 1}, now: t0, rate: 100,
		bad: map[string]float64{}, seen: map[string]evidence.Counts{}, owed: map[string]float64{},
	}
}

func (w *world) plan() plan.Rollout {
	w.c.Seen = w.seen[w.c.Latest]
	w.last = plan.Next(plan.Desired{Components: []plan.Component{w.c}}, observed(w.ready), w.now)
	w.c.Last = w.last.Rollouts[0]
	if n := w.share("r2"); len(w.steps) == 0 || w.steps[len(w.steps)-1] != n {
		w.steps = append(w.steps, n)
	}
	return w.c.Last
}

func (w *world) share(revision string) int { return sharesOf(w.last)[revision] }

// run lets time pass in which requests come.
func (w *world) run(d time.Duration) {
	for range d / time.Second {
		for rev, n := range replicasOf(w.last) {
			w.ready[rev] = n
		}
		w.plan()
		for _, s := range w.last.Traffic {
			w.owed[s.Revision] += float64(w.rate*s.Percent) / 100
			n := uint64(w.owed[s.Revision])
			w.owed[s.Revision] -= float64(n)
			w.owed["bad "+s.Revision] += float64(n) * w.bad[s.Revision]
			bad := uint64(w.owed["bad "+s.Revision])
			w.owed["bad "+s.Revision] -= float64(bad)
			w.failed += int(bad)
			w.seen[s.Revision] = w.seen[s.Revision].Plus(evidence.Counts{Requests: n, Errors: bad})
		}
		w.now = w.now.Add(time.Second)
	}
}

func drawGuard(t *rapid.T, c *plan.Component) {
	c.Guard = newWorld().c.Guard
	c.Promoted = rapid.IntRange(0, 5).Draw(t, "promoted") == 0
	c.Seen = evidence.Counts{Requests: rapid.Uint64Range(0, 300).Draw(t, "requests")}
	c.Seen.Errors = rapid.Uint64Range(0, min(c.Seen.Requests, 5)).Draw(t, "errors")
	g := &c.Last.Guarded
	g.Phase = rapid.SampledFrom([]plan.GuardPhase{"", plan.GuardStarting, plan.GuardBaking, plan.GuardWaiting, plan.GuardHeld, plan.GuardRolledBack}).Draw(t, "phase")
	if g.Phase == "" {
		return
	}
	g.Step = rapid.IntRange(0, 4).Draw(t, "step")
	if rapid.Bool().Draw(t, "begun") {
		g.Share, g.Since = rapid.SampledFrom([]int{5, 25, 50}).Draw(t, "share"), t0.Add(-time.Duration(rapid.IntRange(0, 100).Draw(t, "baked"))*time.Second)
	}
}

func TestAGoodRevisionTakesAllStepsByItself(t *testing.T) {
	w := newWorld()
	w.run(30 * time.Second)
	if g := w.c.Last.Guarded; g.Phase != plan.GuardBaking || w.share("r2") != 5 || w.c.Last.Settled {
		t.Errorf("after 30 s: %+v at %d %%", g, w.share("r2"))
	}
	w.run(3 * time.Minute)
	if want := []int{0, 5, 25, 50, 100}; !slices.Equal(w.steps, want) {
		t.Errorf("steps %v, want %v", w.steps, want)
	}
	if r := w.c.Last; r.RolledOut != "r2" || r.Guarded.Phase != "" || !r.Settled {
		t.Errorf("in the end %+v", r)
	}
	if took := w.now.Sub(t0); took < 3*time.Minute {
		t.Errorf("three steps of a minute took %v", took)
	}
}

func TestABadRevisionIsRolledBackAndStaysSo(t *testing.T) {
	w := newWorld()
	w.bad["r2"] = 1
	w.run(time.Hour)
	r := w.c.Last
	if r.Guarded.Phase != plan.GuardRolledBack || w.share("r1") != 100 || r.RolledOut != "r1" || r.Settled {
		t.Fatalf("%+v at %v", r, sharesOf(w.last))
	}
	if !strings.Contains(r.Guarded.Why, "errors 100 % of 5 requests (limit 1 %)") || r.Guarded.Share != 5 {
		t.Errorf("why %q at %d %%", r.Guarded.Why, r.Guarded.Share)
	}
	if w.failed > 10 {
		t.Errorf("%d clients met an error", w.failed)
	}
	// It runs on, for a look, and nothing but another shape or a person's word changes that.
	if got := replicasOf(w.last); got["r2"] != 1 || got["r1"] != 1 {
		t.Errorf("replicas %v", got)
	}
	w.c.Guard = nil
	if w.run(time.Minute); w.share("r2") != 0 {
		t.Errorf("%d %% go to it when it isn't guarded any more", w.share("r2"))
	}
	w.c.Guard = newWorld().c.Guard
	w.c.Latest = "r3"
	if w.run(30 * time.Second); w.share("r3") != 5 {
		t.Errorf("another revision: %v, %+v", sharesOf(w.last), w.c.Last.Guarded)
	}
	w.c.Latest, w.c.Promoted = "r2", true
	if w.run(30 * time.Second); w.share("r2") != 100 {
		t.Errorf("promoted: %v", sharesOf(w.last))
	}
}

func TestAnErrorThatComesLateRollsBackFromALaterStep(t *testing.T) {
	w := newWorld()
	w.run(90 * time.Second)
	if w.share("r2") != 25 {
		t.Fatalf("shares %v", sharesOf(w.last))
	}
	w.bad["r2"] = .05
	w.run(2 * time.Minute)
	if g := w.c.Last.Guarded; g.Phase != plan.GuardRolledBack || g.Share != 25 || w.share("r1") != 100 {
		t.Errorf("%+v, shares %v", g, sharesOf(w.last))
	}
}

func TestWithoutRequestsAStepWaits(t *testing.T) {
	w := newWorld()
	w.rate = 0
	w.run(time.Hour)
	if g := w.c.Last.Guarded; g.Phase != plan.GuardWaiting || w.share("r2") != 5 || !strings.Contains(g.Why, "needs 100 requests and has 0") {
		t.Errorf("%+v, shares %v", g, sharesOf(w.last))
	}
	w.rate = 100
	if w.run(30 * time.Second); w.share("r2") != 25 {
		t.Errorf("shares %v half a minute after requests came", sharesOf(w.last))
	}
}

func TestWhereNothingHappensNothingIsToldAnew(t *testing.T) {
	w := newWorld()
	w.rate = 0
	w.run(5 * time.Minute)
	before := w.c.Last
	if w.run(time.Hour); !before.Guarded.At.Equal(w.c.Last.Guarded.At) {
		t.Errorf("%+v after %+v", w.c.Last.Guarded, before.Guarded)
	}
	w.rate, w.c.Canary = 100, percent(5)
	w.run(5 * time.Minute)
	changes := 0
	for range 600 {
		at := w.c.Last.Guarded.At
		if w.run(time.Second); !at.Equal(w.c.Last.Guarded.At) {
			changes++
		}
	}
	if changes == 0 || changes > 11 {
		t.Errorf("held for ten minutes, and told %d times", changes)
	}
}

func TestLostReplicasBeginTheBakeAnewAndKeepTheErrors(t *testing.T) {
	w := newWorld()
	w.c.Guard.Limits[0].Max = .5
	w.run(50 * time.Second)
	since := w.c.Last.Guarded.Since
	w.ready["r2"] = 0
	if r := w.plan(); r.Guarded.Phase != plan.GuardStarting || !r.Guarded.Since.IsZero() {
		t.Errorf("without a replica: %+v", r.Guarded)
	}
	w.seen["r2"] = w.seen["r2"].Plus(evidence.Counts{Requests: 100, Errors: 100})
	w.ready["r2"] = 1
	w.now = w.now.Add(time.Second)
	if r := w.plan(); !r.Guarded.Since.After(since) || r.Guarded.Readings[0].Value < .2 {
		t.Errorf("with it again: %+v", r.Guarded)
	}
	w.seen["r2"] = w.seen["r2"].Plus(evidence.Counts{Requests: 900, Errors: 900})
	w.now = w.now.Add(time.Second)
	if r := w.plan(); r.Guarded.Phase != plan.GuardRolledBack {
		t.Errorf("after 1000 errors: %+v", r.Guarded)
	}
}

func TestCanaryTrafficPercentIsAsFarAsItGoes(t *testing.T) {
	w := newWorld()
	w.c.Canary = percent(25)
	w.run(10 * time.Minute)
	if g := w.c.Last.Guarded; g.Phase != plan.GuardHeld || w.share("r2") != 25 || !w.c.Last.Settled {
		t.Errorf("held at 25 %%: %+v, %v", g, sharesOf(w.last))
	}
	w.c.Canary = percent(0)
	w.run(time.Minute)
	if g := w.c.Last.Guarded; g.Phase != plan.GuardHeld || w.share("r2") != 0 || !w.c.Last.Settled {
		t.Errorf("paused: %+v, %v", g, sharesOf(w.last))
	}
	w.c.Canary = nil
	if w.run(30 * time.Second); w.share("r2") != 25 {
		t.Errorf("resumed: %v", sharesOf(w.last))
	}
	w.run(5 * time.Minute)
	if w.c.Last.RolledOut != "r2" {
		t.Errorf("in the end %+v", w.c.Last)
	}
	// Going back makes the one before it the stable one; going on begins at the first step.
	w.c.Canary = percent(0)
	if w.run(time.Minute); w.share("r1") != 100 || w.c.Last.RolledOut != "r1" {
		t.Errorf("undone: %+v", w.c.Last)
	}
	w.c.Canary = nil
	if w.run(30 * time.Second); w.share("r2") != 5 {
		t.Errorf("and on again: %v, %+v", sharesOf(w.last), w.c.Last.Guarded)
	}
}

func TestABadRevisionIsRolledBackWhereItIsHeld(t *testing.T) {
	w := newWorld()
	w.c.Canary = percent(10)
	w.run(3 * time.Minute)
	w.bad["r2"] = .5
	w.run(time.Minute)
	if g := w.c.Last.Guarded; g.Phase != plan.GuardRolledBack || w.share("r1") != 100 {
		t.Errorf("%+v, %v", g, sharesOf(w.last))
	}
}

func TestTheFirstRevisionAndASleepingOne(t *testing.T) {
	w := newWorld()
	w.c.Last, w.ready = plan.Rollout{}, map[string]int{}
	if w.run(10 * time.Second); w.share("r2") != 100 || w.c.Last.RolledOut != "r2" {
		t.Errorf("the first revision: %+v", w.c.Last)
	}

	w = newWorld()
	w.c.Wants = map[string]int{"r1": 0, "r2": 1}
	w.ready = map[string]int{"r2": 1}
	w.c.Last.Asleep = t0.Add(-time.Hour)
	w.plan()
	if w.share("r2") != 0 || replicasOf(w.last)["r1"] != 1 {
		t.Errorf("beside a stable revision that sleeps: %v, %v", sharesOf(w.last), replicasOf(w.last))
	}
	if w.run(10 * time.Second); w.share("r2") != 5 {
		t.Errorf("when it woke: %v", sharesOf(w.last))
	}
}

func TestWhereTheStableRevisionFailedTheNewOneServesAndIsNotTakenBack(t *testing.T) {
	w := newWorld()
	w.ready = map[string]int{"r2": 1}
	w.bad["r2"] = .5
	for range 100 {
		w.plan()
		if w.share("r2") != 100 {
			t.Fatalf("shares %v, %+v", sharesOf(w.last), w.c.Last.Guarded)
		}
		w.seen["r2"] = w.seen["r2"].Plus(evidence.Counts{Requests: 100, Errors: 50})
		w.now = w.now.Add(time.Second)
	}
	if g := w.c.Last.Guarded; w.c.Last.Settled || !strings.Contains(g.Why, "no replica of revision r1 is ready to go back to") {
		t.Errorf("why %q", g.Why)
	}
	w.ready["r1"] = 1
	if w.plan(); w.share("r2") != 0 || w.share("r1") != 100 {
		t.Errorf("when it is back: %v", sharesOf(w.last))
	}
}

func TestAServiceThatWasStoppedBeginsTheStepAnew(t *testing.T) {
	w := newWorld()
	w.run(90 * time.Second)
	w.c.Replicas = 0
	w.run(time.Hour)
	w.c.Replicas = 1
	if w.run(50 * time.Second); w.share("r2") != 25 {
		t.Errorf("shares %v, %+v", sharesOf(w.last), w.c.Last.Guarded)
	}
	if w.run(20 * time.Second); w.share("r2") != 50 {
		t.Errorf("shares %v, %+v", sharesOf(w.last), w.c.Last.Guarded)
	}
}

func TestANewControlPlaneGoesOnAtTheStep(t *testing.T) {
	w := newWorld()
	w.run(90 * time.Second)
	g := w.c.Last.Guarded
	// What a status holds, and counters that begin anew.
	w.c.Last = plan.Rollout{Latest: "r2", RolledOut: "r1", Share: 25, Guarded: plan.Guarded{Phase: g.Phase, Step: g.Step}}
	w.seen = map[string]evidence.Counts{}
	w.plan()
	if w.share("r2") != 25 {
		t.Fatalf("shares %v", sharesOf(w.last))
	}
	if w.run(30 * time.Second); w.share("r2") != 25 {
		t.Errorf("the bake didn't begin anew: %v", sharesOf(w.last))
	}
	if w.run(50 * time.Second); w.share("r2") != 50 {
		t.Errorf("shares %v, %+v", sharesOf(w.last), w.c.Last.Guarded)
	}
	w.c.Last = plan.Rollout{Latest: "r2", RolledOut: "r1", Guarded: plan.Guarded{Phase: plan.GuardRolledBack, Why: "errors"}}
	if w.run(time.Hour); w.share("r2") != 0 || w.c.Last.Guarded.Why != "errors" {
		t.Errorf("what was rolled back has %v: %+v", sharesOf(w.last), w.c.Last.Guarded)
	}
}

// Whatever fails, for how long and under which load: a revision's share never exceeds its step's
// while the stable one is ready, never rises but by one step after a whole bake, falls to nothing
// once and for all when it is rolled back, and a bad revision never gets all traffic.
func TestAGuardedRolloutNeverGoesTooFar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.rate = rapid.IntRange(0, 200).Draw(t, "rate")
		w.bad["r2"] = rapid.SampledFrom([]float64{0, .005, .1, 1}).Draw(t, "bad")
		allowed := []int{0, 5, 25, 50, 100}
		at, raised, back := 0, t0, false
		for range rapid.IntRange(10, 200).Draw(t, "rounds") {
			if rapid.IntRange(0, 20).Draw(t, "lose") == 0 {
				w.ready["r2"] = 0
			}
			if rapid.IntRange(0, 20).Draw(t, "tick") == 0 {
				w.bad["r2"] = rapid.SampledFrom([]float64{0, .1, 1}).Draw(t, "bad from now on")
			}
			w.run(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second)
			share := w.share("r2")
			i := slices.Index(allowed, share)
			if i < 0 {
				t.Fatalf("share %d is none of the steps", share)
			}
			if back && share != 0 {
				t.Fatalf("%d %% after it was rolled back", share)
			}
			back = back || w.c.Last.Guarded.Phase == plan.GuardRolledBack
			if i > at {
				if i != at+1 || (at > 0 && w.now.Sub(raised) < time.Minute) {
					t.Fatalf("from %d %% to %d %% after %v", allowed[at], share, w.now.Sub(raised))
				}
				at, raised = i, w.now.Add(-20*time.Second)
			}
			if share == 100 && w.seen["r2"].Requests < 300 {
				t.Fatalf("rolled out after %d requests", w.seen["r2"].Requests)
			}
			if w.c.Last.Guarded.Phase != "" && w.c.Last.Guarded.Why == "" {
				t.Fatalf("no reason: %+v", w.c.Last.Guarded)
			}
		}
	})
}

// What decides on a step is written down with it, and stays when the next step's numbers begin.
func TestAStepThatWasPassedTellsTheNumbersThatDecidedIt(t *testing.T) {
	w := newWorld()
	var told []int
	for range 240 {
		was, seen := w.c.Last.Guarded, w.seen["r2"]
		w.run(time.Second)
		passed := w.c.Last.Guarded.Passed
		if passed == nil || was.Passed != nil && was.Passed.Share == passed.Share {
			continue
		}
		told = append(told, passed.Share)
		of := seen.Since(was.Base).Requests
		if want := fmt.Sprintf("%d requests in 1m0s; errors 0 %% of %d requests (limit 1 %%)", of, of); passed.Why != want {
			t.Errorf("passed %d %% for %q, want %q", passed.Share, passed.Why, want)
		}
		if len(passed.Readings) != 1 || passed.Readings[0].Of != of {
			t.Errorf("passed %d %% by %+v, want %d requests", passed.Share, passed.Readings, of)
		}
	}
	if want := []int{5, 25, 50}; !slices.Equal(told, want) {
		t.Errorf("told of %v, want %v", told, want)
	}
	if g := w.c.Last.Guarded; g.Passed != nil || g.Phase != "" {
		t.Errorf("long after the end: %+v", g)
	}
}

// That a limit is exceeded where there is nothing to go back to is told when it is found out.
func TestThatNothingIsThereToGoBackToIsToldAtOnce(t *testing.T) {
	w := newWorld()
	w.c.Guard.Bake = time.Hour
	w.run(29 * time.Second)
	w.seen["r2"] = w.seen["r2"].Plus(evidence.Counts{Requests: 50, Errors: 50})
	w.ready["r1"] = 0
	if g := w.plan().Guarded; g.Phase != plan.GuardWaiting || !strings.Contains(g.Why, "no replica of revision r1 is ready") || !g.At.Equal(w.now) {
		t.Errorf("%+v at %v", g, w.now)
	}
	w.now = w.now.Add(time.Second)
	w.seen["r2"] = w.seen["r2"].Plus(evidence.Counts{Requests: 100000})
	if g := w.plan().Guarded; strings.Contains(g.Why, "no replica of revision r1") || !g.At.Equal(w.now) {
		t.Errorf("better again: %+v at %v", g, w.now)
	}
}

func TestTheFirstRevisionIsNoGuardedRollout(t *testing.T) {
	w := newWorld()
	w.c.Latest, w.c.Last, w.ready = "r1", plan.Rollout{}, map[string]int{}
	if g := w.plan().Guarded; g.Phase != "" {
		t.Errorf("%+v", g)
	}
	w.run(5 * time.Second)
	if r := w.c.Last; r.Guarded.Phase != "" || r.RolledOut != "r1" || !r.Settled {
		t.Errorf("%+v", r)
	}
}
