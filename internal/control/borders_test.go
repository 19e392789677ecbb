package control

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// A namespace is a tenant's border: what another one has isn't found from here, however it is
// spelt.
func TestNothingOfAnotherNamespaceIsUsed(t *testing.T) {
	b := newBench(t)
	own, theirs := b.ns, b.namespace()
	b.ns = theirs
	b.runtime("theirs", func(r *v1alpha1.ServingRuntime) { r.Spec.SupportedModelFormats[0].Name = "their-format" })
	b.multiRuntime()
	b.many("shelf")
	b.ns = own
	for name, tc := range map[string]struct {
		change func(*v1beta1.InferenceService)
		reason v1beta1.FailureReason
	}{
		"by-name": {func(is *v1beta1.InferenceService) {
			runtime := "theirs"
			is.Spec.Predictor.Model.Runtime = &runtime
		}, v1beta1.RuntimeNotRecognized},
		"by-a-whole-name": {func(is *v1beta1.InferenceService) {
			runtime := theirs + "/theirs"
			is.Spec.Predictor.Model.Runtime = &runtime
		}, v1beta1.RuntimeNotRecognized},
		"by-format": {func(is *v1beta1.InferenceService) { is.Spec.Predictor.Model.ModelFormat.Name = "their-format" }, v1beta1.NoSupportingRuntime},
	} {
		b.service(name, tc.change)
		is := b.until(name, "invalid", func(is *v1beta1.InferenceService) bool {
			return is.Status.ModelStatus.TransitionStatus == v1beta1.InvalidSpec && is.Status.ModelStatus.LastFailureInfo != nil
		})
		if got := is.Status.ModelStatus.LastFailureInfo.Reason; got != tc.reason {
			t.Errorf("a runtime of another namespace %s: %s, want %s", name, got, tc.reason)
		}
		if revs := b.revisions(name); len(revs) > 0 {
			t.Errorf("%s has the revisions %v", name, revs)
		}
	}
	b.model("mine", "shelf", "https://models.example/a", "onnx", "1Mi")
	tm := b.told("mine", v1alpha1.TrainedModelServiceReady, corev1.ConditionFalse, reasonNoService)
	if c := modelCondition(tm.Status.Conditions, v1alpha1.TrainedModelReady); c.Status == corev1.ConditionTrue {
		t.Errorf("a model is served by another namespace's service: %+v", tm.Status)
	}
	b.ns = theirs
	if list := b.list("shelf"); strings.Contains(list, "mine") {
		t.Errorf("another namespace's service serves %s", list)
	}
}
