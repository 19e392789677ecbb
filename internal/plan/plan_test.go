package plan_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/spec"
)

var t0 = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func observed(ready map[string]int) spec.Observed {
	var o spec.Observed
	for rev, n := range ready {
		for range n {
			o.Replicas = append(o.Replicas, spec.Replica{Revision: spec.RevisionKey{Name: rev}, Phase: spec.Ready})
		}
	}
	return o
}

func percent(n int) *int { return &n }

type shares map[string]int

func sharesOf(p plan.Plan) shares {
	out := shares{}
	for _, s := range p.Traffic {
		out[s.Revision] = s.Percent
	}
	return out
}

func replicasOf(p plan.Plan) map[string]int {
	out := map[string]int{}
	for _, a := range p.Assignments {
		out[a.Revision] += a.Replicas
	}
	return out
}

func TestNext(t *testing.T) {
	type (
		roll     = plan.Rollout
		replicas = map[string]int
	)
	tests := map[string]struct {
		component     plan.Component
		ready         map[string]int
		now           time.Time
		wantReplicas  replicas
		wantShares    shares
		wantRolledOut string
		wantPrevious  string
		wantSettled   bool
		wantAgain     time.Time
	}{
		"a first revision starts and gets no traffic until it is ready": {
			component:    plan.Component{Latest: "r1", Replicas: 2},
			wantReplicas: replicas{"r1": 2}, wantShares: shares{},
		},
		"a first revision with some replicas ready serves, and isn't rolled out yet": {
			component: plan.Component{Latest: "r1", Replicas: 2}, ready: map[string]int{"r1": 1},
			wantReplicas: replicas{"r1": 2}, wantShares: shares{"r1": 100},
		},
		"a first revision takes all, whatever the canary percent": {
			component: plan.Component{Latest: "r1", Replicas: 2, Canary: percent(10)}, ready: map[string]int{"r1": 2},
			wantReplicas: replicas{"r1": 2}, wantShares: shares{"r1": 100}, wantRolledOut: "r1", wantSettled: true,
		},
		"a new revision starts beside the one that serves": {
			component: plan.Component{Latest: "r2", Replicas: 1, Last: roll{Latest: "r1", RolledOut: "r1", Share: 100}}, ready: map[string]int{"r1": 1},
			wantReplicas: replicas{"r2": 1, "r1": 1}, wantShares: shares{"r1": 100}, wantRolledOut: "r1",
		},
		"traffic moves when the new revision is wholly ready, the old one drains later": {
			component: plan.Component{Latest: "r2", Replicas: 1, Last: roll{Latest: "r2", RolledOut: "r1"}}, ready: map[string]int{"r1": 1, "r2": 1},
			wantReplicas: replicas{"r2": 1, "r1": 1}, wantShares: shares{"r2": 100}, wantRolledOut: "r2", wantPrevious: "r1", wantSettled: true,
			wantAgain: t0.Add(plan.DrainDelay),
		},
		"after the delay the old revision is gone": {
			component: plan.Component{Latest: "r2", Replicas: 1, Last: roll{Latest: "r2", RolledOut: "r2", Previous: "r1", Share: 100, Draining: []plan.Drain{{Revision: "r1", Since: t0}}}},
			ready:     map[string]int{"r1": 1, "r2": 1}, now: t0.Add(plan.DrainDelay),
			wantReplicas: replicas{"r2": 1}, wantShares: shares{"r2": 100}, wantRolledOut: "r2", wantPrevious: "r1", wantSettled: true,
		},
		"a manifest that can't be compiled leaves what serves alone": {
			component: plan.Component{Replicas: 1, Last: roll{Latest: "r1", RolledOut: "r1", Share: 100}}, ready: map[string]int{"r1": 1},
			wantReplicas: replicas{"r1": 1}, wantShares: shares{"r1": 100}, wantRolledOut: "r1", wantSettled: true,
		},
		"a manifest that can't be compiled leaves a canary at its share": {
			component: plan.Component{Replicas: 4, Last: roll{Latest: "r2", RolledOut: "r1", Share: 25}}, ready: map[string]int{"r1": 4, "r2": 1},
			wantReplicas: replicas{"r2": 1, "r1": 4}, wantShares: shares{"r1": 75, "r2": 25}, wantRolledOut: "r1", wantSettled: true,
		},
		"zero replicas stop everything and forget nothing": {
			component: plan.Component{Latest: "r1", Last: roll{Latest: "r1", RolledOut: "r1", Previous: "r0"}}, ready: map[string]int{"r1": 1},
			wantReplicas: replicas{}, wantShares: shares{}, wantRolledOut: "r1", wantPrevious: "r0",
		},
		"a canary gets its share once it is ready, with the replicas that it needs": {
			component: plan.Component{Latest: "r2", Canary: percent(30), Replicas: 5, Last: roll{Latest: "r2", RolledOut: "r1"}}, ready: map[string]int{"r1": 5, "r2": 2},
			wantReplicas: replicas{"r2": 2, "r1": 5}, wantShares: shares{"r2": 30, "r1": 70}, wantRolledOut: "r1", wantSettled: true,
		},
		"a canary that isn't ready gets nothing": {
			component: plan.Component{Latest: "r2", Canary: percent(30), Replicas: 1, Last: roll{Latest: "r2", RolledOut: "r1"}}, ready: map[string]int{"r1": 1},
			wantReplicas: replicas{"r2": 1, "r1": 1}, wantShares: shares{"r1": 100}, wantRolledOut: "r1",
		},
		"a canary at zero runs, and is reached by its tag alone": {
			component: plan.Component{Latest: "r2", Canary: percent(0), Replicas: 3, Last: roll{Latest: "r2", RolledOut: "r1"}}, ready: map[string]int{"r1": 3, "r2": 1},
			wantReplicas: replicas{"r2": 1, "r1": 3}, wantShares: shares{"r2": 0, "r1": 100}, wantRolledOut: "r1", wantSettled: true,
		},
		"a canary that is promoted keeps its share until it has all replicas": {
			component: plan.Component{Latest: "r2", Replicas: 4, Last: roll{Latest: "r2", RolledOut: "r1", Share: 50}}, ready: map[string]int{"r1": 4, "r2": 2},
			wantReplicas: replicas{"r2": 4, "r1": 4}, wantShares: shares{"r2": 50, "r1": 50}, wantRolledOut: "r1",
		},
		"a promoted canary with all replicas has all traffic": {
			component: plan.Component{Latest: "r2", Canary: percent(100), Replicas: 2, Last: roll{Latest: "r2", RolledOut: "r1", Previous: "r0", Share: 50}}, ready: map[string]int{"r1": 2, "r2": 2},
			wantReplicas: replicas{"r2": 2, "r1": 2}, wantShares: shares{"r2": 100}, wantRolledOut: "r2", wantPrevious: "r1", wantSettled: true,
			wantAgain: t0.Add(plan.DrainDelay),
		},
		"a third revision takes the canary's place, which drains, and not the stable one's": {
			component: plan.Component{Latest: "r3", Canary: percent(10), Replicas: 1, Last: roll{Latest: "r2", RolledOut: "r1", Share: 10}}, ready: map[string]int{"r1": 1, "r2": 1},
			wantReplicas: replicas{"r3": 1, "r1": 1, "r2": 1}, wantShares: shares{"r1": 100}, wantRolledOut: "r1",
			wantAgain: t0.Add(plan.DrainDelay),
		},
		"a percent set after all traffic had moved starts the previous revision, and waits for it": {
			component: plan.Component{Latest: "r2", Canary: percent(0), Replicas: 2, Last: roll{Latest: "r2", RolledOut: "r2", Previous: "r1", Share: 100}}, ready: map[string]int{"r2": 2, "r1": 1},
			wantReplicas: replicas{"r2": 2, "r1": 2}, wantShares: shares{"r2": 100}, wantRolledOut: "r2", wantPrevious: "r1",
		},
		"when the previous revision is ready it is the stable one again": {
			component: plan.Component{Latest: "r2", Canary: percent(0), Replicas: 2, Last: roll{Latest: "r2", RolledOut: "r2", Previous: "r1", Share: 100}}, ready: map[string]int{"r2": 2, "r1": 2},
			wantReplicas: replicas{"r2": 1, "r1": 2}, wantShares: shares{"r1": 100, "r2": 0}, wantRolledOut: "r1", wantPrevious: "r1", wantSettled: true,
		},
		"restoring the stable manifest ends the canary, though its percent still stands there": {
			component: plan.Component{Latest: "r1", Canary: percent(10), Replicas: 1, Last: roll{Latest: "r2", RolledOut: "r1", Previous: "r0", Share: 10}}, ready: map[string]int{"r1": 1, "r2": 1, "r0": 1},
			wantReplicas: replicas{"r1": 1, "r2": 1}, wantShares: shares{"r1": 100}, wantRolledOut: "r1", wantPrevious: "r1", wantSettled: true,
			wantAgain: t0.Add(plan.DrainDelay),
		},
		"a canary takes over while the stable revision has no ready replica": {
			component: plan.Component{Latest: "r2", Canary: percent(10), Replicas: 1, Last: roll{Latest: "r2", RolledOut: "r1", Share: 10}}, ready: map[string]int{"r2": 1},
			wantReplicas: replicas{"r2": 1, "r1": 1}, wantShares: shares{"r2": 100}, wantRolledOut: "r1", wantSettled: true,
		},
		"variants get their shares when they are ready, and the stable revision the rest": {
			component:    plan.Component{Latest: "r1", Replicas: 4, Last: roll{Latest: "r1", RolledOut: "r1", Share: 100}, Variants: []plan.Variant{{Revision: "r2", Percent: 30}, {Revision: "r3", Percent: 20}}},
			ready:        map[string]int{"r1": 4, "r2": 2},
			wantReplicas: replicas{"r1": 4, "r2": 2, "r3": 1}, wantShares: shares{"r1": 70, "r2": 30}, wantRolledOut: "r1", wantSettled: true,
		},
		"a variant at zero runs, and is reached by its tag alone": {
			component:    plan.Component{Latest: "r1", Replicas: 4, Last: roll{Latest: "r1", RolledOut: "r1", Share: 100}, Variants: []plan.Variant{{Revision: "r2", Replicas: 2}}},
			ready:        map[string]int{"r1": 4, "r2": 1},
			wantReplicas: replicas{"r1": 4, "r2": 2}, wantShares: shares{"r1": 100, "r2": 0}, wantRolledOut: "r1", wantSettled: true,
		},
		"variants share all while nothing else is ready": {
			component:    plan.Component{Latest: "r1", Replicas: 1, Last: roll{Latest: "r1", RolledOut: "r1", Share: 100}, Variants: []plan.Variant{{Revision: "r2", Percent: 30}, {Revision: "r3", Percent: 10}}},
			ready:        map[string]int{"r2": 1, "r3": 1},
			wantReplicas: replicas{"r1": 1, "r2": 1, "r3": 1}, wantShares: shares{"r2": 75, "r3": 25}, wantRolledOut: "r1",
		},
		"a variant that is promoted keeps its share until it has all replicas": {
			component:    plan.Component{Latest: "r2", Replicas: 2, Last: roll{Latest: "r1", RolledOut: "r1", Share: 100, Variants: []plan.Variant{{Revision: "r2", Percent: 30}}}},
			ready:        map[string]int{"r1": 2, "r2": 1},
			wantReplicas: replicas{"r1": 2, "r2": 2}, wantShares: shares{"r1": 70, "r2": 30}, wantRolledOut: "r1",
		},
		"a variant that is taken away drains": {
			component:    plan.Component{Latest: "r1", Replicas: 1, Last: roll{Latest: "r1", RolledOut: "r1", Share: 100, Variants: []plan.Variant{{Revision: "r2", Percent: 30}}}},
			ready:        map[string]int{"r1": 1, "r2": 1},
			wantReplicas: replicas{"r1": 1, "r2": 1}, wantShares: shares{"r1": 100}, wantRolledOut: "r1", wantSettled: true, wantAgain: t0.Add(plan.DrainDelay),
		},
		"a pinned service's canary doesn't": {
			component: plan.Component{Latest: "r2", Canary: percent(0), Replicas: 1, Last: roll{Latest: "r2", RolledOut: "r1"}}, ready: map[string]int{"r2": 1},
			wantReplicas: replicas{"r2": 1, "r1": 1}, wantShares: shares{}, wantRolledOut: "r1", wantSettled: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.component.Name = spec.Predictor
			now := tc.now
			if now.IsZero() {
				now = t0
			}
			got := plan.Next(plan.Desired{Components: []plan.Component{tc.component}}, observed(tc.ready), now)
			if diff := cmp.Diff(tc.wantReplicas, replicasOf(got)); diff != "" {
				t.Errorf("replicas (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantShares, sharesOf(got)); diff != "" {
				t.Errorf("traffic (-want +got):\n%s", diff)
			}
			if r := got.Rollouts[0]; r.RolledOut != tc.wantRolledOut || r.Previous != tc.wantPrevious || r.Settled != tc.wantSettled {
				t.Errorf("rolled out %q, previous %q, settled %v; want %q, %q, %v", r.RolledOut, r.Previous, r.Settled, tc.wantRolledOut, tc.wantPrevious, tc.wantSettled)
			}
			if !got.Again.Equal(tc.wantAgain) {
				t.Errorf("again %v, want %v", got.Again, tc.wantAgain)
			}
		})
	}
}

