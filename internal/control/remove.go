package control

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	revisions, err := c.listRevisions(ctx, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := c.removeModels(ctx, key, revisions); err != nil {
		return reconcile.Result{}, err
	}
	if err := c.removeRoute(ctx, key); err != nil {
		return reconcile.Result{}, err
	}
	// Last, for they tell an attempt after a failed one what else there may be.
	for i := range revisions {
		c.forget(&revisions[i])
		if err := c.client.Delete(ctx, &revisions[i]); err != nil && !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("delete revision %s: %w", revisions[i].Name, err)
		}
	}
	c.forget(is)
	before := is.DeepCopy()
	controllerutil.RemoveFinalizer(is, finalizer)
	if err := c.client.Patch(ctx, is, client.MergeFrom(before)); err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("release %s: %w", key, err)
	}
	return reconcile.Result{}, nil
}

// removeRoute deletes the Route of a service that is deleted. One that never had a ready replica has
// none. Where the cache doesn't show yet that it has, a cluster collects it with the service.
func (c *Controller) removeRoute(ctx context.Context, key spec.ServiceKey) error {
	r := smv1alpha1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	err := c.client.Get(ctx, client.ObjectKeyFromObject(&r), &r)
	if err == nil || c.cfg.OneMachine && apierrors.IsNotFound(err) {
		r.Namespace, r.Name = key.Namespace, key.Name
		err = c.client.Delete(ctx, &r)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete route %s: %w", key, err)
	}
	return nil
}
