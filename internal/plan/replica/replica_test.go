package replica_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/plan/replica"
	"stationmaster.dev/stationmaster/internal/spec"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is a driver with a clock of its own: processes live in a map, and checks answer what
// healthy says.
type world struct {
	m        *replica.Machine
	now      time.Time
	live     map[int]bool
	healthy  func(container int, kind replica.ProbeKind) bool
	stubborn bool // ignores SIGTERM
	prepare  *spec.Failure
	log      []string
	starts   []time.Time
	removed  int
	fatal    func(format string, args ...any)
}

func newWorld(t interface{ Fatalf(string, ...any) }, w *spec.Workload) *world {
	return &world{
		m: replica.New(w, replica.Timing{}, start), now: start, live: map[int]bool{},
		healthy: func(int, replica.ProbeKind) bool { return true }, fatal: t.Fatalf,
	}
}

func (w *world) handle(ev replica.Event) {
	for _, a := range w.m.Handle(ev, w.now) {
		w.do(a)
	}
	if wake := w.m.Wake(); !wake.IsZero() && !wake.After(w.now) {
		w.fatal("at %v the machine wants to be woken at %v, which isn't later: %+v", w.now, wake, w.m.State)
	}
}

func (w *world) do(a replica.Action) {
	w.log = append(w.log, fmt.Sprintf("%s %d %s", a.Do, a.Container, a.Probe))
	switch a.Do {
	case replica.Prepare:
		w.handle(replica.Prepared{Failure: w.prepare})
	case replica.Start:
		if w.live[a.Container] {
			w.fatal("container %d is started while it runs", a.Container)
		}
		for i := range a.Container {
			if _, isInit := w.m.Spec(i); isInit && w.m.Containers[i].At != replica.Done {
				w.fatal("container %d starts before init %d is done", a.Container, i)
			}
		}
		w.live[a.Container] = true
		w.starts = append(w.starts, w.now)
		w.handle(replica.Started{Container: a.Container, Incarnation: a.Incarnation})
	case replica.PostStart, replica.PreStop:
		w.handle(replica.Hooked{Container: a.Container, Incarnation: a.Incarnation})
	case replica.Check:
		e := replica.Checked{Container: a.Container, Incarnation: a.Incarnation, Probe: a.Probe}
		if !w.healthy(a.Container, a.Probe) {
			e.Err = "connection refused"
		}
		w.handle(e)
	case replica.Terminate:
		if !w.stubborn {
			w.exit(a.Container, 0, "SIGTERM")
		}
	case replica.Kill:
		w.exit(a.Container, -1, "SIGKILL")
	case replica.Remove:
		w.removed++
		for i, alive := range w.live {
			if alive {
				w.fatal("removed while container %d runs", i)
			}
		}
	}
}

func (w *world) exit(i, code int, signal string) {
	if !w.live[i] {
		return
	}
	w.live[i] = false
	w.handle(replica.Exited{Container: i, Incarnation: w.m.Containers[i].Incarnation,
		Failure: &spec.Failure{Reason: spec.Exited, ExitCode: code, Signal: signal}})
}

// pass lets time go by, waking the machine whenever it asks.
func (w *world) pass(d time.Duration) {
	end := w.now.Add(d)
	for {
		wake := w.m.Wake()
		if wake.IsZero() || wake.After(end) {
			break
		}
		w.now = wake
		w.handle(replica.Tick{})
	}
	w.now = end
	w.handle(replica.Tick{})
}

func workload(change func(*spec.Container)) *spec.Workload {
	c := spec.Container{Name: "server", Command: []string{"x"}}
	if change != nil {
		change(&c)
	}
	return &spec.Workload{Containers: []spec.Container{c}, GracePeriod: 5 * time.Second}
}

func probe(p spec.Probe) *spec.Probe {
	if p.Period == 0 {
		p.Period = 10 * time.Second
	}
	if p.FailureThreshold == 0 {
		p.FailureThreshold = 3
	}
	p.SuccessThreshold = max(p.SuccessThreshold, 1)
	p.Timeout = time.Second
	return &p
}

