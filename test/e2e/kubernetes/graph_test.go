package kubernetes

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// sequence is a graph that asks the services one after another, all of them with the request.
func sequence(t *testing.T, namespace, name string, services ...string) *unstructured.Unstructured {
	t.Helper()
	var steps strings.Builder
	for _, s := range services {
		fmt.Fprintf(&steps, "\n      - {serviceName: %s, dependency: Hard}", s)
	}
	g := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(`
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: `+name+`, namespace: `+namespace+`}
spec:
  minReplicas: 2
  nodes:
    root:
      routerType: Sequence
      steps:`+steps.String()), &g.Object); err != nil {
		t.Fatal(err)
	}
	return g
}

// testGraph asks a Sequence of two pods in each way that there is.
func (s *installation) testGraph(t *testing.T) {
	ns := namespace(t, restricted)
	for _, name := range []string{"first", "second"} {
		service := iris(t, ns, "oci://"+irisImage)
		service.SetName(name)
		apply(t, service)
		t.Cleanup(func() { remove(t, service) })
		eventually(t, "service "+name+" is ready", func() error { return isReady(t, service) })
	}
	graph := sequence(t, ns, "chain", "first", "second")
	apply(t, graph)
	t.Cleanup(func() { remove(t, graph) })
	eventually(t, "the graph is ready", func() error { return isReady(t, graph) })

	gateway := "http://" + s.address
	for how, ask := range map[string]infer{
		"host":        {gateway + "/v2/models/chain", "chain-" + ns + ".example.com"},
		"path prefix": {gateway + "/serving/" + ns + "/chain/v2/models/chain", ""},
		"its Service": {"http://chain." + ns + ".svc.cluster.local/v2/models/chain", ""},
	} {
		eventually(t, "the graph answers by "+how, func() error {
			header, err := ask.rest(t.Context())
			if err == nil && header.Get("X-Stationmaster-Revision") != "second-predictor-00001" {
				err = fmt.Errorf("the last step was %q", header.Get("X-Stationmaster-Revision"))
			}
			return err
		})
	}
	if err := s.grpc(t, ns, "chain")(t.Context()); err != nil {
		t.Errorf("over gRPC: %v", err)
	}
	if columns := s.kubectl(t, nil, "get", "ig", "chain", "-n", ns); !strings.Contains(columns, "http://chain-"+ns+".example.com") || !strings.Contains(columns, "True") {
		t.Errorf("kubectl get ig prints\n%s", columns)
	}
	told, _, _ := unstructured.NestedSlice(current(t, graph).Object, "status", "conditions")
	if !strings.Contains(fmt.Sprint(told), "spec.minReplicas: the graph runs in the gateway") {
		t.Errorf("the status doesn't tell of minReplicas: %v", told)
	}
}
