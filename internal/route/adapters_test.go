package route_test

import (
	"errors"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestAdaptersLeadToTheirService(t *testing.T) {
	llm := route.Service{
		Key: spec.ServiceKey{Namespace: "default", Name: "llm"}, BareNames: []string{"llm"}, Adapters: []string{"sql"}, Created: time.Unix(1, 0),
		Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{{Revision: "llm-1", Weight: 100}}}},
	}
	table := route.Compile([]route.Service{llm})
	for _, name := range []string{"llm", "sql"} {
		if m, err := table.Model(name, "/v1/completions"); err != nil || m.Service.Key != llm.Key {
			t.Errorf("%s leads to %+v, %v", name, m.Service, err)
		}
	}
	// A replica more is a small change, an adapter more or less isn't.
	more := llm
	more.Components = map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{{Revision: "llm-1", Weight: 100, Endpoints: []route.Endpoint{{HTTP: "a:1"}}}}}}
	next, ok := table.With(more)
	if !ok {
		t.Fatal("a replica more needs a table made anew")
	}
	if m, err := next.Model("sql", "/"); err != nil || !m.Backend.Ready() {
		t.Errorf("the adapter leads to what was: %v", err)
	}
	more.Adapters = nil
	if _, ok := next.With(more); ok {
		t.Error("a table with another list of adapters was made from the old")
	}
	if _, err := route.Compile([]route.Service{more}).Model("sql", "/"); !errors.Is(err, errdef.ErrNotFound) {
		t.Errorf("an adapter that isn't listed: %v", err)
	}
}
