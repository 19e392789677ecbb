// Package install makes the objects that bring Stationmaster onto a cluster: one source for the
// manifest that `stationmaster install` prints and for the Helm chart. It is pure.
package install

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/config/crd"
)

// Options shape an installation.
type Options struct {
	// Namespace is where operator and gateway run.
	Namespace string
	// Image is the image of this binary. PullPolicy may be empty for Kubernetes' default.
	Image      string
	PullPolicy string
	// Domain is the last part of service hosts.
	Domain string
	// OpenAIPrefix is what may stand before /v1 in paths of the OpenAI API.
	OpenAIPrefix string
	// OCIDelivery is how models of oci:// reach pods: image-volume, modelcar or fetch.
	OCIDelivery string
	// Gateways and Operators are numbers of replicas.
	Gateways, Operators int32
	// ServiceType is that of the gateway's Service: LoadBalancer, NodePort or ClusterIP.
	ServiceType string
	// ParentGateway ("namespace/name") is a Gateway of the Gateway API, and IngressClass a class of
	// Ingress, that hand everything under Domain to our gateway. Empty means neither.
	ParentGateway, IngressClass string
	// DirectGateway ("namespace/name") is a Gateway that services may ask to lead to them past our
	// gateway; DirectFrom is the namespace of the pods that it is made of, where that isn't its own.
	DirectGateway, DirectFrom string
	// EndpointPickers are InferencePools ("namespace/name") whose endpoints are to be picked.
	EndpointPickers []string
	// OperatorResources and GatewayResources are what a pod of each asks for and may take.
	OperatorResources, GatewayResources corev1.ResourceRequirements
	// CRDs says whether the custom resource definitions are part of it.
	CRDs bool
}

// Defaults are the options of an installation for which nobody said otherwise.
func Defaults() Options {
	return Options{
		Namespace: "stationmaster-system", Domain: "example.com", OpenAIPrefix: "/openai", OCIDelivery: "image-volume", Gateways: 2, Operators: 2,
		ServiceType: string(corev1.ServiceTypeLoadBalancer), CRDs: true,
		OperatorResources: usual(), GatewayResources: usual(),
	}
}

// usual are the resources for which nobody said otherwise.
func usual() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
}

// Names of what the operator looks after by itself once the manifest brought it.
const (
	// WebhookSecret is the Secret that holds the admission webhook's certificate. It comes empty, so
	// that the operator needs no right to make Secrets.
	WebhookSecret = "stationmaster-webhook"
	// WebhookConfiguration is the ValidatingWebhookConfiguration.
	WebhookConfiguration = "stationmaster"
)

const (
	operator = "stationmaster-operator"
	gateway  = "stationmaster-gateway"
	admin    = 9090
	webhook  = 9443
	// user is the user and group that the image's processes run as.
	user = 65532
)

// Manifest returns all objects as YAML documents, in the order in which they are applied.
func Manifest(o Options) ([]byte, error) {
	var out bytes.Buffer
	if o.CRDs {
		full, err := crd.Full()
		if err != nil {
			return nil, err
		}
		for _, doc := range full {
			fmt.Fprintf(&out, "---\n%s\n", bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(doc), []byte("---"))))
		}
	}
	for _, object := range Objects(o) {
		raw, err := document(object)
		if err != nil {
			return nil, fmt.Errorf("write %T: %w", object, err)
		}
		fmt.Fprintf(&out, "---\n%s", raw)
	}
	return out.Bytes(), nil
}

// document writes an object without its status, which Go's types write though it says nothing.
func document(object any) ([]byte, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	delete(fields, "status")
	return yaml.Marshal(fields)
}

