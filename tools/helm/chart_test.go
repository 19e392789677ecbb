// Package helm checks the chart with Helm itself. It is a module of its own, so that Helm's
// dependencies stay out of the product.
package helm

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

const chart = "../../config/helm/stationmaster"

type object = map[string]any

// objects reads YAML documents by kind and name; the namespace itself isn't Helm's to make here.
func objects(t *testing.T, raw []byte) map[string]object {
	t.Helper()
	out := map[string]object{}
	for _, doc := range bytes.Split(raw, []byte("---\n")) {
		var o object
		if err := yaml.Unmarshal(doc, &o); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if o == nil || o["kind"] == "Namespace" {
			continue
		}
		out[o["kind"].(string)+"/"+o["metadata"].(object)["name"].(string)] = o
	}
	return out
}

func render(t *testing.T, values map[string]any) (string, error) {
	t.Helper()
	c, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.CRDObjects()) != 7 {
		t.Errorf("the chart has %d kinds, want 7", len(c.CRDObjects()))
	}
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "stationmaster", Namespace: "models"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, all)
	return strings.Join(slices.Collect(maps.Values(files)), "\n"), err
}

func TestTheChartRendersWhatInstallPrints(t *testing.T) {
	rendered, err := render(t, map[string]any{
		"image": "example.com/sm:1", "imagePullPolicy": "Always", "domain": "models.example.com",
		"gateways": 3, "operators": 1, "serviceType": "NodePort",
		"endpointPickers": []any{map[string]any{"namespace": "team-a", "pool": "llama"}, map[string]any{"namespace": "team-b", "pool": "qwen"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	install := exec.Command("go", "run", "./cmd/stationmaster", "install", "--crds=false", "--namespace=models",
		"--image=example.com/sm:1", "--image-pull-policy=Always", "--domain=models.example.com",
		"--gateways=3", "--operators=1", "--service-type=NodePort", "--endpoint-picker=team-a/llama", "--endpoint-picker=team-b/qwen")
	install.Dir = "../.."
	printed, err := install.Output()
	if err != nil {
		t.Fatalf("print the manifest: %v", err)
	}
	want, got := objects(t, printed), objects(t, []byte(rendered))
	for name, o := range want {
		if !reflect.DeepEqual(o, got[name]) {
			t.Errorf("%s differs:\nchart   %v\ninstall %v", name, got[name], o)
		}
	}
	if len(got) != len(want) {
		t.Errorf("the chart has %d objects, the manifest %d", len(got), len(want))
	}
}

// Each value of the chart is asked for, and does what it says where it can be seen.
func TestEveryValueHasItsEffect(t *testing.T) {
	plain, tested := map[string]any{"image": "sm:1"}, map[string]bool{}
	for name, tc := range map[string]struct {
		value any
		at    string
		want  string
	}{
		"image":           {"other:2", "Deployment/stationmaster-gateway", "image:other:2"},
		"registry":        {"mirror.example.com/team", "Deployment/stationmaster-operator", "image:mirror.example.com/team/sm:1"},
		"imagePullPolicy": {"Never", "Deployment/stationmaster-gateway", "imagePullPolicy:Never"},
		"domain":          {"models.example.com", "Deployment/stationmaster-gateway", "--domain=models.example.com"},
		"ociDelivery":     {"modelcar", "Deployment/stationmaster-operator", "--oci-delivery=modelcar"},
		"openaiPrefix":    {"/ai", "Deployment/stationmaster-gateway", "--openai-prefix=/ai"},
		"gateways":        {5, "Deployment/stationmaster-gateway", "replicas:5"},
		"operators":       {3, "Deployment/stationmaster-operator", "replicas:3"},
		"serviceType":     {"ClusterIP", "Service/stationmaster-gateway", "type:ClusterIP"},
		"resources":       {object{"operator": object{"limits": object{"memory": "3Gi"}}}, "Deployment/stationmaster-operator", "memory:3Gi"},
		"gatewayApi":      {object{"namespace": "edge", "name": "front"}, "HTTPRoute/stationmaster-gateway", "name:front namespace:edge"},
		"ingressClass":    {"nginx", "Ingress/stationmaster-gateway", "ingressClassName:nginx"},
		"directGateway":   {"edge/front", "Deployment/stationmaster-operator", "--direct-gateway=edge/front"},
		"directFrom":      {"edge-pods", "Deployment/stationmaster-operator", "--direct-from=edge-pods"},
		"endpointPickers": {[]any{object{"namespace": "team", "pool": "llama"}}, "Deployment/llama-endpoint-picker", "image:sm:1"},
		"alerts":          {true, "PrometheusRule/stationmaster", "groups"},
		"dashboard":       {true, "ConfigMap/stationmaster-dashboard", "stationmaster.json"},
	} {
		values := maps.Clone(plain)
		before, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		values[name] = tc.value
		after, err := render(t, values)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if was := fmt.Sprint(objects(t, []byte(before))[tc.at]); strings.Contains(was, tc.want) {
			t.Errorf("%s: %s has %q without it", name, tc.at, tc.want)
		}
		if is := fmt.Sprint(objects(t, []byte(after))[tc.at]); !strings.Contains(is, tc.want) {
			t.Errorf("%s: %s lacks %q: %s", name, tc.at, tc.want, is)
		}
		tested[name] = true
	}
	c, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range c.Values {
		if !tested[name] {
			t.Errorf("nothing tests the value %s", name)
		}
		if !strings.Contains(string(docs), "`"+name+"`") {
			t.Errorf("docs/kubernetes.md says nothing of the value %s", name)
		}
	}
}

func TestAChartWithoutAnImageIsRefused(t *testing.T) {
	if _, err := render(t, nil); err == nil || !strings.Contains(err.Error(), "image is missing") {
		t.Errorf("got %v", err)
	}
}

func TestAlertsAndDashboardComeWhenAsked(t *testing.T) {
	rendered, err := render(t, map[string]any{"image": "example.com/sm:1", "alerts": true, "dashboard": true})
	if err != nil {
		t.Fatal(err)
	}
	got := objects(t, []byte(rendered))
	groups, _ := got["PrometheusRule/stationmaster"]["spec"].(object)["groups"].([]any)
	if len(groups) != 1 || len(groups[0].(object)["rules"].([]any)) < 5 {
		t.Errorf("rules %v", got["PrometheusRule/stationmaster"])
	}
	data, _ := got["ConfigMap/stationmaster-dashboard"]["data"].(object)
	text, _ := data["stationmaster.json"].(string)
	want, err := os.ReadFile("../../config/observability/dashboard.json")
	if err != nil || strings.TrimSpace(text) != strings.TrimSpace(string(want)) {
		t.Errorf("the dashboard has %d bytes, want %d (%v)", len(text), len(want), err)
	}
}
