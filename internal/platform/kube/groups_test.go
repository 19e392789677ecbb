package kube_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/kube"
	"stationmaster.dev/stationmaster/internal/spec"
)

const groupSet = "leaderworkersets/default/iris-1"

// several has revisions span two pods.
func several(rev *smv1alpha1.Revision) {
	rev.Spec.Workers = &smv1alpha1.RevisionWorkers{Size: 2, PodTemplate: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "isvc.iris-predictor-worker"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "worker-container", Image: "w"}}},
	}}
}

// group does what LWS's controller does: it makes the pods of a group.
func (c *cluster) group(t *testing.T, ready ...bool) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, isReady := range ready {
		part := "leaderTemplate"
		if i > 0 {
			part = "workerTemplate"
		}
		template, ok, err := unstructured.NestedMap(c.objects[groupSet].Object, "spec", "leaderWorkerTemplate", part)
		if err != nil || !ok {
			t.Fatalf("no %s: %v", part, err)
		}
		p := &unstructured.Unstructured{Object: template}
		p.SetAPIVersion("v1")
		p.SetKind("Pod")
		p.SetNamespace("default")
		p.SetName(fmt.Sprintf("iris-1-0-%d", i))
		labels := p.GetLabels()
		labels["leaderworkerset.sigs.k8s.io/group-index"] = "0"
		p.SetLabels(labels)
		p.Object["status"] = podStatus(p)
		if !isReady {
			_ = unstructured.SetNestedSlice(p.Object, []any{map[string]any{"type": "Ready", "status": "False"}}, "status", "conditions")
		}
		c.put("pods/default/"+p.GetName(), p)
	}
}

func TestAReplicaOverSeveralPodsIsALeaderWorkerSet(t *testing.T) {
	c := newCluster(t)
	p := start(t, c, kube.Config{Lacked: 5 * time.Millisecond, Image: "ours:1"})
	p.change = several
	want := []platform.Assignment{{Workload: workload("iris-1", "a"), Replicas: 1}}
	changes := p.Changes(t.Context())
	until := func(what string, holds func(spec.Observed) bool) {
		t.Helper()
		for {
			if err := p.Apply(t.Context(), iris, want); err != nil {
				t.Fatal(err)
			}
			o, err := p.Observe(t.Context(), iris)
			if err != nil {
				t.Fatal(err)
			}
			if holds(o) {
				return
			}
			select {
			case <-changes:
			case <-t.Context().Done():
				t.Fatalf("not %s: %+v", what, o)
			}
		}
	}
	until("told what to install", func(o spec.Observed) bool {
		return len(o.Replicas) == 1 && o.Replicas[0].Failure != nil && strings.Contains(o.Replicas[0].Failure.Message, "install LWS") && !o.Replicas[0].Failure.Terminal
	})
	c.mu.Lock()
	c.lws = true
	c.mu.Unlock()
	until("made", func(o spec.Observed) bool { return c.get(groupSet) != nil && len(o.Replicas) == 0 })
	if c.get("deployments/default/iris-1") != nil || c.get("services/default/iris-head-1") == nil {
		t.Errorf("the cluster has %v", c.keys())
	}
	c.group(t, true, false)
	until("one replica that waits for its worker", func(o spec.Observed) bool { return len(o.Replicas) == 1 && o.Replicas[0].Phase == spec.Loading })
	c.group(t, true, true)
	until("one ready replica", func(o spec.Observed) bool {
		return len(o.Replicas) == 1 && o.Replicas[0].Phase == spec.Ready && o.Replicas[0].ID == "iris-1-0-0"
	})
	// What somebody does to the set is put right, though the kind came after the platform.
	repaired(t, c, p, want, groupSet)
	c.written()
	if err := p.Apply(t.Context(), iris, want); err != nil {
		t.Fatal(err)
	}
	if writes := c.written(); len(writes) > 0 {
		t.Errorf("at rest it writes %v", writes)
	}
	// Nor do groups start again because a start was measured, or our image is another.
	want[0].Startup = 100 * time.Second
	again := start(t, c, kube.Config{Image: "ours:2"})
	again.change = several
	if err := again.Apply(t.Context(), iris, want); err != nil {
		t.Fatal(err)
	}
	if writes := c.written(); len(writes) > 0 {
		t.Errorf("once a start is measured, an upgraded operator writes %v", writes)
	}
	// A platform that was started anew finds the set by the Service of its heads.
	if err := again.Apply(t.Context(), iris, nil); err != nil {
		t.Fatal(err)
	}
	if keys := slices.DeleteFunc(c.keys(), func(k string) bool { return strings.HasPrefix(k, "pods/") }); len(keys) > 0 {
		t.Errorf("%v is left", keys)
	}
}
