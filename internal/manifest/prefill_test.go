package manifest_test

import (
	"testing"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestParsePrefill(t *testing.T) {
	for text, want := range map[string]*spec.Prefill{
		"":                        nil,
		" p ":                     {Service: "p", MinTokens: 256},
		"p, protocol=kv-transfer": {Service: "p", MinTokens: 256},
		"llama-prefill,protocol=header , min-tokens=0": {Service: "llama-prefill", Header: true},
	} {
		if got, err := manifest.ParsePrefill(text); err != nil || (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%q: %v %v", text, got, err)
		}
	}
	for _, text := range []string{"P", "other/p", "p,", "p, protocol=nixl", "p, header", "p, min-tokens=-1", "p, min-tokens=x", "p, min-tokens=1, min-tokens=2", "protocol=header"} {
		if got, err := manifest.ParsePrefill(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestWhoseReplicasReadPrompts(t *testing.T) {
	is := &v1beta1.InferenceService{}
	if manifest.PrefillOf(is, spec.Predictor) != nil {
		t.Error("nobody says so")
	}
	is.Annotations = map[string]string{manifest.PrefillAnnotation: "a"}
	if p := manifest.PrefillOf(is, spec.Predictor); p == nil || p.Service != "a" {
		t.Errorf("the service's is %v", p)
	}
	if p := manifest.PrefillOf(is, spec.Transformer); p != nil {
		t.Errorf("the transformer's is %v", p)
	}
	is.Spec.Predictor.Annotations = map[string]string{manifest.PrefillAnnotation: "b"}
	if p := manifest.PrefillOf(is, spec.Predictor); p == nil || p.Service != "b" {
		t.Errorf("the predictor's is %v", p)
	}
}

func TestPodsAreNotChangedByWhoReadsTheirPrompts(t *testing.T) {
	is := service(t, "predictor: {model: {modelFormat: {name: sklearn}, storageUri: file:///m}}")
	plain := compiled(t, input(t, is, spec.Predictor))
	is.Annotations[manifest.PrefillAnnotation] = "p"
	if got := compiled(t, input(t, is, spec.Predictor)); got.Workload.Hash != plain.Workload.Hash || got.PodTemplate.Annotations[manifest.PrefillAnnotation] != "" {
		t.Errorf("the pod has %v", got.PodTemplate.Annotations)
	}
}