func drawComponent(t *rapid.T) plan.Component {
	rev := rapid.SampledFrom([]string{"", "r1", "r2", "r3"})
	c := plan.Component{
		Name: spec.Predictor, Latest: rev.Draw(t, "latest"), Replicas: rapid.IntRange(0, 3).Draw(t, "replicas"),
		Last: plan.Rollout{
			Latest: rev.Draw(t, "last latest"), RolledOut: rev.Draw(t, "rolledOut"), Previous: rev.Draw(t, "previous"),
			Share: rapid.IntRange(0, 100).Draw(t, "share"),
		},
	}
	if rapid.Bool().Draw(t, "canary") {
		c.Canary = percent(rapid.SampledFrom([]int{0, 1, 10, 50, 99, 100}).Draw(t, "percent"))
	}
	c.Recreate, c.Revisions = rapid.Bool().Draw(t, "recreate"), []string{"r1", "r2", "r3"}
	if rapid.Bool().Draw(t, "gradual") {
		c.Over = time.Duration(rapid.IntRange(1, 200).Draw(t, "over")) * time.Second
		if rapid.Bool().Draw(t, "shifting") {
			from := rapid.IntRange(0, 99).Draw(t, "from")
			c.Last.Shift = plan.Shift{Since: t0.Add(-time.Duration(rapid.IntRange(0, 200).Draw(t, "elapsed")) * time.Second), From: from, To: rapid.IntRange(from+1, 100).Draw(t, "to")}
			c.Last.Share = from
		}
	}
	if rapid.Bool().Draw(t, "guarded") {
		drawGuard(t, &c)
	}
	c.Rolling = drawRolling(t)
	c.Last.Aside = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"r1", "r2", "r3"}), 0, 2, rapid.ID).Draw(t, "aside")
	left := 100
	for _, r := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"r1", "r2", "r3"}), 0, 3, rapid.ID).Draw(t, "variants") {
		v := plan.Variant{Revision: r, Percent: rapid.IntRange(0, left).Draw(t, "variant percent"), Replicas: rapid.IntRange(0, 2).Draw(t, "variant replicas")}
		left -= v.Percent
		if rapid.Bool().Draw(t, "last variant") {
			c.Last.Variants = append(c.Last.Variants, v)
		} else {
			c.Variants = append(c.Variants, v)
		}
	}
	for _, r := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"r1", "r2", "r3"}), 0, 3, rapid.ID).Draw(t, "draining") {
		age := time.Duration(rapid.IntRange(0, 3000).Draw(t, "age")) * time.Millisecond
		c.Last.Draining = append(c.Last.Draining, plan.Drain{Revision: r, Since: t0.Add(-age)})
	}
	return c
}

