package control

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestATrainedModelThatIsAnAdapter(t *testing.T) {
	var board lora.Board
	b := newBench(t, func(c *Config) { c.Adapters = &board })
	b.model("sql", "llm", "adapters/sql", "LoRA", "0")
	b.told("sql", v1alpha1.TrainedModelReady, corev1.ConditionFalse, reasonNoService)

	b.service("llm", func(is *v1beta1.InferenceService) {
		is.Annotations = map[string]string{routing.OpenAIRootAnnotation: "/"}
	})
	b.ready("llm")
	key := spec.ServiceKey{Namespace: b.ns, Name: "llm"}
	b.eventually("the adapter is wanted", func() string {
		if w := board.Wanted.Load(); w == nil || len((*w)[key]) != 1 || (*w)[key][0] != (lora.Want{Name: "sql", URI: "adapters/sql", Generation: 1}) {
			return "it isn't"
		}
		return ""
	})
	tm := b.told("sql", v1alpha1.TrainedModelReady, corev1.ConditionUnknown, reasonListing)
	if !strings.HasSuffix(tm.Status.URL, "/v1/chat/completions") {
		t.Errorf("url %q", tm.Status.URL)
	}
	m, err := b.table.Load().Model("sql", "/v1/completions")
	if err != nil || m.Service.Key != key {
		t.Fatalf("its name leads to %v, %v", m.Service, err)
	}
	if m, err := b.table.Load().Model("llm", "/v1/completions"); err != nil || m.Service.Key != key {
		t.Errorf("the model's own name leads to %v, %v", m.Service, err)
	}

	known := lora.Known{}
	for _, e := range m.Backend.Targets[0].Endpoints {
		known[e.HTTP] = lora.Replica{Service: key, Problems: map[string]string{"sql": "no room"}}
	}
	board.Known.Publish(&known)
	tm = b.told("sql", v1alpha1.TrainedModelReady, corev1.ConditionFalse, reasonNotLoaded)
	if c := modelCondition(tm.Status.Conditions, v1alpha1.TrainedModelReady); c.Message != "0 of 1 replicas have the adapter: no room" {
		t.Errorf("it says %q", c.Message)
	}
	loaded := lora.Known{}
	for address := range known {
		loaded[address] = lora.Replica{Service: key, Adapters: []lora.Adapter{{Name: "sql", Parent: "llm"}}}
	}
	board.Known.Publish(&loaded)
	b.told("sql", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")

	if err := b.Delete(t.Context(), tm); err != nil {
		t.Fatal(err)
	}
	b.eventually("it is wanted no more and its name leads nowhere", func() string {
		if w := board.Wanted.Load(); len((*w)[key]) > 0 {
			return "it is wanted"
		}
		if _, err := b.table.Load().Model("sql", "/"); err == nil {
			return "the table has it"
		}
		return ""
	})
}

func TestAnAdapterThatCannotBeLoadedSaysWhy(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Adapters = &lora.Board{} })
	b.service("tensors")
	b.ready("tensors")
	b.model("mismatch", "tensors", "adapters/sql", "lora", "0")
	b.told("mismatch", v1alpha1.TrainedModelFrameworkSupported, corev1.ConditionFalse, reasonNotSupported)
	b.model("far", "tensors", "s3://bucket/sql", "lora", "0")
	b.told("far", v1alpha1.TrainedModelReady, corev1.ConditionFalse, reasonNoStorage)
}
