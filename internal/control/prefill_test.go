package control

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// TestAReaderOfPromptsThatIsNotThereIsTold in the status of the service that names it, until it comes, and
// again when it goes.
func TestAReaderOfPromptsThatIsNotThereIsTold(t *testing.T) {
	b := newBench(t)
	b.service("llm", func(is *v1beta1.InferenceService) {
		is.Annotations = map[string]string{manifest.PrefillAnnotation: "reader"}
	})
	const want = "accepted and kept, without effect here: metadata.annotations[stationmaster.dev/prefill]: " +
		"there is no InferenceService reader in this namespace: the service reads its prompts itself until there is"
	told := func(is *v1beta1.InferenceService) bool {
		c := conditionOf(is.Status.Conditions, v1beta1.ConditionFieldsInEffect)
		return isReady(is) && c.Status == corev1.ConditionFalse && c.Message == want
	}
	b.until("llm", "told that nobody reads its prompts", told)
	reader := b.service("reader")
	b.until("llm", "content with its reader", func(is *v1beta1.InferenceService) bool {
		return conditionOf(is.Status.Conditions, v1beta1.ConditionFieldsInEffect).Status == corev1.ConditionTrue
	})
	if err := b.Delete(t.Context(), reader); err != nil {
		t.Fatal(err)
	}
	b.until("llm", "told again", told)
}
