package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// theirRuntime is a runtime as KServe's installation has some, without anything of ours.
const theirRuntime = `
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: theirs}
spec:
  supportedModelFormats: [{name: onnx, version: "1", autoSelect: true, priority: 99}]
  protocolVersions: [v1, v2]
  containers:
  - name: kserve-container
    image: localhost:5000/stationmaster:1
    args: [runtime, onnx, "--model_name={{.Name}}", --model_dir=/mnt/models, --host=0.0.0.0, --http_port=8080]
    ports: [{containerPort: 8080, protocol: TCP}]
    resources: {requests: {cpu: 20m, memory: 64Mi}, limits: {cpu: "1", memory: 512Mi}}
`

// theirService is a service on that runtime.
const theirService = `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: <name>, annotations: {serving.kserve.io/deploymentMode: Standard}}
spec:
  predictor:
    minReplicas: 2
    model: {modelFormat: {name: onnx}, storageUri: "<uri>"}
`

// theirChildren is what KServe makes of it in Standard mode, once its webhook has been at the
// pods. <env> is something that the manifest had, or hasn't.
const theirChildren = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: <name>-predictor
  labels: {app: isvc.<name>-predictor, component: predictor, serving.kserve.io/inferenceservice: <name>}
  annotations: {serving.kserve.io/deploymentMode: Standard}
spec:
  replicas: 2
  revisionHistoryLimit: 10
  progressDeadlineSeconds: 600
  selector: {matchLabels: {app: isvc.<name>-predictor}}
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 25%, maxSurge: 25%}}
  template:
    metadata:
      labels: {app: isvc.<name>-predictor, component: predictor, serving.kserve.io/inferenceservice: <name>}
      annotations: {serving.kserve.io/deploymentMode: Standard, internal.serving.kserve.io/storage-initializer-sourceuri: "<uri>"}
    spec:
      terminationGracePeriodSeconds: 30
      initContainers:
      - name: storage-initializer
        image: localhost:5000/echo:1
        args: ["<uri>", /mnt/models]
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts: [{name: kserve-provision-location, mountPath: /mnt/models}]
      containers:
      - name: kserve-container
        image: localhost:5000/stationmaster:1
        imagePullPolicy: IfNotPresent
        args: [runtime, onnx, --model_name=<name>, --model_dir=/mnt/models, --host=0.0.0.0, --http_port=8080]
        env: [<env>{name: INFERENCE_SERVICE_NAME, value: <name>}]
        ports: [{containerPort: 8080, protocol: TCP}]
        resources: {requests: {cpu: 20m, memory: 64Mi}, limits: {cpu: "1", memory: 512Mi}}
        readinessProbe: {tcpSocket: {port: 8080}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
        volumeMounts: [{name: kserve-provision-location, mountPath: /mnt/models, readOnly: true}]
      volumes: [{name: kserve-provision-location, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: <name>-predictor, labels: {app: isvc.<name>-predictor, component: predictor, serving.kserve.io/inferenceservice: <name>}}
spec:
  selector: {app: isvc.<name>-predictor}
  ports: [{name: <name>-predictor, port: 80, protocol: TCP, targetPort: 8080}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: <name>-predictor}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: <name>-predictor}
  minReplicas: 2
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
`

// theirController is KServe's controller, as far as anybody looks at it.
const theirController = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: kserve-controller-manager}
spec:
  replicas: 1
  selector: {matchLabels: {app: kserve}}
  template:
    metadata: {labels: {app: kserve}}
    spec: {containers: [{name: manager, image: "localhost:5000/echo:1"}]}
`

// deployAsKServe makes a service, and what KServe makes of it, owned by it.
func deployAsKServe(t *testing.T, ns, name, uri, env string) *unstructured.Unstructured {
	t.Helper()
	fill := strings.NewReplacer("<name>", name, "<uri>", uri, "<env>", env)
	create(t, ns, fill.Replace(theirService))
	service := &unstructured.Unstructured{}
	service.SetAPIVersion("serving.kserve.io/v1beta1")
	service.SetKind("InferenceService")
	service.SetNamespace(ns)
	service.SetName(name)
	service = current(t, service)
	yes := true
	owner := []metav1.OwnerReference{{
		APIVersion: service.GetAPIVersion(), Kind: service.GetKind(), Name: name, UID: service.GetUID(), Controller: &yes, BlockOwnerDeletion: &yes,
	}}
	for _, document := range strings.Split(fill.Replace(theirChildren), "\n---\n") {
		child := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &child.Object); err != nil {
			t.Fatal(err)
		}
		child.SetNamespace(ns)
		child.SetOwnerReferences(owner)
		if err := api.Create(t.Context(), child); err != nil {
			t.Fatal(err)
		}
	}
	return service
}

