package gateway

import (
	"math"
	"math/rand/v2"
	"testing"

	"stationmaster.dev/stationmaster/internal/route"
)

func TestTrafficIsSplitAsAskedOverAnyStretchOfRequests(t *testing.T) {
	e := []route.Endpoint{{HTTP: "127.0.0.1:1"}}
	for name, weights := range map[string][]int{
		"ten percent": {90, 10}, "one percent": {99, 1}, "halves": {50, 50}, "four": {70, 15, 10, 5},
	} {
		for other, skip := range map[string]func(rnd *rand.Rand, i int) int{
			"alone":               func(*rand.Rand, int) int { return 0 },
			"by turns":            func(*rand.Rand, int) int { return 1 },
			"beside a busy one":   func(*rand.Rand, int) int { return 12 },
			"beside irregular":    func(rnd *rand.Rand, _ int) int { return rnd.IntN(5) },
			"with its own copies": func(_ *rand.Rand, i int) int { return i % 2 },
		} {
			// Its own for each case, which come in any order: what is drawn must not depend on that.
			rnd := rand.New(rand.NewPCG(1, 2))
			b := &route.Backend{}
			for i, w := range weights {
				b.Targets = append(b.Targets, route.Target{Revision: string(rune('a' + i)), Weight: w, Endpoints: e})
			}
			var ts turns
			ts.begin(rnd.Uint32())
			got := map[string]int{}
			const n = 10_000
			for i := range n {
				for range skip(rnd, i) {
					ts.next() // another service's request
				}
				target, _ := b.Pick(ts.next(), nil)
				got[target.Revision]++
			}
			for i := range b.Targets {
				share := 100 * float64(got[b.Targets[i].Revision]) / n
				if off := math.Abs(share - float64(b.Targets[i].Weight)); off > 0.75 {
					t.Errorf("%s, %s: %s has %.2f %% of the requests, want %d %%", name, other, b.Targets[i].Revision, share, b.Targets[i].Weight)
				}
			}
		}
	}
}