// Objects returns everything but the custom resource definitions.
func Objects(o Options) []any {
	out := []any{
		&corev1.Namespace{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: o.Namespace, Labels: map[string]string{
				"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted",
			}},
		},
	}
	for _, part := range []struct {
		name  string
		rules []rbacv1.PolicyRule
	}{{operator, operatorRules()}, {gateway, gatewayRules()}} {
		out = append(out,
			&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: o.meta(part.name)},
			&rbacv1.ClusterRole{TypeMeta: rbac("ClusterRole"), ObjectMeta: metav1.ObjectMeta{Name: part.name, Labels: labels(part.name)}, Rules: part.rules},
			&rbacv1.ClusterRoleBinding{
				TypeMeta: rbac("ClusterRoleBinding"), ObjectMeta: metav1.ObjectMeta{Name: part.name, Labels: labels(part.name)},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: part.name},
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: part.name, Namespace: o.Namespace}},
			})
	}
	out = append(out,
		&rbacv1.Role{TypeMeta: rbac("Role"), ObjectMeta: o.meta(operator), Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update", "patch"}},
			// The one Secret that it reads is its own.
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{WebhookSecret}, Verbs: []string{"get", "update"}},
		}},
		&rbacv1.RoleBinding{
			TypeMeta: rbac("RoleBinding"), ObjectMeta: o.meta(operator),
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: operator},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: operator, Namespace: o.Namespace}},
		},
		o.service(), o.webhookService(), o.webhookSecret(),
		o.deployment(operator, o.Operators, []string{"operator", "--domain=" + o.Domain, "--direct-gateway=" + o.DirectGateway, "--direct-from=" + o.DirectFrom, "--oci-delivery=" + o.OCIDelivery, fmt.Sprintf("--webhook=:%d", webhook)}, []corev1.ContainerPort{
			{Name: "webhook", ContainerPort: webhook},
		}),
		o.deployment(gateway, o.Gateways, []string{"gateway", "--domain=" + o.Domain, "--openai-prefix=" + o.OpenAIPrefix}, []corev1.ContainerPort{
			{Name: "http", ContainerPort: 8080}, {Name: "grpc", ContainerPort: 8081},
		}),
		o.budget(operator), o.budget(gateway), o.network(), o.webhookConfiguration(),
	)
	out = append(out, o.endpointPickers()...)
	if o.ParentGateway != "" {
		out = append(out, o.httpRoute())
	}
	if o.IngressClass != "" {
		out = append(out, o.ingress())
	}
	return out
}

// httpRoute and ingress lead all hosts under the domain to the gateway, which tells services
// apart: one object for the cluster where KServe makes some for each service.
func (o Options) httpRoute() map[string]any {
	namespace, name, _ := strings.Cut(o.ParentGateway, "/")
	return map[string]any{
		"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
		"metadata": o.meta(gateway),
		"spec": map[string]any{
			"parentRefs": []any{map[string]any{"namespace": namespace, "name": name}},
			"hostnames":  []any{"*." + o.Domain},
			"rules": []any{map[string]any{
				"backendRefs": []any{map[string]any{"name": gateway, "port": 80}},
				// Models may take long and streams longer: what bounds a request is the gateway.
				"timeouts": map[string]any{"request": "0s"},
			}},
		},
	}
}

func (o Options) ingress() *networkingv1.Ingress {
	prefix := networkingv1.PathTypePrefix
	return &networkingv1.Ingress{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "Ingress"}, ObjectMeta: o.meta(gateway),
		Spec: networkingv1.IngressSpec{
			IngressClassName: &o.IngressClass,
			Rules: []networkingv1.IngressRule{{Host: "*." + o.Domain, IngressRuleValue: networkingv1.IngressRuleValue{
				HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
					Path: "/", PathType: &prefix,
					Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: gateway, Port: networkingv1.ServiceBackendPort{Name: "http"}}},
				}}},
			}}},
		},
	}
}

func operatorRules() []rbacv1.PolicyRule {
	read := []string{"get", "list", "watch"}
	// What it writes it applies or patches.
	write := []string{"get", "list", "watch", "create", "patch", "delete"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"serving.kserve.io"}, Resources: []string{"inferenceservices"}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{"serving.kserve.io"}, Resources: []string{"inferenceservices/status", "inferenceservices/finalizers"}, Verbs: []string{"update", "patch"}},
		{APIGroups: []string{"serving.kserve.io"}, Resources: []string{"servingruntimes", "inferencegraphs"}, Verbs: read},
		// Those of a service that is deleted go with it.
		{APIGroups: []string{"serving.kserve.io"}, Resources: []string{"trainedmodels"}, Verbs: []string{"get", "list", "watch", "delete"}},
		{APIGroups: []string{"serving.kserve.io"}, Resources: []string{"trainedmodels/status"}, Verbs: []string{"update", "patch"}},
		{APIGroups: []string{"serving.kserve.io"}, Resources: []string{"inferencegraphs/status", "inferencegraphs/finalizers"}, Verbs: []string{"update", "patch"}},
		// The catalogue that ships is applied when the operator starts.
		{APIGroups: []string{"serving.kserve.io"}, Resources: []string{"clusterservingruntimes"}, Verbs: []string{"get", "list", "watch", "create", "update"}},
		{APIGroups: []string{"stationmaster.dev"}, Resources: []string{"revisions", "routes"}, Verbs: write},
		{APIGroups: []string{"stationmaster.dev"}, Resources: []string{"revisions/status", "routes/status", "revisions/finalizers", "routes/finalizers"}, Verbs: []string{"update", "patch"}},
		{APIGroups: []string{appsv1.GroupName}, Resources: []string{"deployments"}, Verbs: write},
		// What others added to one is taken back by writing its pods anew: an apply leaves what isn't its own.
		{APIGroups: []string{appsv1.GroupName}, Resources: []string{"deployments"}, Verbs: []string{"update"}},
		{APIGroups: []string{""}, Resources: []string{"services", "configmaps"}, Verbs: write},
		// An annotation has kubelets bring a changed list of models to the pods that mount it.
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "patch"}},
		// A service account names the secrets that hold the credentials for models: kubelets read those.
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, Verbs: []string{"get"}},
		// A dry run tells of claims that aren't there.
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch", "update"}},
		{APIGroups: []string{autoscalingv2.GroupName}, Resources: []string{"horizontalpodautoscalers"}, Verbs: write},
		{APIGroups: []string{"keda.sh"}, Resources: []string{"scaledobjects"}, Verbs: write},
		{APIGroups: []string{"gateway.networking.k8s.io"}, Resources: []string{"httproutes"}, Verbs: write},
		{APIGroups: []string{"leaderworkerset.x-k8s.io"}, Resources: []string{"leaderworkersets"}, Verbs: write},
		{APIGroups: []string{policyv1.GroupName}, Resources: []string{"poddisruptionbudgets"}, Verbs: write},
		{APIGroups: []string{networkingv1.GroupName}, Resources: []string{"networkpolicies"}, Verbs: write},
		// The API server has to know the authority of its webhook.
		{APIGroups: []string{admissionregistrationv1.GroupName}, Resources: []string{"validatingwebhookconfigurations"}, ResourceNames: []string{WebhookConfiguration}, Verbs: []string{"get", "patch"}},
	}
}

