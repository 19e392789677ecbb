package scale_test

import (
	"flag"
	"math"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/scale/scaletest"
)

var recordings = flag.String("recordings", "../../test/golden/kpa", "folder with recordings of Knative's autoscaler")

// TestKnativesOwnDecisions replays what Knative's autoscaler did, recorded by
// tools/kpa-golden. With StaleAfter at zero the replicas, the wish, the mode, both averages,
// the excess burst and whether traffic must pass the gateway are the same at each decision, but
// for one rule: where a whole window has no sample nothing is known, and the replicas stay as
// they are. Knative repeats its last wish then, or takes silence for zero load where all
// traffic is proxied; we never have fewer replicas than it.
func TestKnativesOwnDecisions(t *testing.T) {
	for _, tr := range load(t) {
		t.Run(tr.Name, func(t *testing.T) {
			for i, d := range replay(t, tr, 0) {
				sec := tr.At[i]
				if d.Reasons.Has(scale.NoData) {
					if d.Replicas < tr.Replicas[i] || d.Replicas < d.From {
						t.Errorf("%d s: without data %d replicas after %d, and Knative has %d", sec, d.Replicas, d.From, tr.Replicas[i])
					}
					continue
				}
				if d.Replicas != tr.Replicas[i] || d.Wanted != tr.Wanted[i] {
					t.Errorf("%d s: %d replicas of %d wanted, and Knative has %d of %d (%v)", sec, d.Replicas, d.Wanted, tr.Replicas[i], tr.Wanted[i], d)
				}
				if (d.Mode == scale.Panic) != (tr.Panic[i] == 1) {
					t.Errorf("%d s: mode %s, and Knative's panic is %d", sec, d.Mode, tr.Panic[i])
				}
				if d.Hold != (tr.Proxy[i] == 1) || d.ExcessBurst != tr.ExcessBurst[i] {
					t.Errorf("%d s: hold %v and excess burst %d, and Knative's proxy mode is %d and its burst %d (%v)", sec, d.Hold, d.ExcessBurst, tr.Proxy[i], tr.ExcessBurst[i], d)
				}
				if !near(d.Stable.Value, tr.StableValue[i]) || !near(d.Panic.Value, tr.PanicValue[i]) {
					t.Errorf("%d s: averages %v and %v, and Knative's are %v and %v", sec, d.Stable.Value, d.Panic.Value, tr.StableValue[i], tr.PanicValue[i])
				}
			}
		})
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6 }

func load(t testing.TB) []scaletest.Trace {
	t.Helper()
	traces, err := scaletest.Load(*recordings)
	if err != nil {
		t.Fatal(err)
	}
	return traces
}

func replay(t testing.TB, tr scaletest.Trace, staleAfter time.Duration) []scale.Decision {
	t.Helper()
	cfg, err := tr.Config(staleAfter)
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := tr.Replay(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(decisions) != len(tr.Replicas) || len(decisions) == 0 {
		t.Fatalf("%d decisions of %d recorded", len(decisions), len(tr.Replicas))
	}
	return decisions
}
