package control

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// Nobody refused these runtimes: the bench's API has no admission, as a cluster whose webhook came
// later has none.
func TestARuntimeThatWouldBeRefusedTodayIsToldInTheStatus(t *testing.T) {
	b := newBench(t)
	priority := int32(3)
	tied := func(r *v1alpha1.ServingRuntime) {
		r.Spec.SupportedModelFormats[0].Name, r.Spec.SupportedModelFormats[0].Priority = "tied", &priority
	}
	b.runtime("first", tied)
	second := b.runtime("second", tied)
	b.service("iris", withFormat("tied"))
	b.service("sound")
	has := func(is *v1beta1.InferenceService) v1beta1.Condition {
		return conditionOf(is.Status.Conditions, v1beta1.ConditionRuntimeValid)
	}
	is := b.until("iris", "told of its runtime", func(is *v1beta1.InferenceService) bool { return has(is).Status == corev1.ConditionFalse })
	if c := has(is); c.Reason != "InvalidRuntime" || !strings.Contains(c.Message, "spec.supportedModelFormats[0].priority") || !strings.Contains(c.Message, "set another") {
		t.Errorf("the condition is %+v", c)
	}
	b.ready("iris")
	if is := b.ready("sound"); has(is).Status != corev1.ConditionUnknown {
		t.Errorf("a service whose runtime is in order has %+v", has(is))
	}
	// Changing the other one puts this one right.
	other := int32(4)
	second.Spec.SupportedModelFormats[0].Priority = &other
	if err := b.Update(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	b.until("iris", "told nothing any longer", func(is *v1beta1.InferenceService) bool { return has(is).Status == corev1.ConditionUnknown })
}
