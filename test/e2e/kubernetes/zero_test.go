package kubernetes

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// asleep waits until a service has no pod left and is Ready all the same.
func asleep(t *testing.T, service *unstructured.Unstructured) {
	t.Helper()
	eventually(t, "the service is at zero and ready", func() error {
		var pods corev1.PodList
		if err := api.List(t.Context(), &pods, client.InNamespace(service.GetNamespace())); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("%d pods are there", len(pods.Items))
		}
		return isReady(t, service)
	})
}

func (s *installation) testZero(t *testing.T) {
	ns := namespace(t, restricted)
	service := iris(t, ns, "oci://"+irisImage, replicas(0))
	service.SetAnnotations(map[string]string{"autoscaling.knative.dev/window": "6s"})
	s.start(t, service)
	for protocol, ask := range map[string]request{"REST": s.rest(ns, "iris"), "gRPC": s.grpc(t, ns, "iris")} {
		began := time.Now()
		asleep(t, service)
		t.Logf("at zero %.1f s after the last request", time.Since(began).Seconds())
		began = time.Now()
		var burst errgroup.Group
		for range 10 {
			burst.Go(func() error { return ask(t.Context()) })
		}
		if err := burst.Wait(); err != nil {
			t.Errorf("a request over %s to a service at zero: %v", protocol, err)
		}
		t.Logf("ten requests over %s are answered from zero in %.1f s", protocol, time.Since(began).Seconds())
	}
}
