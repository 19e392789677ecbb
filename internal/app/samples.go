package app

import (
	"context"

	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/measure"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/state"
)

// tellPicks publishes what a sampler finds for those who pick replicas, until ctx ends.
func tellPicks(ctx context.Context, from *measure.Sampler, to *state.Topic[pick.Samples]) error {
	for {
		samples, changed := from.Watch()
		out := pick.Samples{}
		for _, s := range samples.All() {
			if s.Address != "" && s.Reading != nil {
				out[s.Address] = sampleOf(s)
			}
		}
		to.Publish(&out)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func sampleOf(s *measure.Sample) pick.Sample {
	value := func(n adapter.Name) float64 {
		if v, ok := s.Value(n); ok {
			return v
		}
		return -1
	}
	return pick.Sample{
		At: s.At, KVUse: value(adapter.KVCacheUsage), Running: value(adapter.Running), Waiting: value(adapter.Waiting),
		Adapters: s.Reading.Adapters, MaxAdapters: s.Reading.MaxAdapters,
	}
}
