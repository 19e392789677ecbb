package meter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/gateway/meter"
	"stationmaster.dev/stationmaster/internal/spec"
)

var first = meter.Key{Service: spec.ServiceKey{Namespace: "team", Name: "iris"}, Revision: "iris-00001"}

func TestLoadIsTheTimeThatRequestsWereThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all meter.Loads
		l := all.Of(first)
		l.Enter(time.Now(), true)
		time.Sleep(time.Second / 2)
		l.Enter(time.Now(), true)
		l.Enter(time.Now(), false) // from another revision
		if !l.Hold() || l.Hold() {
			t.Error("the first that waits is not the only one")
		}
		time.Sleep(time.Second / 2)
		report := all.Report(time.Now(), nil)
		sample := demand.Sample{Service: first.Service, Revision: first.Revision, Held: 2, Concurrency: 2, RPS: 2}
		if d := cmp.Diff(&demand.Report{Second: 1, Samples: []demand.Sample{sample}}, report); d != "" {
			t.Errorf("after a second (-want +got):\n%s", d)
		}
		l.Unhold()
		early := all.Early(report)
		sample.Held = 1
		if d := cmp.Diff(&demand.Report{Second: 1, Early: true, Samples: []demand.Sample{sample}}, early); d != "" {
			t.Errorf("early (-want +got):\n%s", d)
		}
		for range 3 {
			l.Leave(time.Now())
		}
		time.Sleep(time.Second)
		sample.Concurrency, sample.RPS = 0, 0
		if d := cmp.Diff(&demand.Report{Second: 2, Samples: []demand.Sample{sample}}, all.Report(time.Now(), early)); d != "" {
			t.Errorf("after another one (-want +got):\n%s", d)
		}
		all.Prune(func(meter.Key) bool { return false })
		if r := all.Report(time.Now(), nil); len(r.Samples) != 0 {
			t.Errorf("what is gone is told of: %+v", r)
		}
	})
}

func TestAnswersAreKeptForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all meter.AllAnswers
		a := all.Renew(map[meter.Key]bool{first: true})[first]
		a.Answered(false, false, 3*time.Millisecond)
		a.Answered(true, false, 3*time.Millisecond)
		a.Answered(true, true, 3*time.Millisecond) // nobody heard it
		a.Began(time.Millisecond)
		a.Heard(true)
		a.Heard(false)
		(*meter.Answers)(nil).Began(time.Millisecond)
		want := evidence.Counts{
			Requests: 2, Errors: 1, Compared: 2, Differ: 1,
			Latency: evidence.Histogram{evidence.Bucket(3 * time.Millisecond): 3}, First: evidence.Histogram{evidence.Bucket(time.Millisecond): 1},
		}
		told := func() []demand.Answers { return all.Report(time.Now()) }
		if got := told(); len(got) != 1 || got[0].Since == 0 || !cmp.Equal(want, got[0].Counts) {
			t.Errorf("told %+v, want %+v", got, want)
		}
		all.Renew(nil)
		time.Sleep(time.Minute)
		if back := all.Renew(map[meter.Key]bool{first: true})[first]; back != a {
			t.Error("it counts anew when it is back")
		}
		all.Renew(nil)
		time.Sleep(time.Minute + time.Second)
		if got := told(); got != nil {
			t.Errorf("what left long ago is told of: %+v", got)
		}
	})
}
