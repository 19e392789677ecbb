package route

import (
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

func TestAGraphIsFoundAsAServiceIsAndHasNoBackend(t *testing.T) {
	key := spec.ServiceKey{Namespace: "n", Name: "g"}
	graph := Service{
		Key: key, Graph: &spec.Graph{}, Hosts: []Host{{Name: "g-n.localhost"}}, PathPrefix: "/serving/n/g", BareNames: []string{"g"},
		Created: time.Unix(2, 0),
	}
	sameName := Service{
		Key: key, Hosts: []Host{{Name: "g-n.localhost"}, {Name: "g-predictor-n.localhost"}}, PathPrefix: "/serving/n/g", BareNames: []string{"g"},
		Components: map[spec.Component]Backend{spec.Predictor: {Targets: []Target{{Revision: "r", Weight: 100, Endpoints: []Endpoint{{HTTP: "a"}}}}}},
	}
	table := Compile([]Service{graph})
	for how, find := range map[string]func() (Match, error){
		"host":   func() (Match, error) { return table.Match("g-n.localhost:8080", "/any/where") },
		"prefix": func() (Match, error) { return table.Match("", "/serving/n/g/v2/models/g/infer") },
		"name":   func() (Match, error) { return table.Match("", "/v1/models/g:predict") },
	} {
		m, err := find()
		if err != nil || m.Service == nil || m.Service.Graph == nil || m.Backend != nil {
			t.Errorf("by its %s: %+v, %v", how, m, err)
		}
		table.Steer(&m, none)
		table.Pin(&m, "r")
	}
	if m, ok := table.Named(key, "/"); !ok || m.Service.Graph == nil {
		t.Errorf("by key: %+v", m)
	}
	for age, created := range map[string]time.Time{"older": time.Unix(1, 0), "younger": time.Unix(3, 0)} {
		sameName.Created = created
		table := Compile([]Service{graph, sameName})
		if m, ok := table.Named(key, "/"); !ok || m.Service.Graph != nil || len(m.Backend.Targets) != 1 {
			t.Errorf("the key beside an %s service: %+v", age, m)
		}
		if m, ok := table.Host("g-n.localhost"); !ok || (m.Service.Graph != nil) != (age == "younger") {
			t.Errorf("the host beside an %s service: %+v", age, m)
		}
		n := 0
		for range table.Backends {
			n++
		}
		if n != 1 {
			t.Errorf("%d backends beside an %s service", n, age)
		}
	}
}
