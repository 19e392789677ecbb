package kube

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/platform/kube/lws"
)

func TestAStartupProbeWaitsForStartsLikeThoseBefore(t *testing.T) {
	probe := func(delay, period, failures int32) *corev1.Probe {
		return &corev1.Probe{InitialDelaySeconds: delay, PeriodSeconds: period, FailureThreshold: failures}
	}
	for title, tc := range map[string]struct {
		startup, liveness *corev1.Probe
		measured          time.Duration
		// want is how often the startup probe may fail; 0 is for no such probe.
		want int32
	}{
		"one that is too short is stretched":           {startup: probe(0, 10, 6), measured: 5 * time.Minute, want: 96},
		"one that is long enough stays":                {startup: probe(0, 10, 360), measured: 5 * time.Minute, want: 360},
		"its delay counts":                             {startup: probe(60, 10, 3), measured: 100 * time.Second, want: 30},
		"a period that doesn't divide is rounded up":   {startup: probe(0, 7, 1), measured: 0, want: 9},
		"Kubernetes' defaults count":                   {startup: probe(0, 0, 0), measured: 10 * time.Second, want: 9},
		"liveness alone would end a start":             {liveness: probe(30, 10, 3), measured: 100 * time.Second, want: 36},
		"liveness that waits longer goes on to do so":  {liveness: probe(600, 10, 3), measured: 100 * time.Second, want: 63},
		"nothing would end a start, so nothing is new": {measured: time.Hour},
	} {
		t.Run(title, func(t *testing.T) {
			c := corev1.Container{StartupProbe: tc.startup, LivenessProbe: tc.liveness}
			grant(&c, tc.measured)
			switch {
			case tc.want == 0:
				if c.StartupProbe != nil {
					t.Errorf("the startup probe %+v is new", c.StartupProbe)
				}
			case c.StartupProbe == nil || c.StartupProbe.FailureThreshold != tc.want:
				t.Errorf("the startup probe is %+v, want %d failures", c.StartupProbe, tc.want)
			}
			if tc.liveness != nil && *c.LivenessProbe != *tc.liveness {
				t.Errorf("the liveness probe became %+v", c.LivenessProbe)
			}
		})
	}
}

func TestAMeasuredStartReplacesNoPod(t *testing.T) {
	running := func(n int32, hash, seconds string) client.Object {
		d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &n}}
		d.Labels, d.Annotations = map[string]string{labelHash: hash}, map[string]string{annotationStartup: seconds}
		return d
	}
	groups := func(asked, there int64, seconds string) client.Object {
		u := lws.Named("default", "iris-1")
		u.Object["spec"], u.Object["status"] = map[string]any{"replicas": asked}, map[string]any{"replicas": there}
		u.SetLabels(map[string]string{labelHash: "a"})
		u.SetAnnotations(map[string]string{annotationStartup: seconds})
		return u
	}
	for title, tc := range map[string]struct {
		live           client.Object
		measured, want time.Duration
	}{
		"one that doesn't run is sized by it":      {measured: 1500 * time.Millisecond, want: 2 * time.Second},
		"nothing was measured":                     {},
		"one that runs as written goes on so":      {live: running(1, "a", ""), measured: time.Minute},
		"one that runs by another stays with that": {live: running(1, "a", "9"), measured: time.Minute, want: 9 * time.Second},
		"one at zero is sized by it":               {live: running(0, "a", "9"), measured: time.Minute, want: time.Minute},
		"another shape of the same name":           {live: running(1, "b", "9"), measured: time.Minute, want: time.Minute},
		"groups that run stay with theirs":         {live: groups(1, 1, "9"), measured: time.Minute, want: 9 * time.Second},
		"groups that end stay with theirs":         {live: groups(0, 1, "9"), measured: time.Minute, want: 9 * time.Second},
		"groups at zero are sized by it":           {live: groups(0, 0, "9"), measured: time.Minute, want: time.Minute},
		"somebody's words":                         {live: running(1, "a", "long"), measured: time.Minute},
	} {
		t.Run(title, func(t *testing.T) {
			if got := startupOf(tc.live, "a", tc.measured); got != tc.want {
				t.Errorf("it is sized by %v, want %v", got, tc.want)
			}
		})
	}
}
