package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/kube/lws"
	"stationmaster.dev/stationmaster/internal/spec"
)

// revisionObjects makes what one revision needs: its Deployment or LeaderWorkerSet, the digests
// of its models where they are pulled, and a PodDisruptionBudget where it has replicas to spare.
// An error means that the revision can't run on a cluster.
func (c *Config) revisionObjects(m member) ([]client.Object, error) {
	template, err := c.podTemplate(m)
	if err != nil {
		return nil, err
	}
	w := &m.workload
	meta, one := m.meta(), intstr.FromInt32(1)
	out := []client.Object{c.deployment(m, template)}
	if m.revision.Spec.Workers != nil {
		if out, err = c.groups(m, template); err != nil {
			return nil, err
		}
	}
	pins := map[string]string{}
	for i, model := range w.Models {
		if kind, _ := c.sourceOf(model.URI); kind == pulled {
			pins[pinKey(i)] = m.digests[model.URI]
		}
	}
	if len(pins) > 0 {
		pinned := *meta.DeepCopy()
		pinned.Name = pinsName(w.Revision.Name)
		out = append(out, &corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: pinned, Data: pins,
		})
	}
	if m.replicas > 1 {
		whenUnhealthy := policyv1.AlwaysAllow
		out = append(out, &policyv1.PodDisruptionBudget{
			TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
			ObjectMeta: *meta.DeepCopy(),
			Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: selector(w)}, UnhealthyPodEvictionPolicy: &whenUnhealthy,
			},
		})
	}
	return out, nil
}

func (c *Config) deployment(m member, template corev1.PodTemplateSpec) client.Object {
	noted := m.meta()
	noted.Annotations = c.notes(m)
	replicas, history, deadline := int32(m.replicas), int32(2), int32(600)
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	deployment := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: noted,
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, RevisionHistoryLimit: &history, ProgressDeadlineSeconds: &deadline,
			Selector: &metav1.LabelSelector{MatchLabels: selector(&m.workload)}, Template: template,
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &none},
			},
		},
	}
	if m.startup > 0 {
		deadline = max(deadline, int32(platform.Granted(m.startup).Seconds()))
	}
	if m.elsewhere != nil && m.elsewhere.begun {
		deployment.Spec.Replicas, deployment.Annotations[annotationScaler] = nil, m.elsewhere.kind()
	}
	return deployment
}

// serviceObjects makes what the revisions of a service share: a Service for each component,
// and the NetworkPolicy that shields the engines.
func (c *Config) serviceObjects(key spec.ServiceKey, members []member) []client.Object {
	var out []client.Object
	for _, component := range []spec.Component{spec.Predictor, spec.Transformer, spec.Explainer} {
		of := slices.DeleteFunc(slices.Clone(members), func(m member) bool { return m.workload.Component != component })
		if len(of) > 0 {
			out = append(out, c.componentService(key, component, of))
		}
	}
	if len(c.GatewayPods) > 0 && len(members) > 0 {
		out = append(out, c.shield(key, members))
	}
	return out
}

// componentService makes the Service under which a component is known in the cluster, which is
// KServe's name for it. With a gateway it is another name of that, so that calls from inside
// get the same weights, activation and tenancy as those from outside.
func (c *Config) componentService(key spec.ServiceKey, component spec.Component, members []member) client.Object {
	latest := members[len(members)-1]
	s := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Name: manifest.ComponentName(key.Name, component), Namespace: key.Namespace,
			Labels:          merged(serviceLabels(key), map[string]string{labelApp: manifest.AppLabel(key.Name, component), labelComponent: string(component)}),
			OwnerReferences: serviceOwner(members),
		},
	}
	server := latest.workload.Server()
	if c.GatewayHost != "" {
		s.Spec = corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: c.GatewayHost,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(80)}},
		}
		if _, ok := server.GRPCPort(); ok {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
				Name: "grpc", Port: c.GatewayGRPCPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(c.GatewayGRPCPort), AppProtocol: h2c(),
			})
		}
		return s
	}
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP,
		Selector: map[string]string{
			labelApp: manifest.AppLabel(key.Name, component), labelService: key.Name, labelComponent: string(component),
		},
	}
	for i, p := range server.Ports {
		if i > 0 && p.Number == 80 {
			// The first one has that port.
			continue
		}
		port := corev1.ServicePort{Name: cmp.Or(p.Name, fmt.Sprintf("port-%d", p.Number)), Port: int32(p.Number), Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(int32(p.Number))}
		if i == 0 {
			port.Port = 80
		}
		if p.Scheme == spec.H2C {
			port.AppProtocol = h2c()
		}
		s.Spec.Ports = append(s.Spec.Ports, port)
	}
	return s
}