// Whatever is ready, traffic goes only to a ready revision that is also assigned, shares sum
// to 100 or to nothing, and planning again with the reported rollout changes nothing.
func TestNextProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawComponent(t)
		ready := map[string]int{}
		for _, r := range []string{"r1", "r2", "r3"} {
			ready[r] = rapid.IntRange(0, 3).Draw(t, r)
		}
		o := observed(ready)
		got := plan.Next(plan.Desired{Components: []plan.Component{c}}, o, t0)
		assigned := map[string]bool{}
		for _, a := range got.Assignments {
			if assigned[a.Revision] {
				t.Fatalf("%s is assigned twice", a.Revision)
			}
			if a.Replicas < 1 || a.Revision == "" {
				t.Fatalf("assignment %+v", a)
			}
			assigned[a.Revision] = true
		}
		sum, shared := 0, map[string]bool{}
		for _, s := range got.Traffic {
			sum += s.Percent
			if ready[s.Revision] == 0 || !assigned[s.Revision] {
				t.Fatalf("traffic to %s, which has %d ready replicas and assigned=%v", s.Revision, ready[s.Revision], assigned[s.Revision])
			}
			if s.Percent < 0 || shared[s.Revision] {
				t.Fatalf("shares %+v", got.Traffic)
			}
			shared[s.Revision] = true
		}
		if sum != 0 && sum != 100 {
			t.Fatalf("shares sum to %d", sum)
		}
		if len(got.Rollouts) == 0 {
			return
		}
		c.Last = got.Rollouts[0]
		if !got.Again.IsZero() && !got.Again.After(t0) {
			t.Fatalf("to be planned again at %v, which isn't later than now", got.Again)
		}
		again := plan.Next(plan.Desired{Components: []plan.Component{c}}, o, t0)
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatalf("not a fixed point (-first +second):\n%s", diff)
		}
	})
}

