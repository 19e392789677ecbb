package control

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// byReader is the index of services by the one that is to read their prompts.
const byReader = "prefill"

func indexByReader(o client.Object) []string {
	is, ok := o.(*v1beta1.InferenceService)
	if !ok {
		return nil
	}
	if p := manifest.PrefillOf(is, spec.Predictor); p != nil {
		return []string{p.Service}
	}
	return nil
}

// PrefillNotInEffect reports that the service which is to read the prompts isn't there. is has its
// defaults.
func PrefillNotInEffect(ctx context.Context, api client.Reader, is *v1beta1.InferenceService) ([]manifest.NotInEffect, error) {
	p := manifest.PrefillOf(is, spec.Predictor)
	if p == nil {
		return nil, nil
	}
	var reader v1beta1.InferenceService
	err := api.Get(ctx, client.ObjectKey{Namespace: is.Namespace, Name: p.Service}, &reader)
	if err == nil && reader.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get the service that reads prompts: %w", err)
	}
	at := "metadata"
	if _, own := is.Spec.Predictor.Annotations[manifest.PrefillAnnotation]; own {
		at = "spec.predictor"
	}
	return []manifest.NotInEffect{{
		Field:  fmt.Sprintf("%s.annotations[%s]", at, manifest.PrefillAnnotation),
		Reason: fmt.Sprintf("there is no InferenceService %s in this namespace: the service reads its prompts itself until there is", p.Service),
	}}, nil
}

// readBy wakes the services whose prompts a service is to read.
func (c *Controller) readBy(ctx context.Context, reader client.Object) []reconcile.Request {
	var list v1beta1.InferenceServiceList
	err := c.client.List(ctx, &list, client.InNamespace(reader.GetNamespace()), client.MatchingFields{byReader: reader.GetName()})
	if err != nil {
		c.log.ErrorContext(ctx, "list services whose prompts another reads", "service", reader.GetName(), "err", err)
		return nil
	}
	out := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		out[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
	}
	return out
}

// comesOrGoes lets through that an object is there, is about to go, or is gone.
var comesOrGoes = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	},
	GenericFunc: func(event.GenericEvent) bool { return false },
}
