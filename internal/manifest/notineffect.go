package manifest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// NotInEffect is a field that is accepted and kept but does nothing on one machine now.
type NotInEffect struct {
	// Field is the path within the object, e.g. spec.predictor.logger.
	Field string
	// Reason is a sentence without a stop: why it does nothing, and where there is something
	// to do, what.
	Reason string
	// ClusterOnly is set for fields that speak of nodes and pods: they have an effect on a
	// cluster and never will on one machine.
	ClusterOnly bool
}

// Warning is what a client is told of it.
func (n NotInEffect) Warning() string {
	return fmt.Sprintf("%s has no effect here: %s", n.Field, n.Reason)
}

// NotInEffectOf returns the fields of a service, and those of its annotations that KServe
// knows, that do nothing on one machine now; sorted by field, nil for none. Call it on the
// manifest as written, before Default, so that paths are those that the user wrote.
func NotInEffectOf(is *v1beta1.InferenceService) []NotInEffect {
	var w effectWalk
	for _, key := range slices.Sorted(maps.Keys(is.Annotations)) {
		reason := annotationReason(key, is.Annotations[key])
		if key == RolloutDurationAnnotation && reason == "" && is.Annotations[GuardStepsAnnotation] != "" {
			reason = GuardStepsAnnotation + " says how traffic moves"
		}
		if key == storageSecretAnnotation && anyStores(is) {
			reason = ""
		}
		if reason != "" {
			w.found = append(w.found, NotInEffect{
				Field:  field.NewPath("metadata", "annotations").Key(key).String(),
				Reason: reason, ClusterOnly: slices.Contains(podAnnotations, key),
			})
		}
	}
	w.object(reflect.ValueOf(is.Spec), field.NewPath("spec"))
	w.found = append(w.found, pipelineNotInEffect(is)...)
	w.found = append(w.found, scalingNotInEffect(is)...)
	w.found = append(w.found, storageNotInEffect(is)...)
	return w.sorted()
}

// NotInEffectOfRuntime does for a runtime what NotInEffectOf does for a service.
func NotInEffectOfRuntime(s *v1alpha1.ServingRuntimeSpec) []NotInEffect {
	var w effectWalk
	w.object(reflect.ValueOf(*s), field.NewPath("spec"))
	return w.sorted()
}

// effect is what becomes of a field that is set.
type effect struct {
	kind effectKind
	// reason is given for later and clusterOnly.
	reason string
	// unless reports, for a field's value and the struct that holds it, whether it is in
	// effect after all.
	unless func(v, holder reflect.Value) bool
}

type effectKind int

const (
	// inEffect: the field does what it says.
	inEffect effectKind = iota + 1
	// satisfied: on one machine there is nothing left to do for it.
	satisfied
	// into: what it holds is looked at field by field.
	into
	// later: the capability isn't there yet.
	later
	// clusterOnly: it speaks of nodes and pods.
	clusterOnly
)

type effectWalk struct{ found []NotInEffect }

func (w *effectWalk) sorted() []NotInEffect {
	slices.SortFunc(w.found, func(a, b NotInEffect) int { return strings.Compare(a.Field, b.Field) })
	return w.found
}

// object reports the fields of a struct whose type stands in effects.
func (w *effectWalk) object(v reflect.Value, at *field.Path) {
	table, ok := effects[v.Type()]
	if !ok {
		panic(fmt.Sprintf("BUG: nothing says which fields of %v are in effect", v.Type()))
	}
	eachField(v.Type(), func(f reflect.StructField, name string) {
		fv := v.FieldByIndex(f.Index)
		if isUnset(fv) {
			return
		}
		e := table[name]
		switch e.kind {
		case later, clusterOnly:
			if e.unless == nil || !e.unless(fv, v) {
				w.found = append(w.found, NotInEffect{Field: at.Child(name).String(), Reason: e.reason, ClusterOnly: e.kind == clusterOnly})
			}
		case into:
			w.into(fv, at.Child(name))
		}
	})
}

func (w *effectWalk) into(v reflect.Value, at *field.Path) {
	switch v.Kind() {
	case reflect.Pointer:
		w.into(v.Elem(), at)
	case reflect.Slice:
		for i := range v.Len() {
			w.into(v.Index(i), at.Index(i))
		}
	case reflect.Map:
		for _, key := range slices.SortedFunc(maps.Keys(mapOf(v)), strings.Compare) {
			if e := resourceEffect(key); e.kind != inEffect {
				w.found = append(w.found, NotInEffect{Field: at.Key(key).String(), Reason: e.reason, ClusterOnly: e.kind == clusterOnly})
			}
		}
	default:
		w.object(v, at)
	}
}

func mapOf(v reflect.Value) map[string]bool {
	keys := map[string]bool{}
	for _, k := range v.MapKeys() {
		keys[k.String()] = true
	}
	return keys
}

// isUnset reports whether a field says nothing: its zero value, or an empty list or map.
func isUnset(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}

// eachField calls f with each JSON field of a struct type, those of embedded ones included,
// under its JSON name.
func eachField(t reflect.Type, f func(field reflect.StructField, name string)) {
	for _, sf := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if sf.Anonymous && name == "" || name == "-" {
			continue
		}
		if name == "" {
			name = sf.Name
		}
		f(sf, name)
	}
}
