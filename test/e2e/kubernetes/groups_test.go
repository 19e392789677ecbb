package kubernetes

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// LWS's module, whose definition of the kind LeaderWorkerSet the real API server checks ours by.
const (
	lwsModule = "sigs.k8s.io/lws@v0.9.0"
	lwsSum    = "h1:DcJCgxjjoGOx//QHZkeKpyiblxYq70aCRZNYSfykWyI="
)

// overNodes is a runtime whose head is the built-in engine, and whose workers only live.
const overNodes = `
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: over-nodes}
spec:
  supportedModelFormats: [{name: onnx, version: "1"}]
  protocolVersions: [v2, grpc-v2]
  containers:
  - name: kserve-container
    image: localhost:5000/stationmaster:1
    args: [runtime, onnx, "--model_name={{.Name}}", --model_dir=/mnt/models, --host=0.0.0.0, --http_port=8080, --grpc_port=8081]
    ports: [{name: http, containerPort: 8080}, {name: grpc, containerPort: 8081}]
    readinessProbe: {httpGet: {path: /v2/health/ready, port: 8080}, periodSeconds: 1}
  workerSpec:
    pipelineParallelSize: 2
    containers:
    - name: worker-container
      image: localhost:5000/echo:1
      readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
`

// stand makes a pod of a group as LWS's controller does, without the devices that no node has.
func stand(t *testing.T, set *unstructured.Unstructured, part, name string) {
	t.Helper()
	template, ok, err := unstructured.NestedMap(set.Object, "spec", "leaderWorkerTemplate", part)
	if err != nil || !ok {
		t.Fatalf("no %s: %v", part, err)
	}
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod); err != nil {
		t.Fatal(err)
	}
	pod.Namespace, pod.Name = set.GetNamespace(), name
	yes := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: set.GetAPIVersion(), Kind: set.GetKind(), Name: set.GetName(), UID: set.GetUID(), Controller: &yes}}
	pod.Labels["leaderworkerset.sigs.k8s.io/group-index"] = "0"
	for i := range pod.Spec.Containers {
		r := &pod.Spec.Containers[i].Resources
		for _, list := range []corev1.ResourceList{r.Limits, r.Requests} {
			if n := list["nvidia.com/gpu"]; n.Value() != 1 {
				t.Errorf("%s asks for %v devices, want 1", part, n.Value())
			}
			delete(list, "nvidia.com/gpu")
		}
	}
	if err := api.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// testSeveralPods has a cluster without LWS tell what to install, and its real API server take
// the set once the kind is there. The test plays LWS's controller.
func (s *installation) testSeveralPods(t *testing.T) {
	ns := namespace(t, nil)
	create(t, ns, overNodes)
	service := iris(t, ns, "oci://"+irisImage)
	service.SetAnnotations(map[string]string{"serving.kserve.io/autoscalerClass": "none"})
	predictor := service.Object["spec"].(map[string]any)["predictor"].(map[string]any)
	modelOf(predictor)["runtime"] = "over-nodes"
	predictor["workerSpec"] = map[string]any{"tensorParallelSize": int64(1)}
	apply(t, service)
	t.Cleanup(func() { remove(t, service) })
	eventually(t, "the status says what to install", func() error {
		text, err := yaml.Marshal(current(t, service).Object["status"])
		if err == nil && !strings.Contains(string(text), "install LWS") {
			err = fmt.Errorf("the status is %s", text)
		}
		return err
	})
	installKind(t, lwsModule, lwsSum, filepath.Join("config", "crd", "bases", "leaderworkerset.x-k8s.io_leaderworkersets.yaml"))
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"})
	key := client.ObjectKey{Namespace: ns, Name: "iris-predictor-00001"}
	eventually(t, "a LeaderWorkerSet is made", func() error { return api.Get(t.Context(), key, set) })
	if size, _, _ := unstructured.NestedInt64(set.Object, "spec", "leaderWorkerTemplate", "size"); size != 2 {
		t.Errorf("a group has %d pods, want 2", size)
	}
	repaired(t, set, setField(t, int64(5), "spec", "replicas"))
	made := set.GetGeneration()

	stand(t, set, "leaderTemplate", key.Name+"-0")
	eventually(t, "the leader is ready", func() error {
		pods, err := ready(t.Context(), ns, "isvc.iris-predictor")
		if err == nil && len(pods) != 1 {
			err = fmt.Errorf("%d are", len(pods))
		}
		return err
	})
	if err := isReady(t, service); err == nil {
		t.Error("the service is ready without its worker")
	}
	stand(t, set, "workerTemplate", key.Name+"-0-1")
	eventually(t, "the service is ready", func() error { return isReady(t, service) })
	eventually(t, "the leader answers", func() error {
		_, err := infer{"http://" + s.address + "/v2/models/iris", "iris-" + ns + ".example.com"}.rest(t.Context())
		return err
	})
	if err := api.Get(t.Context(), key, set); err != nil || set.GetGeneration() != made {
		t.Errorf("the set was written again: generation %d after %d (%v)", set.GetGeneration(), made, err)
	}
	remove(t, service)
	gone(t, "the LeaderWorkerSet", set, ns, key.Name)
	gone(t, "the heads' Service", &corev1.Service{}, ns, "iris-head-1")
}
