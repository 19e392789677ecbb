package install

import (
	"bytes"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// pickerPort is where an endpoint picker is asked, as that of the Gateway API Inference Extension.
const pickerPort = 9002

// inferencePools is the resource that endpoint pickers read.
var inferencePools = rbacv1.PolicyRule{
	APIGroups: []string{"inference.networking.k8s.io"}, Resources: []string{"inferencepools"}, Verbs: []string{"get", "list", "watch"},
}

// endpointPicker returns what it takes to pick the endpoints of an InferencePool. All of it is in the
// pool's namespace: that is where a pool looks for its picker's Service, and a Role of there is enough.
func (o Options) endpointPicker(namespace, pool string) []any {
	o.Namespace = namespace
	name := pool + "-endpoint-picker"
	h2c := "kubernetes.io/h2c"
	deployment := o.deployment(name, 1, []string{"endpoint-picker", fmt.Sprintf("--pool=%s/%s=:%d", namespace, pool, pickerPort)}, []corev1.ContainerPort{
		{Name: "ext-proc", ContainerPort: pickerPort},
	})
	deployment.Spec.Template.Spec.Containers[0].Name = "endpoint-picker"
	return []any{
		&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: o.meta(name)},
		&rbacv1.Role{TypeMeta: rbac("Role"), ObjectMeta: o.meta(name), Rules: []rbacv1.PolicyRule{
			inferencePools, {APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}},
		}},
		&rbacv1.RoleBinding{
			TypeMeta: rbac("RoleBinding"), ObjectMeta: o.meta(name),
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: namespace}},
		},
		&corev1.Service{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: o.meta(name),
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": name},
				Ports:    []corev1.ServicePort{{Name: "ext-proc", Port: pickerPort, TargetPort: intstr.FromString("ext-proc"), AppProtocol: &h2c}},
			},
		},
		deployment,
	}
}

// endpointPickers returns the objects of all pools that are asked for.
func (o Options) endpointPickers() []any {
	var out []any
	for _, p := range o.EndpointPickers {
		namespace, pool, _ := strings.Cut(p, "/")
		out = append(out, o.endpointPicker(namespace, pool)...)
	}
	return out
}

// pickersTemplate is the chart's template of the pools that its value endpointPickers lists.
func pickersTemplate(o Options) ([]byte, error) {
	o.PullPolicy = strings.ReplaceAll(o.PullPolicy, ".Values", "$.Values")
	var out bytes.Buffer
	out.WriteString("{{- range .Values.endpointPickers }}\n")
	for _, object := range o.endpointPicker("{{ .namespace }}", "{{ .pool }}") {
		raw, err := document(object)
		if err != nil {
			return nil, fmt.Errorf("write %T: %w", object, err)
		}
		fmt.Fprintf(&out, "---\n%s", strings.ReplaceAll(resourcesOfValues(string(raw)), "toYaml .Values", "toYaml $.Values"))
	}
	out.WriteString("{{- end }}\n")
	return out.Bytes(), nil
}
