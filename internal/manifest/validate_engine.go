package manifest

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	engines "stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
)

// validateEngine refuses engines that nothing is known of, in the annotations at a path.
func validateEngine(annotations map[string]string, at *field.Path) field.ErrorList {
	name, declared := annotations[engines.Annotation]
	if !declared || engines.ByName(name) != nil {
		return nil
	}
	return field.ErrorList{field.Invalid(at.Key(engines.Annotation), name, "isn't an engine that is known: "+strings.Join(engines.Names(), ", "))}
}

// validateUnified refuses names that look like those that hold for all engines and are none; those
// asked of a server are its own affair.
func validateUnified(m *v1beta1.PodMetricSource, at *field.Path) field.ErrorList {
	query, name := m.Metric.Query, "query"
	if query == "" && len(m.Metric.MetricNames) == 1 {
		query, name = m.Metric.MetricNames[0], "metricNames"
	}
	if m.Metric.ServerAddress != "" || !adapter.Unified(query) {
		return nil
	}
	if _, err := adapter.ParseName(query); err != nil {
		return field.ErrorList{field.Invalid(at.Child("metric", name), query, err.Error())}
	}
	return nil
}
