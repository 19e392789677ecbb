package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/kubeapi"
)

// runtimes is an API that has one runtime in each scope: "cluster-wide", and in every namespace
// one that is called after it.
type runtimes struct {
	client.Client
	err error
}

func (r runtimes) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if r.err != nil {
		return r.err
	}
	one, yes := int32(1), true
	spec := v1alpha1.ServingRuntimeSpec{SupportedModelFormats: []v1alpha1.SupportedModelFormat{{Name: "onnx", AutoSelect: &yes, Priority: &one}}}
	spec.Containers = []corev1.Container{{Name: "kserve-container", Image: "x"}}
	var o client.ListOptions
	o.ApplyOptions(opts)
	switch list := into.(type) {
	case *v1alpha1.ClusterServingRuntimeList:
		list.Items = []v1alpha1.ClusterServingRuntime{{ObjectMeta: metav1.ObjectMeta{Name: "cluster-wide"}, Spec: spec}}
	case *v1alpha1.ServingRuntimeList:
		list.Items = []v1alpha1.ServingRuntime{{ObjectMeta: metav1.ObjectMeta{Name: "of-" + o.Namespace}, Spec: spec}}
	}
	return nil
}

// answering is a lazy client of an API that answers.
func answering(c client.Client) *lazyClient {
	l := &lazyClient{config: func() *rest.Config { return &rest.Config{} }, client: c}
	l.once.Do(func() {})
	return l
}

const (
	aService = `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
`
	soundService = aService + "    model: {modelFormat: {name: onnx}, storageUri: /m}\n"
	unknownField = aService + "    containers: [{name: a, image: x, imag: y}]\n"
	aRuntime     = `
apiVersion: serving.kserve.io/v1alpha1
kind: KIND
metadata: {name: mine}
spec:
  supportedModelFormats: [{name: onnx, autoSelect: true, priority: 1}]
  containers: [{name: kserve-container, image: x}]
`
)

func TestAdmissionAsksTheManifestRoomInBothPhases(t *testing.T) {
	starting := &lazyClient{config: func() *rest.Config { return nil }}
	tests := map[string]struct {
		api        *lazyClient
		object     string
		namespace  string
		phase      kubeapi.Phase
		validation string
		wantPruned bool
		wantWarned string
		wantErr    string
		wantKind   error
	}{
		"a sound service isn't changed":              {object: soundService, phase: kubeapi.Mutating},
		"a sound service is let in":                  {object: soundService, phase: kubeapi.Validating},
		"an unknown field is refused by its path":    {object: unknownField, phase: kubeapi.Mutating, validation: "Strict", wantErr: `unknown field "spec.predictor.containers[0].imag"`, wantKind: errdef.ErrInvalid},
		"one that may pass is taken away and told":   {object: unknownField, phase: kubeapi.Mutating, validation: "Warn", wantPruned: true, wantWarned: `unknown field "spec.predictor.containers[0].imag"`},
		"or taken away in silence":                   {object: unknownField, phase: kubeapi.Mutating, validation: "Ignore", wantPruned: true},
		"what must not be is refused when validated": {object: soundService + "    sklearn: {}\n", phase: kubeapi.Validating, wantErr: "exactly one of", wantKind: errdef.ErrInvalid},
		"a field without effect is told":             {object: soundService + "    logger: {mode: all}\n", phase: kubeapi.Validating, wantWarned: "spec.predictor.logger has no effect here"},
		"a runtime is compared with its namespace's": {
			object: strings.ReplaceAll(aRuntime, "KIND", "ServingRuntime"), namespace: "team", phase: kubeapi.Validating,
			wantErr: "the runtime of-team has the same priority", wantKind: errdef.ErrInvalid,
		},
		"a cluster-wide one with the cluster's": {
			object: strings.ReplaceAll(aRuntime, "KIND", "ClusterServingRuntime"), phase: kubeapi.Validating,
			wantErr: "the runtime cluster-wide has the same priority", wantKind: errdef.ErrInvalid,
		},
		"while the API starts there is none to compare with": {
			api: starting, object: strings.ReplaceAll(aRuntime, "KIND", "ClusterServingRuntime"), phase: kubeapi.Validating,
		},
		"what can't be compared isn't let in": {
			api: answering(runtimes{err: errors.New("etcd is away")}), object: strings.ReplaceAll(aRuntime, "KIND", "ServingRuntime"), namespace: "team",
			phase: kubeapi.Validating, wantErr: "list serving runtimes of team: etcd is away", wantKind: errdef.ErrInternal,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.api == nil {
				tc.api = answering(runtimes{})
			}
			object := &unstructured.Unstructured{}
			if err := sigsyaml.Unmarshal([]byte(tc.object), &object.Object); err != nil {
				t.Fatal(err)
			}
			mutated, warnings, err := embeddedAdmission{api: tc.api}.Admit(t.Context(), kubeapi.AdmissionRequest{
				Phase: tc.phase, Create: true, Namespace: tc.namespace, Object: object, FieldValidation: tc.validation,
			})
			switch {
			case tc.wantErr == "" && err != nil:
				t.Fatal(err)
			case tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr) || !errors.Is(errdef.KindOf(err), tc.wantKind)):
				t.Fatalf("error %v, want %q of kind %v", err, tc.wantErr, tc.wantKind)
			}
			if (mutated != nil) != tc.wantPruned {
				t.Errorf("changed to %v, want a change: %v", mutated, tc.wantPruned)
			}
			if tc.wantPruned {
				containers, _, _ := unstructured.NestedSlice(mutated.Object, "spec", "predictor", "containers")
				if len(containers) != 1 || containers[0].(map[string]any)["imag"] != nil || containers[0].(map[string]any)["image"] != "x" {
					t.Errorf("pruned to %v", containers)
				}
			}
			told := slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, tc.wantWarned) })
			if tc.wantWarned != "" && !told || tc.wantWarned == "" && len(warnings) > 0 {
				t.Errorf("warnings %q, want %q", warnings, tc.wantWarned)
			}
		})
	}
}
