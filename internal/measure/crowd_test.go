package measure

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// A thousand replicas that come at once are all known a period later, and again each period, though
// some of them don't answer; but they aren't all looked at in the same moment.
func TestAThousandReplicasAreLookedAtWithinAPeriod(t *testing.T) {
	const replicas, silent, takes = 1000, 20, 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		target := route.Target{Revision: "llm-1", Weight: 100, Engine: "vllm"}
		for i := range replicas {
			page := fmt.Sprint("/", i)
			if i < silent {
				page = "/silent"
			}
			target.Endpoints = append(target.Endpoints, route.Endpoint{Replica: fmt.Sprint("r", i), HTTP: fmt.Sprint("r", i, ":8080"), Metrics: page})
		}
		topic := &state.Topic[route.Table]{}
		topic.Publish(route.Compile([]route.Service{{
			Key: spec.ServiceKey{Namespace: "n", Name: "llm"}, Entry: spec.Predictor,
			Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{target}}},
		}}))
		s := NewSampler(topic, nil)
		var mu sync.Mutex
		began := time.Now()
		now, most, soon, looks := 0, 0, 0, 0
		s.look = func(ctx context.Context, page string, _ *adapter.Adapter) (*adapter.Reading, error) {
			mu.Lock()
			now++
			looks++
			most = max(most, now)
			if time.Since(began) < time.Second {
				soon++
			}
			mu.Unlock()
			defer func() { mu.Lock(); now--; mu.Unlock() }()
			if page == "/silent" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			time.Sleep(takes)
			return waiting(1), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		told := func() (n int) {
			for _, sample := range s.Samples().All() {
				if !sample.At.IsZero() && time.Since(sample.At) < SamplePeriod*6/5+2*beat+takes {
					n++
				}
			}
			return n
		}
		for period := range 4 {
			time.Sleep(SamplePeriod + 2*beat)
			synctest.Wait()
			if n := told(); n != replicas-silent {
				t.Errorf("after %d periods %d replicas are known by a look of this period, of %d that answer", period+1, n, replicas-silent)
			}
		}
		mu.Lock()
		if most > abreast || soon > replicas/2 || looks > 5*replicas {
			t.Errorf("%d pages were read at once, %d in the first second, %d in four periods", most, soon, looks)
		}
		mu.Unlock()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
