package install_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/config/crd"
	"stationmaster.dev/stationmaster/internal/install"
)

func options() install.Options {
	o := install.Defaults()
	o.Image = "example.com/stationmaster:1"
	return o
}

func TestManifestIsDocumentsInTheOrderTheyAreNeeded(t *testing.T) {
	raw, err := install.Manifest(options())
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, doc := range bytes.Split(raw, []byte("\n---\n")) {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
			Status   map[string]any
		}
		if err := yaml.Unmarshal(bytes.TrimPrefix(doc, []byte("---\n")), &o); err != nil {
			t.Fatalf("%v in\n%.200s", err, doc)
		}
		if o.Kind == "" || o.Metadata.Name == "" {
			t.Errorf("a document without kind or name:\n%.200s", doc)
		}
		if len(o.Status) > 0 {
			t.Errorf("%s %s has a status", o.Kind, o.Metadata.Name)
		}
		kinds = append(kinds, o.Kind)
	}
	definitions, err := crd.Full()
	if err != nil {
		t.Fatal(err)
	}
	if first := slices.Index(kinds, "Namespace"); first != len(definitions) || kinds[0] != "CustomResourceDefinition" {
		t.Errorf("want all definitions, then the namespace; got %v", kinds)
	}
	if slices.Index(kinds, "Deployment") < slices.Index(kinds, "ServiceAccount") {
		t.Errorf("a Deployment comes before its account: %v", kinds)
	}
	o := options()
	o.CRDs = false
	if raw, err = install.Manifest(o); err != nil || bytes.Contains(raw, []byte("CustomResourceDefinition")) {
		t.Errorf("definitions in a manifest without them (%v)", err)
	}
}

func TestAnIngressLeadsTheWholeDomainToTheGateway(t *testing.T) {
	o := options()
	o.CRDs, o.ParentGateway, o.IngressClass = false, "infra/public", "nginx"
	raw, err := install.Manifest(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"kind: HTTPRoute", "  hostnames:\n  - '*.example.com'", "  - name: public\n    namespace: infra",
		"kind: Ingress", "  ingressClassName: nginx", "  - host: '*.example.com'",
	} {
		if !bytes.Contains(raw, []byte(want)) {
			t.Errorf("no %q", want)
		}
	}
}

// Pods satisfy the restricted level of Kubernetes' Pod Security Standards, which their namespace
// enforces.
func TestPodsAreRestricted(t *testing.T) {
	seen := 0
	for _, object := range install.Objects(options()) {
		d, ok := object.(*appsv1.Deployment)
		if !ok {
			continue
		}
		seen++
		pod := d.Spec.Template.Spec
		if s := pod.SecurityContext; s == nil || !*s.RunAsNonRoot || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: pod security context %+v", d.Name, s)
		}
		for _, c := range pod.Containers {
			if s := c.SecurityContext; s == nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: security context of %s: %+v", d.Name, c.Name, s)
			}
			if c.Image != options().Image {
				t.Errorf("%s runs %s", d.Name, c.Image)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d Deployments, want operator and gateway", seen)
	}
}

// Nobody reads secrets, nobody has wildcards, and a gateway only reads.
func TestRightsAreLeast(t *testing.T) {
	for _, object := range install.Objects(options()) {
		r, ok := object.(*rbacv1.ClusterRole)
		if !ok {
			continue
		}
		for _, rule := range r.Rules {
			all := strings.Join(slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs), " ")
			if strings.Contains(all, "*") || slices.Contains(rule.Resources, "secrets") {
				t.Errorf("%s may do too much: %v", r.Name, rule)
			}
			if strings.HasSuffix(r.Name, "gateway") && !slices.Equal(rule.Verbs, []string{"get", "list", "watch"}) {
				t.Errorf("%s may write: %v", r.Name, rule)
			}
		}
	}
}

var update = flag.Bool("update", false, "write the chart's files")

// The chart in the tree is the one that Chart makes.
func TestTheChartIsMadeFromTheSameObjects(t *testing.T) {
	files, err := install.Chart()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join("..", "..", "config", "helm", "stationmaster")
	for name, want := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is out of date (%v): run make generate", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "crds", "serving.kserve.io_inferenceservices.yaml")); err != nil {
		t.Errorf("the chart lacks the kinds: %v", err)
	}
}
