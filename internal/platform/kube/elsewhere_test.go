package kube_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/kube"
	"stationmaster.dev/stationmaster/internal/spec"
)

const (
	deployment = "deployments/default/iris-1"
	hpa        = "horizontalpodautoscalers/default/iris-1"
	keda       = "scaledobjects/default/iris-1"
)

// delegating runs a platform on which a service's class is set, and an assignment of two replicas
// to begin with.
type delegating struct {
	*recorded
	c *cluster
	t *testing.T
}

func newDelegating(t *testing.T, class string) *delegating {
	c := newCluster(t)
	d := &delegating{recorded: start(t, c, kube.Config{}), c: c, t: t}
	d.class(class)
	return d
}

func (d *delegating) class(class string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	two := int32(2)
	is := &v1beta1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "iris"}}
	if class != "" {
		is.Annotations = map[string]string{"serving.kserve.io/autoscalerClass": class}
	}
	is.Spec.Predictor.MinReplicas, is.Spec.Predictor.MaxReplicas = &two, 6
	if class == "keda" {
		value := resource.MustParse("4")
		is.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: []v1beta1.MetricsSpec{{
			Type: v1beta1.ExternalMetricSourceType,
			External: &v1beta1.ExternalMetricSource{
				Metric: v1beta1.ExternalMetrics{Backend: "prometheus", ServerAddress: "http://p:9090", Query: "sum(queue)"},
				Target: v1beta1.MetricTarget{Value: &value},
			},
		}}}
	}
	d.service = is
}

// until applies, as the reconciler does each time that something changed, until ok holds.
func (d *delegating) until(what string, elsewhere bool, ok func(spec.Observed) bool) {
	d.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		o, err := d.Observe(d.t.Context(), iris)
		if err == nil {
			// What isn't told yet of who sets replicas, for the Deployment isn't seen, stays as it is.
			n := max(2, readyOf(o))
			if e, told := o.Elsewhere["iris-1"]; told {
				n = e.Asked
			}
			err = d.Apply(d.t.Context(), iris, []platform.Assignment{{Workload: workload("iris-1", "a"), Replicas: n, Elsewhere: elsewhere}})
		}
		if err != nil {
			d.t.Fatal(err)
		}
		if ok(o) {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("not %s: %+v", what, o)
		}
	}
}

func (d *delegating) object(key string) *unstructured.Unstructured {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if o := d.c.objects[key]; o != nil {
		return o.DeepCopy()
	}
	return nil
}

func (d *delegating) replicas() int64 {
	n, _, _ := unstructured.NestedInt64(d.object(deployment).Object, "spec", "replicas")
	return n
}

func asks(n int) func(spec.Observed) bool {
	return func(o spec.Observed) bool {
		e, told := o.Elsewhere["iris-1"]
		return told && e.Asked == n && readyOf(o) == n
	}
}

func readyOf(o spec.Observed) int {
	n := 0
	for _, r := range o.Replicas {
		if r.Phase == spec.Ready {
			n++
		}
	}
	return n
}

func TestAnAutoscalerOfTheClusterSetsReplicas(t *testing.T) {
	d := newDelegating(t, "hpa")
	d.until("begun with two", true, asks(2))
	h := d.object(hpa)
	if h == nil {
		t.Fatal("no HorizontalPodAutoscaler was made")
	}
	var got autoscalingv2.HorizontalPodAutoscaler
	fromUnstructured(t, h, &got)
	if got.Spec.ScaleTargetRef.Name != "iris-1" || *got.Spec.MinReplicas != 2 || got.Spec.MaxReplicas != 6 || *got.Spec.Metrics[0].Resource.Target.AverageUtilization != 80 {
		t.Errorf("made %+v", got.Spec)
	}
	// It scales; nobody takes that back, however often the reconciler comes round.
	d.c.scaleTo(deployment, 5)
	d.until("five", true, asks(5))
	for range 5 {
		d.until("five still", true, asks(5))
	}
	if n := d.replicas(); n != 5 {
		t.Errorf("%d replicas of five", n)
	}
	// It can't get its metric, which is told.
	d.c.mu.Lock()
	h = d.c.objects[hpa].DeepCopy()
	h.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "ScalingActive", "status": "False", "reason": "FailedGetResourceMetric", "message": "no metrics API"}}}
	d.c.put(hpa, h)
	d.c.mu.Unlock()
	d.until("told", true, func(o spec.Observed) bool {
		e := o.Elsewhere["iris-1"]
		return e.Asked == 5 && e.Reason == "FailedGetResourceMetric" && strings.Contains(e.Problem, "no metrics API")
	})
	// Our own autoscaler takes over what there is.
	d.class("")
	d.until("ours again", false, func(o spec.Observed) bool {
		return len(o.Elsewhere) == 0 && d.object(hpa) == nil && d.object(deployment).GetAnnotations()["stationmaster.dev/scaler"] == ""
	})
}

