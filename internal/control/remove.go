package control

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/spec"
)

// finalizer is KServe's own (kserve.md 1.1), so that tools which look for it find it.
const finalizer = "inferenceservice.finalizers"

// remove ends all that runs for a service that no longer exists.
func (c *Controller) remove(ctx context.Context, key spec.ServiceKey) error {
	c.publish(key, nil)
	if err := c.platform.Apply(ctx, key, nil); err != nil {
		return fmt.Errorf("stop what ran for the deleted service %s: %w", key, err)
	}
	return nil
}

// finalize takes a service off the routing table, drains it, deletes what it owns, and lets
// it go. The embedded API has no garbage collector, so owned objects are deleted here.
func (c *Controller) finalize(ctx context.Context, key spec.ServiceKey, is *v1beta1.InferenceService) (reconcile.Result, error) {
	if err := c.remove(ctx, key); err != nil {
		return reconcile.Result{}, err
	}
	if !controllerutil.ContainsFinalizer(is, finalizer) {
		return reconcile.Result{}, nil
	}
	observed, err := c.platform.Observe(ctx, key)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("observe %s: %w", key, err)
	}
	if len(observed.Replicas) > 0 {
		// The platform's change wakes us too; this is for the case that it was missed.
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	var revisions smv1alpha1.RevisionList
	if err := c.client.List(ctx, &revisions, client.InNamespace(key.Namespace), client.MatchingLabels{labelService: key.Name}); err != nil {
		return reconcile.Result{}, fmt.Errorf("list revisions of %s: %w", key, err)
	}
	for i := range revisions.Items {
		c.forget(&revisions.Items[i])
		if err := c.client.Delete(ctx, &revisions.Items[i]); err != nil && !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("delete revision %s: %w", revisions.Items[i].Name, err)
		}
	}
	if err := c.removeModels(ctx, key); err != nil {
		return reconcile.Result{}, err
	}
	r := &smv1alpha1.Route{}
	r.Namespace, r.Name = key.Namespace, key.Name
	if err := c.client.Delete(ctx, r); err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("delete route %s: %w", key, err)
	}
	c.forget(is)
	before := is.DeepCopy()
	controllerutil.RemoveFinalizer(is, finalizer)
	if err := c.client.Patch(ctx, is, client.MergeFrom(before)); err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("release %s: %w", key, err)
	}
	return reconcile.Result{}, nil
}
