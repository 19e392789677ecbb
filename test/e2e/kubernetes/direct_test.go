package kubernetes

import (
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The Gateway API's module, whose definition of HTTPRoute the real API server checks ours by.
const (
	gatewayModule = "sigs.k8s.io/gateway-api@v1.5.1"
	gatewaySum    = "h1:RqVRIlkhLhUO8wOHKTLnTJA6o/1un4po4/6M1nRzdd0="
)

// weights returns the shares of an HTTPRoute's last rule, by backend.
func weights(route *unstructured.Unstructured) map[string]int64 {
	rules, _, _ := unstructured.NestedSlice(route.Object, "spec", "rules")
	out := map[string]int64{}
	if len(rules) == 0 {
		return out
	}
	backends, _, _ := unstructured.NestedSlice(rules[len(rules)-1].(map[string]any), "backendRefs")
	for _, b := range backends {
		b := b.(map[string]any)
		out[b["name"].(string)], _ = b["weight"].(int64)
	}
	return out
}

// testDirect has a service ask for an HTTPRoute past our gateway, on a cluster that learns of the
// Gateway API only then, and looks at the shares of a canary in it.
func (s *installation) testDirect(t *testing.T) {
	ns := namespace(t, restricted)
	service := iris(t, ns, "oci://"+irisImage)
	service.SetAnnotations(map[string]string{"stationmaster.dev/direct-route": "true"})
	s.start(t, service)
	happened(t, service, "GatewayAPINotInstalled")
	installKind(t, gatewayModule, gatewaySum, filepath.Join("config", "crd", "standard", "gateway.networking.k8s.io_httproutes.yaml"))
	route := &unstructured.Unstructured{}
	route.SetGroupVersionKind(schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: "HTTPRoute"})
	shares := func(want map[string]int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("the HTTPRoute has the shares %v", want), func() error {
			if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "iris"}, route); err != nil {
				return err
			}
			if got := weights(route); fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("it has %v", got)
			}
			return nil
		})
	}
	const first, second = "iris-predictor-00001", "iris-predictor-00002"
	shares(map[string]int64{first: 100})
	repaired(t, route, setField(t, []any{"another.example.com"}, "spec", "hostnames"))
	hosts, _, _ := unstructured.NestedStringSlice(route.Object, "spec", "hostnames")
	if len(hosts) != 1 || hosts[0] != "iris-"+ns+".example.com" {
		t.Errorf("its hosts are %v", hosts)
	}
	predictor := service.Object["spec"].(map[string]any)["predictor"].(map[string]any)
	shape("2")(predictor)
	predictor["canaryTrafficPercent"] = int64(10)
	apply(t, service)
	shares(map[string]int64{first: 90, second: 10})
	for _, revision := range []string{first, second} {
		eventually(t, revision+"'s Service leads to its pod", func() error {
			_, err := infer{"http://" + revision + "." + ns + ".svc.cluster.local/v2/models/iris", ""}.rest(t.Context())
			return err
		})
	}
	service.SetAnnotations(map[string]string{"stationmaster.dev/direct-route": "false"})
	apply(t, service)
	gone(t, "the HTTPRoute", route, ns, "iris")
	gone(t, "the revision's Service", &corev1.Service{}, ns, first)
}
