package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// refusedSamples are those of KServe's samples that come to nothing, by file and number of the
// document, with a part of the reason. KServe refuses them as well: they have explainers and
// fields that it removed, or two implementations.
var refusedSamples = map[string]string{
	"bentoml/bentoml":                                  `unknown field "container"`,
	"explanation/alibi/cifar10/cifar10":                `unknown field "alibi"`,
	"explanation/alibi/moviesentiment/moviesentiment":  `unknown field "alibi"`,
	"explanation/alibi/moviesentiment/moviesentiment2": `unknown field "alibi"`,
	"rollout-strategy/rollout-strategy-example":        `unknown field "custom"`,
	"rollout-strategy/rollout-strategy-example-3":      "not model and containers",
}

// placeholders are what KServe's samples leave to their reader.
var placeholders = strings.NewReplacer("{username}", "example", "{docker_username}", "example", "<namespace>", "default",
	"{{ graph_name }}", "g", "{{ success_200_isvc_id }}", "success", "{{ error_404_isvc_id }}", "error")

// document is one object of KServe's manifests.
type document struct {
	// name is that of its file below docs/samples, without its ending, and from the second
	// object of a kind on with its number.
	name             string
	apiVersion, kind string
	text             string
}

// corpusOf returns every object of KServe's manifests that a cluster could be given. It skips the
// test where they aren't beside this repository.
func corpusOf(t *testing.T) []document {
	t.Helper()
	root := os.Getenv("STATIONMASTER_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "..", "shared")
	}
	root = filepath.Join(root, "corpus", "kserve")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("no manifests of KServe: %v", err)
	}
	var out []document
	between := regexp.MustCompile(`(?m)^---\s*$`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		file = strings.TrimPrefix(strings.TrimSuffix(filepath.ToSlash(file), ".yaml"), "docs/samples/")
		seen := map[string]int{}
		for i, part := range between.Split(string(text), -1) {
			part = placeholders.Replace(part)
			var head struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal([]byte(part), &head); err != nil {
				return fmt.Errorf("%s, object %d: %w", file, i, err)
			}
			if head.Kind == "" {
				continue
			}
			name := file
			if seen[head.Kind]++; seen[head.Kind] > 1 {
				name = fmt.Sprintf("%s-%d", file, seen[head.Kind])
			}
			out = append(out, document{name: name, apiVersion: head.APIVersion, kind: head.Kind, text: part})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// childless says why an object of KServe's manifests has no children here; empty means that it
// has some.
func childless(d document) string {
	group, version, _ := strings.Cut(d.apiVersion, "/")
	switch {
	case d.kind == "InferenceService" && (group != "serving.kserve.io" || version != "v1beta1"):
		return "a group or version that KServe removed"
	case d.kind == "InferenceService":
		return ""
	case d.kind == "InferenceGraph":
		return "it runs in the gateway (manifest's TestKServesGraphsAreAccepted)"
	case d.kind == "TrainedModel":
		return "it is a line of its service's list of models, which control writes"
	case d.kind == "ClusterServingRuntime":
		return "what others are made with (catalogue's tests)"
	case strings.HasPrefix(d.kind, "LLMInferenceService"):
		return "a kind that isn't served yet"
	case d.kind == "KafkaSource":
		return "Knative's"
	case strings.HasPrefix(d.name, "config/"):
		return "a part of KServe's own installation"
	}
	return ""
}

// samplesOf returns KServe's samples of InferenceServices by name.
func samplesOf(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, d := range corpusOf(t) {
		if childless(d) != "" {
			continue
		}
		if d.kind != "InferenceService" {
			t.Errorf("%s: what becomes of a %s of %s? Record its children, or say why it has none", d.name, d.kind, d.apiVersion)
			continue
		}
		out[d.name] = d.text
	}
	return out
}

// attempt returns what a manifest comes to with everything that an operator makes of it when it
// is applied first, or why it comes to nothing.
func attempt(t *testing.T, cfg *Config, text string) (*servingv1beta1.InferenceService, []client.Object, error) {
	t.Helper()
	is := &servingv1beta1.InferenceService{}
	if err := yaml.UnmarshalStrict([]byte(text), is); err != nil {
		return nil, nil, err
	}
	is.Namespace = "default"
	manifest.Default(is, manifest.Defaults{})
	if errs := manifest.Validate(is, nil); len(errs) > 0 {
		return nil, nil, errs.ToAggregate()
	}
	var members []member
	var out []client.Object
	for _, c := range []spec.Component{spec.Predictor, spec.Transformer, spec.Explainer} {
		ext := manifest.Extension(is, string(c))
		if ext == nil {
			continue
		}
		rev, err := tryRevision(is, c)
		if err != nil {
			return nil, nil, err
		}
		replicas := 1
		if ext.MinReplicas != nil {
			replicas = int(*ext.MinReplicas)
		}
		m := memberOf(t, rev, replicas)
		if class := is.Annotations[manifest.AutoscalerClassAnnotation]; class == "hpa" || class == "keda" {
			made, err := scaler(is, m.meta(), string(c))
			if err != nil {
				return nil, nil, err
			}
			m.elsewhere, out = &elsewhere{scaler: made}, append(out, made)
		}
		made, err := cfg.revisionObjects(m)
		if err != nil {
			return nil, nil, err
		}
		members, out = append(members, m), append(out, made...)
	}
	out = append(out, cfg.serviceObjects(spec.ServiceKey{Namespace: is.Namespace, Name: is.Name}, members)...)
	slices.SortStableFunc(out, func(a, b client.Object) int { return order(a) - order(b) })
	return is, out, nil
}

// TestChildrenOfKServesSamples records the objects of every sample, and holds them against what
// KServe's children are known by.
func TestChildrenOfKServesSamples(t *testing.T) {
	samples := samplesOf(t)
	if len(samples) < 60 {
		t.Fatalf("there are %d samples; were they read?", len(samples))
	}
	var goldens []string
	for _, name := range slices.Sorted(maps.Keys(samples)) {
		t.Run(name, func(t *testing.T) {
			is, objects, err := attempt(t, &gatewayed, samples[name])
			if reason, refused := refusedSamples[name]; refused || err != nil {
				if !refused || err == nil || !strings.Contains(err.Error(), reason) {
					t.Errorf("it is refused with %v, want %q", err, reason)
				}
				return
			}
			kept(t, is, objects)
			golden := filepath.Join("testdata", "samples", strings.ReplaceAll(name, "/", "_")+".yaml")
			goldens = append(goldens, golden)
			compare(t, golden, rendered(t, objects))
		})
	}
	stored, err := filepath.Glob(filepath.Join("testdata", "samples", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stored {
		if !slices.Contains(goldens, file) && !t.Failed() {
			t.Errorf("%s is of no sample: remove it", file)
		}
	}
}

// compare holds what objects are written as against a golden file.
func compare(t *testing.T, golden, have string) {
	t.Helper()
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(golden), 0o755), os.WriteFile(golden, []byte(have), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), have); d != "" {
		t.Errorf("-update rewrites it (-want +got):\n%s", d)
	}
}

// rendered writes objects without what is the same for every service, which kept checks and the
// other golden files have in full: the NetworkPolicy, labels, owners, hashes, and how a model is
// pulled beside what and where to.
func rendered(t *testing.T, objects []client.Object) string {
	t.Helper()
	var out strings.Builder
	for _, o := range objects {
		if order(o) == 0 {
			continue
		}
		content, _, err := wanted(o)
		if err != nil {
			t.Fatal(err)
		}
		trim(content)
		text, err := yaml.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n" + string(text))
	}
	return out.String()
}

func trim(v any) {
	switch v := v.(type) {
	case map[string]any:
		if name, _ := v["name"].(string); isPull(name) {
			maps.DeleteFunc(v, func(k string, _ any) bool { return k != "name" && k != "args" })
		}
		for _, constant := range []string{annotationApplied, annotationImage, "labels", "matchLabels", "ownerReferences"} {
			delete(v, constant)
		}
		for k, x := range v {
			trim(x)
			if m, ok := x.(map[string]any); ok && len(m) == 0 && slices.Contains([]string{"annotations", "metadata", "selector"}, k) {
				delete(v, k)
			}
		}
	case []any:
		for _, x := range v {
			trim(x)
		}
	}
}

// kept checks what whoever knows KServe's children relies on: names, labels, ports, the way in of
// a model, probes, and the number of replicas that an autoscaler may choose from.
func kept(t *testing.T, is *servingv1beta1.InferenceService, objects []client.Object) {
	t.Helper()
	for _, o := range objects {
		switch o := o.(type) {
		case *appsv1.Deployment:
			keptByDeployment(t, is, o)
		case *corev1.Service:
			component := o.Labels[labelComponent]
			if o.Name != is.Name+"-"+component || o.Labels[labelService] != is.Name || o.Spec.Ports[0].Port != 80 {
				t.Errorf("the Service is %s with %v and %v", o.Name, o.Labels, o.Spec.Ports)
			}
		case *autoscalingv2.HorizontalPodAutoscaler:
			if *o.Spec.MinReplicas < 1 || o.Spec.MaxReplicas < *o.Spec.MinReplicas {
				t.Errorf("it scales from %d to %d", *o.Spec.MinReplicas, o.Spec.MaxReplicas)
			}
		}
		if owner := o.GetOwnerReferences(); len(owner) != 1 || owner[0].Controller == nil || !*owner[0].Controller {
			t.Errorf("%T %s is owned by %v", o, o.GetName(), owner)
		}
	}
}

func keptByDeployment(t *testing.T, is *servingv1beta1.InferenceService, d *appsv1.Deployment) {
	t.Helper()
	pod := d.Spec.Template
	component := pod.Labels[labelComponent]
	if !strings.HasPrefix(d.Name, is.Name+"-"+component+"-") || pod.Labels[labelApp] != "isvc."+is.Name+"-"+component || pod.Labels[labelService] != is.Name {
		t.Errorf("the Deployment is %s, its pods have %v", d.Name, pod.Labels)
	}
	r := d.Spec.Strategy.RollingUpdate
	if r.MaxSurge.IntVal != 1 || r.MaxUnavailable.IntVal != 0 || *d.Spec.ProgressDeadlineSeconds != 600 {
		t.Errorf("it is rolled out by %v within %d s", r, *d.Spec.ProgressDeadlineSeconds)
	}
	server := pod.Spec.Containers[0]
	if server.ReadinessProbe == nil {
		t.Errorf("%s has no readiness probe", server.Name)
	}
	if m := is.Spec.Predictor.Model; component == "predictor" && m != nil {
		if server.Name != manifest.ServerContainer {
			t.Errorf("the first container is %s", server.Name)
		}
		if m.StorageURI != nil {
			i := slices.IndexFunc(server.VolumeMounts, func(v corev1.VolumeMount) bool { return v.MountPath == manifest.DefaultModelPath })
			if i < 0 || (!server.VolumeMounts[i].ReadOnly && pod.Annotations[readOnlyOptOut] != "false") {
				t.Errorf("the model isn't at %s: %v", manifest.DefaultModelPath, server.VolumeMounts)
			}
			if kind, _ := (&Config{}).sourceOf(*m.StorageURI); kind == pulled && (len(pod.Spec.InitContainers) == 0 || pod.Spec.InitContainers[0].Name != pullContainer) {
				t.Errorf("nothing pulls %s", *m.StorageURI)
			}
		}
	}
	if _, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d); err != nil {
		t.Error(err)
	}
}
