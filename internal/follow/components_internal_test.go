package follow

import (
	"testing"
	"time"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestAComponentTellsWhenItIsTriedAgainAndThatItWasStopped(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	o := spec.Observed{Replicas: []spec.Replica{{
		Revision: spec.RevisionKey{Namespace: "team", Name: "r1"}, Phase: spec.Failed, Failure: &spec.Failure{Reason: spec.Exited, RetryAt: at},
	}}}
	var is v1beta1.InferenceService
	is.Namespace = "team"
	is.Status.Components = map[v1beta1.ComponentType]v1beta1.ComponentStatusSpec{"predictor": {LatestCreatedRevision: "r1"}}
	var r smv1alpha1.Route
	if c := components(&is, &r, o)[0]; !c.NextTry.Equal(at) || c.Stopped {
		t.Errorf("the first revision, that crashes: next try %v, stopped %v", c.NextTry, c.Stopped)
	}
	r.Spec.Components = []smv1alpha1.ComponentRoute{{Component: "predictor", Targets: []smv1alpha1.RouteTarget{{RevisionName: "r0"}}}}
	if c := components(&is, &r, o)[0]; !c.NextTry.IsZero() {
		t.Errorf("another revision's crash counts: %v", c.NextTry)
	}
	r.Spec.Components[0].Targets[0].RevisionName = "r1"
	is.Annotations = map[string]string{stop: "true"}
	if c := components(&is, &r, o)[0]; !c.NextTry.Equal(at) || !c.Stopped {
		t.Errorf("what serves, stopped: next try %v, stopped %v", c.NextTry, c.Stopped)
	}
}
