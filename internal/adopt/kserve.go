package adopt

import (
	"context"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// How KServe's installation names its parts.
const (
	kserveController = "kserve-controller-manager"
	kserveWebhooks   = "kserve-webhook-server-service"
)

// alone fails where KServe would take back what is taken over. Its controller makes Deployments
// anew for every service; its webhooks, without the controller, refuse every change of a service
// and every new pod.
func (cfg *Config) alone(ctx context.Context) error {
	var deployments appsv1.DeploymentList
	if err := cfg.API.List(ctx, &deployments); err != nil {
		return fmt.Errorf("look for KServe's controller: %w", err)
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if d.Name == kserveController && (d.Spec.Replicas == nil || *d.Spec.Replicas > 0) {
			return errdef.New(errdef.ErrConflict, fmt.Sprintf(
				"KServe's controller runs, and would take everything back: stop it with 'kubectl -n %s scale deployment %s --replicas=0' (pods run on)", d.Namespace, d.Name))
		}
	}
	var hooks []string
	var mutating admissionv1.MutatingWebhookConfigurationList
	var validating admissionv1.ValidatingWebhookConfigurationList
	for _, list := range []client.ObjectList{&mutating, &validating} {
		if err := cfg.API.List(ctx, list); err != nil {
			return fmt.Errorf("look for KServe's webhooks: %w", err)
		}
	}
	for i := range mutating.Items {
		for _, w := range mutating.Items[i].Webhooks {
			if s := w.ClientConfig.Service; s != nil && s.Name == kserveWebhooks {
				hooks = append(hooks, "mutatingwebhookconfiguration/"+mutating.Items[i].Name)
				break
			}
		}
	}
	for i := range validating.Items {
		for _, w := range validating.Items[i].Webhooks {
			if s := w.ClientConfig.Service; s != nil && s.Name == kserveWebhooks {
				hooks = append(hooks, "validatingwebhookconfiguration/"+validating.Items[i].Name)
				break
			}
		}
	}
	if len(hooks) > 0 {
		return errdef.New(errdef.ErrConflict, "KServe's webhooks are there, and without its controller refuse services and pods: 'kubectl delete "+strings.Join(hooks, " ")+"'")
	}
	return nil
}

// operatorsImage returns the image that the installed operator makes pods with; empty where none
// is installed.
func (cfg *Config) operatorsImage(ctx context.Context) (string, error) {
	var deployments appsv1.DeploymentList
	err := cfg.API.List(ctx, &deployments, client.MatchingLabels{"app.kubernetes.io/name": "stationmaster-operator"})
	if err != nil {
		return "", fmt.Errorf("look for the operator: %w", err)
	}
	for i := range deployments.Items {
		for _, c := range deployments.Items[i].Spec.Template.Spec.Containers {
			for _, e := range c.Env {
				if e.Name == "STATIONMASTER_IMAGE" {
					return e.Value, nil
				}
			}
		}
	}
	return "", nil
}

// operatorsDelivery returns how the operator that is installed has models of oci:// reach pods; empty
// where there is none, or it says nothing.
func (cfg *Config) operatorsDelivery(ctx context.Context) (string, error) {
	var deployments appsv1.DeploymentList
	err := cfg.API.List(ctx, &deployments, client.MatchingLabels{"app.kubernetes.io/name": "stationmaster-operator"})
	if err != nil {
		return "", fmt.Errorf("look for the operator: %w", err)
	}
	for i := range deployments.Items {
		for _, c := range deployments.Items[i].Spec.Template.Spec.Containers {
			for _, arg := range c.Args {
				if how, ok := strings.CutPrefix(arg, "--oci-delivery="); ok {
					return how, nil
				}
			}
		}
	}
	return "", nil
}

// scaledObject is KEDA's kind.
var scaledObject = schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}

// endScalers deletes what scales KServe's Deployment, which KServe names as it.
func (cfg *Config) endScalers(ctx context.Context, d *appsv1.Deployment) error {
	keda := &unstructured.Unstructured{}
	keda.SetGroupVersionKind(scaledObject)
	for _, o := range []client.Object{keda, &autoscalingv2.HorizontalPodAutoscaler{}} {
		err := cfg.API.Get(ctx, client.ObjectKeyFromObject(d), o)
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for what scales %s: %w", d.Name, err)
		}
		if err := cfg.remove(ctx, o, metav1.DeletePropagationBackground); err != nil {
			return err
		}
	}
	return nil
}
