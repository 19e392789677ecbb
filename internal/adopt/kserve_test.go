package adopt_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/adopt"
)

// What KServe's controller and webhooks make of an InferenceService in RawDeployment mode, with the
// runtime that its installation brings: names, labels, init container and volumes (as of 0.15).
// What an API server fills in is left out, as the one of these tests does with ours.
const (
	kservesRuntime = `
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: kserve-sklearnserver}
spec:
  annotations: {prometheus.kserve.io/port: "8080", prometheus.kserve.io/path: /metrics}
  supportedModelFormats: [{name: sklearn, version: "1", autoSelect: true, priority: 1}]
  protocolVersions: [v1, v2]
  containers:
  - name: kserve-container
    image: kserve/sklearnserver:v0.15.0
    args: ["--model_name={{.Name}}", --model_dir=/mnt/models, --http_port=8080]
    securityContext: {allowPrivilegeEscalation: false, privileged: false, runAsNonRoot: true, capabilities: {drop: [ALL]}}
    resources: {requests: {cpu: "1", memory: 2Gi}, limits: {cpu: "1", memory: 2Gi}}
`
	kservesService = `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: sklearn-iris
  namespace: team
  uid: "1"
  annotations: {serving.kserve.io/deploymentMode: RawDeployment}
spec:
  predictor:
    model:
      modelFormat: {name: sklearn}
      storageUri: https://models.example/sklearn/model.joblib
`
	kservesPod = `
metadata:
  namespace: team
  name: sklearn-iris-predictor-5d8-x7k
  uid: "4"
  labels:
    app: isvc.sklearn-iris-predictor
    component: predictor
    serving.kserve.io/inferenceservice: sklearn-iris
    pod-template-hash: 5d8
  annotations:
    internal.serving.kserve.io/storage-initializer-sourceuri: https://models.example/sklearn/model.joblib
    prometheus.kserve.io/path: /metrics
    prometheus.kserve.io/port: "8080"
    serving.kserve.io/deploymentMode: RawDeployment
spec:
  initContainers:
  - name: storage-initializer
    image: kserve/storage-initializer:v0.15.0
    args: [https://models.example/sklearn/model.joblib, /mnt/models]
    resources: {requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: "1", memory: 1Gi}}
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: FallbackToLogsOnError
    imagePullPolicy: IfNotPresent
    volumeMounts: [{name: kserve-provision-location, mountPath: /mnt/models}]
  containers:
  - name: kserve-container
    image: kserve/sklearnserver:v0.15.0
    imagePullPolicy: IfNotPresent
    args: [--model_name=sklearn-iris, --model_dir=/mnt/models, --http_port=8080]
    readinessProbe: {tcpSocket: {port: 8080}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
    resources: {requests: {cpu: "1", memory: 2Gi}, limits: {cpu: "1", memory: 2Gi}}
    securityContext: {allowPrivilegeEscalation: false, privileged: false, runAsNonRoot: true, capabilities: {drop: [ALL]}}
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    volumeMounts: [{name: kserve-provision-location, mountPath: /mnt/models, readOnly: true}]
  volumes: [{name: kserve-provision-location, emptyDir: {}}]
  restartPolicy: Always
  terminationGracePeriodSeconds: 30
  securityContext: {}
`
)

func kserves(t *testing.T, change func(*corev1.Pod)) []client.Object {
	t.Helper()
	runtime, service, pod := &v1alpha1.ClusterServingRuntime{}, &v1beta1.InferenceService{}, &corev1.Pod{}
	for text, into := range map[string]any{kservesRuntime: runtime, kservesService: service, kservesPod: pod} {
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(pod)
	}
	deployment, set := &appsv1.Deployment{}, &appsv1.ReplicaSet{}
	deployment.Namespace, deployment.Name, deployment.UID, deployment.OwnerReferences = "team", "sklearn-iris-predictor", "2", by("InferenceService", "sklearn-iris", "1")
	set.Namespace, set.Name, set.UID, set.OwnerReferences = "team", "sklearn-iris-predictor-5d8", "3", by("Deployment", deployment.Name, "2")
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "isvc.sklearn-iris-predictor"}} // KServe's
	set.Labels = pod.Labels
	pod.OwnerReferences = by("ReplicaSet", set.Name, "3")
	return []client.Object{runtime, service, deployment, set, pod}
}

func TestWhatKServeDeployedIsTakenOverOrNamesWhatDiffers(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*corev1.Pod)
		verdict adopt.Verdict
		why     []string
	}{
		"as the runtime has it":       {verdict: adopt.Adopted},
		"an image of a runtime since": {func(p *corev1.Pod) { p.Spec.Containers[0].Image = "kserve/sklearnserver:v0.14.0" }, adopt.WouldRestart, []string{"kserve-container.image"}},
		"more than one field": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Args = append(p.Spec.Containers[0].Args, "--workers=2")
			p.Spec.NodeSelector = map[string]string{"gpu": "yes"}
		}, adopt.WouldRestart, []string{"kserve-container.args", "nodeSelector"}},
		"another model": {func(p *corev1.Pod) { p.Spec.InitContainers[0].Args[0] = "https://models.example/old" }, adopt.WouldRestart, []string{
			"model (the pod has https://models.example/old at /mnt/models; ours has https://models.example/sklearn/model.joblib at /mnt/models)",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := kserves(t, tc.change)
			api, results, err := run(t, true, objects...)
			if err != nil || len(results) != 1 {
				t.Fatalf("%v, %v", results, err)
			}
			r := results[0]
			if r.Verdict != tc.verdict {
				t.Errorf("it is %+v", r)
			}
			if tc.verdict == adopt.WouldRestart && !slices.Equal(r.Why, tc.why) {
				t.Errorf("it names %q, want %q", strings.Join(r.Why, ", "), tc.why)
			}
			var pod corev1.Pod
			if err := api.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "sklearn-iris-predictor-5d8-x7k"}, &pod); err != nil || pod.Labels["stationmaster.dev/revision"] != "" {
				t.Errorf("it was changed before anybody was told: %v, %v", pod.Labels, err)
			}
		})
	}
}
