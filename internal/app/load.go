package app

import (
	"context"

	"stationmaster.dev/stationmaster/internal/autoscale"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/state"
)

// followLoad hands what the gateway of this process reports to the autoscaler until ctx ends.
func followLoad(ctx context.Context, load *state.Topic[demand.Report], to *autoscale.Loop) error {
	for {
		r, changed := load.Watch()
		if r != nil {
			to.Report("", r)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
