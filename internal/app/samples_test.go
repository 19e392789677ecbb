package app

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/measure"
	"stationmaster.dev/stationmaster/internal/pick"
)

func TestWhatAnEngineToldReachesWhoPicks(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	for name, tc := range map[string]struct {
		reading adapter.Reading
		want    pick.Sample
	}{
		"all of it": {
			adapter.Reading{Values: map[adapter.Name]float64{adapter.KVCacheUsage: .5, adapter.Running: 3, adapter.Waiting: 1}, Adapters: []string{"sql"}, MaxAdapters: 4},
			pick.Sample{At: at, KVUse: .5, Running: 3, Waiting: 1, Adapters: []string{"sql"}, MaxAdapters: 4},
		},
		"nothing": {adapter.Reading{}, pick.Sample{At: at, KVUse: -1, Running: -1, Waiting: -1}},
	} {
		if diff := cmp.Diff(tc.want, sampleOf(&measure.Sample{At: at, Reading: &tc.reading})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
