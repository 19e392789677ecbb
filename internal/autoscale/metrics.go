package autoscale

import (
	"reflect"
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

const (
	// fresh is how long a measurement counts. Several readings may fail before it is missing.
	fresh = 30 * time.Second
	// idle is how long a revision that scales on metrics must be without a request before its
	// last replica goes.
	idle = time.Minute
)

// activity is what is known of a revision's requests, for one that doesn't scale on them.
type activity struct {
	// heard is when a gateway spoke of it last, and active when there were requests; until a first
	// word it counts as active.
	heard, active time.Time
}

func (a *activity) note(now time.Time, s *demand.Sample) {
	a.heard = now
	if s.Held > 0 || s.Concurrency > 0 || s.RPS > 0 {
		a.active = now
	}
}

// busy reports whether the last replica has to stay: there were requests a moment ago, or nobody
// says that there were none.
func (a *activity) busy(now time.Time) bool {
	return now.Sub(a.heard) > silence || now.Sub(a.active) < idle
}

// byMetrics decides on a revision by the metrics that were measured.
func (l *Loop) byMetrics(now time.Time, key spec.RevisionKey, s *demand.Subject, o scale.Observed) (scale.Decision, string, error) {
	sc := l.scalers[key]
	switch {
	case sc == nil || sc.hpa == nil:
		h, err := scale.NewHPA(s.Metrics.HPA, now, o)
		if err != nil {
			return scale.Decision{}, "", err
		}
		sc = &scaler{hpa: h, metrics: s.Metrics.HPA, activity: activity{active: now}}
		l.scalers[key] = sc
	case !reflect.DeepEqual(sc.metrics, s.Metrics.HPA):
		if err := sc.hpa.Update(s.Metrics.HPA); err != nil {
			return scale.Decision{}, "", err
		}
		sc.metrics = s.Metrics.HPA
	}
	o.Busy = sc.busy(now)
	measured, any := l.board.Measured.Load(key)
	values, missing := measured.Values, measured.Problem
	switch {
	case !any:
		// It will be measured in a moment.
		values = nil
	case now.Sub(measured.At) > fresh:
		values, missing = nil, "its metrics weren't measured for a while"
	}
	return sc.hpa.Decide(now, o, values), missing, nil
}
