package admission

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// Runtimes lists the runtimes of a scope: a namespace's, or the cluster's for none.
func Runtimes(ctx context.Context, c client.Reader, namespace string) ([]manifest.NamedRuntime, error) {
	var out []manifest.NamedRuntime
	if namespace == "" {
		var list v1alpha1.ClusterServingRuntimeList
		if err := c.List(ctx, &list); err != nil {
			return nil, fmt.Errorf("list cluster serving runtimes: %w", err)
		}
		for i := range list.Items {
			out = append(out, manifest.NamedRuntime{Name: list.Items[i].Name, Spec: &list.Items[i].Spec})
		}
		return out, nil
	}
	var list v1alpha1.ServingRuntimeList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list serving runtimes of %s: %w", namespace, err)
	}
	for i := range list.Items {
		out = append(out, manifest.NamedRuntime{Name: list.Items[i].Name, Spec: &list.Items[i].Spec})
	}
	return out, nil
}
