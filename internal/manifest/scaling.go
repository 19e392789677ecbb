package manifest

import (
	"maps"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/scale"
)

// Scaling reads what a manifest says of a component's scaling, and returns the annotations that
// hold for it as well. An error is of kind errdef.ErrInvalid.
func Scaling(is *v1beta1.InferenceService, ext *v1beta1.ComponentExtensionSpec) (*scale.Scaling, map[string]string, error) {
	base := scale.Default()
	// The gateway holds requests by itself at any time, so that nothing has to be waited for
	// before the last replica goes; and one replica is the least unless less is asked for.
	base.GracePeriod, base.MinScale = 0, 1
	annotations := maps.Clone(is.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(annotations, ext.Annotations)
	settings := scale.Settings{Annotations: annotations, MaxReplicas: int(ext.MaxReplicas)}
	if ext.MinReplicas != nil {
		n := int(*ext.MinReplicas)
		settings.MinReplicas = &n
	}
	if ext.ScaleTarget != nil {
		n := int(*ext.ScaleTarget)
		settings.ScaleTarget = &n
	}
	if ext.ScaleMetric != nil {
		settings.ScaleMetric = string(*ext.ScaleMetric)
	}
	if ext.ContainerConcurrency != nil {
		settings.ContainerConcurrency = int(*ext.ContainerConcurrency)
	}
	s, err := scale.Read(base, settings)
	return &s, annotations, err
}

// ScalesElsewhere reports whether somebody else of a cluster sets a component's replicas: a
// HorizontalPodAutoscaler or a ScaledObject that is made for it, or whoever the class external
// leaves it to. A class that has nothing to scale on leaves them as they are.
func ScalesElsewhere(ext *v1beta1.ComponentExtensionSpec, s *scale.Scaling) bool {
	named := ext.AutoScaling != nil && len(ext.AutoScaling.Metrics) > 0
	switch s.Class {
	case scale.ClassExternal:
		return true
	case scale.ClassKEDA:
		return named
	case scale.ClassHPA:
		return named || s.Resource != "memory" || s.Config.Target > 0
	}
	return false
}

// Extension returns what a component has in common with others, nil for one that isn't there.
func Extension(is *v1beta1.InferenceService, component string) *v1beta1.ComponentExtensionSpec {
	switch component {
	case string(v1beta1.PredictorComponent):
		return &is.Spec.Predictor.ComponentExtensionSpec
	case string(v1beta1.TransformerComponent):
		return transformerExtension(is)
	case string(v1beta1.ExplainerComponent):
		return explainerExtension(is)
	}
	return nil
}
