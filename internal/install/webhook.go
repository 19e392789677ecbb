package install

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// admissionLabel on a namespace, with the value ignore, keeps the webhook from judging what is in
// it: for one that another control plane still serves.
const admissionLabel = "stationmaster.dev/admission"

// webhookPath is where the operator takes reviews.
const webhookPath = "/admission"

// webhookService leads the API server to the operators. All of them answer, leader or not.
func (o Options) webhookService() *corev1.Service {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: o.meta(operator),
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": operator},
			Ports:    []corev1.ServicePort{{Name: "webhook", Port: 443, TargetPort: intstr.FromString("webhook")}},
		},
	}
}

// webhookSecret is empty: the operator fills it, and applying the manifest again leaves it so.
func (o Options) webhookSecret() *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: WebhookSecret, Labels: labels(operator),
		},
		Type: corev1.SecretTypeOpaque,
	}
}

// webhookConfiguration has the API server ask the operator about what users write. Nothing waits
// for an operator that is away: what is wrong then stands in the status of the object. It
// isn't asked about changes that leave spec and annotations alone, or finalizers of what is
// being deleted.
func (o Options) webhookConfiguration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	ignore, equivalent := admissionregistrationv1.Ignore, admissionregistrationv1.Equivalent
	none, all := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.AllScopes
	path, port, seconds := webhookPath, int32(443), int32(5)
	rule := func(version string, resources ...string) admissionregistrationv1.RuleWithOperations {
		return admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{"serving.kserve.io"}, APIVersions: []string{version}, Resources: resources, Scope: &all,
			},
		}
	}
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: WebhookConfiguration, Labels: labels(operator)},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "manifests.stationmaster.dev",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
				Namespace: o.Namespace, Name: operator, Path: &path, Port: &port,
			}},
			Rules: []admissionregistrationv1.RuleWithOperations{
				rule("v1beta1", "inferenceservices"),
				rule("v1alpha1", "servingruntimes", "clusterservingruntimes", "inferencegraphs", "trainedmodels"),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: admissionLabel, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"ignore"},
			}}},
			MatchConditions: []admissionregistrationv1.MatchCondition{
				{Name: "stays", Expression: "!has(object.metadata.deletionTimestamp)"},
				{Name: "changes", Expression: "oldObject == null || object.?spec != oldObject.?spec ||" +
					" object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({})"},
			},
			FailurePolicy: &ignore, MatchPolicy: &equivalent, SideEffects: &none, TimeoutSeconds: &seconds,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
}
