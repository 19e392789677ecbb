package control

import (
	"log/slog"
	"strings"
	"testing"

	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/platform/memory"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// Before the webhook was there such a name was stored, and no object that the service needs can have
// it as a label.
func TestAStoredServiceWithANameTooLongSaysSo(t *testing.T) {
	sch, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	is := newService("default", strings.Repeat("a", 64))
	api := fake.NewClientBuilder().WithScheme(sch).WithObjects(is).WithStatusSubresource(is).
		WithIndex(&smv1alpha1.Revision{}, revisionsOf, func(o client.Object) []string { return []string{o.GetLabels()[labelService]} }).
		WithIndex(&v1alpha1.TrainedModel{}, byService, indexByService).
		Build()
	c := New(Config{Logger: slog.New(slog.DiscardHandler)}, memory.New(memory.Config{}), &state.Topic[route.Table]{})
	c.client, c.events = api, record.NewFakeRecorder(10)
	if _, err := c.reconcile(t.Context(), spec.ServiceKey{Namespace: is.Namespace, Name: is.Name}, is); err != nil {
		t.Fatal(err)
	}
	var got v1beta1.InferenceService
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(is), &got); err != nil {
		t.Fatal(err)
	}
	if f := got.Status.ModelStatus.LastFailureInfo; f == nil || !strings.Contains(f.Message, "metadata.name: Too long") {
		t.Errorf("its status is %+v", got.Status)
	}
}
