package routing

import (
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

// NextTry is when the first of some replicas is started again after it failed; zero where one of
// them has no failure and may be ready at any moment, or where none says when.
func NextTry(replicas []spec.Replica) time.Time {
	var at time.Time
	for _, r := range replicas {
		switch {
		case r.Phase == spec.Draining:
			continue
		case r.Failure == nil:
			return time.Time{}
		case r.Failure.Terminal || r.Failure.RetryAt.IsZero():
			continue
		}
		if at.IsZero() || r.Failure.RetryAt.Before(at) {
			at = r.Failure.RetryAt
		}
	}
	return at
}