// uids returns the pods of a component that are ready, by UID.
func uids(t *testing.T, ns, name string) []string {
	t.Helper()
	pods, err := ready(t.Context(), ns, "isvc."+name+"-predictor")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, p := range pods {
		found[string(p.UID)] = true
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount > 0 {
				t.Errorf("%s was restarted", p.Name)
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// adopt runs the command and returns what it printed, by service; its error is what it said.
func (s *installation) adopt(ctx context.Context, ns string, flags ...string) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, s.binary, append([]string{"adopt", "--kubeconfig", shared.Kubeconfig(), "-n", ns, "--image", ownImage}, flags...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = errors.Join(err, errors.New(said.String()))
	}
	rows := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n")[1:] {
		name, rest, _ := strings.Cut(line, " ")
		rows[name] = strings.Join(strings.Fields(rest), " ")
	}
	return rows, err
}

// TestANamespaceIsTakenOverFromKServe has pods that KServe's objects own pass to ours.
func TestANamespaceIsTakenOverFromKServe(t *testing.T) {
	s := build(t)
	s.models = serveModels(t)
	s.kinds(t)
	ns := namespace(t, nil)
	create(t, ns, theirRuntime)
	uri := s.models + "/model.onnx"
	same := deployAsKServe(t, ns, "same", uri, "")
	other := deployAsKServe(t, ns, "other", uri, "{name: SHAPE, value: old}, ")
	create(t, ns, strings.NewReplacer("<name>", "knative", "<uri>", uri, "Standard", "Knative").Replace(theirService))
	before := map[string][]string{}
	for _, name := range []string{"same", "other"} {
		eventually(t, name+" runs as KServe has it", func() error {
			if before[name] = uids(t, ns, name); len(before[name]) != 2 {
				return fmt.Errorf("%d pods are ready", len(before[name]))
			}
			return nil
		})
	}

	create(t, ns, theirController)
	wants := func(rows map[string]string, name, verdict string) {
		t.Helper()
		if !strings.Contains(rows[name], verdict) {
			t.Errorf("of %s it says %q, want %q", name, rows[name], verdict)
		}
	}
	rows, err := s.adopt(t.Context(), ns, "--dry-run")
	if err != nil {
		t.Fatal(err)
	}
	wants(rows, "same", "predictor would be adopted pods that start later differ in")
	wants(rows, "other", "predictor would restart kserve-container.env")
	wants(rows, "knative", "predictor not possible KServe has no Deployment")
	if _, err := s.adopt(t.Context(), ns); err == nil || !strings.Contains(err.Error(), "scale deployment kserve-controller-manager --replicas=0") {
		t.Errorf("while KServe's controller runs it says %v", err)
	}
	s.kubectl(t, nil, "-n", ns, "scale", "deployment", "kserve-controller-manager", "--replicas=0")
	if rows, err = s.adopt(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	wants(rows, "same", "predictor adopted")
	gone(t, "KServe's Deployment", &appsv1.Deployment{}, ns, "same-predictor")
	gone(t, "KServe's autoscaler", &autoscalingv2.HorizontalPodAutoscaler{}, ns, "same-predictor")

	s.bring(t)
	for _, service := range []*unstructured.Unstructured{same, other} {
		t.Cleanup(func() { remove(t, service) })
		eventually(t, service.GetName()+" is ready", func() error { return isReady(t, service) })
		eventually(t, service.GetName()+" is answered by the gateway", func() error {
			_, err := infer{"http://" + s.address + "/v2/models/" + service.GetName(), service.GetName() + "-" + ns + ".example.com"}.rest(t.Context())
			return err
		})
	}
	if after := uids(t, ns, "same"); !slices.Equal(after, before["same"]) {
		t.Errorf("the pods are %v, and were %v", after, before["same"])
	}
	var sets appsv1.ReplicaSetList
	if err := api.List(t.Context(), &sets, client.InNamespace(ns), client.MatchingLabels{"app": "isvc.same-predictor"}); err != nil {
		t.Fatal(err)
	}
	if len(sets.Items) != 1 || len(sets.Items[0].OwnerReferences) != 1 || sets.Items[0].OwnerReferences[0].Name != "same-predictor-00001" {
		t.Errorf("its ReplicaSets are %+v", sets.Items)
	}

	// The other one was rolled out beside; what KServe had goes when it is asked for once more.
	var d appsv1.Deployment
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "other-predictor"}, &d); err != nil {
		t.Errorf("KServe's Deployment of a service that restarts is gone: %v", err)
	}
	if rows, err = s.adopt(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	wants(rows, "same", "predictor served already")
	wants(rows, "other", "predictor cleaned up")
	gone(t, "KServe's Deployment", &d, ns, "other-predictor")

	// A pod that starts later is ours through and through.
	pods, err := ready(t.Context(), ns, "isvc.same-predictor")
	if err != nil || len(pods) != 2 {
		t.Fatalf("%d pods are ready (%v)", len(pods), err)
	}
	if err := api.Delete(t.Context(), &pods[0]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another pod takes the deleted one's place", func() error {
		now, err := ready(t.Context(), ns, "isvc.same-predictor")
		if err != nil {
			return err
		}
		for _, p := range now {
			if !slices.Contains(before["same"], string(p.UID)) && p.Spec.InitContainers[0].Image == ownImage {
				return nil
			}
		}
		return fmt.Errorf("%d pods are ready, all of them from before", len(now))
	})
}

// kinds applies the custom resource definitions alone.
func (s *installation) kinds(t *testing.T) {
	t.Helper()
	all, err := exec.CommandContext(t.Context(), s.binary, "install", "--image", ownImage).Output()
	if err != nil {
		t.Fatal(err)
	}
	rest, err := exec.CommandContext(t.Context(), s.binary, "install", "--image", ownImage, "--crds=false").Output()
	if err != nil {
		t.Fatal(err)
	}
	s.kubectl(t, bytes.TrimSuffix(all, rest), "apply", "--server-side", "-f", "-")
	eventually(t, "the kinds are served", func() error {
		_, err := s.try(t.Context(), nil, "get", "isvc,servingruntimes", "-A")
		return err
	})
}
