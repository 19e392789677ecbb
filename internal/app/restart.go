package app

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// restartWait is how long `up` waits for the services of an earlier run before it says ready
// all the same.
const restartWait = 30 * time.Second

// readyBefore lists the services that were ready when the control plane before this one ended.
// It is asked before anything is reconciled.
func readyBefore(ctx context.Context, c client.Client) ([]client.ObjectKey, error) {
	var list v1beta1.InferenceServiceList
	if err := c.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list the services of before: %w", err)
	}
	var out []client.ObjectKey
	for i := range list.Items {
		is := &list.Items[i]
		ready := func(cond v1beta1.Condition) bool { return cond.Type == v1beta1.ConditionReady && cond.Status == "True" }
		if is.DeletionTimestamp.IsZero() && slices.ContainsFunc(is.Status.Conditions, ready) {
			out = append(out, client.ObjectKeyFromObject(is))
		}
	}
	return out, nil
}

// without leaves out the services that were applied, which are waited for on their own.
func without(before []client.ObjectKey, applied []*unstructuredObject) []client.ObjectKey {
	return slices.DeleteFunc(before, func(key client.ObjectKey) bool {
		return slices.ContainsFunc(applied, func(o *unstructuredObject) bool {
			return o.GetKind() == "InferenceService" && client.ObjectKeyFromObject(o) == key
		})
	})
}

// waitRouted waits until services are routed again, at most until deadline, and says a line for
// each that isn't. Engines that were adopted are at once; others have to start again.
func (s *standalone) waitRouted(ctx context.Context, c client.Client, before []client.ObjectKey, deadline time.Time) {
	for _, key := range before {
		why := s.awaitOne(ctx, c, readService, key, deadline, io.Discard)
		if why != "" && ctx.Err() == nil {
			fmt.Fprintf(s.cfg.Out, "no longer waiting for %s, which served before: %s\n", key, why)
		}
	}
}
