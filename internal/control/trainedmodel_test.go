package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// many makes a service of many models, with 100 MiB of memory for them.
func (b *bench) many(name string) {
	b.t.Helper()
	b.service(name, func(is *v1beta1.InferenceService) {
		runtime := "multi"
		is.Spec.Predictor.Model.StorageURI, is.Spec.Predictor.Model.Runtime = nil, &runtime
	})
}

func (b *bench) multiRuntime() {
	b.t.Helper()
	b.runtime("multi", func(r *v1alpha1.ServingRuntime) {
		yes := true
		r.Spec.MultiModel = &yes
		r.Spec.SupportedModelFormats[0].Name = "onnx"
		r.Spec.Containers[0].Args = []string{"--models_config=/mnt/configs/models.json", "--memory_budget=100Mi"}
	})
}

func (b *bench) model(name, service, uri, framework, memory string) {
	b.t.Helper()
	tm := &v1alpha1.TrainedModel{}
	tm.Namespace, tm.Name = b.ns, name
	tm.Spec = v1alpha1.TrainedModelSpec{InferenceService: service, Model: v1alpha1.ModelSpec{StorageURI: uri, Framework: framework, Memory: resource.MustParse(memory)}}
	if err := b.Create(b.t.Context(), tm); err != nil {
		b.t.Fatal(err)
	}
}

// told waits until a model's condition has a status and a reason.
func (b *bench) told(name string, t v1alpha1.TrainedModelConditionType, status corev1.ConditionStatus, reason string) *v1alpha1.TrainedModel {
	b.t.Helper()
	var tm v1alpha1.TrainedModel
	b.eventually(fmt.Sprintf("%s of %s is %s %s", t, name, status, reason), func() string {
		if err := b.Get(b.t.Context(), client.ObjectKey{Namespace: b.ns, Name: name}, &tm); err != nil {
			return err.Error()
		}
		if c := modelCondition(tm.Status.Conditions, t); c.Status != status || c.Reason != reason || tm.Status.ObservedGeneration != tm.Generation {
			return fmt.Sprintf("%+v", tm.Status)
		}
		return ""
	})
	return &tm
}

