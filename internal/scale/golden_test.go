package scale_test

import (
	"math"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/scale/scaletest"
)

// TestKnativesOwnDecisions replays what Knative's autoscaler did, recorded by
// tools/kpa-golden. With StaleAfter at zero the replicas, the wish, the mode, both averages and
// the excess burst are the same at each decision. Two rules differ, and only where Knative has
// no data (its stableValue is -1 then): our wish is unknown where Knative repeats its last one,
// and the replicas then stay as they are.
func TestKnativesOwnDecisions(t *testing.T) {
	for _, tr := range load(t) {
		t.Run(tr.Name, func(t *testing.T) {
			for i, d := range replay(t, tr, 0) {
				noData := tr.StableValue[i] < 0 || d.Reasons.Has(scale.NoData)
				if d.Replicas != tr.Replicas[i] {
					t.Errorf("0:%02d: %d replicas, and Knative has %d (%v)", tr.At[i], d.Replicas, tr.Replicas[i], d)
				}
				if d.Wanted != tr.Wanted[i] && !noData {
					t.Errorf("0:%02d: wants %d, and Knative %d (%v)", tr.At[i], d.Wanted, tr.Wanted[i], d)
				}
				if (d.Mode == scale.Panic) != (tr.Panic[i] == 1) {
					t.Errorf("0:%02d: mode %s, and Knative's panic is %d", tr.At[i], d.Mode, tr.Panic[i])
				}
				if d.Hold != (tr.Proxy[i] == 1) {
					t.Errorf("0:%02d: hold is %v, and Knative's proxy mode is %d (%v)", tr.At[i], d.Hold, tr.Proxy[i], d)
				}
				if noData {
					continue
				}
				if !near(d.Stable.Value, tr.StableValue[i]) || !near(d.Panic.Value, tr.PanicValue[i]) {
					t.Errorf("0:%02d: averages %v and %v, and Knative's are %v and %v", tr.At[i],
						d.Stable.Value, d.Panic.Value, tr.StableValue[i], tr.PanicValue[i])
				}
				if d.ExcessBurst != tr.ExcessBurst[i] {
					t.Errorf("0:%02d: excess burst %d, and Knative's is %d", tr.At[i], d.ExcessBurst, tr.ExcessBurst[i])
				}
			}
		})
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6 }

func load(t testing.TB) []scaletest.Trace {
	t.Helper()
	traces, err := scaletest.Load("../../test/golden/kpa")
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
