package app

import (
	"context"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/state"
)

// reporters are those who hear what gateways report.
type reporters []receiver

// Report tells all of them.
func (rs reporters) Report(gateway string, r *demand.Report) {
	for _, to := range rs {
		to.Report(gateway, r)
	}
}

// Gone tells all of them.
func (rs reporters) Gone(gateway string) {
	for _, to := range rs {
		to.Gone(gateway)
	}
}

// followLoad hands on what the gateway of this process reports until ctx ends.
func followLoad(ctx context.Context, load *state.Topic[demand.Report], to receiver) error {
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
