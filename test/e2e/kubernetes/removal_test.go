package kubernetes

import (
	"fmt"
	"strings"
	"testing"
)

// testRemoved takes Stationmaster away in both of the documented ways: the operator before the
// services, which are let go by hand then, and all of it with the kinds. At the end it is back.
func (s *installation) testRemoved(t *testing.T) {
	ns := namespace(t, restricted)
	// left tells what there is in the namespace that a service brought.
	left := func() error {
		kinds := "deployments,replicasets,pods,services,endpointslices,networkpolicies,poddisruptionbudgets,horizontalpodautoscalers"
		got, err := s.try(t.Context(), nil, "-n", ns, "get", kinds, "-o", "name")
		if err != nil || got != "" {
			return fmt.Errorf("there are %s: %w", strings.Fields(got), err)
		}
		maps, err := s.try(t.Context(), nil, "-n", ns, "get", "configmaps", "--field-selector=metadata.name!=kube-root-ca.crt", "-o", "name")
		if err != nil || maps != "" {
			return fmt.Errorf("there are %s: %w", strings.Fields(maps), err)
		}
		return nil
	}

	s.start(t, iris(t, ns, "oci://"+irisImage, shape("1")))
	s.uninstall(t)
	s.kubectl(t, nil, "-n", ns, "delete", "isvc", "iris", "--wait=false")
	s.kubectl(t, nil, "-n", ns, "get", "isvc", "iris") // without an operator it waits
	s.kubectl(t, nil, "-n", ns, "patch", "isvc", "iris", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	eventually(t, "what ran for the service is gone with it", left)
	got := s.kubectl(t, nil, "-n", ns, "get", "isvc,revisions,routes", "-o", "name")
	if got != "" {
		t.Errorf("there are still %s", strings.Fields(got))
	}

	s.settle(t, ownImage)
	s.start(t, iris(t, ns, "oci://"+irisImage, shape("2")))
	s.kubectl(t, nil, "delete", "isvc", "--all", "--all-namespaces", "--timeout=90s")
	eventually(t, "what ran for the service is gone with it", left)
	s.kubectl(t, s.manifest, "delete", "--timeout=90s", "-f", "-")
	for _, kinds := range []string{"crd", "clusterrole,clusterrolebinding,validatingwebhookconfiguration,namespace"} {
		for _, name := range strings.Fields(s.kubectl(t, nil, "get", kinds, "-o", "name")) {
			if strings.Contains(name, "stationmaster") || strings.HasSuffix(name, "serving.kserve.io") {
				t.Errorf("%s is left", name)
			}
		}
	}
	s.settle(t, ownImage)
}
