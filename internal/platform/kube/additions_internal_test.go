package kube

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestWhoAddsToADeployment(t *testing.T) {
	const pods = `{"f:spec":{"f:template":{"f:spec":{"f:hostNetwork":{}}}}}`
	for name, tc := range map[string]struct {
		manager, subresource, fields string
		want                         bool
	}{
		"somebody, to its pods":            {manager: "kubectl-set", fields: pods, want: true},
		"somebody, to its strategy":        {manager: "kubectl-edit", fields: `{"f:spec":{"f:strategy":{"f:type":{}}}}`, want: true},
		"we ourselves":                     {manager: manager, fields: pods},
		"who restarts it":                  {manager: "kubectl-rollout", fields: `{"f:spec":{"f:template":{"f:metadata":{"f:annotations":{"f:kubectl.kubernetes.io/restartedAt":{}}}}}}`},
		"who scales it":                    {manager: "hpa", subresource: "scale", fields: `{"f:spec":{"f:replicas":{}}}`},
		"who scales it by hand":            {manager: "kubectl-edit", fields: `{"f:spec":{"f:replicas":{}}}`},
		"the controller":                   {manager: "kube-controller-manager", subresource: "status", fields: `{"f:status":{}}`},
		"somebody whose fields aren't any": {manager: "x", fields: `[]`},
	} {
		t.Run(name, func(t *testing.T) {
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: tc.manager, Subresource: tc.subresource, FieldsV1: metav1.NewFieldsV1(tc.fields),
			}}}}
			kept, err := keepAdders(d)
			if err != nil {
				t.Fatal(err)
			}
			if o, ok := kept.(client.Object); !ok || added(o) != tc.want {
				t.Errorf("added is %v, want %v", !tc.want, tc.want)
			}
		})
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x", FieldsV1: metav1.NewFieldsV1(pods)}}}}
	if _, err := keepAdders(pod); err != nil || len(pod.ManagedFields) > 0 {
		t.Errorf("%v, %v", err, pod.ManagedFields)
	}
}
