package app

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/admission"
	"stationmaster.dev/stationmaster/internal/control"
	"stationmaster.dev/stationmaster/internal/install"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// newWebhook makes the webhook by which a cluster's API server asks about manifests, with the
// Secret and the configuration that the installation brought. It reads past every cache: reviews
// of runtimes are rare, and those are all that it lists for.
func newWebhook(config *rest.Config, cfg OperatorConfig) (*admission.Webhook, error) {
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
			Namespaces: cfg.Watch, Logger: cfg.Logger,
		},
		Logger: cfg.Logger,
	}), nil
}
