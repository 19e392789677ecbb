package gateway

import (
	"fmt"
	"net"
	"testing"

	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// BenchmarkView1k is what the first request after a change of the table of 1,000 services waits for.
func BenchmarkView1k(b *testing.B) {
	var services []route.Service
	for i := range 1000 {
		name := fmt.Sprintf("s%04d", i)
		services = append(services, route.Service{
			Key: spec.ServiceKey{Namespace: "default", Name: name}, PathPrefix: "/serving/default/" + name, BareNames: []string{name}, Entry: spec.Predictor,
			Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{
				{Revision: name + "-predictor-00001", Weight: 100, Endpoints: []route.Endpoint{{Replica: name, HTTP: fmt.Sprintf("127.0.0.1:%d", 10000+i), GRPC: fmt.Sprintf("127.0.0.1:%d", 20000+i)}}},
			}}},
		})
	}
	table := &state.Topic[route.Table]{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	g, err := New(Config{Table: table, HTTP: l, GRPC: l})
	if err != nil {
		b.Fatal(err)
	}
	t := route.Compile(services)
	b.ReportAllocs()
	for b.Loop() {
		g.current.Store(g.newView(t, nil))
	}
}