func TestLettingGoOfReplicasKeepsThem(t *testing.T) {
	d := newDelegating(t, "")
	want := []platform.Assignment{{Workload: workload("iris-1", "a"), Replicas: 4}}
	if err := d.Apply(t.Context(), iris, want); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if o, err := d.Observe(t.Context(), iris); err == nil && readyOf(o) == 4 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("four replicas weren't seen")
		}
	}
	d.class("external")
	least := int64(9)
	d.until("let go of", true, func(o spec.Observed) bool {
		if o := d.object(deployment); o != nil {
			n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
			least = min(least, n)
		}
		return asks(4)(o)
	})
	if least < 4 || d.object(hpa) != nil {
		t.Errorf("it had %d replicas for a moment", least)
	}
	d.c.scaleTo(deployment, 0)
	d.until("none", true, asks(0))
}

func TestKEDASetsReplicasWhereItIs(t *testing.T) {
	d := newDelegating(t, "keda")
	d.until("told that KEDA is missing, and run", true, func(o spec.Observed) bool {
		e := o.Elsewhere["iris-1"]
		return readyOf(o) == 2 && e.Reason == "KEDANotInstalled" && strings.Contains(e.Problem, "install it")
	})
	d.c.mu.Lock()
	d.c.keda = true
	d.c.mu.Unlock()
	d.until("well", true, func(o spec.Observed) bool {
		e, told := o.Elsewhere["iris-1"]
		return told && e.Problem == "" && d.object(keda) != nil
	})
	least, _, _ := unstructured.NestedInt64(d.object(keda).Object, "spec", "minReplicaCount")
	triggers, _, _ := unstructured.NestedSlice(d.object(keda).Object, "spec", "triggers")
	metadata, _, _ := unstructured.NestedStringMap(triggers[0].(map[string]any), "metadata")
	if least != 2 || metadata["query"] != "sum(queue)" || metadata["threshold"] != "4" || metadata["serverAddress"] != "http://p:9090" {
		t.Errorf("made %v", d.object(keda).Object["spec"])
	}
	// KEDA's own autoscaler carries the labels of the ScaledObject, and isn't ours to remove.
	d.c.mu.Lock()
	own := d.c.objects[keda].DeepCopy()
	own.SetAPIVersion("autoscaling/v2")
	own.SetKind("HorizontalPodAutoscaler")
	own.SetName("keda-hpa-iris-1")
	yes := true
	own.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: "iris-1", UID: "1", Controller: &yes}})
	own.Object["spec"] = map[string]any{"maxReplicas": int64(6), "scaleTargetRef": map[string]any{"kind": "Deployment", "name": "iris-1"}}
	own.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "ScalingActive", "status": "False", "reason": "FailedGetExternalMetric", "message": "no answer"}}}
	d.c.put("horizontalpodautoscalers/default/keda-hpa-iris-1", own)
	d.c.mu.Unlock()
	d.until("told of what KEDA's autoscaler says", true, func(o spec.Observed) bool { return o.Elsewhere["iris-1"].Reason == "FailedGetExternalMetric" })
	if d.object("horizontalpodautoscalers/default/keda-hpa-iris-1") == nil {
		t.Error("KEDA's own autoscaler was removed")
	}
	d.class("hpa")
	d.until("scaled by the cluster", true, func(spec.Observed) bool { return d.object(keda) == nil && d.object(hpa) != nil })

	d.class("keda")
	d.until("scaled by KEDA again", true, func(o spec.Observed) bool {
		return d.object(keda) != nil && d.object(deployment).GetAnnotations()["stationmaster.dev/scaler"] == "ScaledObject" && o.Elsewhere["iris-1"].Asked == 2
	})
	if err := d.Apply(t.Context(), iris, nil); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{keda, deployment, hpa} {
		if d.object(key) != nil {
			t.Errorf("%s is left", key)
		}
	}
}

func TestEachRevisionHasAnAutoscalerWhileBothRun(t *testing.T) {
	d := newDelegating(t, "hpa")
	both := []platform.Assignment{
		{Workload: workload("iris-1", "a"), Replicas: 2, Elsewhere: true}, {Workload: workload("iris-2", "b"), Replicas: 2, Elsewhere: true},
	}
	if err := d.Apply(t.Context(), iris, both); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"iris-1", "iris-2"} {
		var h autoscalingv2.HorizontalPodAutoscaler
		fromUnstructured(t, d.object("horizontalpodautoscalers/default/"+name), &h)
		if h.Spec.ScaleTargetRef.Name != name {
			t.Errorf("%s scales %s", name, h.Spec.ScaleTargetRef.Name)
		}
	}
	if err := d.Apply(t.Context(), iris, both[1:]); err != nil {
		t.Fatal(err)
	}
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if !slices.Contains(d.c.writes, "DELETE "+hpa) || slices.Contains(d.c.writes, "DELETE horizontalpodautoscalers/default/iris-2") {
		t.Errorf("wrote %v", d.c.writes)
	}
}

func fromUnstructured(t *testing.T, u *unstructured.Unstructured, into any) {
	t.Helper()
	if u == nil {
		t.Fatal("it isn't there")
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into); err != nil {
		t.Fatal(err)
	}
}
