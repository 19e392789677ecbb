package route_test

import (
	"testing"

	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestARequestMayNameItsRevision(t *testing.T) {
	one := []route.Endpoint{{Replica: "r", HTTP: "127.0.0.1:1"}}
	table := route.Compile([]route.Service{
		{
			Key: spec.ServiceKey{Namespace: "default", Name: "two"}, BareNames: []string{"two"},
			Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{
				{Revision: "two-00001", Weight: 100, Tag: "prev", Endpoints: one},
				{Revision: "two-00002", Weight: 0, Endpoints: one},
			}}},
		},
		{
			Key: spec.ServiceKey{Namespace: "default", Name: "single"}, BareNames: []string{"single"},
			Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{
				{Revision: "single-00001", Weight: 100, Endpoints: one},
			}}},
		},
		{
			Key: spec.ServiceKey{Namespace: "default", Name: "none"}, BareNames: []string{"none"},
			Components: map[spec.Component]route.Backend{spec.Predictor: {NotReady: "it starts"}},
		},
	})
	tests := map[string]struct {
		model, revision string
		found           bool
		want            string // the revision picked
	}{
		"by name":                   {"two", "two-00001", true, "two-00001"},
		"by name, without a weight": {"two", "two-00002", true, "two-00002"},
		"by tag":                    {"two", "prev", true, "two-00001"},
		"no such":                   {"two", "two-00003", false, ""},
		"the only one":              {"single", "single-00001", true, "single-00001"},
		"not the only one":          {"single", "single-00002", false, ""},
		"nothing is ready":          {"none", "none-00001", true, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := table.Model(tc.model, "/v1/chat/completions")
			if err != nil {
				t.Fatal(err)
			}
			if got := table.Pin(&m, tc.revision); got != tc.found {
				t.Fatalf("found: %v", got)
			}
			if !tc.found {
				return
			}
			for rnd := range uint64(8) {
				picked := ""
				if target, _ := m.Pick(rnd<<61, nil); target != nil {
					picked = target.Revision
				}
				if picked != tc.want {
					t.Errorf("picked %q, want %q", picked, tc.want)
				}
			}
			reached := false
			table.Backends(func(_ *route.Service, b *route.Backend) bool { reached = reached || b == m.Backend; return true })
			if !reached {
				t.Error("Backends doesn't list the revision's backend")
			}
		})
	}
}

func TestARevisionByItselfIsLoggedAndBatchedAsAllAre(t *testing.T) {
	log, batching := &spec.PayloadLog{URL: "http://collector"}, &spec.Batching{MaxSize: 8}
	endpoints := []route.Endpoint{{Replica: "a", HTTP: "127.0.0.1:1"}}
	table := route.Compile([]route.Service{{
		Key: spec.ServiceKey{Namespace: "default", Name: "iris"}, BareNames: []string{"iris"},
		Hosts: []route.Host{{Name: "latest-iris", Component: spec.Predictor, Tag: "latest"}},
		Components: map[spec.Component]route.Backend{spec.Predictor: {Log: log, Batch: batching, Targets: []route.Target{
			{Revision: "iris-00002", Tag: "latest", Weight: 10, Endpoints: endpoints},
			{Revision: "iris-00001", Weight: 90, Endpoints: endpoints},
		}}},
	}})
	tagged, _ := table.Host("latest-iris")
	pinned, err := table.Model("iris", "/")
	if err != nil || !table.Pin(&pinned, "iris-00001") {
		t.Fatal("no pin", err)
	}
	for name, m := range map[string]route.Match{"tagged": tagged, "pinned": pinned} {
		if len(m.Backend.Targets) != 1 || m.Backend.Log != log || m.Backend.Batch != batching {
			t.Errorf("%s: %+v", name, m.Backend)
		}
	}
}
