package manifest_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

func multiInput(t *testing.T, predictor string) manifest.Input {
	t.Helper()
	shipped, err := catalogue.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(shipped, func(r *servingv1alpha1.ClusterServingRuntime) bool { return r.Name == "stationmaster-onnx-multi" })
	return manifest.Input{
		Service: service(t, "predictor: {model: {modelFormat: {name: onnx}"+predictor+"}}"), Component: spec.Predictor, Runtime: &shipped[i].Spec,
		RuntimeName: shipped[i].Name, RuntimeKind: catalogue.KindClusterServingRuntime, RuntimeAnnotations: shipped[i].Annotations,
	}
}

func TestAMultiModelRuntimeGetsTheListOfItsModels(t *testing.T) {
	c := compiled(t, multiInput(t, ""))
	rev := c.RevisionSpec()
	if !manifest.IsMultiModel(&rev) || rev.ModelName != "" || len(rev.Models) != 0 {
		t.Errorf("multi-model %v, model %q, models %v", manifest.IsMultiModel(&rev), rev.ModelName, rev.Models)
	}
	var list *spec.Volume
	for i := range c.Workload.Volumes {
		if v := &c.Workload.Volumes[i]; v.Source == manifest.ModelListName(rev.Service) {
			list = v
		}
	}
	server := c.Workload.Server()
	if list == nil || list.Kind != spec.VolumeConfigMap || !slices.ContainsFunc(server.Mounts, func(m spec.Mount) bool { return m.Volume == list.Name && m.Path == manifest.ModelListDir }) {
		t.Errorf("volumes %+v, mounts %+v", c.Workload.Volumes, server.Mounts)
	}
	if _, err := manifest.Compile(multiInput(t, ", storageUri: 'file:///m'")); err == nil || !strings.Contains(err.Error(), "make a TrainedModel for each") {
		t.Errorf("a model of its own: %v", err)
	}
}

func TestTheMemoryForModelsIsWhatTheManifestSays(t *testing.T) {
	for name, tc := range map[string]struct {
		predictor string
		want      int64
		ok        bool
	}{
		"the runtime's limit":     {"", 3 << 29, true},
		"the manifest's limit":    {", resources: {limits: {memory: 4Gi}}", 3 << 30, true},
		"a budget of its own":     {", args: ['--memory_budget=64Mi']", 64 << 20, true},
		"as two words":            {", args: ['--memory_budget', '64Mi']", 64 << 20, true},
		"a budget in ells":        {", args: ['--memory_budget=3ells']", 0, false},
		"the last of two budgets": {", args: ['--memory_budget=1Gi', '--memory_budget=1Mi']", 1 << 20, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := compiled(t, multiInput(t, tc.predictor))
			rev := c.RevisionSpec()
			got, ok := manifest.ModelBudget(&rev)
			if ok != tc.ok || ok && got != tc.want {
				t.Errorf("%d, %v; want %d", got, ok, tc.want)
			}
		})
	}
}

func trained(name, uri, framework, memory string) *servingv1alpha1.TrainedModel {
	return &servingv1alpha1.TrainedModel{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: servingv1alpha1.TrainedModelSpec{InferenceService: "many", Model: servingv1alpha1.ModelSpec{
			StorageURI: uri, Framework: framework, Memory: resource.MustParse(memory),
		}},
	}
}

func TestValidateTrainedModel(t *testing.T) {
	good := trained("a", "https://x/a", "onnx", "1Gi")
	nowhere := trained("a", "https://x/a", "onnx", "1Gi")
	nowhere.Spec.InferenceService = ""
	for name, tc := range map[string]struct {
		tm, old *servingv1alpha1.TrainedModel
		want    []string
	}{
		"a good one":                      {tm: good},
		"another place":                   {tm: trained("a", "https://x/b", "onnx", "1Gi"), old: good},
		"the same memory, otherwise said": {tm: trained("a", "https://x/a", "onnx", "1024Mi"), old: good},
		"other memory":                    {tm: trained("a", "https://x/a", "onnx", "2Gi"), old: good, want: []string{"spec.model.memory: Forbidden: can't be changed from 1Gi to 2Gi"}},
		"a name in capitals":              {tm: trained("A", "https://x/a", "onnx", "1Gi"), want: []string{"metadata.name"}},
		"a name that begins with a digit": {tm: trained("1a", "https://x/a", "onnx", "1Gi"), want: []string{"metadata.name"}},
		"no place and no framework":       {tm: trained("a", "", "", "1Gi"), want: []string{"spec.model.storageUri: Required", "spec.model.framework: Required"}},
		"no service":                      {tm: nowhere, want: []string{"spec.inferenceService: Required"}},
		"less than no memory":             {tm: trained("a", "https://x/a", "onnx", "-1"), want: []string{"spec.model.memory: Invalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			errs := manifest.ValidateTrainedModel(tc.tm, tc.old)
			if len(errs) != len(tc.want) {
				t.Fatalf("got %v, want %q", errs, tc.want)
			}
			for i, want := range tc.want {
				if !strings.Contains(errs[i].Error(), want) {
					t.Errorf("got %v, want %q", errs[i], want)
				}
			}
		})
	}
}

func TestAdmissionKnowsTrainedModels(t *testing.T) {
	object := func(memory string) map[string]any {
		return map[string]any{
			"apiVersion": "serving.kserve.io/v1alpha1", "kind": "TrainedModel", "metadata": map[string]any{"name": "a", "namespace": "default"},
			"spec": map[string]any{"inferenceService": "many", "model": map[string]any{"storageUri": "https://x/a", "framework": "onnx", "memory": memory}},
		}
	}
	if v, err := manifest.Admit(manifest.Admission{Object: object("1Gi")}); err != nil || len(v.Refused)+len(v.Warnings) > 0 {
		t.Errorf("a good one: %+v, %v", v, err)
	}
	if v, err := manifest.Admit(manifest.Admission{Object: object("2Gi"), Old: object("1Gi")}); err != nil || len(v.Refused) != 1 {
		t.Errorf("other memory: %+v, %v", v, err)
	}
	if v, err := manifest.Admit(manifest.Admission{Object: object("much")}); err != nil || len(v.Refused) != 1 {
		t.Errorf("no quantity: %+v, %v", v, err)
	}
}

func TestWhatAnEngineCanFetch(t *testing.T) {
	for uri, want := range map[string][2]bool{ // on one machine, on a cluster
		"https://x/a": {true, true}, "HTTP://x/a": {true, true}, "file:///a": {true, true},
		"pvc://claim/a": {true, true}, "models/a": {true, false}, "/models/a": {true, false}, "s3://b/a": {false, false}, "oci://x/a": {false, false},
	} {
		for i, oneMachine := range []bool{true, false} {
			if why := manifest.CanFetch(uri, oneMachine); (why == "") != want[i] {
				t.Errorf("%s, one machine %v: %q", uri, oneMachine, why)
			}
		}
	}
}

func TestARuntimeThatReadsNoListIsToldOf(t *testing.T) {
	in := multiInput(t, "")
	if got := manifest.NotInEffectOfRuntime(in.Runtime); slices.ContainsFunc(got, func(n manifest.NotInEffect) bool { return n.Field == "spec.multiModel" }) {
		t.Errorf("the shipped one: %v", got)
	}
	other := in.Runtime.DeepCopy()
	other.Containers[0].Args = []string{"--model-control-mode=explicit"}
	if got := manifest.NotInEffectOfRuntime(other); !slices.ContainsFunc(got, func(n manifest.NotInEffect) bool { return n.Field == "spec.multiModel" }) {
		t.Errorf("one that isn't told its models: %v", got)
	}
}
