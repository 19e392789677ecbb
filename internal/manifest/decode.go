// Package manifest is the only input door: it decodes what users write, fills in what they
// left out, refuses what can't be, tells what is not yet in effect, and compiles the rest into
// workloads.
package manifest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
)

// Object is an object of one of the kinds that this package decodes.
type Object interface {
	runtime.Object
	metav1.Object
}

// kinds makes an empty object of each kind that this package decodes.
var kinds = map[schema.GroupVersionKind]func() Object{
	v1beta1.GroupVersion.WithKind("InferenceService"):       func() Object { return &v1beta1.InferenceService{} },
	v1alpha1.GroupVersion.WithKind("ServingRuntime"):        func() Object { return &v1alpha1.ServingRuntime{} },
	v1alpha1.GroupVersion.WithKind("ClusterServingRuntime"): func() Object { return &v1alpha1.ClusterServingRuntime{} },
	v1alpha1.GroupVersion.WithKind("TrainedModel"):          func() Object { return &v1alpha1.TrainedModel{} },
	v1alpha1.GroupVersion.WithKind("InferenceGraph"):        func() Object { return &v1alpha1.InferenceGraph{} },
	smv1alpha1.GroupVersion.WithKind("Revision"):            func() Object { return &smv1alpha1.Revision{} },
	smv1alpha1.GroupVersion.WithKind("Route"):               func() Object { return &smv1alpha1.Route{} },
}

// FieldErrors is what is wrong with the fields of an object beside its Go type. It is an
// error of kind errdef.ErrInvalid.
type FieldErrors struct {
	// Unknown are the paths of fields that the type doesn't have, sorted.
	Unknown []string
	// Invalid are fields of the wrong type or format, and required ones that are missing,
	// sorted by path.
	Invalid field.ErrorList
}

// Error lists every fault, unknown fields in the words of an API server.
func (e *FieldErrors) Error() string {
	var parts []string
	if len(e.Unknown) > 0 {
		unknown := make([]error, len(e.Unknown))
		for i, path := range e.Unknown {
			unknown[i] = fmt.Errorf("unknown field %q", path)
		}
		parts = append(parts, runtime.NewStrictDecodingError(unknown).Error())
	}
	for _, err := range e.Invalid {
		parts = append(parts, err.Error())
	}
	return strings.Join(parts, "; ")
}

// Unwrap returns the kind.
func (e *FieldErrors) Unwrap() error { return errdef.ErrInvalid }

// CheckFields reports what in an object's content (as unstructured.Unstructured holds it)
// doesn't fit the Go type of its kind: unknown fields, wrong types and formats, and missing
// required fields. It returns nil, a *FieldErrors with at most 100 faults of each sort, or an
// error of kind errdef.ErrUnsupported for a kind that this package doesn't decode.
//
// It reaches the verdicts that an API server reaches with the full CRD, enumerations and
// limits of our own fields apart, which the slim CRD holds. Three differences: an unknown field
// is always an error, a null in a field is the same as leaving it out, and a number that the
// Go type can't hold is an error even where the schema gives no size.
func CheckFields(obj map[string]any) error {
	_, err := check(obj, false)
	return err
}

// FromUnstructured returns the typed object of a content that CheckFields finds no fault with;
// otherwise CheckFields' error. The result shares no memory with obj.
func FromUnstructured(obj map[string]any) (Object, error) {
	out, err := check(obj, false)
	if err != nil {
		return nil, err
	}
	return fill(out, obj)
}

// fill decodes a content that fits into an empty object.
func fill(into Object, obj map[string]any) (Object, error) {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj, into); err != nil {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("decode %s %q: %v", obj["kind"], nameOf(obj), err))
	}
	return into, nil
}

// DecodeStrict decodes one JSON or YAML document that holds an object of a kind of
// serving.kserve.io or stationmaster.dev. Errors are of kind errdef.ErrInvalid (broken
// syntax, a key given twice, or a *FieldErrors) or errdef.ErrUnsupported (another kind).
func DecodeStrict(raw []byte) (Object, error) {
	jsonText, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the manifest is neither YAML nor JSON: %v", err))
	}
	var content any
	if err := json.UnmarshalCaseSensitivePreserveInts(jsonText, &content); err != nil {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("decode manifest: %v", err))
	}
	obj, ok := content.(map[string]any)
	if !ok {
		return nil, errdef.New(errdef.ErrInvalid, "the manifest must be an object with apiVersion and kind, not "+jsonType(content))
	}
	return FromUnstructured(obj)
}

// check returns an empty object of the content's kind if the content fits it. With prune it
// deletes unknown fields from obj, and the object comes with a *FieldErrors if those were all.
func check(obj map[string]any, prune bool) (Object, error) {
	apiVersion, _ := obj["apiVersion"].(string)
	kind, _ := obj["kind"].(string)
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil || kind == "" {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("apiVersion %q and kind %q name no kind of object; set both", apiVersion, kind))
	}
	make, ok := kinds[gv.WithKind(kind)]
	if !ok {
		return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("kind %s of %s is not one of %s", kind, apiVersion, knownKinds()))
	}
	out := make()
	c := checker{prune: prune}
	c.object(obj, reflect.TypeOf(out).Elem(), nil)
	if len(c.unknown) == 0 && len(c.invalid) == 0 {
		return out, nil
	}
	slices.Sort(c.unknown)
	slices.SortFunc(c.invalid, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	faults := &FieldErrors{
		Unknown: c.unknown[:min(len(c.unknown), maxFieldErrors)],
		Invalid: c.invalid[:min(len(c.invalid), maxFieldErrors)],
	}
	if prune && len(c.invalid) == 0 {
		return out, faults
	}
	return nil, faults
}

func knownKinds() string {
	names := make([]string, 0, len(kinds))
	for gvk := range kinds {
		names = append(names, gvk.Kind+" of "+gvk.GroupVersion().String())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func nameOf(obj map[string]any) string {
	meta, _ := obj["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	return name
}

// IsFieldErrors returns the *FieldErrors within err, or nil.
func IsFieldErrors(err error) *FieldErrors {
	var f *FieldErrors
	errors.As(err, &f)
	return f
}
