package observability_test

import (
	"encoding/json"
	"testing"

	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/config/observability"
)

// What the expressions say is checked by Prometheus itself in the end-to-end suite.
func TestTheFilesAreWhole(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(observability.Rules, &rules); err != nil || len(rules.Groups) == 0 {
		t.Fatalf("%d groups of rules, %v", len(rules.Groups), err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || r.Expr == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %+v", r)
			}
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(observability.Dashboard, &dashboard); err != nil || len(dashboard.Panels) == 0 {
		t.Fatalf("%d panels, %v", len(dashboard.Panels), err)
	}
	for _, p := range dashboard.Panels {
		if p.Title == "" || len(p.Targets) == 0 || p.Targets[0].Expr == "" {
			t.Errorf("panel %+v", p)
		}
	}
}
