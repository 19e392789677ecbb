package manifest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Annotations of a guarded rollout. GuardStepsAnnotation makes it one; the others say how.
const (
	// GuardStepsAnnotation are the percents of the traffic that a new revision gets one after
	// another, e.g. "5,25,50"; all of it follows the last.
	GuardStepsAnnotation = guardPrefix + "steps"
	// GuardBakeAnnotation is how long each step lasts at least.
	GuardBakeAnnotation = guardPrefix + "bake"
	// GuardMinRequestsAnnotation is how many requests each step needs.
	GuardMinRequestsAnnotation = guardPrefix + "min-requests"
	// GuardErrorsAnnotation, GuardP99Annotation, GuardTTFTAnnotation and GuardDriftAnnotation are
	// limits: shares like "1%" or "0.01", and durations.
	GuardErrorsAnnotation = guardPrefix + "max-error-ratio"
	GuardP99Annotation    = guardPrefix + "max-p99"
	GuardTTFTAnnotation   = guardPrefix + "max-ttft"
	GuardDriftAnnotation  = guardPrefix + "max-drift"
	// PromotedAnnotation names revisions, with commas between, that get all traffic whatever was
	// counted of them.
	PromotedAnnotation = smv1alpha1.PromotedAnnotation

	guardPrefix = "stationmaster.dev/rollout-"
)

// What holds of a guarded rollout unless its annotations say otherwise.
const (
	DefaultGuardBake        = 5 * time.Minute
	DefaultGuardMinRequests = 100
	DefaultGuardErrorRatio  = 0.01
	// DefaultGuardMirror is the percent of requests that are copied for a limit on drift.
	DefaultGuardMirror = 10
)

// GuardOf returns how a service's rollouts are guarded; nil means that they aren't. The errors name
// the annotations that can't be read; what can be is returned beside them.
func GuardOf(is *v1beta1.InferenceService) (*spec.Guard, field.ErrorList) {
	var errs field.ErrorList
	at := field.NewPath("metadata", "annotations")
	guarded := is.Annotations[GuardStepsAnnotation] != ""
	g := &spec.Guard{Bake: DefaultGuardBake, MinRequests: DefaultGuardMinRequests}
	limits := map[spec.Metric]float64{spec.ErrorRatio: DefaultGuardErrorRatio}
	for _, key := range slices.Sorted(maps.Keys(is.Annotations)) {
		name, ours := strings.CutPrefix(key, guardPrefix)
		if !ours || key == PromotedAnnotation {
			continue
		}
		value := is.Annotations[key]
		var err error
		switch key {
		case GuardStepsAnnotation:
			g.Steps, err = parseSteps(value)
		case GuardBakeAnnotation:
			g.Bake, err = parseTime(value, time.Second, maxRolloutDuration)
		case GuardMinRequestsAnnotation:
			if g.MinRequests, err = strconv.Atoi(value); err != nil || g.MinRequests < 1 || g.MinRequests > 1_000_000 {
				err = errors.New("must be a number of requests from 1 to 1000000")
			}
		case GuardErrorsAnnotation:
			limits[spec.ErrorRatio], err = parseRatio(value)
		case GuardDriftAnnotation:
			limits[spec.Drift], err = parseRatio(value)
		case GuardP99Annotation:
			limits[spec.P99], err = parseSeconds(value)
		case GuardTTFTAnnotation:
			limits[spec.TTFT], err = parseSeconds(value)
		default:
			err = fmt.Errorf("%s%s isn't known: there are steps, bake, min-requests, max-error-ratio, max-p99, max-ttft, max-drift and promoted", guardPrefix, name)
		}
		if err == nil && !guarded && key != GuardStepsAnnotation {
			err = errors.New("means nothing without " + GuardStepsAnnotation + ": add that, or remove this")
		}
		if err != nil {
			errs = append(errs, field.Invalid(at.Key(key), value, err.Error()))
		}
	}
	if !guarded || len(g.Steps) == 0 {
		return nil, errs
	}
	for _, m := range []spec.Metric{spec.ErrorRatio, spec.P99, spec.TTFT, spec.Drift} {
		if most, ok := limits[m]; ok {
			g.Limits = append(g.Limits, spec.Limit{Metric: m, Max: most})
		}
	}
	return g, errs
}

// parseSteps reads percents; 100 may stand at the end.
func parseSteps(value string) ([]int, error) {
	wrong := errors.New("must be percents that rise, 1 to 100, with commas between, like 5,25,50,100")
	var out []int
	for part := range strings.SplitSeq(value, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(part), "%")))
		if err != nil || n < 1 || n > 100 || len(out) > 0 && n <= out[len(out)-1] {
			return nil, wrong
		}
		out = append(out, n)
	}
	if out[len(out)-1] == 100 {
		if out = out[:len(out)-1]; len(out) == 0 {
			return nil, errors.New("100 alone guards nothing: add a step below it, or remove this")
		}
	}
	return out, nil
}

func parseTime(value string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < least || d > most {
		return 0, fmt.Errorf("must be a duration from %v to %v, like 10m", least, most)
	}
	return d, nil
}

func parseSeconds(value string) (float64, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < time.Millisecond || d > time.Hour {
		return 0, errors.New("must be a duration from 1ms to 1h, like 500ms")
	}
	return d.Seconds(), nil
}

// parseRatio reads a share as a percent, or as a number from 0 to 1.
func parseRatio(value string) (float64, error) {
	number, percent := strings.CutSuffix(value, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) {
		return 0, errors.New("must be a share from 0 to 1, like 0.01, or a percent, like 1%")
	}
	return v, nil
}

// validateGuard returns what keeps a service's guarded rollout from being one.
func validateGuard(is *v1beta1.InferenceService) field.ErrorList {
	g, errs := GuardOf(is)
	if g == nil {
		return errs
	}
	steps := field.NewPath("metadata", "annotations").Key(GuardStepsAnnotation)
	if len(is.Spec.Canary) > 0 {
		errs = append(errs, field.Forbidden(steps, "spec.canary shares the traffic by hand, so it can't move by itself: drop one of the two"))
	}
	at := field.NewPath("spec")
	for name, ext := range extensionsOf(is) {
		if s := ext.DeploymentStrategy; s != nil && s.Type == appsv1.RecreateDeploymentStrategyType {
			errs = append(errs, field.Forbidden(at.Child(name, "deploymentStrategy", "type"), "a guarded rollout runs two revisions beside each other: drop Recreate, or "+GuardStepsAnnotation))
		}
	}
	return errs
}

// extensionsOf ranges over the components that a service has, by name.
func extensionsOf(is *v1beta1.InferenceService) func(yield func(string, *v1beta1.ComponentExtensionSpec) bool) {
	return func(yield func(string, *v1beta1.ComponentExtensionSpec) bool) {
		if !yield("predictor", &is.Spec.Predictor.ComponentExtensionSpec) {
			return
		}
		if t := is.Spec.Transformer; t != nil && !yield("transformer", &t.ComponentExtensionSpec) {
			return
		}
		if e := is.Spec.Explainer; e != nil {
			yield("explainer", &e.ComponentExtensionSpec)
		}
	}
}
