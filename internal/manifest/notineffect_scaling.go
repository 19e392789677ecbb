package manifest

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// scalingNotInEffect finds what a service says of its scaling and nothing follows: whether a field
// counts depends on the class of autoscaler and on the fields beside it.
func scalingNotInEffect(is *v1beta1.InferenceService) []NotInEffect {
	var out []NotInEffect
	class := is.Annotations[AutoscalerClassAnnotation]
	if class == "external" {
		out = append(out, NotInEffect{
			Field: autoscalerPath.String(), ClusterOnly: true,
			Reason: "on one machine nobody else sets the number of replicas; minReplicas run, and one at least",
		})
	}
	spec := field.NewPath("spec")
	for _, c := range []struct {
		at  *field.Path
		ext *v1beta1.ComponentExtensionSpec
	}{
		{spec.Child("predictor"), &is.Spec.Predictor.ComponentExtensionSpec},
		{spec.Child("transformer"), transformerExtension(is)},
		{spec.Child("explainer"), explainerExtension(is)},
	} {
		if c.ext == nil {
			continue
		}
		s := scalingEffect{ext: c.ext, class: class, at: c.at}
		s.look()
		out = append(out, s.found...)
	}
	return out
}

func transformerExtension(is *v1beta1.InferenceService) *v1beta1.ComponentExtensionSpec {
	if is.Spec.Transformer == nil {
		return nil
	}
	return &is.Spec.Transformer.ComponentExtensionSpec
}

func explainerExtension(is *v1beta1.InferenceService) *v1beta1.ComponentExtensionSpec {
	if is.Spec.Explainer == nil {
		return nil
	}
	return &is.Spec.Explainer.ComponentExtensionSpec
}

// scalingEffect looks at the scaling of one component.
type scalingEffect struct {
	ext   *v1beta1.ComponentExtensionSpec
	class string
	at    *field.Path
	found []NotInEffect
}

func (s *scalingEffect) add(at *field.Path, reason string) {
	s.found = append(s.found, NotInEffect{Field: at.String(), Reason: reason})
}

func (s *scalingEffect) look() {
	e := s.ext
	metric := ""
	if e.ScaleMetric != nil {
		metric = string(*e.ScaleMetric)
	}
	var metrics []v1beta1.MetricsSpec
	var paced bool
	if e.AutoScaling != nil {
		metrics, paced = e.AutoScaling.Metrics, e.AutoScaling.Behavior != nil
	}
	scaling, named := s.at.Child("autoScaling"), len(metrics) > 0
	resources := metric == "cpu" || metric == "memory"
	switch s.class {
	case "none", "external":
		if named || paced {
			s.add(scaling, "with the autoscalerClass "+s.class+" the number of replicas doesn't follow it")
		}
		return
	case "keda":
		if !named {
			s.add(autoscalerPath, "keda scales by autoScaling.metrics, of which there are none; on a cluster no ScaledObject is made")
		}
	}
	if named {
		const overruled = "autoScaling.metrics rule over it"
		if e.ScaleMetric != nil {
			s.add(s.at.Child("scaleMetric"), overruled)
		}
		if e.ScaleTarget != nil {
			s.add(s.at.Child("scaleTarget"), overruled)
		}
	} else if metric == "memory" && e.ScaleTarget == nil {
		s.add(s.at.Child("scaleMetric"), "memory has no usual target; give scaleTarget, in percent of the requested memory")
	}
	if t := e.ScaleMetricType; t != nil && (named || *t != v1beta1.UtilizationMetricType || !resources) {
		s.add(s.at.Child("scaleMetricType"), "scaleTarget is a percentage of what is requested for cpu and memory, and a number for each replica for concurrency and rps; autoScaling.metrics can aim at other values")
	}
	if paced && !named && !resources && s.class == "" {
		s.add(scaling.Child("behavior"), "it paces scaling on metrics; concurrency and rps have the annotations of Knative's autoscaler for that")
	}
	if e.MinReplicas != nil && *e.MinReplicas == 0 && (resources && !named || named && !slices.ContainsFunc(metrics, func(m v1beta1.MetricsSpec) bool { return m.Resource == nil })) {
		s.add(s.at.Child("minReplicas"), "one replica runs at least: what replicas use of cpu and memory can't tell that none is needed")
	}
	for i := range metrics {
		s.metric(&metrics[i], scaling.Child("metrics").Index(i))
	}
}

// metric looks at one metric. What KEDA does on a cluster is beyond our own autoscaler.
func (s *scalingEffect) metric(m *v1beta1.MetricsSpec, at *field.Path) {
	cluster := s.class == "keda"
	add := func(at *field.Path, reason string) {
		s.found = append(s.found, NotInEffect{Field: at.String(), Reason: reason, ClusterOnly: cluster})
	}
	if x := m.External; x != nil {
		if x.Metric.Backend == "graphite" {
			add(at.Child("external", "metric", "backend"), "only Prometheus is asked here; KEDA asks Graphite, on a cluster and with the autoscalerClass keda")
		}
		if x.AuthenticationRef != nil {
			add(at.Child("external", "authenticationRef"), "Prometheus is asked without credentials; KEDA has them, on a cluster and with the autoscalerClass keda")
		}
	}
	if p := m.PodMetric; p != nil {
		if over := p.Metric.OperationOverTime; over != "" && !slices.Contains(operationsOverTime, over) {
			add(at.Child("podmetric", "metric", "operationOverTime"), "is none of "+strings.Join(operationsOverTime, ", ")+"; the latest value counts")
		} else if over != "" && p.Metric.ServerAddress != "" {
			add(at.Child("podmetric", "metric", "operationOverTime"), "the query at serverAddress says that itself, e.g. avg_over_time")
		}
		if p.Metric.Query != "" && len(p.Metric.MetricNames) > 0 && !cluster {
			add(at.Child("podmetric", "metric", "metricNames"), "query says which metric counts")
		}
	}
}

// operationsOverTime are what can be made of the values that an engine told in the last minute.
var operationsOverTime = []string{"last_one", "avg", "min", "max", "sum", "count", "rate"}
