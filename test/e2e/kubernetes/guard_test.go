package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

// testGuarded rolls out by itself what is good, and takes back what is slower than it may be, by
// what two gateways counted.
func (s *installation) testGuarded(t *testing.T) {
	ns := namespace(t, restricted)
	guarded := func(value string, more map[string]string) *unstructured.Unstructured {
		is := iris(t, ns, "oci://"+irisImage, shape(value))
		annotations := map[string]string{
			"stationmaster.dev/rollout-steps": "20,50", "stationmaster.dev/rollout-bake": "3s", "stationmaster.dev/rollout-min-requests": "20",
		}
		maps.Copy(annotations, more)
		is.SetAnnotations(annotations)
		return is
	}
	service := guarded("1", nil)
	s.start(t, service)
	l := startLoad(t, 50, s.rest(ns, "iris"), s.grpc(t, ns, "iris"))
	seen := map[int]bool{}
	state := func() (smv1alpha1.GuardedRollout, string) {
		now := current(t, service)
		raw, _, _ := unstructured.NestedString(now.Object, "status", "annotations", smv1alpha1.RolloutAnnotation)
		rolledOut, _, _ := unstructured.NestedString(now.Object, "status", "components", "predictor", "latestRolledoutRevision")
		all := map[string]smv1alpha1.GuardedRollout{}
		if raw != "" {
			if err := json.Unmarshal([]byte(raw), &all); err != nil {
				t.Fatal(err)
			}
		}
		return all["predictor"], rolledOut
	}
	apply(t, guarded("2", nil))
	eventually(t, "it goes through all steps", func() error {
		g, rolledOut := state()
		if g.Phase != "" {
			seen[g.Step] = true
		}
		if rolledOut != "iris-predictor-00002" {
			return fmt.Errorf("step %d of %d, %s: %s", g.Step, g.Steps, g.Phase, g.Why)
		}
		return nil
	})
	if !seen[1] || !seen[2] {
		t.Errorf("the steps seen are %v", seen)
	}
	// Nothing that goes through a cluster's network is answered within a millisecond.
	apply(t, guarded("3", map[string]string{"stationmaster.dev/rollout-max-p99": "1ms"}))
	eventually(t, "it is taken back", func() error {
		g, _ := state()
		if g.Phase != smv1alpha1.RolloutRolledBack {
			return fmt.Errorf("step %d of %d, %s: %s", g.Step, g.Steps, g.Phase, g.Why)
		}
		t.Logf("%s at %d %%: %s", g.Phase, g.Percent, g.Why)
		if !strings.HasPrefix(g.Why, "p99 ") || !strings.Contains(g.Why, "(limit 1ms)") {
			t.Errorf("why: %s", g.Why)
		}
		return nil
	})
	l.end(t)
	// Gateways follow within seconds.
	eventually(t, "all requests meet the stable revision", func() error {
		if met := s.tally(t, ns, 80); met["iris-predictor-00002"] != 80 {
			return fmt.Errorf("%v", met)
		}
		return nil
	})
}
