package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/spec"
)

func drawRolling(t *rapid.T) plan.Rolling {
	return plan.Rolling{Surge: rapid.IntRange(0, 3).Draw(t, "surge"), Unavailable: rapid.IntRange(0, 3).Draw(t, "unavailable")}
}

// crew is the replicas of a component whose platform starts and ends what the plan says. What is
// to end goes before what is to start is there; what drains is beyond the count, as it is in a
// Deployment's.
type crew struct {
	starting, ready map[string]int
}

func (c *crew) observed() spec.Observed {
	o := observed(c.ready)
	for rev, n := range c.starting {
		for range n {
			o.Replicas = append(o.Replicas, spec.Replica{Revision: spec.RevisionKey{Name: rev}, Phase: spec.Starting})
		}
	}
	return o
}

func (c *crew) apply(p plan.Plan) {
	want := replicasOf(p)
	for _, rev := range []string{"r1", "r2", "r3"} {
		c.starting[rev] = max(0, want[rev]-c.ready[rev])
		c.ready[rev] = min(c.ready[rev], want[rev])
	}
}

func (c *crew) String() string {
	return fmt.Sprintf("%d+%d", c.ready["r1"]+c.starting["r1"], c.ready["r2"]+c.starting["r2"])
}

func rollingFrom(replicas int, r plan.Rolling) (plan.Component, *crew) {
	return plan.Component{
		Name: spec.Predictor, Latest: "r2", Replicas: replicas, Rolling: r, Revisions: []string{"r1", "r2"},
		Last: plan.Rollout{Latest: "r1", RolledOut: "r1", Share: 100},
	}, &crew{starting: map[string]int{}, ready: map[string]int{"r1": replicas}}
}

