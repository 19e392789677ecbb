package catalogue_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/catalogue"
)

func TestEachCallGivesFreshSortedRuntimes(t *testing.T) {
	a, err := catalogue.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	if len(a) != 25 || !slices.IsSortedFunc(a, func(x, y *servingv1alpha1.ClusterServingRuntime) int { return strings.Compare(x.Name, y.Name) }) {
		t.Errorf("%d runtimes, want KServe's 15 and our 10, sorted", len(a))
	}
	a[0].Spec.Containers[0].Image = "changed"
	b, err := catalogue.Runtimes()
	if err != nil || b[0].Spec.Containers[0].Image == "changed" {
		t.Errorf("a caller's change shows in the next call: %v", err)
	}
}

// differs lists what our catalogue has on purpose otherwise than KServe's files.
var differs = map[string]string{
	"kserve-openvino": "formats: only openvino is auto-selected, because KServe ships the file disabled",
}

func TestKServesRuntimesCarryKServesFacts(t *testing.T) {
	shared := os.Getenv("STATIONMASTER_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "shared")
	}
	dir := filepath.Join(shared, "corpus", "kserve", "config", "runtimes")
	files, _ := filepath.Glob(filepath.Join(dir, "kserve-*.yaml"))
	if len(files) == 0 {
		t.Skipf("no runtimes of KServe in %s: this test compares with them", dir)
	}
	images := kustomized(t, filepath.Join(dir, "kustomization.yaml"))
	ours := map[string]*servingv1alpha1.ClusterServingRuntime{}
	rs, err := catalogue.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		ours[r.Name] = r
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var want servingv1alpha1.ClusterServingRuntime
		if err := yaml.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		t.Run(want.Name, func(t *testing.T) {
			got := ours[want.Name]
			if got == nil {
				t.Fatal("not in the catalogue")
			}
			const serverType = "serving.kserve.io/server-type"
			compare(t, "server type", want.Annotations[serverType], got.Annotations[serverType])
			compare(t, "pod annotations", want.Spec.Annotations, got.Spec.Annotations)
			if differs[want.Name] == "" {
				compare(t, "formats", want.Spec.SupportedModelFormats, got.Spec.SupportedModelFormats)
			}
			compare(t, "protocols", want.Spec.ProtocolVersions, got.Spec.ProtocolVersions)
			compare(t, "volumes", want.Spec.Volumes, got.Spec.Volumes)
			containers(t, images, want.Spec.Containers, got.Spec.Containers)
			if (want.Spec.WorkerSpec == nil) != (got.Spec.WorkerSpec == nil) {
				t.Fatal("workerSpec differs")
			}
			if w := want.Spec.WorkerSpec; w != nil {
				compare(t, "parallelism", []*int{w.PipelineParallelSize, w.TensorParallelSize}, []*int{got.Spec.WorkerSpec.PipelineParallelSize, got.Spec.WorkerSpec.TensorParallelSize})
				containers(t, images, w.Containers, got.Spec.WorkerSpec.Containers)
			}
		})
	}
}

// containers compares what makes an engine behave; commands of several lines are our own,
// and a readiness probe was added where KServe has none.
func containers(t *testing.T, images map[string]string, want, got []corev1.Container) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%d containers, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		compare(t, "name", w.Name, g.Name)
		image := strings.TrimSuffix(w.Image, ":replace")
		if to, ok := images[image]; ok {
			image = to
		}
		compare(t, "image", image, strings.TrimSuffix(g.Image, ":latest"))
		compare(t, "args", w.Args, g.Args)
		compare(t, "env", w.Env, g.Env)
		compare(t, "resources", w.Resources, g.Resources)
		compare(t, "mounts", w.VolumeMounts, g.VolumeMounts)
		compare(t, "security context", w.SecurityContext, g.SecurityContext)
		if !slices.ContainsFunc(w.Command, func(s string) bool { return strings.Contains(s, "\n") }) {
			compare(t, "command", w.Command, g.Command)
		}
		if w.StartupProbe != nil {
			compare(t, "start-up probe's pace", pace(w.StartupProbe), pace(g.StartupProbe))
		}
		if w.ReadinessProbe != nil {
			compare(t, "readiness probe's pace", pace(w.ReadinessProbe), pace(g.ReadinessProbe))
		}
		if w.LivenessProbe != nil {
			compare(t, "liveness probe's pace", pace(w.LivenessProbe), pace(g.LivenessProbe))
		}
	}
}

func pace(p *corev1.Probe) []int32 {
	if p == nil {
		return nil
	}
	return []int32{p.InitialDelaySeconds, p.PeriodSeconds, p.TimeoutSeconds, p.SuccessThreshold, p.FailureThreshold}
}

// kustomized maps the placeholder images of KServe's files to the real ones.
func kustomized(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Images []struct{ Name, NewName, NewTag string }
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, i := range k.Images {
		out[i.Name] = i.NewName
		if i.NewTag != "latest" {
			out[i.Name] += ":" + i.NewTag
		}
	}
	return out
}

func compare(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}
