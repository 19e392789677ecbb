package watch

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stationmaster.dev/stationmaster/internal/spec"
)

var key = spec.ServiceKey{Namespace: "team-a", Name: "llama"}

func inferencePoolOf(ports ...any) *unstructured.Unstructured {
	o := object()
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	list := make([]any, len(ports))
	for i, p := range ports {
		list[i] = map[string]any{"number": p}
	}
	o.Object["spec"] = map[string]any{
		"selector": map[string]any{"matchLabels": map[string]any{"app": "llama"}}, "targetPorts": list,
		"endpointPickerRef": map[string]any{"name": "llama-endpoint-picker"},
	}
	return o
}

func podOf(name, ip string, change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"app": "llama", "more": "x"}}}
	p.Status.PodIP = ip
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func TestMembersAreThePortsOfReadyPods(t *testing.T) {
	unready := func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
	starting := func(p *corev1.Pod) { p.Status.Conditions = nil }
	ending := func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }
	other := func(p *corev1.Pod) { p.Labels = map[string]string{"app": "qwen"} }
	for name, tc := range map[string]struct {
		pool    *unstructured.Unstructured
		pods    []corev1.Pod
		want    string
		problem string
	}{
		"ready pods":           {inferencePoolOf(int64(8000)), []corev1.Pod{podOf("b", "10.0.0.2"), podOf("a", "10.0.0.1")}, "10.0.0.1:8000 10.0.0.2:8000", ""},
		"several ports":        {inferencePoolOf(int64(8000), int64(8001)), []corev1.Pod{podOf("a", "10.0.0.1")}, "10.0.0.1:8000 10.0.0.1:8001", ""},
		"IPv6":                 {inferencePoolOf(int64(80)), []corev1.Pod{podOf("a", "fd00::1")}, "[fd00::1]:80", ""},
		"one pod that is":      {inferencePoolOf(int64(80)), []corev1.Pod{podOf("a", "10.0.0.1", unready), podOf("b", "10.0.0.2", ending), podOf("c", "10.0.0.3"), podOf("d", "10.0.0.4", other)}, "10.0.0.3:80", ""},
		"none that is":         {inferencePoolOf(int64(80)), []corev1.Pod{podOf("a", "10.0.0.1", unready), podOf("b", "", nil...), podOf("c", "10.0.0.3", starting)}, "", "none of its 3 pods is ready"},
		"none that is chosen":  {inferencePoolOf(int64(80)), []corev1.Pod{podOf("a", "10.0.0.1", other)}, "", "its selector chooses no pod"},
		"an address too many":  {inferencePoolOf(int64(80)), []corev1.Pod{podOf("a", "10.0.0.1"), podOf("b", "10.0.0.1")}, "10.0.0.1:80", ""},
		"a pool without ports": {inferencePoolOf(), []corev1.Pod{podOf("a", "10.0.0.1")}, "", "it has no targetPorts"},
	} {
		p, err := members(key, tc.pool, tc.pods)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, e := range p.Endpoints {
			got = append(got, e.Address)
		}
		if s := strings.Join(got, " "); s != tc.want || p.Problem != tc.problem || !p.Known {
			t.Errorf("%s: %s (%q), want %s (%q)", name, s, p.Problem, tc.want, tc.problem)
		}
	}
}

func TestAPoolWithoutLabelsChoosesNothing(t *testing.T) {
	o := inferencePoolOf(int64(80))
	o.Object["spec"].(map[string]any)["selector"] = map[string]any{}
	p, err := members(key, o, []corev1.Pod{podOf("a", "10.0.0.1")})
	if err != nil || len(p.Endpoints) > 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestAnnotationsSayHowToPick(t *testing.T) {
	o := inferencePoolOf(int64(80))
	o.SetAnnotations(map[string]string{PickingAnnotation: "least-tokens", EngineAnnotation: "sglang"})
	p, err := members(key, o, nil)
	if err != nil || p.Picking != "least-tokens" || p.Engine != "sglang" {
		t.Errorf("%+v, %v", p, err)
	}
}
