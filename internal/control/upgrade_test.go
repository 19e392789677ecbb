package control

import (
	"errors"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

func TestAnUpgradedOperatorMakesNoRevisionOfAServiceThatStayed(t *testing.T) {
	b := newBench(t)
	spoken := func(is *v1beta1.InferenceService) {
		is.Annotations = map[string]string{"stationmaster.dev/engine-tls": "skip-verify"}
	}
	b.service("iris", spoken)
	b.ready("iris")
	var made smv1alpha1.Revision
	if err := b.Get(t.Context(), client.ObjectKey{Namespace: b.ns, Name: b.revisions("iris")[0]}, &made); err != nil {
		t.Fatal(err)
	}
	b.stop()
	before := made.DeepCopy()
	before.UID, before.ResourceVersion = "", ""
	before.Spec.Hash = "0123456789abcdef" // as an operator before would have reckoned it
	if err := errors.Join(b.Delete(t.Context(), &made), b.Create(t.Context(), before)); err != nil {
		t.Fatal(err)
	}
	b.start()
	two := int32(2)
	b.edit("iris", func(is *v1beta1.InferenceService) { is.Spec.Predictor.MinReplicas = &two })
	b.ready("iris")
	if revs := b.revisions("iris"); len(revs) != 1 {
		t.Errorf("it has the revisions %v, want the one that was there", revs)
	}
}
