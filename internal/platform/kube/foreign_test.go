package kube_test

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/kube"
	"stationmaster.dev/stationmaster/internal/spec"
)

// watched waits until somebody watches a resource.
func (c *cluster) watched(t *testing.T, resource string) {
	t.Helper()
	for {
		c.mu.Lock()
		for w := range c.watchers {
			if w.resource == resource {
				c.mu.Unlock()
				return
			}
		}
		c.mu.Unlock()
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("nobody watches %s", resource)
		}
	}
}

// repaired edits an object and then deletes it, and has the platform told of each applied: as the
// reconciler does, it applies what it wants when a change is told, and never else.
func repaired(t *testing.T, c *cluster, p platform.Platform, want []platform.Assignment, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes := p.Changes(ctx)
	c.watched(t, key[:len(key)-len("/default/iris-1")])
	for what, harm := range map[string]func(){
		"edited": func() {
			o := c.objects[key].DeepCopy()
			o.Object["spec"] = map[string]any{}
			c.put(key, o)
		},
		"deleted": func() { c.drop(key) },
	} {
		c.mu.Lock()
		harm()
		c.mu.Unlock()
		for whole := false; !whole; {
			select {
			case <-changes:
			case <-ctx.Done():
				t.Fatalf("%s was %s, and stays so", key, what)
			}
			if err := p.Apply(t.Context(), iris, want); err != nil {
				t.Fatal(err)
			}
			if o := c.get(key); o != nil {
				content, _, _ := unstructured.NestedMap(o.Object, "spec")
				whole = len(content) > 0
			}
		}
	}
}

func TestAScaledObjectThatSomebodyHarmsIsPutRight(t *testing.T) {
	d := &delegating{c: newCluster(t), t: t}
	d.recorded = start(t, d.c, kube.Config{Lacked: 5 * time.Millisecond})
	d.class("keda")
	want := []platform.Assignment{{Workload: workload("iris-1", "a"), Replicas: 2, Elsewhere: true}}
	if err := d.Apply(t.Context(), iris, want); err != nil {
		t.Fatal(err)
	}
	if d.c.get(keda) != nil {
		t.Fatal("a cluster without KEDA has a ScaledObject")
	}
	d.c.mu.Lock()
	d.c.keda = true
	d.c.mu.Unlock()
	d.until("made", true, func(spec.Observed) bool { return d.c.get(keda) != nil })
	repaired(t, d.c, d, want, keda)
}
