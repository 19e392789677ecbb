package direct

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

var httpRoute = schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: "HTTPRoute"}

// component is where the requests for one component go.
type component struct {
	name    spec.Component
	timeout int64
	targets []target
}

// target is a revision with its share in percent, and its ports; 0 for none.
type target struct {
	name       string
	percent    int32
	http, grpc int32
}

// backend is the Service of one revision's pods. It isn't labelled as ours, because the platform
// removes what is and that it doesn't want.
func backend(r *smv1alpha1.Route, c *component, t *target) *corev1.Service {
	s := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metaOf(r, t.name),
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{
			"app": manifest.AppLabel(r.Spec.Service, c.name), labelService: r.Spec.Service,
			"component": string(c.name), "stationmaster.dev/revision": t.name,
		}},
	}
	if t.http > 0 {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(t.http)})
	}
	if t.grpc > 0 {
		h2c := "kubernetes.io/h2c"
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "grpc", Port: grpcPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(t.grpc), AppProtocol: &h2c})
	}
	return s
}

// grpcPort is the port of a revision's Service for gRPC.
const grpcPort = 9000

// metaOf makes an object end with the Route.
func metaOf(r *smv1alpha1.Route, name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Namespace: r.Namespace, Name: name,
		Labels: map[string]string{labelService: r.Spec.Service, labelManagedBy: manager},
	}
	if r.UID != "" {
		m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(r, smv1alpha1.GroupVersion.WithKind("Route"))}
	}
	return m
}

// routesOf makes KServe's HTTPRoutes: one in the service's name for its own host, which leads to
// the transformer where there is one, and one for the host of each component.
func (cfg *Config) routesOf(r *smv1alpha1.Route, components []component) []*unstructured.Unstructured {
	entry, explainer := &components[0], -1
	var out []*unstructured.Unstructured
	for i := range components {
		c := &components[i]
		switch c.name {
		case spec.Transformer:
			entry = c
		case spec.Explainer:
			explainer = i
		}
		name := manifest.ComponentName(r.Spec.Service, c.name)
		out = append(out, cfg.route(r, name, name, rulesOf(r, c, nil)))
	}
	var rules []any
	if explainer >= 0 {
		rules = rulesOf(r, &components[explainer], map[string]any{"path": map[string]any{"type": "RegularExpression", "value": `^/v1/models/[\w-]+:explain$`}})
	}
	return append(out, cfg.route(r, r.Spec.Service, r.Spec.Service, append(rules, rulesOf(r, entry, nil)...)))
}

func (cfg *Config) route(r *smv1alpha1.Route, name, of string, rules []any) *unstructured.Unstructured {
	m := metaOf(r, name)
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"parentRefs": []any{map[string]any{"group": httpRoute.Group, "kind": "Gateway", "namespace": cfg.Gateway.Namespace, "name": cfg.Gateway.Name}},
		"hostnames":  []any{manifest.Host(of, r.Namespace, cfg.Domain)},
		"rules":      rules,
	}}}
	u.SetGroupVersionKind(httpRoute)
	u.SetNamespace(m.Namespace)
	u.SetName(m.Name)
	u.SetLabels(m.Labels)
	u.SetOwnerReferences(m.OwnerReferences)
	return u
}

// rulesOf makes the rules of one component: gRPC's before the one for the rest, and for what match
// says alone where it says something.
func rulesOf(r *smv1alpha1.Route, c *component, match map[string]any) []any {
	rule := func(match map[string]any, port func(*target) int32, at int32) any {
		var backends []any
		for i := range c.targets {
			if t := &c.targets[i]; port(t) > 0 {
				backends = append(backends, map[string]any{"group": "", "kind": "Service", "name": t.name, "port": int64(at), "weight": int64(t.percent)})
			}
		}
		if backends == nil {
			return nil
		}
		timeout := "0s" // Models may take long and streams longer.
		if c.timeout > 0 {
			timeout = fmt.Sprintf("%ds", c.timeout)
		}
		out := map[string]any{
			"backendRefs": backends,
			"timeouts":    map[string]any{"request": timeout},
			"filters": []any{map[string]any{"type": "RequestHeaderModifier", "requestHeaderModifier": map[string]any{"set": []any{
				map[string]any{"name": "KServe-Isvc-Name", "value": r.Spec.Service},
				map[string]any{"name": "KServe-Isvc-Namespace", "value": r.Namespace},
			}}}},
		}
		if match != nil {
			out["matches"] = []any{match}
		}
		return out
	}
	var out []any
	if match == nil {
		grpc := map[string]any{"path": map[string]any{"type": "PathPrefix", "value": "/inference.GRPCInferenceService"}}
		if g := rule(grpc, func(t *target) int32 { return t.grpc }, grpcPort); g != nil {
			out = append(out, g)
		}
	}
	if h := rule(match, func(t *target) int32 { return t.http }, 80); h != nil {
		out = append(out, h)
	}
	return out
}
