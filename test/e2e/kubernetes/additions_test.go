package kubernetes

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/kube"
)

// What isn't ours on a Deployment stays when it is applied, so it is taken back; what restarts its
// pods, as `kubectl rollout restart` does, isn't.
func TestWhatSomebodyAddsToADeploymentIsTakenBack(t *testing.T) {
	ns := namespace(t, nil)
	p := startPlatform(t, kube.Config{Namespaces: []string{ns}})
	want := platform.Assignment{Workload: workloadIn(ns, echo(echoImage)), Replicas: 1}
	var d appsv1.Deployment
	key := client.ObjectKey{Namespace: ns, Name: "iris-predictor-00001"}
	get := func() error {
		if err := p.Apply(t.Context(), want.Workload.Service, []platform.Assignment{want}); err != nil {
			return err
		}
		return api.Get(t.Context(), key, &d)
	}
	eventually(t, "a Deployment is made", get)
	made := d.DeepCopy()
	for name, patch := range map[string]string{
		"a container": `{"spec":{"template":{"spec":{"containers":[{"name":"beside","image":"x"}]}}}}`,
		"a variable":  `{"spec":{"template":{"spec":{"containers":[{"name":"kserve-container","env":[{"name":"EXTRA","value":"1"}]}]}}}}`,
		"a strategy":  `{"spec":{"strategy":{"rollingUpdate":{"maxUnavailable":1}}}}`,
	} {
		if err := api.Patch(t.Context(), &d, client.RawPatch(types.StrategicMergePatchType, []byte(patch)), client.FieldOwner("somebody")); err != nil {
			t.Fatal(err)
		}
		edited := d.Generation
		eventually(t, name+" is taken back", func() error {
			if err := get(); err != nil {
				return err
			}
			if d.Generation == edited || !equality.Semantic.DeepEqual(made.Spec, d.Spec) {
				return fmt.Errorf("it has %+v", d.Spec.Template.Spec)
			}
			return nil
		})
	}
	restart := `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`
	if err := api.Patch(t.Context(), &d, client.RawPatch(types.StrategicMergePatchType, []byte(restart)), client.FieldOwner("kubectl-rollout")); err != nil {
		t.Fatal(err)
	}
	steady := d.Generation
	for range 5 {
		if err := get(); err != nil {
			t.Fatal(err)
		}
	}
	if d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] != "now" || d.Generation != steady {
		t.Error("a restart is taken back:", d.Spec.Template.Annotations, d.Generation, steady)
	}
}

// testAdditions has the operator, with the rights that it is installed with, take back what somebody
// adds to a service's pods.
func (s *installation) testAdditions(t *testing.T) {
	ns := namespace(t, restricted)
	service := iris(t, ns, "oci://"+irisImage)
	s.start(t, service)
	var d appsv1.Deployment
	key := client.ObjectKey{Namespace: ns, Name: "iris-predictor-00001"}
	if err := api.Get(t.Context(), key, &d); err != nil {
		t.Fatal(err)
	}
	made := d.DeepCopy()
	added := `{"spec":{"template":{"spec":{"containers":[{"name":"kserve-container","env":[{"name":"EXTRA","value":"1"}]},{"name":"beside","image":"x"}]}}}}`
	if err := api.Patch(t.Context(), &d, client.RawPatch(types.StrategicMergePatchType, []byte(added)), client.FieldOwner("somebody")); err != nil {
		t.Fatal(err)
	}
	edited := d.Generation
	eventually(t, "it is taken back", func() error {
		if err := api.Get(t.Context(), key, &d); err != nil {
			return err
		}
		if d.Generation == edited || !equality.Semantic.DeepEqual(made.Spec.Template.Spec, d.Spec.Template.Spec) {
			return fmt.Errorf("it has %+v", d.Spec.Template.Spec)
		}
		return isReady(t, service)
	})
}
