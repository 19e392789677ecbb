package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What somebody adds to an object of ours belongs to whoever added it, and applying the object again
// leaves it. The cache keeps of a Deployment's field owners those alone that added to its pods.

// keepAdders takes the owners of fields from an object on its way into the cache, but for those others
// that own some of a Deployment's pods.
func keepAdders(obj any) (any, error) {
	o, ok := obj.(client.Object)
	if !ok {
		return obj, nil
	}
	var adders []metav1.ManagedFieldsEntry
	if _, ok := obj.(*appsv1.Deployment); ok {
		for _, e := range o.GetManagedFields() {
			if adds(e) {
				adders = append(adders, metav1.ManagedFieldsEntry{Manager: e.Manager, Operation: e.Operation})
			}
		}
	}
	o.SetManagedFields(adders)
	return obj, nil
}

// adds reports whether an entry is another's, of fields of a Deployment's pods or of its strategy.
// Annotations of pods are left to everybody, as `kubectl rollout restart` sets one, and so is the
// number of replicas.
func adds(e metav1.ManagedFieldsEntry) bool {
	if e.Manager == manager || e.Manager == keeper || e.Subresource != "" || e.FieldsV1 == nil {
		return false
	}
	var fields struct {
		Spec struct {
			Strategy json.RawMessage `json:"f:strategy"`
			Template struct {
				Spec json.RawMessage `json:"f:spec"`
			} `json:"f:template"`
		} `json:"f:spec"`
	}
	if json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) != nil {
		return false
	}
	return len(fields.Spec.Strategy) > 0 || len(fields.Spec.Template.Spec) > 0
}

// added reports whether somebody added to an object of the cache.
func added(live client.Object) bool {
	_, ok := live.(*appsv1.Deployment)
	return ok && len(live.GetManagedFields()) > 0
}

// takeBack takes from a Deployment that was applied as want what others added to its pods and its
// strategy, and returns the version that came of it, 0 for none.
func (p *Platform) takeBack(ctx context.Context, want map[string]any) (uint64, error) {
	var ours, live appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(want, &ours); err != nil {
		return 0, fmt.Errorf("decode Deployment: %w", err)
	}
	if err := p.client.Get(ctx, client.ObjectKeyFromObject(&ours), &live); err != nil {
		return 0, fmt.Errorf("read Deployment %s/%s: %w", ours.Namespace, ours.Name, kindOf(err))
	}
	if !slices.ContainsFunc(live.ManagedFields, adds) {
		return 0, nil
	}
	// Without the owners, so that one that wrote the same as we did doesn't stay for ever.
	live.ManagedFields = slices.DeleteFunc(live.ManagedFields, adds)
	live.Spec.Template.Spec, live.Spec.Strategy = ours.Spec.Template.Spec, ours.Spec.Strategy
	if err := p.client.Update(ctx, &live, client.FieldOwner(manager)); err != nil {
		return 0, fmt.Errorf("take back what was added to Deployment %s/%s: %w", ours.Namespace, ours.Name, kindOf(err))
	}
	return version(&live), nil
}
