package control

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

func graphOf(ns, name string, services ...string) *v1alpha1.InferenceGraph {
	g := &v1alpha1.InferenceGraph{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	root := v1alpha1.InferenceRouter{RouterType: v1alpha1.Sequence}
	for _, s := range services {
		root.Steps = append(root.Steps, v1alpha1.InferenceStep{InferenceTarget: v1alpha1.InferenceTarget{ServiceName: s}})
	}
	g.Spec.Nodes = map[string]v1alpha1.InferenceRouter{v1alpha1.GraphRoot: root}
	return g
}

// graphReady waits until a graph's Ready condition has a status and, if one is given, a reason.
func (b *bench) graphReady(name string, status corev1.ConditionStatus, reason string) *v1alpha1.InferenceGraph {
	b.t.Helper()
	var g v1alpha1.InferenceGraph
	b.eventually("graph "+name+" is "+string(status)+" "+reason, func() string {
		if err := b.Get(b.t.Context(), client.ObjectKey{Namespace: b.ns, Name: name}, &g); err != nil {
			return err.Error()
		}
		c := conditionOf(g.Status.Conditions, v1beta1.ConditionReady)
		if c.Status != status || c.Reason != reason {
			return string(c.Status) + " " + c.Reason + ": " + c.Message
		}
		return ""
	})
	return &g
}

func TestAGraphIsReadyWhenItsServicesAre(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	if err := b.Create(ctx, graphOf(b.ns, "chain", "iris")); err != nil {
		t.Fatal(err)
	}
	b.graphReady("chain", corev1.ConditionFalse, "ServiceNotFound")
	b.service("iris")
	b.ready("iris")
	g := b.graphReady("chain", corev1.ConditionTrue, "")
	if g.Status.URL != "http://chain-"+b.ns+".localhost:8080" || g.Status.ObservedGeneration != g.Generation {
		t.Errorf("status %+v", g.Status)
	}
	m, ok := b.table.Load().Host("chain-" + b.ns + ".localhost")
	if !ok || m.Service.Graph == nil || m.Service.Graph.NotReady != "" {
		t.Fatalf("its host leads to %+v", m.Service)
	}
	b.eventually("an event tells of it", func() string {
		var events corev1.EventList
		if err := b.List(ctx, &events, client.InNamespace(b.ns)); err != nil {
			return err.Error()
		}
		for _, e := range events.Items {
			if e.Reason == "InferenceGraphReady" && e.InvolvedObject.Name == "chain" {
				return ""
			}
		}
		return "there is none"
	})

	// A restarted control plane has the graph in its first table.
	b.restart()
	b.eventually("the first table has the graph", func() string {
		if _, ok := b.table.Load().Host("chain-" + b.ns + ".localhost"); !ok {
			return "it hasn't"
		}
		return ""
	})

	if err := b.Delete(ctx, b.get("iris")); err != nil {
		t.Fatal(err)
	}
	b.graphReady("chain", corev1.ConditionFalse, "ServiceNotFound")
	if err := b.Delete(ctx, g); err != nil {
		t.Fatal(err)
	}
	b.eventually("the graph leaves the table", func() string {
		if _, ok := b.table.Load().Host("chain-" + b.ns + ".localhost"); ok {
			return "it is there"
		}
		return ""
	})
}

func TestAServiceTellsOfAnOlderGraphThatHasItsName(t *testing.T) {
	for title, tc := range map[string]struct {
		key    spec.ServiceKey
		age    time.Duration
		reason string
		says   string
	}{
		"its model name":       {spec.ServiceKey{Namespace: "team", Name: "iris"}, -time.Minute, "ModelNameTaken", "belongs to the older graph team/iris"},
		"all its names":        {spec.ServiceKey{Namespace: "default", Name: "iris"}, -time.Minute, "NameTaken", "may lead to graph default/iris instead"},
		"a younger one hasn't": {spec.ServiceKey{Namespace: "default", Name: "iris"}, time.Minute, "", ""},
	} {
		t.Run(title, func(t *testing.T) {
			c := pure()
			c.publishGraph(tc.key, &route.Service{Key: tc.key, Graph: &spec.Graph{}, BareNames: []string{"iris"}, Created: t0.Add(tc.age)})
			comp, observed := of(spec.Predictor, spec.Ready)
			v := c.ingress(planned(c, observed, comp))
			if v.status != corev1.ConditionTrue || v.reason != tc.reason || !strings.Contains(v.message, tc.says) {
				t.Errorf("got %+v, want %q and %q", v, tc.reason, tc.says)
			}
		})
	}
}
