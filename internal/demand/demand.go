// Package demand holds what passes between gateways, which measure the load, the autoscaler,
// which decides on replicas, and the reconciler, which says what may scale and runs what was
// decided. None of the three imports another.
package demand

import (
	"time"

	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// Report is what one gateway saw of all revisions that it routes to. It is immutable.
type Report struct {
	// Second counts the gateway's reports of a whole second. A report made between two, because
	// a request began to wait where nothing runs, repeats the number and the averages of the one
	// before it and has what waits by then.
	Second uint64 `json:"second"`
	// Early says that it is one made between two seconds.
	Early bool `json:"early,omitempty"`
	// Samples are in no order, one for each revision, those without any load too.
	Samples []Sample `json:"samples"`
	// Answers are of the revisions that share their component's traffic or did a minute ago, in no
	// order. A report that is made between two seconds has none.
	Answers []Answers `json:"answers,omitempty"`
}

// Answers is what a gateway counted of one revision's answers.
type Answers struct {
	Service  spec.ServiceKey `json:"service"`
	Revision string          `json:"revision"`
	// Since tells these counters from those of the same gateway that began at another time; two
	// reports with the same count on from the same beginning.
	Since int64 `json:"since"`
	evidence.Counts
}

// Sample is a gateway's load for one revision.
type Sample struct {
	Service spec.ServiceKey `json:"service"`
	// Revision is the revision's name; it implies the component.
	Revision string `json:"revision"`
	// Concurrency is the time-weighted average, over the report's second, of the requests under
	// way, those that wait included.
	Concurrency float64 `json:"concurrency,omitempty"`
	// RPS is the number of requests that began in that second, divided by its length in seconds.
	RPS float64 `json:"rps,omitempty"`
	// Held counts the requests that wait now for this revision: for its first replica, or for
	// one that is free.
	Held int `json:"held,omitempty"`
}

// Subject is a revision that an autoscaler decides on.
type Subject struct {
	Revision  string
	Component spec.Component
	// Config says how it scales on its requests; with Metrics it isn't read.
	Config scale.Config
	// Metrics says how it scales on metrics of any kind; nil means on its requests.
	Metrics *Metrics
	// Ready and Asked are the replicas that answer, and those that the platform was told to run.
	Ready, Asked int
	// RolledOut says that it was wholly ready once, so that it may go to zero.
	RolledOut bool
	// Pinned says that one replica at least is kept, whatever is decided: it shares its
	// component's traffic with another revision.
	Pinned bool
}

// Want is how many replicas a revision should have.
type Want struct {
	Replicas int
	// Why is a sentence without a stop.
	Why string
	// Missing says why a metric isn't known, so that the number may not follow it; empty means
	// that all are known. It is a sentence without a stop.
	Missing string
	At      time.Time
}

// Board is where the reconciler writes what may scale and the autoscaler what it wants. The zero
// Board is empty, and safe for concurrent use.
type Board struct {
	// Subjects holds those of each service that has any.
	Subjects state.Map[spec.ServiceKey, []Subject]
	// Wants holds the latest decisions. A revision without one keeps the replicas it has.
	Wants state.Map[spec.RevisionKey, Want]
	// Measured holds the latest values of the metrics of those that scale on some.
	Measured state.Map[spec.RevisionKey, Measured]
	// Changed tells of services for which a decision differs from the one before.
	Changed state.Feed[spec.ServiceKey]
}
