package follow_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/follow"
	"stationmaster.dev/stationmaster/internal/platform/memory"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

func TestATableFollowsGraphs(t *testing.T) {
	api, c := start(t)
	ctx := t.Context()
	if err := v1alpha1.AddToScheme(c.Scheme()); err != nil {
		t.Fatal(err)
	}
	g := &v1alpha1.InferenceGraph{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "chain"}}
	g.Spec.Nodes = map[string]v1alpha1.InferenceRouter{"root": {RouterType: v1alpha1.Sequence, Steps: []v1alpha1.InferenceStep{
		{InferenceTarget: v1alpha1.InferenceTarget{ServiceName: "iris"}},
	}}}
	if err := c.Create(ctx, g); err != nil {
		t.Fatal(err)
	}
	var table state.Topic[route.Table]
	f, err := follow.New(follow.Config{API: api.RESTConfig(), Domain: "example.com", Replicas: memory.New(memory.Config{}), Table: &table})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, "the follower", f.Run)
	select {
	case <-f.Synced():
	case <-time.After(patience):
		t.Fatal("not synced")
	}
	// The first table has it, also by the name that pods use.
	for _, host := range []string{"chain-default.example.com", "chain.default.svc.cluster.local"} {
		if m, ok := table.Load().Host(host); !ok || m.Service.Graph == nil || m.Service.Graph.Nodes[spec.GraphRoot].Steps[0].Service != "iris" {
			t.Fatalf("%s leads to %+v", host, m.Service)
		}
	}
	before := g.DeepCopy()
	g.Spec.Nodes["root"].Steps[0].ServiceName = "other"
	if err := c.Patch(ctx, g, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	key := spec.ServiceKey{Namespace: "default", Name: "chain"}
	until(t, &table, "the step goes elsewhere", func(table *route.Table) bool {
		m, ok := table.Named(key, "/")
		return ok && m.Service.Graph.Nodes[spec.GraphRoot].Steps[0].Service == "other"
	})
	if err := c.Delete(ctx, g); err != nil {
		t.Fatal(err)
	}
	until(t, &table, "the graph is gone", func(table *route.Table) bool {
		_, ok := table.Named(key, "/")
		return !ok
	})
	stop()
}
