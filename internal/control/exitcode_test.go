package control

import (
	"testing"

	"stationmaster.dev/stationmaster/internal/spec"
)

func TestLastFailureInfoHasAnExitCodeOnlyWhereAProcessEnded(t *testing.T) {
	tests := map[string]struct {
		failure spec.Failure
		want    int32
	}{
		"no process ran":                 {spec.Failure{Reason: spec.RuntimeNotInstalled, ExitCode: -1}, 0},
		"the model's bytes didn't come":  {spec.Failure{Reason: spec.ModelPullFailed, ExitCode: -1}, 0},
		"it exited":                      {spec.Failure{Reason: spec.Exited, ExitCode: 3}, 3},
		"killed for memory":              {spec.Failure{Reason: spec.OOMKilled, ExitCode: -1, Signal: "SIGKILL"}, 137},
		"ended by a signal of its own":   {spec.Failure{Reason: spec.Exited, ExitCode: -1, Signal: "SIGSEGV"}, 139},
		"stopped for its startup probe":  {spec.Failure{Reason: spec.StartupTimeout, ExitCode: -1, Signal: "SIGTERM"}, 143},
		"ended, and nobody can tell how": {spec.Failure{Reason: spec.Exited, ExitCode: -1}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := replica("r1", spec.Failed, &tc.failure)
			if got := failureInfo(&r).ExitCode; got != tc.want {
				t.Errorf("exit code %d, want %d", got, tc.want)
			}
		})
	}
}