func TestAReplicaBecomesReadySoonAfterItsEngineDoes(t *testing.T) {
	for name, loads := range map[string]time.Duration{"in a moment": 70 * time.Millisecond, "in a second": time.Second, "in a minute": time.Minute} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, workload(func(c *spec.Container) { c.Readiness = probe(spec.Probe{}) }))
			w.healthy = func(int, replica.ProbeKind) bool { return w.now.Sub(start) >= loads }
			w.handle(replica.Tick{})
			if got := w.m.Phase(); got != spec.Loading {
				t.Fatalf("phase %s before it answers, want Loading", got)
			}
			w.pass(loads + max(loads/7, 60*time.Millisecond))
			if got := w.m.Phase(); got != spec.Ready {
				t.Errorf("phase %s, want Ready", got)
			}
			if got := w.m.Timings.Load; got < loads || got > loads+max(loads/7, 60*time.Millisecond) {
				t.Errorf("load took %v, want about %v", got, loads)
			}
		})
	}
}

func TestAReadyReplicaIsCheckedOnceAPeriod(t *testing.T) {
	checks := 0
	w := newWorld(t, workload(func(c *spec.Container) { c.Readiness = probe(spec.Probe{}) }))
	w.healthy = func(int, replica.ProbeKind) bool { checks++; return true }
	w.handle(replica.Tick{})
	w.pass(100 * time.Second)
	if checks != 11 {
		t.Errorf("%d checks in 100 s at a period of 10 s, want 11", checks)
	}
}

func TestProbesRestartAContainerExactlyWhenTheKubeletWould(t *testing.T) {
	tests := map[string]struct {
		probe  func(*spec.Container)
		reason spec.FailureReason
		after  time.Duration
	}{
		"startup: threshold times period after the delay": {
			probe:  func(c *spec.Container) { c.Startup = probe(spec.Probe{InitialDelay: 4 * time.Second}) },
			reason: spec.StartupTimeout, after: 34 * time.Second,
		},
		"liveness: at the threshold'th check": {
			probe: func(c *spec.Container) {
				c.Liveness, c.Readiness = probe(spec.Probe{InitialDelay: 4 * time.Second}), probe(spec.Probe{})
			},
			reason: spec.LivenessFailed, after: 24 * time.Second,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, workload(tc.probe))
			w.healthy = func(int, replica.ProbeKind) bool { return false }
			w.handle(replica.Tick{})
			w.pass(tc.after - time.Millisecond)
			if w.m.Restarts != 0 {
				t.Fatalf("restarted before %v", tc.after)
			}
			w.pass(2 * time.Second)
			if w.m.Restarts != 1 || w.m.Failure == nil || w.m.Failure.Reason != tc.reason {
				t.Errorf("restarts %d, failure %+v; want one, %s", w.m.Restarts, w.m.Failure, tc.reason)
			}
		})
	}
}

func TestReadinessFlapsWithoutRestart(t *testing.T) {
	ok := true
	w := newWorld(t, workload(func(c *spec.Container) { c.Readiness = probe(spec.Probe{}) }))
	w.healthy = func(int, replica.ProbeKind) bool { return ok }
	w.handle(replica.Tick{})
	w.pass(15 * time.Second)
	ok = false
	w.pass(20 * time.Second)
	if w.m.Phase() != spec.Ready {
		t.Errorf("two failures of three made it %s", w.m.Phase())
	}
	w.pass(10 * time.Second)
	if w.m.Phase() != spec.Loading || w.m.Restarts != 0 {
		t.Errorf("phase %s, restarts %d; want Loading, none", w.m.Phase(), w.m.Restarts)
	}
	ok = true
	w.pass(10 * time.Second)
	if w.m.Phase() != spec.Ready {
		t.Errorf("phase %s after it answers again", w.m.Phase())
	}
}

