package manifest

import (
	"fmt"
	"net/url"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// validateMetric checks one metric to scale on; class is the autoscaler's.
func validateMetric(m *v1beta1.MetricsSpec, class string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, source := range []struct {
		kind  v1beta1.MetricSourceType
		field string
		set   bool
	}{
		{v1beta1.ResourceMetricSourceType, "resource", m.Resource != nil},
		{v1beta1.ExternalMetricSourceType, "external", m.External != nil},
		{v1beta1.PodMetricMetricSourceType, "podmetric", m.PodMetric != nil},
	} {
		switch {
		case m.Type == source.kind && !source.set:
			errs = append(errs, field.Required(at.Child(source.field), fmt.Sprintf("type is %s", m.Type)))
		case m.Type != source.kind && source.set:
			errs = append(errs, field.Forbidden(at.Child(source.field), fmt.Sprintf("type is %q; set type to %s or remove this", m.Type, source.kind)))
		}
	}
	if class == "hpa" && m.Type != v1beta1.ResourceMetricSourceType {
		errs = append(errs, field.NotSupported(at.Child("type"), m.Type, []v1beta1.MetricSourceType{v1beta1.ResourceMetricSourceType}))
	}
	if x := m.External; x != nil {
		at := at.Child("external")
		errs = append(errs, validateServer(x.Metric.ServerAddress, true, at.Child("metric", "serverAddress"))...)
		if x.Metric.Query == "" {
			errs = append(errs, field.Required(at.Child("metric", "query"), "say what to ask the server"))
		}
		errs = append(errs, validateTarget(&x.Target, at.Child("target"))...)
	}
	if p := m.PodMetric; p != nil {
		at := at.Child("podmetric")
		// With keda it is the address of a scaler, which has no scheme.
		if class != "keda" {
			errs = append(errs, validateServer(p.Metric.ServerAddress, false, at.Child("metric", "serverAddress"))...)
		}
		if p.Metric.Query == "" && len(p.Metric.MetricNames) != 1 {
			errs = append(errs, field.Required(at.Child("metric", "query"), "say which metric counts, here or as the only one of metricNames"))
		}
		if class != "keda" {
			errs = append(errs, validateUnified(p, at)...)
		}
		errs = append(errs, validateTarget(&p.Target, at.Child("target"))...)
	}
	if r := m.Resource; r != nil {
		for name, q := range map[string]*resource.Quantity{"value": r.Target.Value, "averageValue": r.Target.AverageValue} {
			if q != nil && q.Sign() <= 0 {
				errs = append(errs, field.Invalid(at.Child("resource", "target", name), q.String(), "must be above 0"))
			}
		}
		if n := r.Target.AverageUtilization; n != nil && *n <= 0 {
			errs = append(errs, field.Invalid(at.Child("resource", "target", "averageUtilization"), *n, "must be above 0"))
		}
		if r.Name == "memory" && r.Target.Value == nil && r.Target.AverageValue == nil && r.Target.AverageUtilization == nil {
			errs = append(errs, field.Required(at.Child("resource", "target"), "memory has no usual target; give averageUtilization or averageValue"))
		}
	}
	return errs
}

// validateTarget checks the target of a metric that isn't a resource: how much of it one replica
// is meant to carry.
func validateTarget(t *v1beta1.MetricTarget, at *field.Path) field.ErrorList {
	q, name := t.Value, "value"
	if t.AverageValue != nil {
		q, name = t.AverageValue, "averageValue"
	}
	switch {
	case q == nil:
		return field.ErrorList{field.Required(at.Child("value"), "say how much of it one replica is meant to carry")}
	case q.Sign() <= 0:
		return field.ErrorList{field.Invalid(at.Child(name), q.String(), "must be above 0")}
	}
	return nil
}

// validateServer checks the address of a server that answers queries.
func validateServer(address string, required bool, at *field.Path) field.ErrorList {
	if address == "" && !required {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return field.ErrorList{field.Invalid(at, address, "must be a URL such as http://prometheus.monitoring:9090")}
	}
	return nil
}
