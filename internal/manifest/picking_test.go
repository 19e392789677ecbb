package manifest_test

import (
	"testing"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestWhoSaysHowReplicasArePicked(t *testing.T) {
	is := &v1beta1.InferenceService{}
	if got := manifest.PickingOf(is, spec.Predictor); got != "" {
		t.Errorf("nobody says %q", got)
	}
	is.Annotations = map[string]string{manifest.PickingAnnotation: " round-robin "}
	is.Spec.Transformer = &v1beta1.TransformerSpec{}
	is.Spec.Transformer.Annotations = map[string]string{manifest.PickingAnnotation: "session"}
	for c, want := range map[spec.Component]string{spec.Predictor: "round-robin", spec.Transformer: "session", spec.Explainer: "round-robin"} {
		if got := manifest.PickingOf(is, c); got != want {
			t.Errorf("the %s's is %q, want %q", c, got, want)
		}
	}
}

// A service's policy is the gateway's business: a change of it must start no pod anew. A runtime's
// is found by the revision.
func TestPodsAreNotChangedByHowTheyArePicked(t *testing.T) {
	is := service(t, "predictor: {model: {modelFormat: {name: sklearn}, storageUri: file:///m}}")
	plain := compiled(t, input(t, is, spec.Predictor))
	is.Annotations[manifest.PickingAnnotation] = "round-robin"
	is.Spec.Predictor.Annotations = map[string]string{manifest.PickingAnnotation: "prefix"}
	in := input(t, is, spec.Predictor)
	if got := compiled(t, in); got.Workload.Hash != plain.Workload.Hash || got.PodTemplate.Annotations[manifest.PickingAnnotation] != "" {
		t.Errorf("the pod has %v, and the hash %s became %s", got.PodTemplate.Annotations, plain.Workload.Hash, got.Workload.Hash)
	}
	runtime := *in.Runtime
	runtime.ServingRuntimePodSpec = v1alpha1.ServingRuntimePodSpec{Containers: runtime.Containers, Annotations: map[string]string{manifest.PickingAnnotation: "kv-cache"}}
	in.Runtime = &runtime
	if got := compiled(t, in).PodTemplate.Annotations[manifest.PickingAnnotation]; got != "kv-cache" {
		t.Errorf("the runtime's policy became %q", got)
	}
}
