package manifest

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	sigsyaml "sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
)

func content(t *testing.T, text string) map[string]any {
	t.Helper()
	var obj map[string]any
	if err := sigsyaml.Unmarshal([]byte(text), &obj); err != nil {
		t.Fatal(err)
	}
	return normal(t, obj)
}

func TestAdmit(t *testing.T) {
	const unknown = smallService + "    containers: [{name: a, imag: x}]\n"
	const aRuntime = `
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: mine}
spec:
  supportedModelFormats: [{name: onnx, autoSelect: true, priority: 1}]
  nodeSelector: {a: b}
  containers: [{name: kserve-container}]
`
	const revision = `
apiVersion: stationmaster.dev/v1alpha1
kind: Revision
metadata: {name: iris-predictor-00001}
spec: {service: iris, component: predictor, hash: h, podTemplate: {spec: {containers: [{name: a, image: IMAGE}]}}}
`
	onePriority := int32(1)
	yes := true
	rival := func() []NamedRuntime {
		return []NamedRuntime{{Name: "rival", Spec: &v1alpha1.ServingRuntimeSpec{
			SupportedModelFormats: []v1alpha1.SupportedModelFormat{{Name: "onnx", AutoSelect: &yes, Priority: &onePriority}},
		}}}
	}
	for name, tc := range map[string]struct {
		object, old, validation string
		runtimes                func() []NamedRuntime
		wantErr, wantRefused    string
		wantWarning             string
		wantPruned              bool
	}{
		"a good service":                      {object: smallService},
		"an unknown field, strictly":          {object: unknown, validation: "Strict", wantErr: `unknown field "spec.predictor.containers[0].imag"`},
		"an unknown field, when nothing said": {object: unknown, wantErr: "unknown field"},
		"an unknown field, with a warning":    {object: unknown, validation: "Warn", wantPruned: true, wantWarning: `unknown field "spec.predictor.containers[0].imag"`},
		"an unknown field, in silence":        {object: unknown, validation: "Ignore", wantPruned: true},
		"a wrong type, whatever was said":     {object: smallService + "    containers: [{name: 1}]\n", validation: "Ignore", wantRefused: "must be of type string"},
		"what KServe's admission refuses":     {object: smallService + "    sklearn: {}\n", wantRefused: "exactly one of"},
		"a field without effect":              {object: smallService + "    logger: {mode: all}\n", wantWarning: "spec.predictor.logger has no effect here"},
		"a refused annotation": { // which isn't told as having no effect, too
			object:      strings.Replace(smallService, "metadata: {", "metadata: {annotations: {stationmaster.dev/picking: nosuch}, ", 1),
			wantRefused: "metadata.annotations",
		},
		"an unchanged service under a new rule": {
			object: smallService + "    sklearn: {}\n", old: smallService + "    sklearn: {}\n",
		},
		"a changed one":                    {object: smallService + "    sklearn: {}\n", old: smallService, wantRefused: "exactly one of"},
		"a stored field that is now gone":  {object: smallService + "    minReplicas: 2\n", old: unknown},
		"a runtime":                        {object: aRuntime, wantWarning: "spec.nodeSelector has no effect here"},
		"a runtime that ties with another": {object: aRuntime, runtimes: rival, wantRefused: "the runtime rival", wantWarning: "spec.nodeSelector"},
		"a revision that changes":          {object: revision, old: strings.ReplaceAll(revision, "IMAGE", "other"), wantRefused: "immutable"},
		"a revision that is made":          {object: revision},
		"a kind of others":                 {object: "{apiVersion: v1, kind: Pod}", wantErr: "not one of"},
	} {
		t.Run(name, func(t *testing.T) {
			a := Admission{Object: content(t, tc.object), FieldValidation: tc.validation, Runtimes: tc.runtimes}
			if tc.old != "" {
				a.Old = content(t, tc.old)
			}
			stored := runtime.DeepCopyJSON(a.Old)
			v, err := Admit(a)
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("error %v, want %q", err, tc.wantErr)
			}
			if err != nil && !errors.Is(err, errdef.ErrInvalid) && !errors.Is(err, errdef.ErrUnsupported) {
				t.Errorf("error of another kind: %v", err)
			}
			refused := ""
			if agg := v.Refused.ToAggregate(); agg != nil {
				refused = agg.Error()
			}
			if (refused == "") != (tc.wantRefused == "") || !strings.Contains(refused, tc.wantRefused) {
				t.Errorf("refused %q, want %q", refused, tc.wantRefused)
			}
			warnings := strings.Join(v.Warnings, "\n")
			if (warnings == "") != (tc.wantWarning == "") || !strings.Contains(warnings, tc.wantWarning) {
				t.Errorf("warnings %q, want %q", warnings, tc.wantWarning)
			}
			if v.Pruned != tc.wantPruned {
				t.Errorf("pruned %t, want %t", v.Pruned, tc.wantPruned)
			}
			if v.Pruned && CheckFields(a.Object) != nil {
				t.Errorf("after pruning: %v", CheckFields(a.Object))
			}
			if len(missing(stored, a.Old, "")) > 0 {
				t.Error("the stored object was changed")
			}
		})
	}
}
