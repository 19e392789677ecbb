package routing

import (
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

func TestTheNextTryIsTheFirstOfThoseThatFailed(t *testing.T) {
	t0 := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	failed := func(after time.Duration) spec.Replica {
		return spec.Replica{Phase: spec.Failed, Failure: &spec.Failure{Reason: spec.Exited, RetryAt: t0.Add(after)}}
	}
	loading := spec.Replica{Phase: spec.Loading}
	draining := spec.Replica{Phase: spec.Draining}
	terminal := spec.Replica{Phase: spec.Failed, Failure: &spec.Failure{Terminal: true}}
	for name, tc := range map[string]struct {
		replicas []spec.Replica
		want     time.Duration // negative for not known
	}{
		"none":                          {nil, -1},
		"one in its back-off":           {[]spec.Replica{failed(time.Minute)}, time.Minute},
		"the nearer of two":             {[]spec.Replica{failed(time.Minute), failed(time.Second)}, time.Second},
		"one that loads may be ready":   {[]spec.Replica{failed(time.Minute), loading}, -1},
		"one that drains says nothing":  {[]spec.Replica{draining, failed(time.Minute)}, time.Minute},
		"one that can't run says never": {[]spec.Replica{terminal}, -1},
		"beside one that can't run":     {[]spec.Replica{terminal, failed(time.Minute)}, time.Minute},
	} {
		got := NextTry(tc.replicas)
		if tc.want < 0 && !got.IsZero() || tc.want >= 0 && !got.Equal(t0.Add(tc.want)) {
			t.Errorf("%s: %v, want %v later", name, got, tc.want)
		}
	}
}