func h2c() *string {
	s := "kubernetes.io/h2c"
	return &s
}

// shield makes the policy that lets only gateways and operators, and the service's own pods,
// reach its engines. Probes come from the node, which policies don't concern.
func (c *Config) shield(key spec.ServiceKey, members []member) client.Object {
	from := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelService: key.Name}}}}
	for _, g := range c.GatewayPods {
		from = append(from, networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: g.Namespace}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: g.Labels},
		})
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{
			Name: key.Name, Namespace: key.Namespace, Labels: serviceLabels(key), OwnerReferences: serviceOwner(members),
		},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{
				MatchLabels:      map[string]string{labelService: key.Name},
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: labelRevision, Operator: metav1.LabelSelectorOpExists}},
			},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: from}},
		},
	}
}

// revisionOwner makes an object end with its revision; a revision that isn't in the API owns
// nothing.
func revisionOwner(rev *smv1alpha1.Revision) []metav1.OwnerReference {
	if rev.UID == "" {
		return nil
	}
	return []metav1.OwnerReference{*metav1.NewControllerRef(rev, smv1alpha1.GroupVersion.WithKind("Revision"))}
}

// serviceOwner makes an object end with the InferenceService that owns the revisions.
func serviceOwner(members []member) []metav1.OwnerReference {
	for _, m := range members {
		if owner := metav1.GetControllerOf(m.revision); owner != nil {
			return []metav1.OwnerReference{*owner}
		}
	}
	return nil
}

// ownImage returns the image of ours that a revision's pods are made with: what live, which runs
// them, was made with, so that an upgraded operator replaces no pod; the configured one for a
// revision that doesn't run.
func (c *Config) ownImage(live client.Object, hash string) string {
	if !runs(live, hash) || live.GetAnnotations()[annotationImage] == "" {
		return c.Image
	}
	return live.GetAnnotations()[annotationImage]
}

// runs reports whether a Deployment or a LeaderWorkerSet, nil for none, has pods of a revision, or
// is about to.
func runs(live client.Object, hash string) bool {
	if live == nil || live.GetLabels()[labelHash] != hash {
		return false
	}
	switch o := live.(type) {
	case *appsv1.Deployment:
		return o.Status.Replicas > 0 || asked(o) > 0
	case *unstructured.Unstructured:
		return lws.Runs(o)
	}
	return false
}

// hasReady reports whether a Deployment or a LeaderWorkerSet has ready pods of a revision.
func hasReady(live client.Object, hash string) bool {
	if !runs(live, hash) {
		return false
	}
	switch o := live.(type) {
	case *appsv1.Deployment:
		return o.Status.ReadyReplicas > 0
	case *unstructured.Unstructured:
		return lws.HasReady(o)
	}
	return false
}

// notes are the annotations by which a Deployment or a LeaderWorkerSet tells what its pods were made
// with.
func (c *Config) notes(m member) map[string]string {
	out := map[string]string{}
	if c.Image != "" {
		out[annotationImage] = c.Image
	}
	c.noteDelivery(m, out)
	if c.wanting(&m) && !m.credentials.s3Alone {
		out[annotationCredentials] = "all"
	}
	if !m.writesRoot && m.hasBuiltin() {
		out[annotationReadOnly] = "true"
	}
	if m.startup > 0 {
		out[annotationStartup] = strconv.Itoa(int(m.startup.Seconds()))
	}
	return out
}

// order is the place of a kind when objects are applied: what shields and feeds pods comes
// before them.
func order(o client.Object) int {
	switch o.(type) {
	case *networkingv1.NetworkPolicy:
		return 0
	case *corev1.ConfigMap:
		return 1
	case *corev1.Service:
		return 2
	case *appsv1.Deployment, *unstructured.Unstructured:
		return 3
	}
	return 4
}
