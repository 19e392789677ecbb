package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// These tests are about the cluster itself: what the others rely on.

const echoDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: echo}}}
      containers:
      - name: echo
        image: localhost:5000/echo:1
        ports: [{containerPort: 8080}]
        resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {type: NodePort, selector: {app: echo}, ports: [{port: 80, targetPort: 8080}]}
`

// deployEcho runs two echo pods in a new namespace, one on each node, behind a Service.
func deployEcho(t *testing.T) (ns string, service corev1.Service) {
	t.Helper()
	ns = namespace(t, nil)
	create(t, ns, echoDeployment)
	eventually(t, "echo is rolled out", func() error {
		var d appsv1.Deployment
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "echo"}, &d); err != nil {
			return err
		}
		if d.Status.AvailableReplicas != 2 {
			return fmt.Errorf("%d of 2 replicas are available", d.Status.AvailableReplicas)
		}
		return nil
	})
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "echo"}, &service); err != nil {
		t.Fatal(err)
	}
	return ns, service
}

// bothAnswer asks a URL until each pod answered, and tells which did.
func bothAnswer(ctx context.Context, url string, pods []corev1.Pod) error {
	missing := map[string]bool{}
	for _, pod := range pods {
		missing[pod.Name] = true
	}
	for range 40 {
		body, err := get(ctx, url)
		if err != nil {
			return err
		}
		name, _, _ := strings.Cut(body, " ")
		if delete(missing, name); len(missing) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%s: no answer of %v", url, missing)
}

func TestADeploymentIsReachedEachWayThereIs(t *testing.T) {
	t.Parallel()
	ns, service := deployEcho(t)
	pods, err := ready(t.Context(), ns, "echo")
	if err != nil {
		t.Fatal(err)
	}
	nodes := []string{}
	for _, pod := range pods {
		nodes = append(nodes, pod.Spec.NodeName)
		if body, err := get(t.Context(), "http://"+pod.Status.PodIP+":8080/"); err != nil || body != pod.Name+" 65532\n" {
			t.Errorf("the pod %s at %s answers %q, %v", pod.Name, pod.Status.PodIP, body, err)
		}
	}
	if slices.Sort(nodes); !slices.Equal(nodes, []string{"node1", "node2"}) {
		t.Errorf("the pods run on %v, want one on each node", nodes)
	}
	port := service.Spec.Ports[0].NodePort
	for what, url := range map[string]string{
		"cluster IP":         "http://" + service.Spec.ClusterIP + "/",
		"DNS name":           "http://echo." + ns + ".svc.cluster.local/",
		"node port of node1": fmt.Sprintf("http://%s:%d/", shared.NodeIP(1), port),
		"node port of node2": fmt.Sprintf("http://%s:%d/", shared.NodeIP(2), port),
	} {
		eventually(t, "both pods answer by "+what, func() error { return bothAnswer(t.Context(), url, pods) })
	}
	for _, pod := range pods {
		from := "http://" + pod.Status.PodIP + ":8080/get?url="
		for what, target := range map[string]string{
			"short DNS name": "http://echo/",
			"full DNS name":  "http://echo." + ns + ".svc.cluster.local/",
			"cluster IP":     "http://" + service.Spec.ClusterIP + "/",
		} {
			eventually(t, "both pods answer "+pod.Name+" by "+what, func() error {
				return bothAnswer(t.Context(), from+url.QueryEscape(target), pods)
			})
		}
	}
}

func TestACommandRunsInTheClustersNetwork(t *testing.T) {
	t.Parallel()
	ns, _ := deployEcho(t)
	const program = `
import os, sys, urllib.request
print(urllib.request.urlopen("http://echo.%s.svc.cluster.local/", timeout=10).read().decode(), os.environ["KUBECONFIG"])
`
	eventually(t, "a client of another language is answered by name", func() error {
		out, err := shared.Command(t.Context(), "python3", "-c", fmt.Sprintf(program, ns)).Output()
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		if err != nil {
			return err
		}
		if got := string(out); !strings.HasPrefix(got, "echo-") || !strings.Contains(got, shared.KubeconfigInside()) {
			return fmt.Errorf("it printed %q", got)
		}
		return nil
	})
}

func TestAnImageVolumeShowsOneDirectoryOfTheImage(t *testing.T) {
	t.Parallel()
	ns := namespace(t, nil)
	create(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: reader, labels: {app: reader}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: echo
    image: localhost:5000/echo:1
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
    volumeMounts: [{name: model, mountPath: /mnt/models, subPath: models, readOnly: true}]
  volumes:
  - {name: model, image: {reference: "localhost:5000/model:1"}}
`)
	var pods []corev1.Pod
	eventually(t, "the pod is ready", func() (err error) {
		if pods, err = ready(t.Context(), ns, "reader"); err == nil && len(pods) != 1 {
			err = errors.New("no pod is ready")
		}
		return err
	})
	file := "http://" + pods[0].Status.PodIP + ":8080/file?path="
	if body, err := get(t.Context(), file+"/mnt/models/weights.txt"); err != nil || body != "the weights" {
		t.Errorf("the model's file reads %q, %v", body, err)
	}
	for _, hidden := range []string{"/mnt/models/secret.txt", "/mnt/models/models/weights.txt", "/mnt/models/other/secret.txt"} {
		if body, err := get(t.Context(), file+hidden); err == nil {
			t.Errorf("%s is there and reads %q: subPath had no effect", hidden, body)
		}
	}
}

func TestARestrictedNamespaceTakesWhatIsRestrictedOnly(t *testing.T) {
	t.Parallel()
	ns := namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	create(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: modest, labels: {app: modest}}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: echo
    image: localhost:5000/echo:1
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
`)
	eventually(t, "the restricted pod is ready", func() error {
		pods, err := ready(t.Context(), ns, "modest")
		if err == nil && len(pods) != 1 {
			err = errors.New("no pod is ready")
		}
		return err
	})
	bold := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "echo", Image: echoImage}}}}
	bold.Name, bold.Namespace = "bold", ns
	if err := api.Create(t.Context(), bold); err == nil || !strings.Contains(err.Error(), "PodSecurity") {
		t.Errorf("a pod that isn't restricted is answered %v, want a refusal by PodSecurity", err)
	}
}

func TestAnAbsentImageIsTold(t *testing.T) {
	t.Parallel()
	ns := namespace(t, nil)
	create(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: absent}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: absent, image: "localhost:5000/absent:1"}]
`)
	eventually(t, "the pod's status tells that the image is absent", func() error {
		var pod corev1.Pod
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "absent"}, &pod); err != nil {
			return err
		}
		for _, status := range pod.Status.ContainerStatuses {
			if w := status.State.Waiting; w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff") {
				return nil
			}
		}
		return fmt.Errorf("its containers are %v", pod.Status.ContainerStatuses)
	})
}

func TestTheNodesAreReady(t *testing.T) {
	t.Parallel()
	var nodes corev1.NodeList
	if err := api.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			t.Errorf("%s isn't ready: %v", node.Name, node.Status.Conditions)
		}
	}
	if len(nodes.Items) != 2 {
		t.Errorf("the cluster has %d nodes, want 2", len(nodes.Items))
	}
}
