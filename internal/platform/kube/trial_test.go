package kube_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/platform/kube"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestWhatAClusterSaysOfARevisionThatIsntStored(t *testing.T) {
	deployment := func(code int32, reason metav1.StatusReason, message string) func(*unstructured.Unstructured) *metav1.Status {
		return func(o *unstructured.Unstructured) *metav1.Status {
			if o.GetKind() != "Deployment" {
				return nil
			}
			return &metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}
		}
	}
	for name, tc := range map[string]struct {
		refuse  func(*unstructured.Unstructured) *metav1.Status
		warns   []string
		class   string
		workers bool
		want    []string
		fails   bool
	}{
		"nothing":       {},
		"that it's no":  {refuse: deployment(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "containerPort: Invalid value: 99999"), want: []string{"the cluster would refuse the Deployment: containerPort: Invalid value: 99999"}},
		"a policy's no": {refuse: deployment(http.StatusForbidden, metav1.StatusReasonForbidden, "policy: not from here"), want: []string{"the cluster would refuse the Deployment: policy: not from here"}},
		"that we may not ask": {
			refuse: deployment(http.StatusForbidden, metav1.StatusReasonForbidden, `User "u" cannot patch resource "deployments" in API group "apps"`), fails: true,
		},
		"that somebody judges stored ones only": {
			refuse: deployment(http.StatusBadRequest, metav1.StatusReasonBadRequest, "admission webhook w does not support dry run"), fails: true,
		},
		"that it's broken": {refuse: deployment(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcd is away"), fails: true},
		"a warning":        {warns: []string{"would violate PodSecurity"}, want: []string{"the cluster says of the Deployment: would violate PodSecurity", "the cluster says of the Service: would violate PodSecurity"}},
		"that it has no KEDA": {
			class: "keda", want: []string{"this cluster has no kind ScaledObject (keda.sh/v1alpha1)"},
		},
		"that it has no LeaderWorkerSets": {workers: true, want: []string{"this cluster has no kind LeaderWorkerSet"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.refuse, c.warns = tc.refuse, tc.warns
			p, err := kube.New(c.config(), kube.Config{
				Revisions: (&recorded{}).read,
				Image:     "stationmaster",
			})
			if err != nil {
				t.Fatal(err)
			}
			is := &v1beta1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "iris"}}
			value := resource.MustParse("4")
			if tc.class != "" {
				is.Annotations = map[string]string{"serving.kserve.io/autoscalerClass": tc.class}
				is.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: []v1beta1.MetricsSpec{{
					Type: v1beta1.ExternalMetricSourceType, External: &v1beta1.ExternalMetricSource{Metric: v1beta1.ExternalMetrics{Backend: "prometheus", Query: "q"}, Target: v1beta1.MetricTarget{Value: &value}},
				}}}
			}
			container := corev1.Container{Name: "kserve-container", Image: "x", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}
			rev := &smv1alpha1.Revision{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "iris-predictor-99999"},
				Spec:       smv1alpha1.RevisionSpec{Service: "iris", Component: string(spec.Predictor), Hash: "h"},
			}
			rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{container}
			if tc.workers {
				container.Name = "worker-container"
				rev.Spec.Workers = &smv1alpha1.RevisionWorkers{Size: 2}
				rev.Spec.Workers.PodTemplate.Spec.Containers = []corev1.Container{container}
			}
			got, err := p.Try(t.Context(), is, rev, tc.class != "")
			if (err != nil) != tc.fails {
				t.Errorf("%v", err)
			}
			if !slices.EqualFunc(got, tc.want, strings.Contains) {
				t.Errorf("said %q, want %q", got, tc.want)
			}
			if kept := c.keys(); len(kept) > 0 {
				t.Errorf("%q are stored", kept)
			}
		})
	}
}
