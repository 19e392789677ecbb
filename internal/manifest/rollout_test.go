package manifest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

func TestACanaryIsTheStablePredictorWithWhatItSets(t *testing.T) {
	uri, next, minReplicas, grace := "file:///one", "file:///two", int32(3), int64(30)
	is := &v1beta1.InferenceService{}
	p := &is.Spec.Predictor
	p.Name, p.MinReplicas, p.TerminationGracePeriodSeconds = "stable", &minReplicas, &grace
	p.NodeSelector = map[string]string{"zone": "a", "disk": "ssd"}
	p.Model = &v1beta1.ModelSpec{ModelFormat: v1beta1.ModelFormat{Name: "onnx"}}
	p.Model.StorageURI = &uri
	p.Model.Args = []string{"--a", "--b"}
	p.Model.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	canary := v1beta1.PredictorSpec{Name: "next"}
	canary.NodeSelector = map[string]string{"zone": "b"}
	canary.Model = &v1beta1.ModelSpec{}
	canary.Model.StorageURI = &next
	canary.Model.Args = []string{"--c"}
	canary.Model.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}
	is.Spec.Canary = []v1beta1.CanarySpec{{Predictor: canary, TrafficPercent: 10}}
	Default(is, Defaults{})
	before := is.DeepCopy()

	got, err := CanaryService(is, 0)
	if err != nil {
		t.Fatal(err)
	}
	q := got.Spec.Predictor
	if q.Name != "next" || *q.MinReplicas != 3 || *q.TerminationGracePeriodSeconds != 30 || q.Model.ModelFormat.Name != "onnx" || *q.Model.StorageURI != next {
		t.Errorf("predictor %+v, model %+v", q, q.Model)
	}
	if diff := cmp.Diff(map[string]string{"zone": "b", "disk": "ssd"}, q.NodeSelector); diff != "" {
		t.Errorf("node selector (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"--c"}, q.Model.Args); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
	if cpu, memory := q.Model.Resources.Limits.Cpu().String(), q.Model.Resources.Limits.Memory().String(); cpu != "2" || memory != "2Gi" {
		t.Errorf("limits %s and %s", cpu, memory)
	}
	if len(got.Spec.Canary) != 0 {
		t.Errorf("canaries of the canary: %v", got.Spec.Canary)
	}
	if diff := cmp.Diff(before, is); diff != "" {
		t.Errorf("the service changed:\n%s", diff)
	}
}

func TestSticky(t *testing.T) {
	tests := map[string]struct {
		want *smv1alpha1.Sticky
		err  error
	}{
		"":                  {},
		"header=X-User":     {want: &smv1alpha1.Sticky{Header: "X-User"}},
		" cookie = session": {want: &smv1alpha1.Sticky{Cookie: "session"}},
		"header":            {err: errSticky},
		"header=":           {err: errSticky},
		"query=user":        {err: errSticky},
		"cookie=a b":        {err: errSticky},
	}
	for value, tc := range tests {
		got, err := ParseSticky(value)
		if diff := cmp.Diff(tc.want, got); diff != "" || !errors.Is(err, tc.err) {
			t.Errorf("%q: %v, error %v", value, got, err)
		}
	}
}
