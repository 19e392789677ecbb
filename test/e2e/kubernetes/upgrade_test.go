package kubernetes

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/test/cluster"
)

// newerImage is our own image under the name of a later version.
const newerImage = "localhost:5000/stationmaster:2"

// settle applies the manifest of an image and waits until gateways and operators run by it.
func (s *installation) settle(t *testing.T, image string) {
	t.Helper()
	manifest, err := exec.CommandContext(t.Context(), s.binary, "install", "--image", image, "--direct-gateway", "infra/public").Output()
	if err != nil {
		t.Fatal(err)
	}
	s.kubectl(t, manifest, "apply", "--server-side", "-f", "-")
	s.kubectl(t, nil, "-n", system, "rollout", "status", "deployment", "--timeout=90s")
	var service corev1.Service
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: system, Name: gateway}, &service); err != nil {
		t.Fatal(err)
	}
	s.address = service.Spec.ClusterIP
}

// testUpgraded installs a version whose image is another one, takes all of it away but the kinds,
// and brings it back. An engine whose pod has our image twice, as what fetches its model and as
// the engine, stays all the while, as do the objects that users made.
func (s *installation) testUpgraded(t *testing.T) {
	ns := namespace(t, restricted)
	service := iris(t, ns, s.models+"/model.onnx")
	s.start(t, service)
	const first = "iris-predictor-00001"
	template := func() (text string, generation int64) {
		t.Helper()
		var d appsv1.Deployment
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: first}, &d); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(d.Spec.Template)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw), d.Generation
	}
	pods, err := ready(t.Context(), ns, "isvc.iris-predictor")
	if err != nil || len(pods) != 1 {
		t.Fatalf("%d pods are ready (%v)", len(pods), err)
	}
	before, generation := template()
	stays := func(after string) {
		t.Helper()
		if now, n := template(); now != before || n != generation {
			t.Errorf("after %s, generation %d of its Deployment has the pods\n%s\nand had in generation %d\n%s", after, n, now, generation, before)
		}
		still, err := ready(t.Context(), ns, "isvc.iris-predictor")
		if err != nil || len(still) != 1 || still[0].UID != pods[0].UID {
			t.Errorf("after %s the engine's pod didn't stay: %d pods, %v", after, len(still), err)
		}
	}
	// works waits until the operator has made another service, and so looked at the first.
	works := func(name, image string) {
		t.Helper()
		other := iris(t, ns, s.models+"/model.onnx")
		other.SetName(name)
		apply(t, other)
		t.Cleanup(func() { remove(t, other) })
		eventually(t, name+" is ready", func() error { return isReady(t, other) })
		var d appsv1.Deployment
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name + "-predictor-00001"}, &d); err != nil {
			t.Fatal(err)
		}
		if got := d.Spec.Template.Spec.InitContainers[0].Image; got != image {
			t.Errorf("a new service's model is fetched by %s, want %s", got, image)
		}
	}

	tar := filepath.Join(shared.Dir(), "newer.tar")
	if err := cluster.BuildImage(tar, cluster.Image{
		Name: newerImage, Entrypoint: []string{"/stationmaster"}, User: "65532:65532", Files: []cluster.File{{Path: "stationmaster", From: s.binary}},
	}); err != nil {
		t.Fatal(err)
	}
	if err := shared.Publish(tar); err != nil {
		t.Fatal(err)
	}
	s.settle(t, newerImage)
	works("later", newerImage)
	stays("an upgrade")

	s.uninstall(t)
	eventually(t, "operator and gateway are gone", func() error {
		var left corev1.PodList
		if err := api.List(t.Context(), &left, client.InNamespace(system)); err != nil || len(left.Items) > 0 {
			return fmt.Errorf("%d pods are left (%w)", len(left.Items), err)
		}
		return nil
	})
	stays("an uninstallation")
	if current(t, service).GetDeletionTimestamp() != nil {
		t.Error("the service is deleted with the operator")
	}

	s.settle(t, ownImage)
	works("again", ownImage)
	stays("another installation")
	eventually(t, "the engine answers", func() error { return s.rest(ns, "iris")(t.Context()) })
}