func TestBackoffDoublesAndStartsAnew(t *testing.T) {
	w := newWorld(t, workload(nil))
	w.handle(replica.Tick{})
	var waits []time.Duration
	for range 12 {
		before, n := w.now, len(w.starts)
		w.exit(0, 1, "")
		for len(w.starts) == n {
			w.pass(100 * time.Millisecond)
		}
		waits = append(waits, w.starts[n].Sub(before))
	}
	var want []time.Duration
	for _, seconds := range []int{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		want = append(want, time.Duration(seconds)*time.Second)
	}
	if diff := cmp.Diff(want, waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	w.pass(10 * time.Minute)
	n := len(w.starts)
	w.exit(0, 1, "")
	if len(w.starts) != n+1 {
		t.Error("after ten healthy minutes the restart isn't immediate")
	}
}

func TestInitContainersRunInOrderAndAreRetried(t *testing.T) {
	wl := workload(nil)
	wl.Init = []spec.Container{{Name: "a"}, {Name: "b"}}
	w := newWorld(t, wl)
	w.handle(replica.Tick{})
	w.exit(0, 3, "")
	if w.m.Failure == nil || w.m.Failure.Container != "a" || w.m.Failure.ExitCode != 3 {
		t.Fatalf("failure %+v, want container a's exit 3", w.m.Failure)
	}
	w.pass(time.Second)
	w.exit(0, 0, "")
	w.exit(1, 0, "")
	want := []string{"prepare -1 ", "start 0 ", "start 0 ", "start 1 ", "start 2 "}
	if diff := cmp.Diff(want, w.log); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if w.m.Phase() != spec.Ready || w.m.Failure != nil {
		t.Errorf("phase %s, failure %+v", w.m.Phase(), w.m.Failure)
	}
}

func TestDrainRunsTheHookThenTermThenKill(t *testing.T) {
	w := newWorld(t, workload(func(c *spec.Container) { c.PreStop = &spec.Action{Sleep: time.Second} }))
	w.stubborn = true
	w.handle(replica.Tick{})
	w.log = nil
	w.handle(replica.Drain{})
	if w.m.Phase() != spec.Draining {
		t.Errorf("phase %s, want Draining", w.m.Phase())
	}
	w.pass(4999 * time.Millisecond)
	if diff := cmp.Diff([]string{"preStop 0 ", "terminate 0 "}, w.log); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	w.pass(time.Second)
	if diff := cmp.Diff([]string{"preStop 0 ", "terminate 0 ", "kill 0 ", "remove -1 "}, w.log); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

func TestATerminalFailureIsLookedAtAgainAndHeals(t *testing.T) {
	w := newWorld(t, workload(nil))
	w.prepare = &spec.Failure{Reason: spec.RuntimeNotInstalled, Terminal: true}
	w.handle(replica.Tick{})
	if w.m.Phase() != spec.Failed || !w.m.Failure.RetryAt.IsZero() {
		t.Fatalf("phase %s, failure %+v", w.m.Phase(), w.m.Failure)
	}
	w.prepare = nil
	w.pass(30 * time.Second)
	if w.m.Phase() != spec.Ready || w.m.Failure != nil {
		t.Errorf("phase %s, failure %+v; installing it must heal", w.m.Phase(), w.m.Failure)
	}
}

func TestOneThatNeverGetsReadyFailsItsDeadlineAndGoesOn(t *testing.T) {
	w := newWorld(t, workload(func(c *spec.Container) { c.Readiness = probe(spec.Probe{}) }))
	ok := false
	w.healthy = func(int, replica.ProbeKind) bool { return ok }
	w.handle(replica.Tick{})
	w.pass(599 * time.Second)
	if w.m.Failure != nil {
		t.Fatalf("failed early: %+v", w.m.Failure)
	}
	w.pass(time.Second)
	if w.m.Failure == nil || w.m.Failure.Reason != spec.StartupTimeout || w.m.Phase() != spec.Loading {
		t.Fatalf("phase %s, failure %+v", w.m.Phase(), w.m.Failure)
	}
	ok = true
	w.pass(10 * time.Second)
	if w.m.Phase() != spec.Ready || w.m.Failure != nil {
		t.Errorf("phase %s, failure %+v", w.m.Phase(), w.m.Failure)
	}
}

func TestAnyHistoryKeepsTheRulesAndDrainsToNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		optional := func(label string) *spec.Probe {
			if !rapid.Bool().Draw(t, label) {
				return nil
			}
			return probe(spec.Probe{
				InitialDelay:     time.Duration(rapid.IntRange(0, 5).Draw(t, label+" delay")) * time.Second,
				Period:           time.Duration(rapid.IntRange(1, 20).Draw(t, label+" period")) * time.Second,
				FailureThreshold: rapid.IntRange(1, 4).Draw(t, label+" failures"),
				SuccessThreshold: rapid.IntRange(1, 3).Draw(t, label+" successes"),
			})
		}
		wl := &spec.Workload{GracePeriod: time.Duration(rapid.IntRange(0, 5).Draw(t, "grace")) * time.Second}
		for i := range rapid.IntRange(0, 2).Draw(t, "inits") {
			wl.Init = append(wl.Init, spec.Container{Name: fmt.Sprint("init", i)})
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
			c := spec.Container{Name: fmt.Sprint("c", i), Startup: optional("startup"), Readiness: optional("readiness"), Liveness: optional("liveness")}
			if rapid.Bool().Draw(t, "hooks") {
				c.PreStop, c.PostStart = &spec.Action{Sleep: 1}, &spec.Action{Sleep: 1}
			}
			wl.Containers = append(wl.Containers, c)
		}
		w := newWorld(t, wl)
		w.stubborn = rapid.Bool().Draw(t, "stubborn")
		health := rapid.Map(rapid.Uint64(), func(seed uint64) func(int, replica.ProbeKind) bool {
			return func(i int, k replica.ProbeKind) bool {
				seed = seed*6364136223846793005 + 1442695040888963407
				return seed>>62 != 0
			}
		})
		w.healthy = health.Draw(t, "health")
		w.handle(replica.Tick{})
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				w.pass(time.Duration(rapid.IntRange(1, 30_000).Draw(t, "ms")) * time.Millisecond)
			case 2:
				w.exit(rapid.IntRange(0, len(w.m.Containers)-1).Draw(t, "dies"), rapid.IntRange(0, 2).Draw(t, "code"), "")
			case 3: // the control plane is killed and comes back
				raw, err := json.Marshal(w.m.State)
				if err != nil {
					t.Fatal(err)
				}
				var s replica.State
				if err := json.Unmarshal(raw, &s); err != nil {
					t.Fatal(err)
				}
				w.m = replica.Resume(wl, replica.Timing{}, s, w.now)
				w.handle(replica.Tick{})
			case 4:
				w.handle(replica.Started{Container: 0, Incarnation: 1}) // late news
			}
			if w.m.Phase() == spec.Ready {
				if w.m.Failure != nil {
					t.Fatalf("ready with a failure: %+v", w.m.Failure)
				}
				for i := range w.m.Containers {
					if _, isInit := w.m.Spec(i); !isInit && !w.live[i] {
						t.Fatalf("ready without a process for container %d", i)
					}
				}
			}
		}
		w.handle(replica.Drain{})
		w.pass(time.Minute)
		if w.removed != 1 || !w.m.Wake().IsZero() {
			t.Fatalf("removed %d times, wakes at %v: %+v", w.removed, w.m.Wake(), w.m.State)
		}
		if i := slices.Index(w.log, "remove -1 "); i != len(w.log)-1 {
			t.Fatalf("acts after removal: %v", w.log[i:])
		}
	})
}
