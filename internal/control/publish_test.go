package control

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/platform/memory"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// BenchmarkPublish changes one service of a thousand: what every change of a replica costs.
func BenchmarkPublish(b *testing.B) {
	c := New(Config{Logger: slog.New(slog.DiscardHandler)}, memory.New(memory.Config{}), &state.Topic[route.Table]{})
	line := func(i int) (spec.ServiceKey, *route.Service) {
		name := fmt.Sprintf("s%04d", i)
		key := spec.ServiceKey{Namespace: "default", Name: name}
		return key, &route.Service{
			Key: key, Created: time.Unix(int64(i), 0), PathPrefix: "/serving/default/" + name, BareNames: []string{name}, Entry: spec.Predictor,
			Hosts: []route.Host{{Name: name + "-default.localhost"}, {Name: name + "-predictor-default.localhost", Component: spec.Predictor}},
			Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{
				{Revision: name + "-predictor-00001", Weight: 100, Endpoints: []route.Endpoint{{Replica: name, HTTP: "127.0.0.1:1"}}},
			}}},
		}
	}
	for i := range 1000 {
		c.publish(line(i))
	}
	key, s := line(500)
	b.ReportAllocs()
	for b.Loop() {
		c.publish(key, s)
	}
}
