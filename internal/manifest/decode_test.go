package manifest

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/errdef"
)

const smallService = `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    model:
      modelFormat: {name: onnx}
      storageUri: file:///models/iris
`

func TestDecodeStrictNamesEveryFault(t *testing.T) {
	for name, tc := range map[string]struct {
		manifest string
		kind     error
		want     []string
	}{
		"unknown fields at two depths": {
			manifest: smallService + "    containers: [{name: a, imag: x}]\n  predictr: {}\n",
			kind:     errdef.ErrInvalid,
			want:     []string{`strict decoding error: unknown field "spec.predictor.containers[0].imag", unknown field "spec.predictr"`},
		},
		"a string for a number, and a list for an object": {
			manifest: smallService + "    minReplicas: two\n    nodeSelector: [a]\n",
			kind:     errdef.ErrInvalid,
			want:     []string{`spec.predictor.minReplicas: Invalid value: "string": must be of type integer`, `spec.predictor.nodeSelector: Invalid value: "array": must be of type object`},
		},
		"a container without a name": {
			manifest: smallService + "    containers: [{image: a}]\n",
			kind:     errdef.ErrInvalid,
			want:     []string{`spec.predictor.containers[0].name: Required value`},
		},
		"a quantity that is none": {
			manifest: smallService + "      resources: {limits: {cpu: lots}}\n",
			kind:     errdef.ErrInvalid,
			want:     []string{`spec.predictor.model.resources.limits[cpu]: Invalid value: "lots": must be a quantity`},
		},
		"a fraction without quotes": {
			manifest: smallService + "      resources: {limits: {cpu: 0.5}}\n",
			kind:     errdef.ErrInvalid,
			want:     []string{"put quotes around a fraction"},
		},
		"a number too large for its field": {
			manifest: smallService + "    minReplicas: 5000000000\n",
			kind:     errdef.ErrInvalid,
			want:     []string{"spec.predictor.minReplicas: Invalid value: 5000000000: must fit into int32"},
		},
		"ephemeral containers, which a component lacks": {
			manifest: smallService + "    ephemeralContainers: [{name: debug}]\n",
			kind:     errdef.ErrInvalid,
			want:     []string{`unknown field "spec.predictor.ephemeralContainers"`},
		},
		"a null in a list": {
			manifest: smallService + "    containers: [null]\n",
			kind:     errdef.ErrInvalid,
			want:     []string{`spec.predictor.containers[0]: Invalid value: "null": must be of type object`},
		},
		"a key given twice":   {manifest: smallService + "    minReplicas: 1\n    minReplicas: 2\n", kind: errdef.ErrInvalid, want: []string{"minReplicas"}},
		"broken YAML":         {manifest: "a: [", kind: errdef.ErrInvalid, want: []string{"neither YAML nor JSON"}},
		"nothing at all":      {manifest: "", kind: errdef.ErrInvalid, want: []string{"not null"}},
		"a list":              {manifest: "[1]", kind: errdef.ErrInvalid, want: []string{"not array"}},
		"no kind":             {manifest: "{apiVersion: v1}", kind: errdef.ErrInvalid, want: []string{"set both"}},
		"a kind of others":    {manifest: "{apiVersion: v1, kind: Pod}", kind: errdef.ErrUnsupported, want: []string{"kind Pod of v1 is not one of"}},
		"a kind's old number": {manifest: "{apiVersion: serving.kserve.io/v1alpha2, kind: InferenceService}", kind: errdef.ErrUnsupported, want: []string{"serving.kserve.io/v1beta1"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeStrict([]byte(tc.manifest))
			if !errors.Is(err, tc.kind) {
				t.Fatalf("error %v, want one of kind %v", err, tc.kind)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

func TestDecodeStrictGivesTheTypedObject(t *testing.T) {
	obj, err := DecodeStrict([]byte(smallService))
	if err != nil {
		t.Fatal(err)
	}
	is, ok := obj.(*v1beta1.InferenceService)
	if !ok {
		t.Fatalf("got a %T", obj)
	}
	if is.Name != "iris" || is.Spec.Predictor.Model == nil || *is.Spec.Predictor.Model.StorageURI != "file:///models/iris" {
		t.Errorf("decoded %+v", is)
	}
}

func TestNullIsTheSameAsAbsent(t *testing.T) {
	if _, err := DecodeStrict([]byte(smallService + "    containers:\n    nodeSelector: null\n  transformer: null\n")); err != nil {
		t.Error(err)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	containers := make([]any, 1000)
	for i := range containers {
		containers[i] = map[string]any{"x": true}
	}
	err := CheckFields(map[string]any{
		"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
		"spec": map[string]any{"predictor": map[string]any{"containers": containers}},
	})
	f := IsFieldErrors(err)
	if f == nil || len(f.Unknown) != maxFieldErrors || len(f.Invalid) != maxFieldErrors {
		t.Errorf("%d unknown and %d invalid fields", len(f.Unknown), len(f.Invalid))
	}
}

// FuzzDecodeStrict demands that whatever decodes also encodes and decodes to the same.
func FuzzDecodeStrict(f *testing.F) {
	f.Add([]byte(smallService))
	f.Add([]byte(`{"apiVersion":"serving.kserve.io/v1alpha1","kind":"ServingRuntime","spec":{"containers":[{"name":"kserve-container","resources":{"limits":{"cpu":"1","memory":2}}}]}}`))
	f.Add([]byte(`{"apiVersion":"serving.kserve.io/v1alpha1","kind":"ClusterServingRuntime","metadata":{"creationTimestamp":"2024-01-02T03:04:05Z"},"spec":{"containers":[],"replicas":3}}`))
	f.Add([]byte(`{"apiVersion":"stationmaster.dev/v1alpha1","kind":"Revision","spec":{"service":"a","component":"predictor","hash":"h","podTemplate":{"metadata":{"labels":{"a":"b"}}}},"status":{"startup":{"pull":"1s"}}}`))
	f.Add([]byte(`{"apiVersion":"stationmaster.dev/v1alpha1","kind":"Route","spec":{"service":"a","components":[{"component":"predictor","targets":[{"revisionName":"r","percent":100}]}]}}`))
	f.Add([]byte(`{"apiVersion":"serving.kserve.io/v1beta1","kind":"InferenceService","spec":{"predictor":{"containers":[{"name":"a","ports":[{"containerPort":1e3}],"readinessProbe":{"httpGet":{"port":"x"}}}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1Gi"}}]}}}`))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		obj, err := DecodeStrict(raw)
		if err != nil {
			if !errors.Is(err, errdef.ErrInvalid) && !errors.Is(err, errdef.ErrUnsupported) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		text, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		again := reflect.New(reflect.TypeOf(obj).Elem()).Interface()
		if err := json.Unmarshal(text, again); err != nil {
			t.Fatalf("%s decodes, but its own encoding %s doesn't: %v", raw, text, err)
		}
		text2, err := json.Marshal(again)
		if err != nil {
			t.Fatal(err)
		}
		if string(text) != string(text2) {
			t.Fatalf("encoded %s, then %s", text, text2)
		}
		// What follows decoding must not panic either.
		if is, ok := obj.(*v1beta1.InferenceService); ok {
			Validate(is, nil)
			NotInEffectOf(is)
			Default(is, Defaults{})
			Validate(is, is)
		}
	})
}

// TestMembersFollowTheTags looks at one type with inlined parts; that all types demand what the
// CRD does is TestSlimCRDJudgesAsTheFullOne.
func TestMembersFollowTheTags(t *testing.T) {
	m := membersOf(reflect.TypeFor[v1beta1.ModelSpec]())
	if diff := cmp.Diff([]string{"modelFormat", "name"}, m.required); diff != "" {
		t.Errorf("required (-want +got):\n%s", diff)
	}
	for _, name := range []string{"storageUri", "image", "modelFormat", "confidential"} {
		if _, ok := m.byName[name]; !ok {
			t.Errorf("%s isn't among %v", name, slices.Sorted(maps.Keys(m.byName)))
		}
	}
}
