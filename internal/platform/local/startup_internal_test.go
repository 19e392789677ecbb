package local

import (
	"reflect"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

func TestAStartupProbeWaitsForStartsLikeThoseBefore(t *testing.T) {
	probe := func(delay, period, failures int) *spec.Probe {
		return &spec.Probe{InitialDelay: time.Duration(delay) * time.Second, Period: time.Duration(period) * time.Second, FailureThreshold: failures, SuccessThreshold: 1}
	}
	for title, tc := range map[string]struct {
		startup, liveness *spec.Probe
		measured          time.Duration
		// want is how often the startup probe may fail; 0 is for no such probe.
		want int
	}{
		"one that is too short is stretched":           {startup: probe(0, 10, 6), measured: 5 * time.Minute, want: 96},
		"one that is long enough stays":                {startup: probe(0, 10, 360), measured: 5 * time.Minute, want: 360},
		"nothing was measured":                         {startup: probe(0, 10, 6), want: 6},
		"its delay counts":                             {startup: probe(60, 10, 3), measured: 100 * time.Second, want: 30},
		"liveness alone would end a start":             {liveness: probe(30, 10, 3), measured: 100 * time.Second, want: 36},
		"liveness that waits longer goes on to do so":  {liveness: probe(600, 10, 3), measured: 100 * time.Second, want: 63},
		"nothing would end a start, so nothing is new": {measured: time.Hour},
	} {
		t.Run(title, func(t *testing.T) {
			w := spec.Workload{Containers: []spec.Container{{Name: "engine", Startup: tc.startup, Liveness: tc.liveness}, {Name: "beside"}}}
			before := []spec.Container{w.Containers[0], w.Containers[1]}
			got := granted(w, tc.measured)
			switch p := got.Containers[0].Startup; {
			case tc.want == 0:
				if p != nil {
					t.Errorf("the startup probe %+v is new", p)
				}
			case p == nil || p.FailureThreshold != tc.want:
				t.Errorf("the startup probe is %+v, want %d failures", p, tc.want)
			}
			if !reflect.DeepEqual(w.Containers, before) || got.Containers[0].Liveness != tc.liveness {
				t.Error("it changed more than that")
			}
		})
	}
}