// gatewayRules only read, and no secrets: a gateway that is taken over can't change the cluster.
func gatewayRules() []rbacv1.PolicyRule {
	read := []string{"get", "list", "watch"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"serving.kserve.io"}, Resources: []string{"inferenceservices", "trainedmodels", "inferencegraphs"}, Verbs: read},
		{APIGroups: []string{"stationmaster.dev"}, Resources: []string{"revisions", "routes"}, Verbs: read},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: read},
		inferencePools, // of those that it is the endpoint picker of
	}
}

func rbac(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}

func labels(name string) map[string]string {
	return map[string]string{"app": name, "app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "stationmaster"}
}

func (o Options) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: name, Labels: labels(name)}
}

func (o Options) service() *corev1.Service {
	h2c := "kubernetes.io/h2c"
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: o.meta(gateway),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceType(o.ServiceType), Selector: map[string]string{"app": gateway},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromString("http")},
				{Name: "grpc", Port: 8081, TargetPort: intstr.FromString("grpc"), AppProtocol: &h2c},
			},
		},
	}
}

func (o Options) deployment(name string, replicas int32, args []string, ports []corev1.ContainerPort) *appsv1.Deployment {
	zero, one := intstr.FromInt32(0), intstr.FromInt32(1)
	yes, no := true, false
	uid, grace := int64(user), int64(45)
	health := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("admin")}}
	}
	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: o.meta(name),
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &zero, MaxSurge: &one}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels(name), Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": fmt.Sprint(admin)}},
				Spec: corev1.PodSpec{
					ServiceAccountName:            name,
					TerminationGracePeriodSeconds: &grace,
					SecurityContext: &corev1.PodSecurityContext{
						RunAsNonRoot: &yes, RunAsUser: &uid, RunAsGroup: &uid,
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.ScheduleAnyway,
						LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
					}},
					Containers: []corev1.Container{{
						Name: name[len("stationmaster-"):], Image: o.Image, ImagePullPolicy: corev1.PullPolicy(o.PullPolicy), Args: args,
						Env: []corev1.EnvVar{
							{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
							{Name: "STATIONMASTER_IMAGE", Value: o.Image},
						},
						Ports:          append(ports, corev1.ContainerPort{Name: "admin", ContainerPort: admin}),
						ReadinessProbe: &corev1.Probe{ProbeHandler: health("/readyz"), PeriodSeconds: 2},
						LivenessProbe:  &corev1.Probe{ProbeHandler: health("/healthz"), PeriodSeconds: 10, FailureThreshold: 6},
						Resources:      o.resources(name),
						SecurityContext: &corev1.SecurityContext{
							AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
							Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						},
					}},
				},
			},
		},
	}
}

// resources are those of a part; who picks endpoints takes what a gateway takes.
func (o Options) resources(name string) corev1.ResourceRequirements {
	if name == operator {
		return o.OperatorResources
	}
	return o.GatewayResources
}

func (o Options) budget(name string) *policyv1.PodDisruptionBudget {
	one := intstr.FromInt32(1)
	return &policyv1.PodDisruptionBudget{
		TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"}, ObjectMeta: o.meta(name),
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}},
	}
}

// network leaves two ports of the operator open: its metrics, and the webhook for API servers,
// which no selector can name.
func (o Options) network() *networkingv1.NetworkPolicy {
	metrics, reviews := intstr.FromInt32(admin), intstr.FromInt32(webhook)
	tcp := corev1.ProtocolTCP
	return &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}, ObjectMeta: o.meta(operator),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": operator}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &metrics}, {Protocol: &tcp, Port: &reviews}}}},
		},
	}
}
