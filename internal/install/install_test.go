package install_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/config/crd"
	"stationmaster.dev/stationmaster/internal/admission"
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
	o.DirectGateway, o.DirectFrom = "infra/direct", "envoy"
	raw, err := install.Manifest(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"kind: HTTPRoute", "  hostnames:\n  - '*.example.com'", "  - name: public\n    namespace: infra",
		"- --direct-gateway=infra/direct", "- --direct-from=envoy",
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

// Nobody reads secrets of others, nobody has wildcards, and a gateway only reads. A ClusterRole is
// for every namespace, so none may name secrets; what a Role may read it names one by one.
func TestRightsAreLeast(t *testing.T) {
	ofSecrets := func(resource string) bool { return strings.Split(resource, "/")[0] == "secrets" }
	own, owning, updates := 0, map[string]bool{}, map[string]bool{}
	for _, object := range install.Objects(options()) {
		var name string
		var rules []rbacv1.PolicyRule
		switch r := object.(type) {
		case *rbacv1.ClusterRole:
			name, rules = r.Name, r.Rules
			if r.AggregationRule != nil {
				t.Errorf("what %s may do isn't written out", name)
			}
			for _, rule := range rules {
				for _, resource := range rule.Resources {
					// It applies and patches; the catalogue, events and what others added to Deployments are replaced as a whole.
					updated := strings.Contains(resource, "/") || slices.Contains([]string{"clusterservingruntimes", "events", "deployments"}, resource)
					updates[resource] = updates[resource] || slices.Contains(rule.Verbs, "update")
					if slices.Contains(rule.Verbs, "update") && !updated {
						t.Errorf("the ClusterRole %s updates %s, which nothing of it does", name, resource)
					}
					if strings.HasSuffix(resource, "/finalizers") {
						owning[resource] = true
					}
				}
				if slices.ContainsFunc(rule.Resources, ofSecrets) {
					t.Errorf("the ClusterRole %s reaches the secrets of every namespace: %v", name, rule)
				}
			}
		case *rbacv1.Role:
			name, rules = r.Name, r.Rules
			for _, rule := range rules {
				if !slices.ContainsFunc(rule.Resources, ofSecrets) {
					continue
				}
				own++
				if r.Namespace != options().Namespace || !slices.Equal(rule.ResourceNames, []string{install.WebhookSecret}) || !slices.Equal(rule.Verbs, []string{"get", "update"}) {
					t.Errorf("%s may do more than keep its own certificate: %v", name, rule)
				}
			}
		}
		for _, rule := range rules {
			if all := strings.Join(slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs), " "); strings.Contains(all, "*") {
				t.Errorf("%s may do too much: %v", name, rule)
			}
			for _, verb := range []string{"escalate", "bind", "impersonate"} {
				if slices.Contains(rule.Verbs, verb) {
					t.Errorf("%s may give itself rights: %v", name, rule)
				}
			}
			if strings.HasSuffix(name, "gateway") && !slices.Equal(rule.Verbs, []string{"get", "list", "watch"}) {
				t.Errorf("%s may write: %v", name, rule)
			}
		}
	}
	if own != 1 {
		t.Errorf("%d rules are about secrets, want one", own)
	}
	if !updates["deployments"] {
		t.Error("the operator takes back what others add to Deployments and mayn't")
	}
	// Clusters that enforce it let nobody block the deletion of an owner without this right.
	for _, owner := range []string{"inferenceservices", "revisions", "routes"} {
		if !owning[owner+"/finalizers"] {
			t.Errorf("the operator owns things by %s and mayn't", owner)
		}
	}
}

// The webhook holds nothing up: it is asked about what users write alone, and what it can't be
// asked about is stored.
func TestTheWebhookHoldsNothingUp(t *testing.T) {
	var hooks []admissionregistrationv1.ValidatingWebhook
	services := map[string]int32{}
	for _, object := range install.Objects(options()) {
		switch o := object.(type) {
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			if o.Name != install.WebhookConfiguration {
				t.Errorf("its name is %s", o.Name)
			}
			hooks = append(hooks, o.Webhooks...)
		case *corev1.Service:
			services[o.Namespace+"/"+o.Name] = o.Spec.Ports[0].Port
		case *corev1.Secret:
			if len(o.Data)+len(o.StringData) > 0 {
				t.Errorf("the Secret %s comes with something in it", o.Name)
			}
		}
	}
	if len(hooks) != 1 {
		t.Fatalf("%d webhooks, want one", len(hooks))
	}
	h := hooks[0]
	if *h.FailurePolicy != admissionregistrationv1.Ignore || *h.SideEffects != admissionregistrationv1.SideEffectClassNone ||
		*h.TimeoutSeconds > 5 || *h.MatchPolicy != admissionregistrationv1.Equivalent {
		t.Errorf("%+v", h)
	}
	if s := h.ClientConfig.Service; services[s.Namespace+"/"+s.Name] != *s.Port || *s.Path != admission.Path {
		t.Errorf("it leads to %+v, and the Services are %v", s, services)
	}
	for _, rule := range h.Rules {
		for _, resource := range rule.Resources {
			if strings.Contains(resource, "/") || strings.Contains(resource, "*") {
				t.Errorf("it is asked about %s", resource)
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

// What picks the endpoints of a pool is in the pool's namespace, reads what it has to there, and
// leads to a port of its pods.
func TestAnEndpointPickerIsWhereItsPoolIs(t *testing.T) {
	o := options()
	o.EndpointPickers = []string{"team-a/llama"}
	const name = "llama-endpoint-picker"
	var service *corev1.Service
	var deployment *appsv1.Deployment
	for _, object := range install.Objects(o)[len(install.Objects(options())):] {
		switch got := object.(type) {
		case *corev1.Service:
			service = got
		case *appsv1.Deployment:
			deployment = got
		case *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding:
			t.Errorf("%T: a pool's picker has rights in its namespace only", got)
		case *rbacv1.Role:
			for _, rule := range got.Rules {
				if got.Namespace != "team-a" || !slices.Equal(rule.Verbs, []string{"get", "list", "watch"}) {
					t.Errorf("in %s it may %v", got.Namespace, rule)
				}
			}
		}
	}
	if service == nil || deployment == nil {
		t.Fatal("there is no Service, or no Deployment")
	}
	pod := deployment.Spec.Template
	if service.Namespace != "team-a" || service.Name != name || deployment.Namespace != "team-a" || pod.Spec.ServiceAccountName != name {
		t.Errorf("Service %s/%s, Deployment in %s with the account %s", service.Namespace, service.Name, deployment.Namespace, pod.Spec.ServiceAccountName)
	}
	if pod.Labels["app"] != service.Spec.Selector["app"] || service.Spec.Ports[0].Port != 9002 || pod.Spec.Containers[0].Ports[0].Name != service.Spec.Ports[0].TargetPort.StrVal {
		t.Errorf("the Service %+v doesn't lead to %+v", service.Spec, pod.Spec.Containers[0].Ports)
	}
	if !slices.Contains(pod.Spec.Containers[0].Args, "--pool=team-a/llama=:9002") {
		t.Errorf("its arguments are %v", pod.Spec.Containers[0].Args)
	}
}
