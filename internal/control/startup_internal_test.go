package control

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

func TestAStartIsMeasuredByTheRevisionsOfTheSameModels(t *testing.T) {
	revision := func(uri string, load time.Duration) smv1alpha1.Revision {
		r := smv1alpha1.Revision{Spec: smv1alpha1.RevisionSpec{Models: []smv1alpha1.RevisionModel{{URI: uri}}}}
		if load > 0 {
			r.Status.Startup = &smv1alpha1.StartupDurations{Load: &metav1.Duration{Duration: load}}
		}
		return r
	}
	comp := &component{revisions: []smv1alpha1.Revision{
		revision("s3://m/small", time.Second), revision("s3://m/large", time.Minute), revision("s3://m/large", 2*time.Minute), revision("s3://m/large", 0),
	}}
	comp.revisions[0].Status.Startup.Pull = &metav1.Duration{Duration: time.Hour}
	new := revision("s3://m/new", 0)
	for i, want := range []time.Duration{time.Second, 2 * time.Minute, 2 * time.Minute, 2 * time.Minute} {
		if got := comp.startup(&comp.revisions[i]); got != want {
			t.Errorf("revision %d: %v, want %v", i, got, want)
		}
	}
	if got := comp.startup(&new); got != 0 {
		t.Errorf("a model that never started: %v", got)
	}
}
