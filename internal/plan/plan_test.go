package plan_test

import (
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

func TestNext(t *testing.T) {
	type assignments = []plan.Assignment
	asg := func(rev string, n int) plan.Assignment {
		return plan.Assignment{Component: spec.Predictor, Revision: rev, Replicas: n}
	}
	share := func(rev string) []plan.Share {
		return []plan.Share{{Component: spec.Predictor, Revision: rev, Percent: 100}}
	}
	tests := map[string]struct {
		component     plan.Component
		ready         map[string]int
		now           time.Time
		wantAssign    assignments
		wantTraffic   []plan.Share
		wantRolledOut string
		wantAgain     time.Time
	}{
		"a first revision starts and gets no traffic until it is ready": {
			component:  plan.Component{Latest: "r1", Replicas: 2},
			wantAssign: assignments{asg("r1", 2)},
		},
		"a first revision with some replicas ready serves, and isn't rolled out yet": {
			component:   plan.Component{Latest: "r1", Replicas: 2},
			ready:       map[string]int{"r1": 1},
			wantAssign:  assignments{asg("r1", 2)},
			wantTraffic: share("r1"),
		},
		"a new revision starts beside the one that serves": {
			component:     plan.Component{Latest: "r2", RolledOut: "r1", Replicas: 1},
			ready:         map[string]int{"r1": 1},
			wantAssign:    assignments{asg("r2", 1), asg("r1", 1)},
			wantTraffic:   share("r1"),
			wantRolledOut: "r1",
		},
		"traffic moves when the new revision is wholly ready, the old one drains later": {
			component:     plan.Component{Latest: "r2", RolledOut: "r1", Replicas: 1},
			ready:         map[string]int{"r1": 1, "r2": 1},
			wantAssign:    assignments{asg("r2", 1), asg("r1", 1)},
			wantTraffic:   share("r2"),
			wantRolledOut: "r2",
			wantAgain:     t0.Add(plan.DrainDelay),
		},
		"after the delay the old revision is gone": {
			component:     plan.Component{Latest: "r2", RolledOut: "r2", Previous: "r1", RolledOutAt: t0, Replicas: 1},
			ready:         map[string]int{"r1": 1, "r2": 1},
			now:           t0.Add(plan.DrainDelay),
			wantAssign:    assignments{asg("r2", 1)},
			wantTraffic:   share("r2"),
			wantRolledOut: "r2",
		},
		"a manifest that can't be compiled leaves what serves alone": {
			component:     plan.Component{RolledOut: "r1", Replicas: 1},
			ready:         map[string]int{"r1": 1},
			wantAssign:    assignments{asg("r1", 1)},
			wantTraffic:   share("r1"),
			wantRolledOut: "r1",
		},
		"zero replicas stop everything and forget nothing": {
			component:     plan.Component{Latest: "r1", RolledOut: "r1"},
			ready:         map[string]int{"r1": 1},
			wantRolledOut: "r1",
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
			if diff := cmp.Diff(tc.wantAssign, got.Assignments); diff != "" {
				t.Errorf("assignments (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantTraffic, got.Traffic); diff != "" {
				t.Errorf("traffic (-want +got):\n%s", diff)
			}
			if r := got.Rollouts[0].RolledOut; r != tc.wantRolledOut {
				t.Errorf("rolled out %q, want %q", r, tc.wantRolledOut)
			}
			if !got.Again.Equal(tc.wantAgain) {
				t.Errorf("again %v, want %v", got.Again, tc.wantAgain)
			}
		})
	}
}

// Whatever is ready, traffic goes only to a ready revision that is also assigned, shares sum
// to 100 or to nothing, and planning again with the reported rollout changes nothing.
func TestNextProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rev := rapid.SampledFrom([]string{"", "r1", "r2", "r3"})
		c := plan.Component{
			Name: spec.Predictor, Latest: rev.Draw(t, "latest"), RolledOut: rev.Draw(t, "rolledOut"),
			Previous: rev.Draw(t, "previous"), Replicas: rapid.IntRange(0, 3).Draw(t, "replicas"),
			RolledOutAt: t0.Add(-time.Duration(rapid.IntRange(0, 3000).Draw(t, "age")) * time.Millisecond),
		}
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
			assigned[a.Revision] = true
		}
		sum := 0
		for _, s := range got.Traffic {
			sum += s.Percent
			if ready[s.Revision] == 0 || !assigned[s.Revision] {
				t.Fatalf("traffic to %s, which has %d ready replicas and assigned=%v", s.Revision, ready[s.Revision], assigned[s.Revision])
			}
		}
		if sum != 0 && sum != 100 {
			t.Fatalf("shares sum to %d", sum)
		}
		for _, r := range got.Rollouts {
			c.RolledOut, c.Previous, c.RolledOutAt = r.RolledOut, r.Previous, r.RolledOutAt
		}
		again := plan.Next(plan.Desired{Components: []plan.Component{c}}, o, t0)
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatalf("not a fixed point (-first +second):\n%s", diff)
		}
	})
}
