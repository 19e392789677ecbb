package routing_test

import (
	"testing"

	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestAClusterLocalServiceIsFoundByPodsAlone(t *testing.T) {
	line := routing.Line(routing.Service{
		Key: spec.ServiceKey{Namespace: "team", Name: "iris"}, Domain: "example.com", InCluster: true,
		Components: []routing.Component{{Name: spec.Predictor}},
	})
	open, closed := route.Compile([]route.Service{line}), route.Compile([]route.Service{routing.Visible(line, map[string]string{"networking.kserve.io/visibility": "cluster-local"}, "example.com")})
	for _, tc := range []struct {
		host, path   string
		open, closed bool
	}{
		{"iris-team.example.com", "/v2/models/iris/infer", true, false},
		{"iris-predictor-team.example.com", "/v2/models/iris/infer", true, false},
		{"gateway", "/serving/team/iris/v2/models/iris/infer", true, false},
		{"gateway", "/v2/models/iris/infer", true, false},
		{"iris-predictor.team", "/v2/models/iris/infer", true, true},
		{"iris-predictor.team.svc.cluster.local", "/v2/models/iris/infer", true, true},
	} {
		for table, want := range map[*route.Table]bool{open: tc.open, closed: tc.closed} {
			m, err := table.Match(tc.host, tc.path)
			if found := err == nil && m.Service != nil; found != want {
				t.Errorf("%s%s: found %v, want %v (%v)", tc.host, tc.path, found, want, err)
			}
		}
	}
}