// Through any sequence of edits, with replicas that become ready one after another and never
// fail, some revision serves at all times once one has served, and a revision is never let go
// in the same step in which it loses its traffic.
func TestNoRequestIsLostThroughAnyEdits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := plan.Component{Name: spec.Predictor, Latest: "r1", Replicas: 2, Over: time.Duration(rapid.IntRange(0, 10).Draw(t, "over")) * time.Second}
		if c.Rolling = drawRolling(t); c.Rolling.Surge == 0 && c.Rolling.Unavailable >= c.Replicas {
			c.Rolling.Surge = 1 // else all may be missing for a while
		}
		ready, now, served := map[string]int{}, t0, false
		before := shares{}
		for range rapid.IntRange(5, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"edit", "percent", "variants", "wait", "wait", "wait", "invalid"}).Draw(t, "what") {
			case "edit":
				c.Latest = rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "revision")
			case "percent":
				c.Canary = nil
				if rapid.Bool().Draw(t, "canary") {
					c.Canary = percent(rapid.SampledFrom([]int{0, 10, 50, 100}).Draw(t, "percent"))
				}
			case "invalid":
				c.Latest = ""
			case "variants":
				if c.Variants = nil; c.Last.RolledOut == "" {
					break // what serves alone would be taken away by hand
				}
				for _, r := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"r1", "r2", "r3"}), 0, 2, rapid.ID).Draw(t, "variants") {
					c.Variants = append(c.Variants, plan.Variant{Revision: r, Percent: rapid.SampledFrom([]int{0, 10, 50}).Draw(t, "share")})
				}
			case "wait":
				now = now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond)
			}
			got := plan.Next(plan.Desired{Components: []plan.Component{c}}, observed(ready), now)
			if len(got.Rollouts) > 0 {
				c.Last = got.Rollouts[0]
			}
			now2, wanted := sharesOf(got), replicasOf(got)
			if served && len(now2) == 0 {
				t.Fatalf("nothing serves any more: last %+v, ready %v", c.Last, ready)
			}
			served = served || len(now2) > 0
			for rev, share := range before {
				if share > 0 && wanted[rev] == 0 && now2[rev] == 0 && ready[rev] > 0 {
					t.Fatalf("%s lost its traffic and its replicas at once", rev)
				}
			}
			before = now2
			for rev := range ready {
				ready[rev] = min(ready[rev], wanted[rev])
			}
			for _, rev := range slices.Sorted(maps.Keys(wanted)) {
				if ready[rev] < wanted[rev] {
					ready[rev]++
					break
				}
			}
		}
	})
}

