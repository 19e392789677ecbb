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
	"explanation/alibi/cifar10/cifar10":                `unknown field "alibi"`,
	"explanation/alibi/moviesentiment/moviesentiment":  `unknown field "alibi"`,
	"explanation/alibi/moviesentiment/moviesentiment2": `unknown field "alibi"`,
	"rollout-strategy/rollout-strategy-example":        `unknown field "custom"`,
	"rollout-strategy/rollout-strategy-example-3":      "not model and containers",
}

// samplesOf returns KServe's samples of InferenceServices, by file and, after the first, the
// number of the document. It skips the test where they aren't beside this repository.
func samplesOf(t *testing.T) map[string]string {
	t.Helper()
	root := os.Getenv("STATIONMASTER_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "..", "shared")
	}
	root = filepath.Join(root, "corpus", "kserve", "docs", "samples")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("no samples of KServe: %v", err)
	}
	out := map[string]string{}
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
		n := 0
		for _, document := range between.Split(string(text), -1) {
			var head struct{ APIVersion, Kind string }
			if yaml.Unmarshal([]byte(document), &head) != nil || head.Kind != "InferenceService" || head.APIVersion != "serving.kserve.io/v1beta1" {
				continue
			}
			name := strings.TrimSuffix(filepath.ToSlash(file), ".yaml")
			if n++; n > 1 {
				name = fmt.Sprintf("%s-%d", name, n)
			}
			out[name] = document
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// attempt returns what a manifest comes to with everything that an operator makes of it when it
// is applied first, or why it comes to nothing.
func attempt(t *testing.T, text string) (*servingv1beta1.InferenceService, []client.Object, error) {
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
		made, err := gatewayed.revisionObjects(m)
		if err != nil {
			return nil, nil, err
		}
		members, out = append(members, m), append(out, made...)
	}
	out = append(out, gatewayed.serviceObjects(spec.ServiceKey{Namespace: is.Namespace, Name: is.Name}, members)...)
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
			is, objects, err := attempt(t, samples[name])
			if reason, refused := refusedSamples[name]; refused || err != nil {
				if !refused || err == nil || !strings.Contains(err.Error(), reason) {
					t.Errorf("it is refused with %v, want %q", err, reason)
				}
				return
			}
			kept(t, is, objects)
			golden := filepath.Join("testdata", "samples", strings.ReplaceAll(name, "/", "_")+".yaml")
			goldens = append(goldens, golden)
			have := rendered(t, objects)
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
			if kind, _ := sourceOf(*m.StorageURI); kind == pulled && (len(pod.Spec.InitContainers) == 0 || pod.Spec.InitContainers[0].Name != pullContainer) {
				t.Errorf("nothing pulls %s", *m.StorageURI)
			}
		}
	}
	if _, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d); err != nil {
		t.Error(err)
	}
}
