package plan_test

import (
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestScale(t *testing.T) {
	type (
		roll  = plan.Rollout
		wants = map[string]int
	)
	settled := roll{Latest: "r1", RolledOut: "r1", Share: 100}
	asleep := func(since time.Time) roll {
		r := settled
		r.Asleep = since
		return r
	}
	long := t0.Add(-time.Hour)
	tests := map[string]struct {
		component    plan.Component
		ready        map[string]int
		wantReplicas map[string]int
		wantShares   shares
		wantAsleep   time.Time
		wantSettled  bool
		wantAgain    time.Time
	}{
		"a first revision comes up though nothing is wanted of it": {
			component:    plan.Component{Latest: "r1", Replicas: 1, Wants: wants{"r1": 0}},
			wantReplicas: wants{"r1": 1}, wantShares: shares{},
		},
		"replicas follow the load, and one that is missing of them unsettles nothing": {
			component: plan.Component{Latest: "r1", Replicas: 1, Wants: wants{"r1": 4}, Last: settled}, ready: wants{"r1": 3},
			wantReplicas: wants{"r1": 4}, wantShares: shares{"r1": 100}, wantSettled: true,
		},
		"one that nothing is wanted of loses its requests a while before it ends": {
			component: plan.Component{Latest: "r1", Replicas: 1, Wants: wants{"r1": 0}, Last: settled}, ready: wants{"r1": 1},
			wantReplicas: wants{"r1": 1}, wantShares: shares{"r1": 100}, wantAsleep: t0, wantSettled: true, wantAgain: t0.Add(plan.DrainDelay),
		},
		"then it ends, and keeps its share": {
			component: plan.Component{Latest: "r1", Replicas: 1, Wants: wants{"r1": 0}, Last: asleep(t0.Add(-plan.DrainDelay))}, ready: wants{"r1": 1},
			wantReplicas: wants{"r1": 0}, wantShares: shares{"r1": 100}, wantAsleep: t0.Add(-plan.DrainDelay), wantSettled: true,
		},
		"one that is wanted again before it ended is awake at once": {
			component: plan.Component{Latest: "r1", Replicas: 1, Wants: wants{"r1": 1}, Last: asleep(t0)}, ready: wants{"r1": 1},
			wantReplicas: wants{"r1": 1}, wantShares: shares{"r1": 100}, wantSettled: true,
		},
		"one that is being started keeps its share, for requests wait": {
			component:    plan.Component{Latest: "r1", Replicas: 1, Wants: wants{"r1": 2}, Last: asleep(long)},
			wantReplicas: wants{"r1": 2}, wantShares: shares{"r1": 100}, wantAsleep: long, wantSettled: true,
		},
		"the first ready replica wakes it": {
			component: plan.Component{Latest: "r1", Replicas: 1, Wants: wants{"r1": 2}, Last: asleep(long)}, ready: wants{"r1": 1},
			wantReplicas: wants{"r1": 2}, wantShares: shares{"r1": 100}, wantSettled: true,
		},
		"one that crashed is not asleep": {
			component:    plan.Component{Latest: "r1", Replicas: 1, Wants: wants{"r1": 1}, Last: settled},
			wantReplicas: wants{"r1": 1}, wantShares: shares{},
		},
		"a new revision of one that sleeps comes up once, and the old one sleeps on": {
			component:    plan.Component{Latest: "r2", Replicas: 1, Wants: wants{"r1": 0, "r2": 1}, Last: asleep(long)},
			wantReplicas: wants{"r2": 1, "r1": 0}, wantShares: shares{"r1": 100}, wantAsleep: long,
		},
		"a request for the old one wakes it, though the new one is on its way": {
			component:    plan.Component{Latest: "r2", Replicas: 1, Wants: wants{"r1": 1, "r2": 1}, Last: asleep(long)},
			wantReplicas: wants{"r2": 1, "r1": 1}, wantShares: shares{"r1": 100}, wantAsleep: long,
		},
		"a new revision takes over awake": {
			component: plan.Component{Latest: "r2", Replicas: 1, Wants: wants{"r1": 0, "r2": 1}, Last: asleep(long)}, ready: wants{"r2": 1},
			wantReplicas: wants{"r2": 1}, wantShares: shares{"r2": 100}, wantSettled: true,
		},
		"beside a canary the stable revision stays up": {
			component: plan.Component{
				Latest: "r2", Replicas: 1, Canary: percent(10), Wants: wants{"r1": 0, "r2": 0},
				Last: roll{Latest: "r2", RolledOut: "r1", Share: 10},
			}, ready: wants{"r1": 1, "r2": 1},
			wantReplicas: wants{"r2": 1, "r1": 1}, wantShares: shares{"r1": 90, "r2": 10}, wantSettled: true,
		},
		"each of two revisions has what its own load wants": {
			component: plan.Component{
				Latest: "r2", Replicas: 5, Canary: percent(20), Wants: wants{"r1": 5, "r2": 3},
				Last: roll{Latest: "r2", RolledOut: "r1", Share: 20},
			}, ready: wants{"r1": 5, "r2": 1},
			wantReplicas: wants{"r2": 3, "r1": 5}, wantShares: shares{"r1": 80, "r2": 20}, wantSettled: true,
		},
		"a stopped service has nothing, whatever is wanted": {
			component:    plan.Component{Latest: "r1", Replicas: 0, Wants: wants{"r1": 3}, Last: asleep(long)},
			wantReplicas: wants{}, wantShares: shares{},
		},
		"one whose scaling was taken away is awake": {
			component:    plan.Component{Latest: "r1", Replicas: 1, Last: asleep(long)},
			wantReplicas: wants{"r1": 1}, wantShares: shares{},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.component.Name = spec.Predictor
			p := plan.Next(plan.Desired{Components: []plan.Component{tc.component}}, observed(tc.ready), t0)
			if got := replicasOf(p); !maps.Equal(got, tc.wantReplicas) {
				t.Errorf("replicas %v, want %v", got, tc.wantReplicas)
			}
			if got := sharesOf(p); !maps.Equal(got, tc.wantShares) {
				t.Errorf("shares %v, want %v", got, tc.wantShares)
			}
			r := p.Rollouts[0]
			if !r.Asleep.Equal(tc.wantAsleep) || r.Settled != tc.wantSettled || !p.Again.Equal(tc.wantAgain) {
				t.Errorf("asleep since %v, settled %v, again at %v; want %v, %v, %v", r.Asleep, r.Settled, p.Again, tc.wantAsleep, tc.wantSettled, tc.wantAgain)
			}
		})
	}
}

