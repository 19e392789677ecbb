package kube

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// TestAnAgentRunsBesideTheEngineInItsPod compiles a service of many models as the operator does.
func TestAnAgentRunsBesideTheEngineInItsPod(t *testing.T) {
	shipped, err := catalogue.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	is := &v1beta1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "many"}}
	is.Spec.Predictor.Model = &v1beta1.ModelSpec{ModelFormat: v1beta1.ModelFormat{Name: "triton"}}
	is.Spec.Predictor.Model.VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/claims/models"}}
	is.Spec.Predictor.Volumes = []corev1.Volume{{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "models"}}}}
	const runtime = "stationmaster-tritonserver-multi"
	for _, r := range shipped {
		if r.Name != runtime {
			continue
		}
		c, err := manifest.Compile(manifest.Input{
			Service: is, Component: spec.Predictor, Runtime: &r.Spec, RuntimeName: runtime,
			RuntimeKind: catalogue.KindClusterServingRuntime, RuntimeAnnotations: r.Annotations,
		})
		if err != nil {
			t.Fatal(err)
		}
		rev := c.RevisionSpec()
		cfg := Config{Image: ownImage}
		pod, err := cfg.podTemplate(member{workload: c.Workload, revision: &smv1alpha1.Revision{Spec: rev}})
		if err != nil {
			t.Fatal(err)
		}
		if pod.Annotations[annotationModels] != "9081" || pod.Annotations[annotationServer] != manifest.ServerContainer {
			t.Errorf("annotations %v", pod.Annotations)
		}
		i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == manifest.AgentContainer })
		if i < 0 {
			t.Fatalf("containers %+v", pod.Spec.Containers)
		}
		agent := pod.Spec.Containers[i]
		if agent.Image != ownImage || len(agent.Command) > 0 || agent.Args[0] != "runtime" || agent.Args[1] != "agent" || agent.ReadinessProbe == nil {
			t.Errorf("agent %+v", agent)
		}
		if at, why := manifest.InMountedClaim(&rev, "pvc://models/a"); at != "file:///claims/models/a" {
			t.Errorf("a model in the claim is at %q: %s", at, why)
		}
		// What an observer of the pod sees.
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: pod.Annotations}, Spec: pod.Spec, Status: corev1.PodStatus{PodIP: "10.0.0.7"}}
		if r := replicaOf(p); r.Models != "10.0.0.7:9081" || r.HTTP != "10.0.0.7:8080" {
			t.Errorf("replica %+v", r)
		}
		return
	}
	t.Fatalf("there is no %s", runtime)
}