// list is what the engines of a service are told to serve.
func (b *bench) list(service string) string {
	b.t.Helper()
	var m corev1.ConfigMap
	err := b.Get(b.t.Context(), client.ObjectKey{Namespace: b.ns, Name: "modelconfig-" + service + "-0"}, &m)
	if apierrors.IsNotFound(err) {
		return "none"
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return m.Data["models.json"]
}

func TestTrainedModelsShareTheServiceThatTheyName(t *testing.T) {
	b := newBench(t, func(c *Config) { c.ModelAt = func(ns, uri string) string { return ns + ":" + uri } })
	b.multiRuntime()
	b.model("early", "many", "https://x/early", "onnx", "1Mi")
	tm := b.told("early", v1alpha1.TrainedModelServiceReady, corev1.ConditionFalse, reasonNoService)
	if c := modelCondition(tm.Status.Conditions, v1alpha1.TrainedModelReady); c.Status != corev1.ConditionFalse || tm.Status.URL != "" {
		t.Errorf("without a service: %+v", tm.Status)
	}

	b.many("many")
	b.ready("many")
	b.model("late", "many", "models/late", "ONNX", "2Mi")
	b.told("early", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")
	tm = b.told("late", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")
	host := "many-" + b.ns + ".localhost:8080"
	if tm.Status.URL != "http://"+host+"/v1/models/late:predict" || tm.Status.Address == nil || tm.Status.Address.URL != "http://127.0.0.1:8080/serving/"+b.ns+"/many/v1/models/late:predict" {
		t.Errorf("url %q, address %+v", tm.Status.URL, tm.Status.Address)
	}
	want := `[{"modelName":"early","modelSpec":{"storageUri":"` + b.ns + `:https://x/early","framework":"onnx","memory":"1048576"}},` +
		`{"modelName":"late","modelSpec":{"storageUri":"` + b.ns + `:models/late","framework":"ONNX","memory":"2097152"}}]`
	if got := b.list("many"); got != want {
		t.Errorf("list %s\nwant %s", got, want)
	}
	table := b.table.Load()
	for _, name := range []string{"early", "late"} {
		if m, err := table.Model(name, "/"); err != nil || m.Service.Key.Name != "many" {
			t.Errorf("%s leads to %v, %v", name, m.Service, err)
		}
	}
	if _, err := table.Model("many", "/"); err == nil {
		t.Error("the service's own name leads to it as if it were a model")
	}

	if err := b.Delete(t.Context(), tm); err != nil {
		t.Fatal(err)
	}
	b.eventually("late is off the list and the table", func() string {
		if got := b.list("many"); strings.Contains(got, "late") {
			return got
		}
		if _, err := b.table.Load().Model("late", "/"); err == nil {
			return "the table has it"
		}
		return ""
	})

	if err := b.Delete(t.Context(), b.get("many")); err != nil {
		t.Fatal(err)
	}
	b.eventually("its models go with the service", func() string {
		var list v1alpha1.TrainedModelList
		if err := b.List(t.Context(), &list, client.InNamespace(b.ns)); err != nil {
			return err.Error()
		}
		if got := b.list("many"); len(list.Items) > 0 || got != "none" {
			return fmt.Sprintf("%d models, list %s", len(list.Items), got)
		}
		return ""
	})
}

func TestATrainedModelThatCannotBeServedSaysWhyAndStaysOffTheList(t *testing.T) {
	b := newBench(t)
	b.multiRuntime()
	b.many("many")
	b.ready("many")
	b.service("one")
	b.ready("one")
	for name, tc := range map[string]struct {
		service, uri, framework, memory string
		condition                       v1alpha1.TrainedModelConditionType
		reason                          string
	}{
		"sklearn": {"many", "https://x/a", "sklearn", "1Mi", v1alpha1.TrainedModelFrameworkSupported, reasonNotSupported},
		"huge":    {"many", "https://x/a", "onnx", "101Mi", v1alpha1.TrainedModelMemoryAvailable, reasonNoMemory},
		"bucket":  {"many", "s3://x/a", "onnx", "1Mi", v1alpha1.TrainedModelReady, reasonNoStorage},
		"single":  {"one", "https://x/a", "onnx", "1Mi", v1alpha1.TrainedModelIsMultiModel, reasonNotMultiModel},
	} {
		b.model(name, tc.service, tc.uri, tc.framework, tc.memory)
		tm := b.told(name, tc.condition, corev1.ConditionFalse, tc.reason)
		if c := modelCondition(tm.Status.Conditions, v1alpha1.TrainedModelReady); c.Status != corev1.ConditionFalse || c.Message == "" {
			t.Errorf("%s: Ready %+v", name, c)
		}
	}
	b.model("good", "many", "https://x/a", "onnx", "100Mi")
	b.told("good", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")
	if got := b.list("many"); strings.Count(got, "modelName") != 1 || !strings.Contains(got, `"good"`) {
		t.Errorf("list %s", got)
	}
	if got := b.list("one"); got != "none" {
		t.Errorf("the service of one model has the list %s", got)
	}
	var events corev1.EventList
	b.eventually("an event says why", func() string {
		if err := b.List(t.Context(), &events, client.InNamespace(b.ns)); err != nil {
			return err.Error()
		}
		if slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name == "huge" && e.Reason == reasonNoMemory }) {
			return ""
		}
		return fmt.Sprintf("%d events", len(events.Items))
	})
}

func TestAnEngineThatHasAllModelsInMemoryTakesNoMoreThanFit(t *testing.T) {
	b := newBench(t)
	b.runtime("repository", func(r *v1alpha1.ServingRuntime) {
		yes := true
		r.Spec.MultiModel = &yes
		r.Spec.SupportedModelFormats[0].Name = "onnx"
		r.Spec.Containers[0].Args = []string{"tritonserver"}
		r.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("400Mi")}
	})
	b.service("many", func(is *v1beta1.InferenceService) {
		runtime := "repository"
		is.Spec.Predictor.Model.StorageURI, is.Spec.Predictor.Model.Runtime = nil, &runtime
	})
	b.ready("many")
	b.model("b-first", "many", "https://x/a", "onnx", "200Mi")
	b.told("b-first", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")
	b.model("a-second", "many", "https://x/a", "onnx", "101Mi")
	tm := b.told("a-second", v1alpha1.TrainedModelMemoryAvailable, corev1.ConditionFalse, reasonNoMemory)
	if c := modelCondition(tm.Status.Conditions, v1alpha1.TrainedModelReady); c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "101Mi") {
		t.Errorf("Ready %+v", c)
	}
	b.model("third", "many", "https://x/a", "onnx", "100Mi")
	b.told("third", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")
	if got := b.list("many"); strings.Contains(got, "a-second") {
		t.Errorf("list %s", got)
	}
	for _, name := range []string{"b-first", "third"} {
		var tm v1alpha1.TrainedModel
		if err := b.Get(t.Context(), client.ObjectKey{Namespace: b.ns, Name: name}, &tm); err != nil {
			t.Fatal(err)
		}
		if err := b.Delete(t.Context(), &tm); err != nil {
			t.Fatal(err)
		}
	}
	b.told("a-second", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")
}

func TestATrainedModelMovesToAnotherService(t *testing.T) {
	b := newBench(t)
	b.multiRuntime()
	b.many("left")
	b.many("right")
	b.ready("left")
	b.ready("right")
	b.model("m", "left", "https://x/a", "onnx", "1Mi")
	tm := b.told("m", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")
	tm.Spec.InferenceService = "right"
	if err := b.Update(t.Context(), tm); err != nil {
		t.Fatal(err)
	}
	b.told("m", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")
	b.eventually("only right has it", func() string {
		if l, r := b.list("left"), b.list("right"); l != "[]" || !strings.Contains(r, `"m"`) {
			return l + " and " + r
		}
		return ""
	})
	// What a control plane that starts anew finds is served on.
	b.restart()
	b.told("m", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")
	b.eventually("the table has it again", func() string {
		if m, err := b.table.Load().Model("m", "/"); err != nil || m.Service.Key.Name != "right" {
			return fmt.Sprint(err)
		}
		return ""
	})
}
