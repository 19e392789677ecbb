package autoscale_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/autoscale"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	iris   = spec.ServiceKey{Namespace: "n", Name: "iris"}
	first  = spec.RevisionKey{Namespace: "n", Name: "iris-1"}
	second = spec.RevisionKey{Namespace: "n", Name: "iris-2"}
)

// world is a loop with a reconciler and a platform that do at once what they are told.
type world struct {
	t        *testing.T
	board    demand.Board
	loop     *autoscale.Loop
	subjects []demand.Subject
	seconds  map[string]uint64
}

func newWorld(t *testing.T, subjects ...demand.Subject) *world {
	w := &world{t: t, subjects: subjects, seconds: map[string]uint64{}}
	w.loop = autoscale.New(&w.board, nil)
	w.board.Subjects.Store(iris, subjects)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := w.loop.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	changed := w.board.Changed.Subscribe(ctx)
	reconciled := make(chan struct{})
	go func() {
		defer close(reconciled)
		for range changed {
			w.obey()
		}
	}()
	t.Cleanup(func() { cancel(); <-ended; <-reconciled })
	return w
}

func (w *world) obey() {
	next := make([]demand.Subject, len(w.subjects))
	for i, s := range w.subjects {
		if want, ok := w.board.Wants.Load(spec.RevisionKey{Namespace: "n", Name: s.Revision}); ok {
			s.Asked, s.Ready = want.Replicas, want.Replicas
		}
		next[i] = s
	}
	w.subjects = next
	w.board.Subjects.Store(iris, next)
}

// report tells of a second's load at one gateway.
func (w *world) report(gateway string, samples ...demand.Sample) {
	w.seconds[gateway]++
	w.loop.Report(gateway, &demand.Report{Second: w.seconds[gateway], Samples: samples})
	synctest.Wait()
}

// during reports the same load each second.
func (w *world) during(d time.Duration, samples ...demand.Sample) {
	for range d / time.Second {
		w.report("g", samples...)
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

func (w *world) want(key spec.RevisionKey) int {
	want, ok := w.board.Wants.Load(key)
	if !ok {
		return -1
	}
	return want.Replicas
}

func load(concurrency float64, held int) demand.Sample {
	return demand.Sample{Service: iris, Revision: first.Name, Concurrency: concurrency, Held: held}
}

// toZero is a revision that serves with one replica and may go to zero within seconds.
func toZero() demand.Subject {
	cfg := scale.Default()
	cfg.Window, cfg.GracePeriod, cfg.Target, cfg.MaxScale = 6*time.Second, 0, 10, 5
	return demand.Subject{Revision: first.Name, Component: spec.Predictor, Config: cfg, Ready: 1, Asked: 1, RolledOut: true}
}

func TestReplicasFollowTheLoadToZeroAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, toZero())
		w.during(20*time.Second, load(20, 0))
		if n := w.want(first); n != 3 { // 20 in flight at 7 a replica
			t.Errorf("%d replicas for 20 requests in flight", n)
		}
		w.during(40*time.Second, load(0, 0))
		if n := w.want(first); n != 0 {
			t.Fatalf("%d replicas after 40 idle seconds", n)
		}
		// Half way between two ticks a request begins to wait.
		time.Sleep(time.Second / 2)
		w.loop.Report("g", &demand.Report{Second: w.seconds["g"], Samples: []demand.Sample{load(0, 1)}})
		if n := w.want(first); n != 1 {
			t.Errorf("%d replicas at once for a request that waits", n)
		}
		want, _ := w.board.Wants.Load(first)
		if !strings.Contains(want.Why, "requests are waiting") {
			t.Errorf("why: %s", want.Why)
		}
	})
}

func TestARequestWakesWhatIsAboutToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, toZero())
		w.during(40*time.Second, load(0, 0))
		// The reconciler still runs the last replica, for requests that were on their way to it.
		s := toZero()
		w.board.Subjects.Store(iris, []demand.Subject{s})
		w.loop.Report("g", &demand.Report{Second: w.seconds["g"], Samples: []demand.Sample{load(0, 1)}})
		if n := w.want(first); n != 1 {
			t.Errorf("%d replicas at once for a request that waits", n)
		}
	})
}

func TestNoDataIsNotZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, toZero())
		w.during(20*time.Second, load(20, 0))
		w.loop.Gone("g")
		time.Sleep(10 * time.Minute)
		if n := w.want(first); n != 3 {
			t.Errorf("%d replicas after ten minutes in which no gateway reported, want the 3 of before", n)
		}
	})
}

func TestLoadOfSeveralGatewaysAddsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, toZero())
		for range 20 {
			w.report("a", load(14, 0))
			w.report("b", load(14, 0))
			// What came before its time doesn't count twice.
			w.loop.Report("b", &demand.Report{Second: w.seconds["b"], Samples: []demand.Sample{load(14, 0)}})
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n := w.want(first); n != 4 {
			t.Errorf("%d replicas for 28 requests in flight in all, want 4", n)
		}
	})
}

func TestRequestsOfAGatewayThatFellSilentWakeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := toZero()
		s.Ready, s.Asked = 0, 0
		w := newWorld(t, s)
		w.report("a", load(0, 1))
		w.during(time.Minute, load(0, 0))
		if n := w.want(first); n != 0 {
			t.Errorf("%d replicas a minute after the one gateway with a waiting request fell silent", n)
		}
	})
}

func TestASharedRevisionKeepsOneReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := toZero(), toZero()
		b.Revision, b.RolledOut = second.Name, false
		a.Pinned, b.Pinned = true, true
		w := newWorld(t, a, b)
		idle := load(0, 0)
		other := idle
		other.Revision = second.Name
		w.during(40*time.Second, idle, other)
		if w.want(first) != 1 || w.want(second) != 1 {
			t.Errorf("idle revisions that share the traffic have %d and %d replicas, want one each", w.want(first), w.want(second))
		}
	})
}

func TestARevisionThatLeavesTheBoardIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, toZero())
		w.during(4*time.Second, load(1, 0))
		w.board.Subjects.Delete(iris)
		time.Sleep(2 * scale.Tick)
		if n := w.want(first); n != -1 {
			t.Errorf("there is still a decision, %d", n)
		}
	})
}

func TestAnIdleServiceStaysAtZeroOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := toZero()
		s.Ready, s.Asked = 0, 0
		w := newWorld(t, s)
		w.during(time.Minute, load(0, 0))
		if n := w.want(first); n != 0 {
			t.Errorf("%d replicas, though nobody asked", n)
		}
	})
}