func TestRevisionsTakeTurns(t *testing.T) {
	tests := map[string]struct {
		replicas int
		rolling  plan.Rolling
		// want are the replicas of the old revision and of the new one, and the new one's percent,
		// after each plan; a new replica is ready by the next.
		want []string
	}{
		"without a limit all of the new start beside all of the old": {
			replicas: 3, want: []string{"3+3 0%", "3+3 100%"},
		},
		"one beyond": {
			replicas: 3, rolling: plan.Rolling{Surge: 1},
			want: []string{"3+1 0%", "2+1 25%", "2+2 33%", "1+2 50%", "1+3 66%", "1+3 100%"},
		},
		"two beyond": {
			replicas: 4, rolling: plan.Rolling{Surge: 2},
			want: []string{"4+2 0%", "2+2 33%", "2+4 50%", "2+4 100%"},
		},
		"one missing": {
			replicas: 3, rolling: plan.Rolling{Unavailable: 1},
			want: []string{"2+0 0%", "2+1 0%", "1+1 33%", "1+2 50%", "1+3 100%"},
		},
		"one beyond and one missing": {
			replicas: 4, rolling: plan.Rolling{Surge: 1, Unavailable: 1},
			want: []string{"3+1 0%", "3+2 0%", "2+2 25%", "1+3 50%", "1+4 66%", "1+4 100%"},
		},
		"of a single replica the new one comes first": {
			replicas: 1, rolling: plan.Rolling{Surge: 1}, want: []string{"1+1 0%", "1+1 100%"},
		},
		"of a single replica that may be missing, without room for two, the old one goes first": {
			replicas: 1, rolling: plan.Rolling{Unavailable: 1}, want: []string{"0+0 0%", "0+1 0%", "0+1 100%"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, crew := rollingFrom(tc.replicas, tc.rolling)
			var got []string
			for len(got) < 20 {
				p := plan.Next(plan.Desired{Components: []plan.Component{c}}, crew.observed(), t0)
				c.Last = p.Rollouts[0]
				share := sharesOf(p)["r2"]
				for rev, n := range crew.starting {
					crew.ready[rev] += n
				}
				crew.starting = map[string]int{}
				crew.apply(p)
				if line := fmt.Sprintf("%v %d%%", crew, share); len(got) == 0 || got[len(got)-1] != line {
					got = append(got, line)
				}
				if c.Last.RolledOut == "r2" && share == 100 {
					break
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// However many become ready or fail at a time, never more run than may, never fewer are ready than
// must be, and in the end the new revision has all.
func TestARollingUpdateKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, rolling := rapid.IntRange(1, 6).Draw(t, "replicas"), drawRolling(t)
		if rolling == (plan.Rolling{}) {
			rolling.Surge = 1
		}
		c, crew := rollingFrom(n, rolling)
		now := t0
		for step := 0; ; step++ {
			if step > 200 {
				t.Fatalf("it doesn't end: %v ready %v", crew, crew.ready)
			}
			p := plan.Next(plan.Desired{Components: []plan.Component{c}}, crew.observed(), now)
			c.Last = p.Rollouts[0]
			now = now.Add(time.Second)
			crew.apply(p)
			ready, all := 0, 0
			for _, rev := range []string{"r1", "r2"} {
				ready += crew.ready[rev]
				if !slices.ContainsFunc(c.Last.Draining, func(d plan.Drain) bool { return d.Revision == rev }) {
					all += crew.ready[rev] + crew.starting[rev]
				}
			}
			if all > n+rolling.Surge {
				t.Fatalf("%v run, %d may", crew, n+rolling.Surge)
			}
			if must := n - rolling.Unavailable; ready < must {
				t.Fatalf("%d are ready, %d must be", ready, must)
			}
			if c.Last.Settled {
				break
			}
			for rev, starting := range crew.starting {
				some := starting
				if step < 100 {
					some = rapid.IntRange(0, starting).Draw(t, "become ready")
				}
				crew.ready[rev] += some
				crew.starting[rev] -= some
			}
		}
		if crew.ready["r2"] != n {
			t.Fatalf("settled with %v", crew)
		}
	})
}

// steps plays a rolling update, in which want says what the manifest asks for at a step, until it
// is settled and want has no more to say; each new replica is ready by the next step.
func steps(t *testing.T, c plan.Component, crew *crew, want map[int]string) []string {
	t.Helper()
	var got []string
	now := t0
	for step := range 50 {
		if rev, ok := want[step]; ok {
			c.Latest = rev
			delete(want, step)
		}
		p := plan.Next(plan.Desired{Components: []plan.Component{c}}, crew.observed(), now)
		c.Last = p.Rollouts[0]
		now = now.Add(time.Second)
		shares := sharesOf(p)
		line := ""
		for _, rev := range []string{"r1", "r2", "r3"} {
			if n := crew.ready[rev]; n > 0 || shares[rev] > 0 {
				line += fmt.Sprintf("%s:%d=%d%% ", rev, n, shares[rev])
			}
		}
		if line = strings.TrimSpace(line); len(got) == 0 || got[len(got)-1] != line {
			got = append(got, line)
		}
		if c.Last.Settled && len(want) == 0 {
			return got
		}
		crew.apply(p)
		for rev, n := range crew.starting {
			crew.ready[rev] += n
		}
		crew.starting = map[string]int{}
	}
	t.Fatalf("it doesn't end: %v", got)
	return nil
}

func TestTrafficFollowsWhatIsReadyWhenAnUpdateGoesAnotherWay(t *testing.T) {
	tests := map[string]struct {
		replicas int
		rolling  plan.Rolling
		want     map[int]string
		// got are the ready replicas and shares of each revision at each step.
		got []string
	}{
		"taken back half-way": {
			replicas: 4, rolling: plan.Rolling{Surge: 1}, want: map[int]string{4: "r1"},
			got: []string{
				"r1:4=100%", "r1:4=80% r2:1=20%", "r1:3=75% r2:1=25%", "r1:3=60% r2:2=40%",
				"r1:2=50% r2:2=50%", "r1:3=60% r2:2=40%", "r1:3=75% r2:1=25%", "r1:4=100% r2:1=0%",
			},
		},
		"replaced half-way by a third": {
			replicas: 3, rolling: plan.Rolling{Surge: 1}, want: map[int]string{4: "r3"},
			got: []string{
				"r1:3=100%", "r1:3=75% r2:1=25%", "r1:2=67% r2:1=33%", "r1:2=50% r2:2=50%", "r1:1=33% r2:2=67%",
				"r1:1=25% r2:2=50% r3:1=25%", "r1:1=33% r2:1=34% r3:1=33%", "r1:1=34% r2:1=0% r3:2=66%", "r1:1=0% r2:1=0% r3:3=100%",
			},
		},
		"taken back before anything was ready": {
			replicas: 2, rolling: plan.Rolling{Surge: 1}, want: map[int]string{1: "r1"},
			got: []string{"r1:2=100%", "r1:2=100% r2:1=0%"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, crew := rollingFrom(tc.replicas, tc.rolling)
			c.Revisions = append(c.Revisions, "r3")
			if diff := cmp.Diff(tc.got, steps(t, c, crew, tc.want)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// However often the manifest goes another way half-way, no ready replica of an update gets more than
// its part of the traffic, as many are ready behind it as must be, and in the end all is as asked.
func TestTrafficFollowsReadyCapacityWhereverTheManifestGoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, rolling := rapid.IntRange(1, 6).Draw(t, "replicas"), drawRolling(t)
		if rolling == (plan.Rolling{}) {
			rolling.Surge = 1
		}
		c, crew := rollingFrom(n, rolling)
		c.Revisions = append(c.Revisions, "r3")
		now, flips := t0, rapid.IntRange(1, 6).Draw(t, "flips")
		for step := 0; ; step++ {
			if step > 300 {
				t.Fatalf("it doesn't end: %v ready %v, %+v", crew.starting, crew.ready, c.Last)
			}
			if flips > 0 && rapid.IntRange(0, 3).Draw(t, "flip") == 0 {
				c.Latest, flips = rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "latest"), flips-1
			}
			p := plan.Next(plan.Desired{Components: []plan.Component{c}}, crew.observed(), now)
			now = now.Add(time.Second)
			c.Last = p.Rollouts[0]
			shares, carry := sharesOf(p), 0
			for rev, share := range shares {
				if share > 0 {
					carry += crew.ready[rev]
				}
			}
			if must := n - rolling.Unavailable; carry < must {
				t.Fatalf("%d ready replicas have all traffic, %d must: %v of %v", carry, must, shares, crew.ready)
			}
			for rev, share := range shares {
				if part := (100*crew.ready[rev] + carry - 1) / max(carry, 1); share > part+2 {
					t.Fatalf("%s has %d %% with %d of %d ready replicas: %v of %v", rev, share, crew.ready[rev], carry, shares, crew.ready)
				}
			}
			crew.apply(p)
			all := 0
			for rev := range crew.ready {
				if !slices.ContainsFunc(c.Last.Draining, func(d plan.Drain) bool { return d.Revision == rev }) {
					all += crew.ready[rev] + crew.starting[rev]
				}
			}
			if all > n+rolling.Surge {
				t.Fatalf("%d run, %d may: %v and %v start", all, n+rolling.Surge, crew.ready, crew.starting)
			}
			if flips == 0 && c.Last.Settled {
				break
			}
			for rev, starting := range crew.starting {
				some := starting
				if step < 100 {
					some = rapid.IntRange(0, starting).Draw(t, "become ready")
				}
				crew.ready[rev] += some
				crew.starting[rev] -= some
			}
		}
		if crew.ready[c.Latest] != n {
			t.Fatalf("settled with %v of %s", crew.ready, c.Latest)
		}
	})
}
