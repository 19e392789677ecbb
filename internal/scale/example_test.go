package scale_test

import (
	"fmt"
	"time"

	"stationmaster.dev/stationmaster/internal/scale"
)

// A revision gets its first replica, is loaded, and is left alone. The loop stands for the
// gateway's samples, one a second, and the controller's decisions, one a tick.
func ExampleScaler() {
	read, err := scale.Read(scale.Default(), scale.Settings{
		Annotations: map[string]string{"autoscaling.knative.dev/target": "10"},
		MaxReplicas: 5,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	var o scale.Observed // in life: what the platform reports, and what was stored
	s, err := scale.New(read.Config, now, o)
	if err != nil {
		fmt.Println(err)
		return
	}
	for second := range 240 {
		now = now.Add(time.Second)
		load := 0.0
		if second > 60 && second <= 120 {
			load = 24
		}
		wake := s.Record(now, scale.Sample{Concurrency: load})
		if second%2 != 0 && !wake {
			continue
		}
		d := s.Decide(now, o)
		if d.Replicas != o.Asked {
			fmt.Println(second, d)
		}
		o.Asked, o.Ready, o.Initialized = d.Replicas, d.Replicas, d.Initialized
	}
	// Output:
	// 0 scale up from 0 to 1 replica: concurrency 0 at 7 a replica wants 0; raised to the initial scale, waiting for replicas that start
	// 62 scale up from 1 to 2 replicas: concurrency 0.8 at 7 a replica wants 1, panic value 8 wants 2
	// 64 scale up from 2 to 3 replicas: concurrency 1.6 at 7 a replica wants 1, panic value 16 wants 3
	// 66 scale up from 3 to 4 replicas: concurrency 2.4 at 7 a replica wants 1, panic value 24 wants 4
	// 128 scale down from 4 to 3 replicas: concurrency 20.8 at 7 a replica wants 3
	// 146 scale down from 3 to 2 replicas: concurrency 13.6 at 7 a replica wants 2
	// 164 scale down from 2 to 1 replica: concurrency 6.4 at 7 a replica wants 1
	// 180 scale down from 1 to 0 replicas: concurrency 0 at 7 a replica wants 0
}