func TestTrafficMovesPercentByPercentOverTheDurationAsked(t *testing.T) {
	c := plan.Component{Name: spec.Predictor, Latest: "r2", Replicas: 1, Over: 200 * time.Second, Last: plan.Rollout{Latest: "r2", RolledOut: "r1"}}
	o := observed(map[string]int{"r1": 1, "r2": 1})
	var got []int
	now, steps := t0, 0
	for {
		p := plan.Next(plan.Desired{Components: []plan.Component{c}}, o, now)
		c.Last = p.Rollouts[0]
		if steps%50 == 0 || c.Last.Settled {
			got = append(got, sharesOf(p)["r2"])
		}
		if c.Last.Settled {
			break
		}
		if steps++; steps > 1000 || !p.Again.After(now) {
			t.Fatalf("after %d steps at %v: %+v, again %v", steps, now.Sub(t0), c.Last, p.Again)
		}
		now = p.Again
	}
	if diff := cmp.Diff([]int{1, 50, 100}, got); diff != "" {
		t.Errorf("percents (-want +got):\n%s", diff)
	}
	if took := now.Sub(t0); took != c.Over || c.Last.RolledOut != "r2" || steps != 100 {
		t.Errorf("took %v in %d steps, rolled out %s", took, steps, c.Last.RolledOut)
	}
}

