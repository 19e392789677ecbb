package app

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/kubeapi"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// admission asks the manifest room about each custom object that the embedded API is to store.
type admission struct{ api *lazyClient }

// Admit prunes in the mutating phase what the client let pass, and refuses in the validating
// one what must not be stored.
func (a admission) Admit(ctx context.Context, req kubeapi.AdmissionRequest) (*unstructured.Unstructured, []string, error) {
	ask := manifest.Admission{Object: req.Object.Object, FieldValidation: req.FieldValidation}
	if req.Old != nil {
		ask.Old = req.Old.Object
	}
	var listErr error
	ask.Runtimes = func() (out []manifest.NamedRuntime) {
		out, listErr = a.runtimes(ctx, req.Namespace)
		return out
	}
	v, err := manifest.Admit(ask)
	if err != nil {
		return nil, nil, err
	}
	if listErr != nil {
		return nil, nil, listErr
	}
	if req.Phase == kubeapi.Mutating {
		if v.Pruned {
			// Told now, for the next phase sees nothing of what was unknown; the API tells each
			// warning once.
			return req.Object, v.Warnings, nil
		}
		return nil, nil, nil
	}
	if len(v.Refused) > 0 {
		return nil, v.Warnings, kubeapi.FieldErrors(v.Refused)
	}
	return nil, v.Warnings, nil
}

// runtimes lists the runtimes of a scope: a namespace's, or the cluster's for none.
func (a admission) runtimes(ctx context.Context, namespace string) ([]manifest.NamedRuntime, error) {
	c, err := a.api.get()
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, nil // the API is still starting, and nothing but its own CRDs is written yet
	}
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
