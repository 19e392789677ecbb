package app

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stationmaster.dev/stationmaster/internal/admission"
	"stationmaster.dev/stationmaster/internal/kubeapi"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/preview"
)

// embeddedAdmission asks the manifest room about each custom object that the embedded API is to store.
type embeddedAdmission struct{ api *lazyClient }

// Admit prunes in the mutating phase what the client let pass, and refuses in the validating
// one what must not be stored.
func (a embeddedAdmission) Admit(ctx context.Context, req kubeapi.AdmissionRequest) (*unstructured.Unstructured, []string, error) {
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
	if v.Object == nil {
		return nil, v.Warnings, nil
	}
	return nil, append(v.Warnings, a.preview(ctx, req.Namespace, v)...), nil
}

// preview says what else is to be told of an object that is let in; nothing while the API is still
// starting.
func (a embeddedAdmission) preview(ctx context.Context, namespace string, v manifest.Verdict) []string {
	c, err := a.api.get()
	if err != nil {
		return []string{admission.Unseen(err)}
	}
	if c == nil {
		return nil
	}
	look := preview.Preview{OneMachine: true, Cached: c, Live: c}
	told, err := look.Warnings(ctx, namespace, v.Object, v.Old)
	if err != nil {
		told = append(told, admission.Unseen(err))
	}
	return told
}

// runtimes lists the runtimes of a scope; none while the API is still starting, when nothing but
// its own CRDs is written yet.
func (a embeddedAdmission) runtimes(ctx context.Context, namespace string) ([]manifest.NamedRuntime, error) {
	c, err := a.api.get()
	if err != nil || c == nil {
		return nil, err
	}
	return admission.Runtimes(ctx, c, namespace)
}
