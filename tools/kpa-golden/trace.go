package golden

import "math"

// trace is a load over time and the settings it meets.
type trace struct {
	name  string
	about string
	// annotations are Knative's; containerConcurrency is the revision's.
	annotations          map[string]string
	containerConcurrency int64
	// startup is how many seconds a replica takes to become ready.
	startup int
	seconds int
	// load is what is offered in second t: requests in flight, or requests a second where
	// that is the metric.
	load func(t int) float64
	// dark says that nothing reports in second t, whatever the load.
	dark func(t int) bool
	// retired is the second from which no route leads to the revision; zero is never.
	retired int
}

const prefix = "autoscaling.knative.dev/"

// traces lists what is recorded. Loads are formulas, so that a recording can be made again.
var traces = []trace{
	{
		name: "step", about: "10 requests in flight, 500 from 1:00 to 5:00, then 10 again",
		startup: 5, seconds: 480,
		load: func(t int) float64 { return pick(t >= 60 && t < 300, 500, 10) },
	},
	{
		name: "ramp", about: "from 0 to 1,000 requests in flight in 5 minutes, and back",
		startup: 5, seconds: 720,
		load: func(t int) float64 { return math.Max(0, 1000-math.Abs(float64(t)-330)*1000/300) },
	},
	{
		name: "spike", about: "20 requests in flight, and 2,000 for 10 seconds at 2:00",
		startup: 5, seconds: 360,
		load: func(t int) float64 { return pick(t >= 120 && t < 130, 2000, 20) },
	},
	{
		name: "sawtooth", about: "from 0 to 700 requests in flight each minute",
		startup: 3, seconds: 420,
		load: func(t int) float64 { return float64(t%60) * 700 / 60 },
	},
	{
		name: "trickle", about: "one request of 200 ms each 37 seconds",
		startup: 2, seconds: 400,
		load: func(t int) float64 { return pick(t%37 == 5, 0.2, 0) },
	},
	{
		name: "silence", about: "200 requests in flight for 2 minutes, then none",
		startup: 5, seconds: 360,
		load: func(t int) float64 { return pick(t < 120, 200, 0) },
	},
	{
		name: "hard-limit", about: "containerConcurrency 4: 6 requests in flight, 90 from 1:30 to 2:10, then 12; all traffic through the gateway",
		annotations:          map[string]string{prefix + "target-burst-capacity": "-1"},
		containerConcurrency: 4, startup: 8, seconds: 420,
		load: func(t int) float64 {
			return pick(t < 90, 6, pick(t < 130, 90, 12))
		},
	},
	{
		name: "zero-and-back", about: "bursts of 40 seconds 3 minutes apart, to zero between them, the last replica retained for 30 seconds",
		annotations: map[string]string{prefix + "scale-to-zero-pod-retention-period": "30s"},
		startup:     10, seconds: 720,
		load: func(t int) float64 { return pick(t%220 >= 20 && t%220 < 60, 160, 0) },
	},
	{
		name: "rps", about: "requests a second: 100, 900 for a minute, 300; target 50, window 30 s, delay 20 s, between 2 and 12 replicas",
		annotations: map[string]string{
			prefix + "metric": "rps", prefix + "target": "50", prefix + "window": "30s",
			prefix + "scale-down-delay": "20s", prefix + "min-scale": "2", prefix + "max-scale": "12",
		},
		startup: 4, seconds: 300,
		load: func(t int) float64 { return pick(t < 60, 100, pick(t < 120, 900, 300)) },
	},
	{
		name: "weighted", about: "exponential weights, initial scale 4, activation scale 3, no burst capacity: waves and a pause",
		annotations: map[string]string{
			prefix + "metric-aggregation-algorithm": "weighted-exponential",
			prefix + "initial-scale":                "4", prefix + "activation-scale": "3",
			prefix + "target-burst-capacity": "0", prefix + "target-utilization-percentage": "50",
		},
		startup: 6, seconds: 600,
		load: func(t int) float64 {
			if t >= 240 && t < 400 {
				return 0
			}
			return math.Round(200 + 180*math.Sin(float64(t)/25))
		},
	},
	{
		name: "noise", about: "a noisy load around a slow wave, replicas that start in 20 seconds, at most 20 of them",
		annotations: map[string]string{prefix + "max-scale": "20", prefix + "panic-threshold-percentage": "150", prefix + "target": "30"},
		startup:     20, seconds: 600,
		load: func(t int) float64 {
			wave := 200 + 180*math.Sin(float64(t)/60)
			return math.Round(wave * (0.4 + 1.2*noise(t)))
		},
	},
	{
		name: "retired", about: "250 requests in flight; from 2:00 on no route leads to the revision and nothing reaches it",
		annotations: map[string]string{prefix + "min-scale": "3", prefix + "scale-down-delay": "1m"},
		startup:     5, seconds: 300, retired: 120,
		load: func(t int) float64 { return pick(t < 120, 250, 0) },
	},
	{
		name: "slow-start", about: "replicas that start in 80 seconds, for requests that have gone by then: at 0:05 and at 5:00",
		startup: 80, seconds: 600,
		load: func(t int) float64 { return pick((t >= 5 && t < 9) || (t >= 300 && t < 310), 0.5, 0) },
	},
	{
		name: "blackout", about: "280 requests in flight, nothing reports from 2:00 to 4:00, then 70",
		startup: 5, seconds: 400,
		load: func(t int) float64 { return pick(t < 240, 280, 70) },
		dark: func(t int) bool { return t >= 120 && t < 240 },
	},
	{
		name: "blackout-proxied", about: "280 requests in flight, nothing reports from 2:00 to 4:00, then 70; all traffic through the gateway",
		annotations: map[string]string{prefix + "target-burst-capacity": "-1"},
		startup:     5, seconds: 400,
		load: func(t int) float64 { return pick(t < 240, 280, 70) },
		dark: func(t int) bool { return t >= 120 && t < 240 },
	},
}

func pick(when bool, yes, no float64) float64 {
	if when {
		return yes
	}
	return no
}

// noise returns a number from 0 to 1 that depends on t alone.
func noise(t int) float64 {
	x := uint32(t)*2654435761 + 12345
	x ^= x >> 15
	x *= 2246822519
	x ^= x >> 13
	return float64(x%1000) / 1000
}
