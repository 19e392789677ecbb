package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// Try has the API server judge, without storing them, the objects by which a revision would run. rev
// isn't stored and has a name that no revision has; is, with its defaults, is read for who sets the
// number of replicas where elsewhere is true. It returns a sentence for each refusal and each warning.
// An error means that the cluster couldn't be asked. It blocks no longer than ctx allows, needs no Run,
// and is safe for concurrent use.
func (p *Platform) Try(ctx context.Context, is *v1beta1.InferenceService, rev *smv1alpha1.Revision, elsewhere bool) ([]string, error) {
	m := member{revision: rev, replicas: 1, digests: map[string]string{}}
	var err error
	if m.workload, err = manifest.WorkloadOf(rev.Namespace, rev.Name, &rev.Spec); err != nil {
		return []string{err.Error()}, nil //nolint:nilerr // it is what there is to say
	}
	if m.credentials, err = p.credentialsOf(ctx, &p.cfg, &m, nil); err != nil {
		return nil, err
	}
	objects, err := p.cfg.revisionObjects(m)
	if err != nil {
		return []string{err.Error()}, nil //nolint:nilerr // it is what there is to say
	}
	objects = append(objects, p.cfg.serviceObjects(m.workload.Service, []member{m})...)
	if elsewhere {
		made, err := scaler(is, m.meta(), string(m.workload.Component))
		if err != nil {
			return []string{err.Error()}, nil //nolint:nilerr // it is what there is to say
		}
		if made != nil {
			objects = append(objects, made)
		}
	}
	said := make([][]string, len(objects))
	failed := make([]error, len(objects))
	var wg sync.WaitGroup
	for i, o := range objects {
		wg.Go(func() { said[i], failed[i] = p.try(ctx, o) })
	}
	wg.Wait()
	out := slices.Concat(said...)
	slices.Sort(out)
	return slices.Compact(out), errors.Join(failed...)
}

// try has the API server judge one object.
func (p *Platform) try(ctx context.Context, o client.Object) ([]string, error) {
	o.SetOwnerReferences(nil) // the owner isn't stored yet
	want, _, err := wanted(o)
	if err != nil {
		return nil, err
	}
	var heard warnings
	u := &unstructured.Unstructured{Object: want}
	err = p.trial.Apply(context.WithValue(ctx, warningsOf{}, &heard), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager), client.ForceOwnership, client.DryRunAll)
	kind := u.GetKind()
	switch {
	case apierrors.IsNotFound(err) && isForeign(o):
		return []string{fmt.Sprintf("this cluster has no kind %s (%s), which this needs: install it", kind, u.GetAPIVersion())}, nil
	case unauthorized(err):
		return nil, fmt.Errorf("try %s: %w", kind, err)
	case isRefusal(withoutImageVolumes(o, kindOfOrNil(err))):
		return []string{fmt.Sprintf("the cluster would refuse the %s: %v", kind, withoutImageVolumes(o, kindOf(err)))}, nil
	case err != nil:
		return nil, fmt.Errorf("try %s: %w", kind, err)
	}
	var out []string
	for _, text := range heard.texts {
		out = append(out, fmt.Sprintf("the cluster says of the %s: %s", kind, text))
	}
	return out, nil
}

func kindOfOrNil(err error) error {
	if err == nil {
		return nil
	}
	return kindOf(err)
}

// unauthorized reports whether an error says that we may not ask, or that somebody who judges beside
// the API server can't without storing, which is about neither the object nor its author.
func unauthorized(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return apierrors.IsForbidden(err) && strings.Contains(text, " cannot ") && strings.Contains(text, "in API group") ||
		apierrors.IsBadRequest(err) && strings.Contains(text, "does not support dry run")
}

// warnings are what the API server says beside the answer to one request.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

// warningsOf is the key of a request's warnings in its context.
type warningsOf struct{}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (hearing) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if w, ok := ctx.Value(warningsOf{}).(*warnings); ok && code == 299 && text != "" {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.texts = append(w.texts, text)
	}
}

// hearing keeps the API server's warnings for whoever asked.
type hearing struct{}

var _ rest.WarningHandlerWithContext = hearing{}

// trialClient makes the client by which objects are tried. Connections are those of config's others.
func trialClient(config *rest.Config, opts client.Options) (client.Client, error) {
	config = rest.CopyConfig(config)
	config.WarningHandler, config.WarningHandlerWithContext = nil, hearing{}
	return client.New(config, opts)
}
