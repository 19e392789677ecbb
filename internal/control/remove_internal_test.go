package control

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/platform/memory"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// The embedded API collects nothing, so that what an attempt misses stays for ever.
func TestAFailedAttemptToDeleteLeavesNothingToTheNext(t *testing.T) {
	key := spec.ServiceKey{Namespace: "default", Name: "shelf"}
	sch, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: key.Namespace, Name: name, Labels: map[string]string{labelService: key.Name, labelComponent: "predictor", labelNumber: "1"}}
	}
	is := &v1beta1.InferenceService{ObjectMeta: meta(key.Name)}
	is.Finalizers = []string{finalizer}
	rev := &smv1alpha1.Revision{ObjectMeta: meta("shelf-predictor-00001")}
	rev.Spec.Service = key.Name
	rev.Spec.PodTemplate.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: manifest.ModelListName(key.Name)},
	}}}}
	left := []client.Object{rev, &smv1alpha1.Route{ObjectMeta: meta(key.Name)}, &corev1.ConfigMap{ObjectMeta: meta(manifest.ModelListName(key.Name))}}
	broken := true
	api := fake.NewClientBuilder().WithScheme(sch).WithObjects(append(left, is)...).
		WithIndex(&smv1alpha1.Revision{}, revisionsOf, func(o client.Object) []string { return []string{o.GetLabels()[labelService]} }).
		WithIndex(&v1alpha1.TrainedModel{}, byService, indexByService).
		Build()
	c := New(Config{OneMachine: true, Logger: slog.New(slog.DiscardHandler)}, memory.New(memory.Config{}), &state.Topic[route.Table]{})
	c.client = interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, at client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*smv1alpha1.Route); ok { // the cache lags
				return apierrors.NewNotFound(schema.GroupResource{Resource: "routes"}, at.Name)
			}
			return w.Get(ctx, at, o, opts...)
		},
		Delete: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if _, ok := o.(*corev1.ConfigMap); ok && broken {
				return errors.New("the API is away")
			}
			return w.Delete(ctx, o, opts...)
		},
	})
	if _, err := c.finalize(t.Context(), key, is); err == nil {
		t.Fatal("it is let go though its list couldn't be deleted")
	}
	broken = false
	if _, err := c.finalize(t.Context(), key, is); err != nil {
		t.Fatal(err)
	}
	for _, o := range left {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s is left (%v)", o, o.GetName(), err)
		}
	}
}
