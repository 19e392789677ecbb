package app

import (
	"context"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/admission"
	"stationmaster.dev/stationmaster/internal/control"
	"stationmaster.dev/stationmaster/internal/install"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/preview"
)

// tryFunc has the cluster judge what a revision would run by.
type tryFunc = func(ctx context.Context, is *v1beta1.InferenceService, rev *revisionObject, elsewhere bool) ([]string, error)

// newWebhook makes the webhook by which a cluster's API server asks about manifests, with the
// Secret and the configuration that the installation brought. For runtimes it reads past every
// cache, as reviews of them are rare and a refusal has to be right; what is only told of services
// comes from the reconciler's cache.
func newWebhook(config *rest.Config, cfg OperatorConfig, direct bool, try tryFunc, readers func() (control.Readers, bool)) (*admission.Webhook, error) {
	sch, err := control.Scheme()
	if err != nil {
		return nil, err
	}
	if err := admissionregistrationv1.AddToScheme(sch); err != nil {
		return nil, fmt.Errorf("build scheme: %w", err)
	}
	c, err := client.New(config, client.Options{Scheme: sch})
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	return admission.NewWebhook(admission.Config{
		API: c, Namespace: cfg.Namespace,
		Service: cfg.Operator, Secret: install.WebhookSecret, Configuration: install.WebhookConfiguration,
		Reviewer: &admission.Reviewer{
			Runtimes: func(ctx context.Context, namespace string) ([]manifest.NamedRuntime, error) {
				return admission.Runtimes(ctx, c, namespace)
			},
			Preview: func(ctx context.Context, namespace string, obj, old manifest.Object) ([]string, error) {
				r, ok := readers()
				if !ok {
					return nil, errors.New("the operator is still starting")
				}
				look := preview.Preview{Direct: direct, Cached: r.Cached, Live: r.Live, Try: try}
				return look.Warnings(ctx, namespace, obj, old)
			},
			Namespaces: cfg.Watch, Logger: cfg.Logger,
		},
		Logger: cfg.Logger,
	}), nil
}
