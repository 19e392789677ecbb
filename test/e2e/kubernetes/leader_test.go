package kubernetes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leader waits until an operator other than not holds the lease, and returns the name of its pod.
func leader(t *testing.T, not string) string {
	t.Helper()
	var name string
	eventually(t, "an operator leads", func() error {
		var lease coordinationv1.Lease
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: system, Name: operator}, &lease); err != nil {
			return err
		}
		if lease.Spec.HolderIdentity == nil {
			return errors.New("nobody holds the lease")
		}
		if name, _, _ = strings.Cut(*lease.Spec.HolderIdentity, "_"); name == "" || name == not {
			return fmt.Errorf("%q holds the lease", name)
		}
		return nil
	})
	return name
}

// testOperatorKilled kills the operator that works, so that another takes over, and then both. Which
// one is not promised: the replacement of the killed may ask for the lease before the one that waited.
func (s *installation) testOperatorKilled(t *testing.T) {
	ns := namespace(t, restricted)
	service := iris(t, ns, "oci://"+irisImage, shape("1"))
	s.start(t, service)
	l := startLoad(t, 20, s.rest(ns, "iris"), s.grpc(t, ns, "iris"))
	first := leader(t, "")
	for _, p := range running(t, operator) {
		if p.Name == first {
			kill(t, p)
		}
	}
	began := time.Now()
	apply(t, iris(t, ns, "oci://"+irisImage, shape("2")))
	next := leader(t, first)
	t.Logf("%s leads instead of %s after %.1f s", next, first, time.Since(began).Seconds())
	rolledOut(t, service, "iris-predictor-00002")
	t.Logf("what changed meanwhile is rolled out after %.1f s", time.Since(began).Seconds())

	kill(t, running(t, operator)...)
	began = time.Now()
	apply(t, service) // back to what was first
	rolledOut(t, service, "iris-predictor-00001")
	t.Logf("with both killed it is rolled out after %.1f s", time.Since(began).Seconds())
	l.end(t)
	running(t, operator)
}

// scaled sets the operators' replicas and waits until there are so many pods, all of them ready.
func (s *installation) scaled(t *testing.T, replicas int) {
	t.Helper()
	s.kubectl(t, nil, "-n", system, "scale", "deployment/"+operator, fmt.Sprint("--replicas=", replicas))
	eventually(t, fmt.Sprintf("there are %d operators", replicas), func() error {
		var pods corev1.PodList
		if err := api.List(t.Context(), &pods, client.InNamespace(system), client.MatchingLabels{"app": operator}); err != nil {
			return err
		}
		now, err := ready(t.Context(), system, operator)
		if err != nil || len(pods.Items) != replicas || len(now) != replicas {
			return fmt.Errorf("%d pods, %d of them ready: %w", len(pods.Items), len(now), err)
		}
		return nil
	})
}

// shard makes a Deployment of operators that look after one namespace alone, and returns how to
// take it away.
func (s *installation) shard(t *testing.T, of *appsv1.Deployment, namespace string) (end func()) {
	t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: operator + "-" + namespace}, Spec: *of.Spec.DeepCopy()}
	one := int32(1)
	d.Spec.Replicas = &one
	label := map[string]string{"shard": namespace, "app": "operator-of-a-shard"}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: label}
	d.Spec.Template.Labels = label
	args := &d.Spec.Template.Spec.Containers[0].Args
	*args = append(*args, "--watch-namespace="+namespace)
	if err := api.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := api.Delete(t.Context(), d); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
		eventually(t, "the operator of "+namespace+" is gone", func() error {
			var pods corev1.PodList
			if err := api.List(t.Context(), &pods, client.InNamespace(system), client.MatchingLabels(label)); err != nil || len(pods.Items) > 0 {
				return fmt.Errorf("%d pods: %w", len(pods.Items), err)
			}
			return nil
		})
	}
}

// testOperatorsAway has the operators go: manifests are stored all the same, and judged when they are
// back. In between two others look after a namespace each.
func (s *installation) testOperatorsAway(t *testing.T) {
	var d appsv1.Deployment
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: system, Name: operator}, &d); err != nil {
		t.Fatal(err)
	}
	ns := namespace(t, restricted)
	s.scaled(t, 0)
	defer s.scaled(t, 2)
	wrong := fmt.Sprintf(judged, "iris", "model: {modelFormat: {name: onnx}, storageUri: 'oci://"+irisImage+"'}, sklearn: {}")
	if _, err := s.try(t.Context(), []byte(wrong), "-n", ns, "apply", "--server-side", "-f", "-"); err != nil {
		t.Errorf("nothing can be applied while the operators are away: %v", err)
	}
	s.testShards(t, &d)
	s.scaled(t, 2)
	eventually(t, "the status tells what is wrong", func() error {
		got := s.kubectl(t, nil, "-n", ns, "get", "isvc", "iris", "-o", "jsonpath={.status.modelStatus.lastFailureInfo.message}")
		if !strings.Contains(got, "exactly one of model, a framework field") {
			return fmt.Errorf("it says %q", got)
		}
		return nil
	})
	s.kubectl(t, nil, "-n", ns, "delete", "isvc", "iris")
}

// testShards has two operators share what they look after by namespace, with no other there.
func (s *installation) testShards(t *testing.T, of *appsv1.Deployment) {
	t.Helper()
	red, blue := namespace(t, restricted), namespace(t, restricted)
	end := map[string]func(){red: s.shard(t, of, red), blue: s.shard(t, of, blue)}
	defer end[red]()
	defer end[blue]()
	services := map[string]*unstructured.Unstructured{}
	for _, ns := range []string{red, blue} {
		services[ns] = iris(t, ns, "oci://"+irisImage, shape("1"))
		apply(t, services[ns])
		t.Cleanup(func() { remove(t, services[ns]) })
	}
	for ns, service := range services {
		eventually(t, "its own operator brings up the service of "+ns, func() error { return isReady(t, service) })
		eventually(t, "and a gateway answers for it", func() error { return s.rest(ns, "iris")(t.Context()) })
	}
	end[blue]()
	for _, ns := range []string{blue, red} {
		services[ns] = iris(t, ns, "oci://"+irisImage, shape("2"))
		apply(t, services[ns])
	}
	rolledOut(t, services[red], "iris-predictor-00002")
	if err := isReady(t, services[blue]); err == nil {
		t.Error("a change in another shard's namespace was seen")
	}
}
