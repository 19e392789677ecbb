package spec

import "time"

// Guard is how the traffic of a component moves to a new revision: in steps, each of which is held
// for a while and measured, and back where a limit is exceeded.
type Guard struct {
	// Steps are percents of the traffic, ascending, 1 to 99; all of it follows the last.
	Steps []int
	// Bake is how long each step lasts at least.
	Bake time.Duration
	// MinRequests is how many requests each step needs at least, 1 or more.
	MinRequests int
	// Limits are those on the new revision, each metric once at most.
	Limits []Limit
}

// Limit is the most that a metric may be.
type Limit struct {
	Metric Metric
	// Max is a share of 0 to 1, or seconds, as the metric has it.
	Max float64
}

// Has reports whether a guard limits a metric; a nil one limits nothing.
func (g *Guard) Has(m Metric) bool {
	if g == nil {
		return false
	}
	for _, l := range g.Limits {
		if l.Metric == m {
			return true
		}
	}
	return false
}

// Metric is what of a revision's answers is limited.
type Metric string

// The metrics of a Limit.
const (
	// ErrorRatio is the share of requests that failed on the server's side.
	ErrorRatio Metric = "errors"
	// P99 is the time within which 99 of 100 requests are answered, in seconds.
	P99 Metric = "p99"
	// TTFT is the time within which 99 of 100 streams have their first data, in seconds.
	TTFT Metric = "ttft"
	// Drift is the share of compared answers that say something else than the stable revision.
	Drift Metric = "drift"
)
