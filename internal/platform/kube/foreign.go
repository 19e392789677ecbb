package kube

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/foreign"
	"stationmaster.dev/stationmaster/internal/platform/kube/lws"
)

// isForeign reports whether an object is of a kind that a cluster may lack. Those are read from
// the API where they are wanted: of what somebody did to them only the fact is watched.
func isForeign(o client.Object) bool {
	_, ok := o.(*unstructured.Unstructured)
	return ok
}

// watchForeign wakes the services whose LeaderWorkerSets or ScaledObjects somebody edits or
// deletes, until ctx ends.
func (p *Platform) watchForeign(ctx context.Context) error {
	err := foreign.Watch(ctx, foreign.Config{
		API: p.api, Namespaces: p.cfg.Namespaces, Selector: p.selector, Every: p.cfg.Lacked, Logger: p.cfg.Logger,
		Kinds: []schema.GroupVersionResource{
			scaledObject.GroupVersion().WithResource("scaledobjects"), lws.Kind.GroupVersion().WithResource("leaderworkersets"),
		},
		Changed: func(o *metav1.PartialObjectMetadata) { p.feed.Notify(serviceOf(o)) },
	})
	if err != nil {
		return fmt.Errorf("watch what the cluster may lack: %w", err)
	}
	return nil
}
