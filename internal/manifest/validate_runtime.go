package manifest

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
)

// NamedRuntime is a runtime of one scope: the namespaced ones of one namespace, or the
// cluster's.
type NamedRuntime struct {
	Name string
	Spec *v1alpha1.ServingRuntimeSpec
}

// ValidateRuntime returns what keeps a runtime from being accepted, as KServe's admission
// does; empty means accepted. others are the runtimes of the same scope; an entry of the same
// name is the stored version of r and is left out. A disabled runtime isn't compared.
func ValidateRuntime(r NamedRuntime, others []NamedRuntime) field.ErrorList {
	at := field.NewPath("spec", "supportedModelFormats")
	errs := validateFormats(r.Spec, at)
	errs = append(errs, validatePodAnnotations(r.Spec.Annotations, field.NewPath("spec", "annotations"))...)
	errs = append(errs, forbidPrefill(r.Spec.Annotations, field.NewPath("spec", "annotations"))...)
	for i, c := range r.Spec.Containers {
		errs = append(errs, validateEnv(c.Env, field.NewPath("spec", "containers").Index(i))...)
	}
	if isTrue(r.Spec.Disabled) {
		return errs
	}
	for _, other := range others {
		if other.Name == r.Name || isTrue(other.Spec.Disabled) ||
			isTrue(other.Spec.MultiModel) != isTrue(r.Spec.MultiModel) || !shareProtocol(r.Spec, other.Spec) {
			continue
		}
		for i := range r.Spec.SupportedModelFormats {
			mine := &r.Spec.SupportedModelFormats[i]
			if slices.ContainsFunc(other.Spec.SupportedModelFormats, func(f v1alpha1.SupportedModelFormat) bool { return ties(mine, &f) }) {
				errs = append(errs, field.Invalid(at.Index(i).Child("priority"), *mine.Priority, fmt.Sprintf(
					"the runtime %s has the same priority for format %s%s, so which one is chosen would be chance; set another", other.Name, mine.Name, versionSuffix(mine.Version))))
			}
		}
	}
	return errs
}

// validateFormats refuses priorities that differ within one format's name: selection takes
// the first entry's for all.
func validateFormats(s *v1alpha1.ServingRuntimeSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	first := map[string]*int32{}
	for i := range s.SupportedModelFormats {
		f := &s.SupportedModelFormats[i]
		if f.Name == "" {
			errs = append(errs, field.Required(at.Index(i).Child("name"), "name the format"))
		}
		if f.Priority != nil && *f.Priority < 1 {
			errs = append(errs, field.Invalid(at.Index(i).Child("priority"), *f.Priority, "must be 1 or more"))
		}
		was, seen := first[f.Name]
		if !seen {
			first[f.Name] = f.Priority
			continue
		}
		if !equal(was, f.Priority) {
			errs = append(errs, field.Invalid(at.Index(i).Child("priority"), show(f.Priority), fmt.Sprintf(
				"the priority of format %s must be the same in each of its entries; it is %s in the first", f.Name, show(was))))
		}
	}
	return errs
}

// ties reports whether nothing would decide between two runtimes for a format: both may be
// chosen for it and have the same priority. KServe compares names and versions here without
// case.
func ties(a, b *v1alpha1.SupportedModelFormat) bool {
	return isTrue(a.AutoSelect) && isTrue(b.AutoSelect) &&
		strings.EqualFold(a.Name, b.Name) && sameVersion(a.Version, b.Version) &&
		a.Priority != nil && b.Priority != nil && *a.Priority == *b.Priority
}

func sameVersion(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return strings.EqualFold(*a, *b)
}

// shareProtocol reports whether one request could go to either runtime; none listed is any.
func shareProtocol(a, b *v1alpha1.ServingRuntimeSpec) bool {
	return len(a.ProtocolVersions) == 0 || len(b.ProtocolVersions) == 0 ||
		slices.ContainsFunc(a.ProtocolVersions, func(p v1alpha1.Protocol) bool { return slices.Contains(b.ProtocolVersions, p) })
}

func isTrue(b *bool) bool { return b != nil && *b }

func equal(a, b *int32) bool { return a == b || a != nil && b != nil && *a == *b }

func show(n *int32) string {
	if n == nil {
		return "unset"
	}
	return fmt.Sprint(*n)
}

func versionSuffix(v *string) string {
	if v == nil {
		return ""
	}
	return " version " + *v
}