// A component that scales at random never loses its traffic while it was rolled out and no
// replica is taken away from it, and planning twice changes nothing.
func TestScalingKeepsTheTraffic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last, ready, now := plan.Rollout{Latest: "r1", RolledOut: "r1", Share: 100}, map[string]int{"r1": 1}, t0
		for range 20 {
			wants := map[string]int{"r1": rapid.IntRange(0, 3).Draw(t, "wants")}
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			c := plan.Component{Name: spec.Predictor, Latest: "r1", Replicas: 1, Wants: wants, Last: last}
			p := plan.Next(plan.Desired{Components: []plan.Component{c}}, observed(ready), now)
			if got := sharesOf(p); got["r1"] != 100 {
				t.Fatalf("shares %v with %d ready, %d wanted, last %+v", got, ready["r1"], wants["r1"], last)
			}
			c.Last = p.Rollouts[0]
			if again := plan.Next(plan.Desired{Components: []plan.Component{c}}, observed(ready), now); !maps.Equal(replicasOf(again), replicasOf(p)) {
				t.Fatalf("planned %v, and then %v", replicasOf(p), replicasOf(again))
			}
			last = p.Rollouts[0]
			n := replicasOf(p)["r1"]
			if n >= ready["r1"] { // starts take a while, one replica a step
				n = min(n, ready["r1"]+rapid.IntRange(0, 1).Draw(t, "started"))
			}
			ready = map[string]int{"r1": n}
		}
	})
}
