package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// KEDA's module, whose definition of the kind ScaledObject the real API server checks ours by.
const (
	kedaModule = "github.com/kedacore/keda/v2@v2.17.2"
	kedaSum    = "h1:xlrcK5TKABJF9PebK79sgL07s/csGjL3H4m72OkZXxk="
)

// class has somebody else set the service's replicas, one to four of them.
func class(service *unstructured.Unstructured, name string) {
	service.SetAnnotations(map[string]string{"serving.kserve.io/autoscalerClass": name})
	predictor := service.Object["spec"].(map[string]any)["predictor"].(map[string]any)
	predictor["minReplicas"], predictor["maxReplicas"] = int64(1), int64(4)
	delete(predictor, "autoScaling")
	switch name {
	case "hpa":
		predictor["autoScaling"] = map[string]any{"behavior": map[string]any{"scaleDown": map[string]any{"stabilizationWindowSeconds": int64(7)}}}
	case "keda":
		predictor["autoScaling"] = map[string]any{"metrics": []any{map[string]any{
			"type": "External", "external": map[string]any{
				"metric": map[string]any{"backend": "prometheus", "serverAddress": "http://prometheus:9090", "query": "sum(queue)"},
				"target": map[string]any{"type": "Value", "value": "4"},
			},
		}}}
	}
}

// deployed returns how many replicas a revision's Deployment asks for, and has ready.
func deployed(ctx context.Context, namespace, revision string) (asked, ready int32, err error) {
	var d appsv1.Deployment
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: revision}, &d); err != nil {
		return 0, 0, err
	}
	return *d.Spec.Replicas, d.Status.ReadyReplicas, nil
}

func hasReplicas(t *testing.T, namespace, revision string, want int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d replicas of %s", want, revision), func() error {
		asked, ready, err := deployed(t.Context(), namespace, revision)
		if err == nil && (asked != want || ready != want) {
			err = fmt.Errorf("%d asked for, %d ready", asked, ready)
		}
		return err
	})
}

// scaling waits until the service's condition ScalingActive has a reason.
func scaling(t *testing.T, service *unstructured.Unstructured, reason string) {
	t.Helper()
	eventually(t, "ScalingActive says "+reason, func() error {
		conditions, _, _ := unstructured.NestedSlice(current(t, service).Object, "status", "conditions")
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == "ScalingActive" && c["reason"] == reason {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", conditions)
	})
}

func gone(t *testing.T, what string, o client.Object, namespace, name string) {
	t.Helper()
	eventually(t, what+" is gone", func() error {
		err := api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%w)", err)
	})
}

// testAutoscalers has a cluster without a metrics server and without KEDA's controller take the
// objects that set replicas, and sets them itself: nobody may take that back.
func (s *installation) testAutoscalers(t *testing.T) {
	ns := namespace(t, restricted)
	service := iris(t, ns, "oci://"+irisImage)
	class(service, "hpa")
	s.start(t, service)
	const first, second = "iris-predictor-00001", "iris-predictor-00002"
	var h autoscalingv2.HorizontalPodAutoscaler
	eventually(t, "a HorizontalPodAutoscaler is made", func() error {
		return api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: first}, &h)
	})
	if *h.Spec.MinReplicas != 1 || h.Spec.MaxReplicas != 4 || *h.Spec.Metrics[0].Resource.Target.AverageUtilization != 80 || *h.Spec.Behavior.ScaleDown.StabilizationWindowSeconds != 7 {
		t.Errorf("the API server has %+v", h.Spec)
	}
	scaling(t, service, "FailedGetResourceMetric")
	repaired(t, head(autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"), ns, first), setField(t, int64(9), "spec", "maxReplicas"))
	repaired(t, head(networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"), ns, "iris"), setField(t, []any{}, "spec", "ingress"))

	s.kubectl(t, nil, "scale", "deployment", first, "-n", ns, "--replicas=2")
	hasReplicas(t, ns, first, 2)
	// Each round has the operator look at the service anew.
	for round := range 10 {
		s.kubectl(t, nil, "annotate", "inferenceservice", "iris", "-n", ns, "--overwrite", fmt.Sprintf("round=%d", round))
		time.Sleep(200 * time.Millisecond)
		if asked, _, err := deployed(t.Context(), ns, first); err != nil || asked != 2 {
			t.Fatalf("%d replicas asked for after two were set (%v)", asked, err)
		}
	}

	// A rollout brings as many, with an autoscaler of their own, and the old ones end with theirs.
	shape("2")(service.Object["spec"].(map[string]any)["predictor"].(map[string]any))
	apply(t, service)
	rolledOut(t, service, second)
	hasReplicas(t, ns, second, 2)
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: second}, &h); err != nil || h.Spec.ScaleTargetRef.Name != second {
		t.Errorf("the new revision's autoscaler: %+v, %v", h.Spec.ScaleTargetRef, err)
	}
	gone(t, "the old revision's autoscaler", &h, ns, first)

	class(service, "external")
	apply(t, service)
	gone(t, "the autoscaler", &h, ns, second)
	s.kubectl(t, nil, "scale", "deployment", second, "-n", ns, "--replicas=3")
	hasReplicas(t, ns, second, 3)

	class(service, "keda")
	apply(t, service)
	scaling(t, service, "KEDANotInstalled")
	hasReplicas(t, ns, second, 3)
	installKEDA(t)
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"})
	eventually(t, "a ScaledObject is made", func() error {
		return api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: second}, object)
	})
	triggers, _, _ := unstructured.NestedSlice(object.Object, "spec", "triggers")
	if len(triggers) != 1 || triggers[0].(map[string]any)["metadata"].(map[string]any)["threshold"] != "4" {
		t.Errorf("the API server has %v", object.Object["spec"])
	}
	repaired(t, object, setField(t, int64(9), "spec", "maxReplicaCount"))
	scaling(t, service, "ScalingActive")
	hasReplicas(t, ns, second, 3)

	class(service, "none")
	apply(t, service)
	gone(t, "the ScaledObject", object, ns, second)
	hasReplicas(t, ns, second, 1)
}

// installKEDA brings KEDA's kind, without its controller, onto the cluster until the test ends.
func installKEDA(t *testing.T) {
	installKind(t, kedaModule, kedaSum, filepath.Join("config", "crd", "bases", "keda.sh_scaledobjects.yaml"))
}

// installKind brings the kind that a file of a Go module defines onto the cluster until the test
// ends.
func installKind(t *testing.T, modulePath, sum, file string) {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", modulePath)
	download.Dir = t.TempDir() // apart from our own module
	out, err := download.Output()
	if err != nil {
		t.Fatalf("download %s: %v", modulePath, err)
	}
	var module struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &module); err != nil || module.Sum != sum {
		t.Fatalf("%s has the sum %s (%v)", modulePath, module.Sum, err)
	}
	text, err := os.ReadFile(filepath.Join(module.Dir, file))
	if err != nil {
		t.Fatal(err)
	}
	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &definition.Object); err != nil {
		t.Fatal(err)
	}
	if err := api.Create(t.Context(), definition); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, definition) })
}
