package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var restricted = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}

// start applies a service and waits until it is ready. It is removed when the test ends.
func (s *installation) start(t *testing.T, service *unstructured.Unstructured) {
	t.Helper()
	apply(t, service)
	t.Cleanup(func() { remove(t, service) })
	eventually(t, "the service is ready", func() error { return isReady(t, service) })
	for _, g := range running(t, gateway) {
		i := infer{url: at(&g, service.GetNamespace(), service.GetName()).base + "/v2/models/iris"}
		eventually(t, g.Name+" has it", func() error {
			_, err := i.rest(t.Context())
			return err
		})
	}
}

// rolledOut waits until a revision has all the traffic and is the only one that has pods.
func rolledOut(t *testing.T, service *unstructured.Unstructured, revision string) {
	t.Helper()
	eventually(t, revision+" is rolled out", func() error {
		got, _, _ := unstructured.NestedString(current(t, service).Object, "status", "components", "predictor", "latestRolledoutRevision")
		if got != revision {
			return fmt.Errorf("%s is", got)
		}
		return isReady(t, service)
	})
	eventually(t, "only "+revision+" has pods", func() error {
		var pods corev1.PodList
		if err := api.List(t.Context(), &pods, client.InNamespace(service.GetNamespace())); err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Labels["stationmaster.dev/revision"] != revision {
				return fmt.Errorf("%s is there", p.Name)
			}
		}
		return nil
	})
}

func (s *installation) testUpdates(t *testing.T) {
	ns := namespace(t, restricted)
	service := iris(t, ns, "oci://"+irisImage, shape("1"))
	s.start(t, service)
	l := startLoad(t, 50, s.rest(ns, "iris"), s.grpc(t, ns, "iris"))
	apply(t, iris(t, ns, "oci://"+irisImage, shape("2")))
	rolledOut(t, service, "iris-predictor-00002")
	apply(t, service) // back to what was first
	rolledOut(t, service, "iris-predictor-00001")
	l.end(t)
}

func (s *installation) testPodDeleted(t *testing.T) {
	ns := namespace(t, restricted)
	service := iris(t, ns, "oci://"+irisImage)
	s.start(t, service)
	pods, err := ready(t.Context(), ns, "isvc.iris-predictor")
	if err != nil || len(pods) != 1 {
		t.Fatalf("%d pods are ready: %v", len(pods), err)
	}
	l := startLoad(t, 50, s.rest(ns, "iris"), s.grpc(t, ns, "iris"))
	if err := api.Delete(t.Context(), &pods[0]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another pod is ready and this one gone", func() error {
		var all corev1.PodList
		if err := api.List(t.Context(), &all, client.InNamespace(ns)); err != nil {
			return err
		}
		now, err := ready(t.Context(), ns, "isvc.iris-predictor")
		if err != nil || len(now) != 1 || len(all.Items) != 1 || now[0].Name == pods[0].Name {
			return fmt.Errorf("%d pods, %d of them ready: %w", len(all.Items), len(now), err)
		}
		return nil
	})
	l.end(t)
}

func canary(percent int64) func(map[string]any) {
	return func(predictor map[string]any) { predictor["canaryTrafficPercent"] = percent }
}

func (s *installation) testCanary(t *testing.T) {
	ns := namespace(t, restricted)
	service := iris(t, ns, "oci://"+irisImage, shape("1"))
	s.start(t, service)
	apply(t, iris(t, ns, "oci://"+irisImage, shape("2"), canary(10)))
	eventually(t, "the status tells the split", func() error {
		traffic, _, _ := unstructured.NestedSlice(current(t, service).Object, "status", "components", "predictor", "traffic")
		for _, target := range traffic {
			if target, ok := target.(map[string]any); ok && target["revisionName"] == "iris-predictor-00002" && target["percent"] == int64(10) {
				return nil
			}
		}
		return fmt.Errorf("the traffic is %v", traffic)
	})
	began := time.Now()
	const asked = 10_000
	seen := s.tally(t, ns, asked)
	for _, revision := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%s: %d of %d requests, %.2f %%", revision, seen[revision], asked, 100*float64(seen[revision])/asked)
	}
	t.Logf("asked in %.1f s", time.Since(began).Seconds())
	// Three standard deviations of a fair draw are 90.
	if got := seen["iris-predictor-00002"]; got < 900 || got > 1100 || got+seen["iris-predictor-00001"] != asked {
		t.Errorf("of %d requests %d met the canary, want about 1000", asked, got)
	}
}

