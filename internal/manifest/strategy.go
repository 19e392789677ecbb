package manifest

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Rolling reads how two revisions take turns from a component's deploymentStrategy, with a
// Deployment's rules: percentages are of replicas, maxSurge rounds up and maxUnavailable down, and
// where that leaves nothing to move, one may be missing. It reports false where the manifest gives
// no rollingUpdate, or one that validation refuses.
func Rolling(s *appsv1.DeploymentStrategy, replicas int) (surge, unavailable int, ok bool) {
	if s == nil || s.Type == appsv1.RecreateDeploymentStrategyType || s.RollingUpdate == nil {
		return 0, 0, false
	}
	quarter := intstr.FromString("25%")
	var err error
	if surge, err = intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(s.RollingUpdate.MaxSurge, quarter), replicas, true); err != nil {
		return 0, 0, false
	}
	if unavailable, err = intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(s.RollingUpdate.MaxUnavailable, quarter), replicas, false); err != nil {
		return 0, 0, false
	}
	surge, unavailable = max(surge, 0), max(unavailable, 0)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable, true
}

// validateStrategy checks what the API server checks of a Deployment.
func validateStrategy(s *appsv1.DeploymentStrategy, at *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	switch s.Type {
	case "", appsv1.RollingUpdateDeploymentStrategyType:
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			errs = append(errs, field.Forbidden(at.Child("rollingUpdate"), "type Recreate stops all of the old revision first: remove one of the two"))
		}
		return errs
	default:
		return append(errs, field.NotSupported(at.Child("type"), s.Type,
			[]appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType}))
	}
	if s.RollingUpdate == nil {
		return nil
	}
	at = at.Child("rollingUpdate")
	none := 0
	for _, v := range []struct {
		name  string
		value *intstr.IntOrString
		most  int
	}{{"maxSurge", s.RollingUpdate.MaxSurge, 0}, {"maxUnavailable", s.RollingUpdate.MaxUnavailable, 100}} {
		if v.value == nil {
			continue
		}
		of100, err := intstr.GetScaledValueFromIntOrPercent(v.value, 100, true)
		switch {
		case err != nil || of100 < 0:
			errs = append(errs, field.Invalid(at.Child(v.name), v.value.String(), `must be a number of replicas, 0 or more, or a percentage as in "25%"`))
		case v.most > 0 && v.value.Type == intstr.String && of100 > v.most:
			errs = append(errs, field.Invalid(at.Child(v.name), v.value.String(), "must be at most 100%"))
		case of100 == 0:
			none++
		}
	}
	if none == 2 {
		errs = append(errs, field.Invalid(at.Child("maxUnavailable"), s.RollingUpdate.MaxUnavailable.String(), "may not be 0 when maxSurge is 0: nothing could move"))
	}
	return errs
}
