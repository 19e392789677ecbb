package kubernetes

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// TestTheAPIServerTakesWhatIsStored has the API server judge, without keeping them, the objects in
// the golden files: those that KServe's manifests and our own come to. Those that are stored in
// short form get back what they were shortened by.
func TestTheAPIServerTakesWhatIsStored(t *testing.T) {
	installKEDA(t)
	installKind(t, lwsModule, lwsSum, filepath.Join("config", "crd", "bases", "leaderworkerset.x-k8s.io_leaderworkersets.yaml"))
	installKind(t, gatewayModule, gatewaySum, filepath.Join("config", "crd", "standard", "gateway.networking.k8s.io_httproutes.yaml"))
	root := filepath.Join("..", "..", "..", "internal")
	var files []string
	for _, pattern := range []string{"platform/kube/testdata/*.yaml", "platform/kube/testdata/*/*.yaml", "direct/testdata/*.yaml"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 80 {
		t.Fatalf("there are %d files; were they found?", len(files))
	}
	ns := namespace(t, nil)
	strict := client.WithFieldValidation(api, metav1.FieldValidationStrict)
	between := regexp.MustCompile(`(?m)^---\s*$`)
	kinds := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range between.Split(string(text), -1) {
			if strings.TrimSpace(part) == "" {
				continue
			}
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(part), &o.Object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			o.SetNamespace(ns)
			complete(t, o)
			judge := func() error {
				return strict.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner("stationmaster"), client.ForceOwnership, client.DryRunAll)
			}
			if kinds[o.GetKind()]++; kinds[o.GetKind()] == 1 {
				eventually(t, "the kind "+o.GetKind()+" is known", judge)
			}
			if err := judge(); err != nil {
				t.Errorf("%s: %s %s: %v", filepath.Base(file), o.GetKind(), o.GetName(), err)
			}
		}
	}
	for _, kind := range []string{"Deployment", "LeaderWorkerSet", "Service", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject", "HTTPRoute"} {
		if kinds[kind] == 0 {
			t.Errorf("no %s among %v", kind, kinds)
		}
	}
	t.Logf("judged: %v", kinds)
}

// complete gives an object in short form the labels that select its pods, and the containers that
// pull models their image.
func complete(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	if o.GetKind() != "Deployment" {
		return
	}
	spec := o.Object["spec"].(map[string]any)
	template := spec["template"].(map[string]any)
	if _, whole := spec["selector"]; !whole {
		labels := map[string]any{"app": o.GetName()}
		spec["selector"] = map[string]any{"matchLabels": labels}
		if err := unstructured.SetNestedMap(template, labels, "metadata", "labels"); err != nil {
			t.Fatal(err)
		}
	}
	pulls, _, err := unstructured.NestedSlice(template, "spec", "initContainers")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range pulls {
		if c := c.(map[string]any); c["image"] == nil {
			c["image"] = "registry.example/stationmaster:v1"
		}
	}
	if len(pulls) == 0 {
		return
	}
	if err := unstructured.SetNestedSlice(template, pulls, "spec", "initContainers"); err != nil {
		t.Fatal(err)
	}
}
