// Package platform is the seam between what should run and what runs it: a machine's
// processes, a Kubernetes cluster, or memory for tests. Implementations live in the rooms
// below it and pass platformtest.
package platform

import (
	"context"
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

// Assignment asks for a number of replicas of one workload.
type Assignment struct {
	Workload spec.Workload
	// Replicas wanted; zero drains all of this revision's.
	Replicas int
	// Elsewhere says that somebody else sets the number of replicas, as the service's manifest
	// has it: Replicas is what to begin with. A platform on which there is nobody else heeds
	// Replicas all the same.
	Elsewhere bool
	// Startup is how long an engine of this workload took from its start until it was ready, as measured
	// before; zero means not known. A platform may size by it the time that it grants.
	Startup time.Duration
}

// Platform runs workloads. All methods are safe for concurrent use.
type Platform interface {
	// Apply makes the service's assignments what the platform converges to and returns
	// without waiting for it. Replicas of revisions that aren't named, or whose hash differs,
	// are drained. An empty list removes the service. It is idempotent. Errors are about the
	// request itself (errdef.ErrInvalid, ErrUnavailable); failures of replicas show in Observe.
	Apply(ctx context.Context, service spec.ServiceKey, want []Assignment) error
	// Observe returns what runs now. An unknown service has no replicas.
	Observe(ctx context.Context, service spec.ServiceKey) (spec.Observed, error)
	// Changes returns a channel that yields a service each time what Observe would say of it
	// changes. Values for one service coalesce while nobody reads. The channel is closed when
	// ctx ends.
	Changes(ctx context.Context) <-chan spec.ServiceKey
	// Services lists the services that have replicas or assignments, sorted, so that those
	// deleted while the control plane was away can be removed.
	Services(ctx context.Context) ([]spec.ServiceKey, error)
}
