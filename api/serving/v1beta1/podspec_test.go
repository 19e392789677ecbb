package v1beta1

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/randfill"
)

// notInPodSpec are the fields of a pod that a component can't set, and why.
var notInPodSpec = map[string]string{
	"SchedulingGroup":    "newer than KServe's CRD; gangs are made from workerSpec",
	"EvictionResponders": "newer than KServe's CRD; replicas drain in their grace period",
}

func TestPodSpecHasEveryFieldOfAPod(t *testing.T) {
	ours, pods := reflect.TypeFor[PodSpec](), reflect.TypeFor[corev1.PodSpec]()
	for i := range pods.NumField() {
		want := pods.Field(i)
		have, ok := ours.FieldByName(want.Name)
		why, listed := notInPodSpec[want.Name]
		switch {
		case ok == listed:
			t.Errorf("corev1.PodSpec.%s: in ours %t, listed as left out %t (%s)", want.Name, ok, listed, why)
		case ok && have.Type != want.Type:
			t.Errorf("%s is a %v, in a pod a %v", want.Name, have.Type, want.Type)
		case ok && want.Name != "Containers" && have.Tag.Get("json") != want.Tag.Get("json"):
			t.Errorf("%s is tagged %q, in a pod %q", want.Name, have.Tag.Get("json"), want.Tag.Get("json"))
		case ok && have.Tag.Get("patchMergeKey") != want.Tag.Get("patchMergeKey"):
			t.Errorf("%s merges by another key than in a pod", want.Name)
		}
	}
	for i := range ours.NumField() {
		if _, ok := pods.FieldByName(ours.Field(i).Name); !ok {
			t.Errorf("%s is no field of a pod", ours.Field(i).Name)
		}
	}
}

func TestCoreLosesNoField(t *testing.T) {
	// One level is filled, so that every field is set to something that isn't zero.
	fill := randfill.NewWithSeed(1).NilChance(0).NumElements(1, 1).MaxDepth(4).
		Funcs(func(s *string, _ randfill.Continue) { *s = "set" })
	var p PodSpec
	fill.Fill(&p)
	core := reflect.ValueOf(p.Core())
	ours := reflect.ValueOf(p)
	for i := range ours.NumField() {
		name := ours.Type().Field(i).Name
		// A bool may be filled with false.
		if ours.Field(i).Kind() != reflect.Bool && ours.Field(i).IsZero() {
			t.Errorf("the test didn't fill %s", name)
		}
		if diff := cmp.Diff(ours.Field(i).Interface(), core.FieldByName(name).Interface()); diff != "" {
			t.Errorf("Core changes %s (-ours +core):\n%s", name, diff)
		}
	}
	host := PodSpec{HostNetwork: true, HostPID: true, HostIPC: true}
	if c := host.Core(); !c.HostNetwork || !c.HostPID || !c.HostIPC {
		t.Errorf("Core loses a host namespace: %+v", c)
	}
}

func TestManifestWithoutContainersStaysSo(t *testing.T) {
	raw, err := json.Marshal(PredictorSpec{Model: &ModelSpec{ModelFormat: ModelFormat{Name: "onnx"}}})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"model":{"modelFormat":{"name":"onnx"},"name":"","resources":{}}}`
	if diff := cmp.Diff(want, string(raw)); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}
