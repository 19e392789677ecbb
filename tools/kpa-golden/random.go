package golden

import (
	"fmt"
	"math/rand/v2"
)

// randomTraces returns n traces with loads and settings by chance; the same ones for a seed.
func randomTraces(n int, seed uint64) []trace {
	r := rand.New(rand.NewPCG(seed, 1))
	made := make([]trace, n)
	for i := range made {
		made[i] = randomTrace(r, fmt.Sprintf("random-%04d", i))
	}
	return made
}

func randomTrace(r *rand.Rand, name string) trace {
	t := trace{
		name: name, about: "by chance",
		annotations: map[string]string{},
		startup:     1 + r.IntN(30),
		seconds:     300 + r.IntN(400),
	}
	sometimes := func(name, value string) {
		if r.IntN(3) == 0 {
			t.annotations[prefix+name] = value
		}
	}
	sometimes("metric", pickOne(r, "rps", "concurrency"))
	sometimes("target", fmt.Sprint(1+r.IntN(300)))
	sometimes("target-utilization-percentage", fmt.Sprint(1+r.IntN(100)))
	sometimes("window", fmt.Sprintf("%ds", 6+r.IntN(115)))
	sometimes("panic-window-percentage", fmt.Sprintf("%.1f", 1+99*r.Float64()))
	sometimes("panic-threshold-percentage", fmt.Sprintf("%.1f", 110+300*r.Float64()))
	sometimes("scale-down-delay", fmt.Sprintf("%ds", r.IntN(60)))
	sometimes("scale-to-zero-pod-retention-period", fmt.Sprintf("%ds", r.IntN(90)))
	sometimes("metric-aggregation-algorithm", "weighted-exponential")
	sometimes("target-burst-capacity", fmt.Sprint(pickOne(r, 0, 0, 20, 400)))
	sometimes("initial-scale", fmt.Sprint(1+r.IntN(6)))
	sometimes("max-scale", fmt.Sprint(6+r.IntN(30)))
	least := r.IntN(4)
	sometimes("min-scale", fmt.Sprint(least))
	sometimes("activation-scale", fmt.Sprint(max(2, least)+r.IntN(2)))
	if r.IntN(3) == 0 {
		t.containerConcurrency = int64(1 + r.IntN(50))
	}
	if r.IntN(6) == 0 {
		t.retired = 100 + r.IntN(150)
	}
	loads := make([]float64, 0, t.seconds)
	for len(loads) < t.seconds {
		base, slope := pickOne(r, 0, 0, 1, 50*r.Float64(), 1500*r.Float64()), 4*r.NormFloat64()
		if base == 0 {
			slope = 0
		}
		for k := range 1 + r.IntN(150) {
			loads = append(loads, max(0, base+slope*float64(k)))
		}
	}
	t.load = func(sec int) float64 { return loads[sec] }
	return t
}

func pickOne[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }
