package manifest_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

var updateCompiled = flag.Bool("update-compiled", false, "write what samples compile to into testdata/compiled")

// TestSamplesOfKServeCompile records what samples of KServe's repository come to with the
// shipped runtimes: the workload, and what of the pod isn't in it.
func TestSamplesOfKServeCompile(t *testing.T) {
	shared := os.Getenv("STATIONMASTER_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "shared")
	}
	dir := filepath.Join(shared, "corpus", "kserve", "docs", "samples")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no samples of KServe in %s", dir)
	}
	for name, file := range map[string]string{
		"triton-transformer": "v1beta1/triton/torchscript/torch_grpc_transformer.yaml",
		"torchserve-gpu":     "v1beta1/torchserve/v2/mnist_gpu.yaml",
		"custom":             "v1beta1/custom/prebuilt-image/custom.yaml",
		"huggingface-gpu":    "storage/hf/hf_isvc.yaml",
		"sklearn":            "storage/uri/sklearn.yaml",
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(file)))
			if err != nil {
				t.Fatal(err)
			}
			is := &servingv1beta1.InferenceService{}
			if err := yaml.UnmarshalStrict(text, is); err != nil {
				t.Fatal(err)
			}
			is.Namespace = "default"
			manifest.Default(is, manifest.Defaults{})
			components := []spec.Component{spec.Predictor}
			if is.Spec.Transformer != nil {
				components = append(components, spec.Transformer)
			}
			type record struct {
				Workload                       spec.Workload
				Labels                         map[string]string
				Protocol                       spec.Protocol
				ModelFormat, Runtime           any
				Unsupported, Unset, PodVolumes []string
			}
			out := map[string]record{}
			for _, c := range components {
				got := compiled(t, input(t, is, c))
				// The hash is tested apart; here it would change with every detail.
				got.Workload.Hash = ""
				r := record{Workload: got.Workload, Labels: got.PodTemplate.Labels, Protocol: got.Protocol, ModelFormat: got.ModelFormat, Runtime: got.Runtime, Unsupported: got.Unsupported, Unset: got.Unset}
				for _, v := range got.PodTemplate.Spec.Volumes {
					r.PodVolumes = append(r.PodVolumes, v.Name)
				}
				out[string(c)] = r
			}
			have, err := yaml.Marshal(out)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", "compiled", name+".yaml")
			if *updateCompiled {
				if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(golden, have, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), string(have)); d != "" {
				t.Errorf("-update-compiled rewrites it (-want +got):\n%s", d)
			}
		})
	}
}
