package autoscale_test

import (
	"testing"
	"testing/synctest"
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

// onQueue is a revision that serves with one replica for each 10 in a queue, and may go to zero.
func onQueue() demand.Subject {
	b := scale.DefaultBehavior()
	b.ScaleDown.StabilizationWindow = 20 * time.Second
	return demand.Subject{
		Revision: first.Name, Component: spec.Predictor, Ready: 1, Asked: 1, RolledOut: true,
		Metrics: &demand.Metrics{
			HPA:     scale.HPAConfig{Metrics: []scale.MetricTarget{{Name: "queue", Type: scale.AverageValue, Target: 10}}, MaxScale: 5, Behavior: b},
			Sources: []demand.Source{{Engine: &demand.EngineMetric{Query: "queue"}}},
		},
	}
}

// measures tells the same value each second, with the load that the gateway sees beside.
func (w *world) measures(d time.Duration, queue float64, problem string, samples ...demand.Sample) {
	for range d / time.Second {
		w.board.Measured.Store(first, demand.Measured{
			Values: []scale.Measurement{{Value: queue, Known: problem == ""}}, Problem: problem, At: time.Now(),
		})
		w.during(time.Second, samples...)
	}
}

func TestReplicasFollowAMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, onQueue())
		w.during(10 * time.Second)
		if n := w.want(first); n != 1 {
			t.Errorf("%d replicas before anything was measured", n)
		}
		w.measures(10*time.Second, 33, "", load(1, 0))
		if n := w.want(first); n != 4 {
			t.Errorf("%d replicas for a queue of 33", n)
		}
		w.measures(10*time.Second, 0, "queue: no answer", load(1, 0))
		want, _ := w.board.Wants.Load(first)
		if want.Replicas != 4 || want.Missing != "queue: no answer" {
			t.Errorf("%+v where the metric isn't known", want)
		}
		w.measures(5*time.Second, 4, "", load(1, 0))
		if want, _ := w.board.Wants.Load(first); want.Replicas != 4 || want.Missing != "" {
			t.Errorf("%+v within the stabilization window", want)
		}
		w.measures(20*time.Second, 4, "", load(1, 0))
		if n := w.want(first); n != 1 {
			t.Errorf("%d replicas for a queue of 4", n)
		}
		// Who measured is gone.
		w.during(time.Minute, load(1, 0))
		if want, _ := w.board.Wants.Load(first); want.Replicas != 1 || want.Missing == "" {
			t.Errorf("%+v where nothing is measured any more", want)
		}
	})
}

func TestTheLastReplicaOfABusyRevisionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, onQueue())
		w.measures(2*time.Minute, 0, "", load(0.1, 0))
		if n := w.want(first); n != 1 {
			t.Fatalf("%d replicas of a revision with requests and an empty queue", n)
		}
		w.measures(30*time.Second, 0, "", load(0, 0))
		if n := w.want(first); n != 1 {
			t.Errorf("%d replicas half a minute after its last request", n)
		}
		w.measures(40*time.Second, 0, "", load(0, 0))
		if n := w.want(first); n != 0 {
			t.Fatalf("%d replicas a minute after its last request", n)
		}
		// A request that waits is answered at once; when it has passed, the replica stays a minute.
		w.loop.Report("g", &demand.Report{Second: w.seconds["g"], Samples: []demand.Sample{load(0, 1)}})
		if n := w.want(first); n != 1 {
			t.Errorf("%d replicas for a request that waits", n)
		}
		w.measures(30*time.Second, 0, "", load(0, 0))
		if n := w.want(first); n != 1 {
			t.Errorf("%d replicas half a minute after a request woke it", n)
		}
		// Gateways that say nothing don't say that there are no requests.
		w.measures(2*time.Minute, 0, "")
		if n := w.want(first); n != 1 {
			t.Errorf("%d replicas though no gateway speaks of it", n)
		}
	})
}

func TestARevisionChangesToMetricsAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, toZero())
		w.during(4*time.Second, load(20, 0))
		w.subjects[0].Metrics = onQueue().Metrics
		w.board.Subjects.Store(iris, w.subjects)
		w.measures(10*time.Second, 44, "", load(20, 0))
		if n := w.want(first); n != 5 {
			t.Errorf("%d replicas for a queue of 44", n)
		}
		next := *w.subjects[0].Metrics
		next.HPA.MaxScale = 3
		w.subjects[0].Metrics = &next
		w.board.Subjects.Store(iris, w.subjects)
		w.measures(4*time.Second, 44, "", load(20, 0))
		if n := w.want(first); n != 3 {
			t.Errorf("%d replicas of 3 at most", n)
		}
		w.subjects[0].Metrics = nil
		w.board.Subjects.Store(iris, w.subjects)
		w.during(30*time.Second, load(5, 0))
		if n := w.want(first); n != 1 {
			t.Errorf("%d replicas for 5 requests in flight", n)
		}
	})
}