// tally asks so many times over eight connections and counts the revisions that answered.
func (s *installation) tally(t *testing.T, namespace string, asked int) map[string]int {
	t.Helper()
	i := infer{url: "http://" + s.address + "/serving/" + namespace + "/iris/v2/models/iris"}
	const clients = 8
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range asked / clients {
				header, err := i.rest(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				seen[header.Get("X-Stationmaster-Revision")]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return seen
}

func (s *installation) testTwoNodes(t *testing.T) {
	ns := namespace(t, restricted)
	s.start(t, iris(t, ns, "oci://"+irisImage, replicas(2)))
	var pods []corev1.Pod
	eventually(t, "both replicas are ready", func() (err error) {
		if pods, err = ready(t.Context(), ns, "isvc.iris-predictor"); err == nil && len(pods) != 2 {
			err = fmt.Errorf("%d are", len(pods))
		}
		return err
	})
	if pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		t.Errorf("both replicas run on %s", pods[0].Spec.NodeName)
	}
	eventually(t, "both have served", func() error {
		s.tally(t, ns, 80)
		for _, p := range pods {
			n, err := inferences(t.Context(), p.Status.PodIP)
			if err != nil || n == 0 {
				return fmt.Errorf("%s on %s served %d: %w", p.Name, p.Spec.NodeName, n, err)
			}
		}
		return nil
	})
	var budgets metav1.PartialObjectMetadataList
	budgets.SetGroupVersionKind(schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "PodDisruptionBudgetList"})
	if err := api.List(t.Context(), &budgets, client.InNamespace(ns)); err != nil || len(budgets.Items) != 1 {
		t.Errorf("there are %d disruption budgets, want 1: %v", len(budgets.Items), err)
	}
}

// testDeletion looks at what is left of a service that had all there is.
func (s *installation) testDeletion(t *testing.T) {
	ns := namespace(t, restricted)
	service := iris(t, ns, s.models+"/model.onnx", replicas(2), shape("1"))
	s.start(t, service)
	apply(t, iris(t, ns, s.models+"/model.onnx", replicas(2), shape("2"), canary(50)))
	eventually(t, "both revisions have Deployments", func() error {
		var list appsv1.DeploymentList
		if err := api.List(t.Context(), &list, client.InNamespace(ns)); err != nil || len(list.Items) != 2 {
			return fmt.Errorf("%d Deployments: %w", len(list.Items), err)
		}
		return nil
	})
	began := time.Now()
	remove(t, service)
	eventually(t, "nothing is left", func() error { return empty(t.Context(), ns) })
	t.Logf("gone in %.1f s", time.Since(began).Seconds())
	ask := infer{url: "http://" + s.address + "/serving/" + ns + "/iris/v2/models/iris"}
	eventually(t, "the gateway says that there is no such service", func() error {
		if _, err := ask.rest(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "404") {
			return fmt.Errorf("it answers %w", err)
		}
		return nil
	})
}

// empty returns nil where a namespace holds nothing but what Kubernetes puts into each.
func empty(ctx context.Context, namespace string) error {
	for _, kind := range []schema.GroupVersionKind{
		{Group: "apps", Version: "v1", Kind: "Deployment"}, {Group: "apps", Version: "v1", Kind: "ReplicaSet"}, {Version: "v1", Kind: "Pod"},
		{Version: "v1", Kind: "Service"}, {Version: "v1", Kind: "ConfigMap"}, {Version: "v1", Kind: "Secret"},
		{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"}, {Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"},
		{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}, {Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
		{Group: "stationmaster.dev", Version: "v1alpha1", Kind: "Revision"}, {Group: "stationmaster.dev", Version: "v1alpha1", Kind: "Route"},
	} {
		var list metav1.PartialObjectMetadataList
		kind.Kind += "List"
		list.SetGroupVersionKind(kind)
		if err := api.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, o := range list.Items {
			if o.Name != "kube-root-ca.crt" {
				return fmt.Errorf("%s %s is there", kind.Kind, o.Name)
			}
		}
	}
	return nil
}