func TestAGradualMoveStartsAnewFromWhereItStandsWhenItsGoalChanges(t *testing.T) {
	c := plan.Component{
		Name: spec.Predictor, Latest: "r2", Replicas: 1, Over: 100 * time.Second, Canary: percent(90),
		Last: plan.Rollout{Latest: "r2", RolledOut: "r1", Share: 40, Shift: plan.Shift{Since: t0.Add(-80 * time.Second), To: 50}},
	}
	p := plan.Next(plan.Desired{Components: []plan.Component{c}}, observed(map[string]int{"r1": 1, "r2": 1}), t0)
	if got := sharesOf(p)["r2"]; got != 40 {
		t.Errorf("share %d, want 40", got)
	}
	c.Canary = percent(20)
	p = plan.Next(plan.Desired{Components: []plan.Component{c}}, observed(map[string]int{"r1": 1, "r2": 1}), t0)
	if got := sharesOf(p)["r2"]; got != 20 {
		t.Errorf("share %d after the goal fell, want 20 at once", got)
	}
}

func TestRecreateStopsTheOldRevisionBeforeTheNewOneStarts(t *testing.T) {
	c := plan.Component{Name: spec.Predictor, Latest: "r2", Replicas: 2, Recreate: true, Revisions: []string{"r1", "r2"}, Last: plan.Rollout{Latest: "r1", RolledOut: "r1", Share: 100}}
	for i, step := range []struct {
		ready        map[string]int
		wantReplicas map[string]int
		wantShares   shares
	}{
		{map[string]int{"r1": 2}, map[string]int{}, shares{}},
		{map[string]int{"r1": 1}, map[string]int{}, shares{}},
		{nil, map[string]int{"r2": 2}, shares{}},
		{map[string]int{"r2": 1}, map[string]int{"r2": 2}, shares{"r2": 100}},
		{map[string]int{"r2": 2}, map[string]int{"r2": 2}, shares{"r2": 100}},
		{map[string]int{"r2": 2}, map[string]int{"r2": 2}, shares{"r2": 100}},
	} {
		p := plan.Next(plan.Desired{Components: []plan.Component{c}}, observed(step.ready), t0)
		c.Last = p.Rollouts[0]
		if diff := cmp.Diff(step.wantReplicas, replicasOf(p)); diff != "" {
			t.Errorf("step %d: replicas (-want +got):\n%s", i, diff)
		}
		if diff := cmp.Diff(step.wantShares, sharesOf(p)); diff != "" {
			t.Errorf("step %d: traffic (-want +got):\n%s", i, diff)
		}
	}
	if c.Last.RolledOut != "r2" || c.Last.Previous != "r1" || !c.Last.Settled {
		t.Errorf("at the end %+v", c.Last)
	}
}

func TestARevisionRunsOnForAsLongAsThoseWhoRouteNeedToHear(t *testing.T) {
	const drain = 5 * time.Second
	moved := plan.Component{
		Latest: "r2", Replicas: 1,
		Last: plan.Rollout{Latest: "r2", RolledOut: "r2", Previous: "r1", Share: 100, Draining: []plan.Drain{{Revision: "r1", Since: t0}}},
	}
	for after, stays := range map[time.Duration]bool{plan.DrainDelay: true, drain - 1: true, drain: false} {
		d := plan.Desired{Components: []plan.Component{moved}, Drain: drain}
		got := plan.Next(d, observed(map[string]int{"r1": 1, "r2": 1}), t0.Add(after))
		there := slices.ContainsFunc(got.Assignments, func(a plan.Assignment) bool { return a.Revision == "r1" })
		if there != stays {
			t.Errorf("%v after its traffic moved, r1 is assigned: %t, want %t", after, there, stays)
		}
		if stays && !got.Again.Equal(t0.Add(drain)) {
			t.Errorf("%v after its traffic moved, it plans again at %v, want %v", after, got.Again, t0.Add(drain))
		}
	}
}
