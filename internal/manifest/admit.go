package manifest

import (
	"fmt"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

// Admission is an object that is about to be stored, as content of an unstructured object.
type Admission struct {
	// Object is of a kind that DecodeStrict knows. Admit deletes unknown fields from it where
	// FieldValidation lets them pass.
	Object map[string]any
	// Old is what is stored; nil on create. It isn't changed.
	Old map[string]any
	// FieldValidation is Strict, Warn or Ignore, as the API's clients ask for; empty is
	// Strict.
	FieldValidation string
	// Runtimes returns the runtimes of the object's scope; it is called for runtimes only,
	// and nil means there are no others.
	Runtimes func() []NamedRuntime
	// Cluster says that the object is for a cluster, where fields that speak of pods and nodes
	// have their effect.
	Cluster bool
}

// Verdict is what Admit found.
type Verdict struct {
	// Pruned says that unknown fields were deleted from the object.
	Pruned bool
	// Warnings are for the client: unknown fields under Warn, and fields that do nothing yet.
	Warnings []string
	// Refused are the faults for which the object must not be stored; empty means it may be.
	Refused field.ErrorList
	// Object and Old are what was judged, decoded: Object is nil where nothing was, because spec and
	// annotations stay as they are, and Old is nil on create as well.
	Object, Old Object
}

// Admit decides about an object in the words of an API server that has the full CRD and
// KServe's admission: it checks fields, then Validate, ValidateRuntime, ValidateRevision or
// ValidateTrainedModel. An
// update that leaves spec and annotations alone isn't validated again, so that stricter rules
// of a later version don't lock an object.
//
// The error is a *FieldErrors for unknown fields under Strict, or of kind
// errdef.ErrUnsupported or ErrInvalid for a kind that isn't known.
func Admit(a Admission) (Verdict, error) {
	var v Verdict
	strict := a.FieldValidation == "" || a.FieldValidation == metav1.FieldValidationStrict
	empty, err := check(a.Object, !strict)
	if faults := IsFieldErrors(err); faults != nil {
		if strict && len(faults.Unknown) > 0 {
			return Verdict{}, faults
		}
		v.Refused = faults.Invalid
		v.Pruned = len(faults.Unknown) > 0
		if a.FieldValidation == metav1.FieldValidationWarn {
			for _, path := range faults.Unknown {
				v.Warnings = append(v.Warnings, fmt.Sprintf("unknown field %q", path))
			}
		}
		if len(v.Refused) > 0 {
			return v, nil
		}
	} else if err != nil {
		return Verdict{}, err
	}
	if unchanged(a.Object, a.Old) {
		return v, nil
	}
	obj, err := fill(empty, a.Object)
	if err != nil {
		return Verdict{}, err
	}
	var old Object
	if a.Old != nil {
		// What is stored once passed the check; a field that went since is left out.
		kept := runtime.DeepCopyJSON(a.Old)
		if old, _ = check(kept, true); old != nil {
			if old, err = fill(old, kept); err != nil {
				return Verdict{}, err
			}
		}
	}
	v.Object, v.Old = obj, old
	v.judge(obj, old, a)
	return v, nil
}

func (v *Verdict) judge(obj, old Object, a Admission) {
	var spec *v1alpha1.ServingRuntimeSpec
	switch o := obj.(type) {
	case *v1beta1.InferenceService:
		before, _ := old.(*v1beta1.InferenceService)
		v.Refused = Validate(o, before)
		v.warn(NotInEffectOf(o), a.Cluster)
	case *smv1alpha1.Revision:
		before, _ := old.(*smv1alpha1.Revision)
		v.Refused = ValidateRevision(o, before)
	case *v1alpha1.TrainedModel:
		before, _ := old.(*v1alpha1.TrainedModel)
		v.Refused = ValidateTrainedModel(o, before)
	case *v1alpha1.InferenceGraph:
		v.Refused = ValidateGraph(o)
		v.warn(NotInEffectOfGraph(o), a.Cluster)
	case *v1alpha1.ServingRuntime:
		spec = &o.Spec
	case *v1alpha1.ClusterServingRuntime:
		spec = &o.Spec
	}
	if spec == nil {
		return
	}
	var others []NamedRuntime
	if a.Runtimes != nil {
		others = a.Runtimes()
	}
	v.Refused = ValidateRuntime(NamedRuntime{Name: obj.GetName(), Spec: spec}, others)
	v.warn(NotInEffectOfRuntime(spec), a.Cluster)
}

// warn tells of fields without effect, but for those that are refused.
func (v *Verdict) warn(fields []NotInEffect, cluster bool) {
	for _, n := range fields {
		refused := slices.ContainsFunc(v.Refused, func(e *field.Error) bool { return e.Field == n.Field })
		if refused || cluster && n.ClusterOnly {
			continue
		}
		v.Warnings = append(v.Warnings, n.Warning())
	}
}

// unchanged reports whether neither spec nor annotations differ from what is stored.
func unchanged(obj, old map[string]any) bool {
	if old == nil {
		return false
	}
	meta, _ := obj["metadata"].(map[string]any)
	before, _ := old["metadata"].(map[string]any)
	return reflect.DeepEqual(obj["spec"], old["spec"]) && reflect.DeepEqual(meta["annotations"], before["annotations"])
}
