// Package foreign tells of objects whose kinds a cluster may lack, such as KEDA's: who made one
// hears of it when somebody edits or deletes it, from when the cluster has the kind.
package foreign

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Config says what is watched. API, Kinds and Changed are required.
type Config struct {
	API *rest.Config
	// Namespaces restricts the watch to some; empty means all.
	Namespaces []string
	// Kinds are watched as far as the cluster has them.
	Kinds []schema.GroupVersionResource
	// Selector, of labels, says which of their objects; empty means all.
	Selector string
	// Changed gets the head of an object that somebody may have edited, that is on its way out, or
	// that is gone; whoever it is, the caller itself included. Several calls may run at a time, and
	// one that blocks holds up the rest of its kind.
	Changed func(*metav1.PartialObjectMetadata)
	// Every is how often the cluster is asked for the kinds that it lacks; 0 means ten seconds.
	Every  time.Duration
	Logger *slog.Logger
}

// Watch watches until ctx ends, and has joined all it started when it returns. A kind that the
// cluster lacks, or that may not be read, is no error: it is asked for until the cluster has it.
func Watch(ctx context.Context, cfg Config) error {
	if cfg.Every == 0 {
		cfg.Every = 10 * time.Second
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(cfg.API)
	if err != nil {
		return fmt.Errorf("make client of the kinds: %w", err)
	}
	heads, err := metadata.NewForConfig(cfg.API)
	if err != nil {
		return fmt.Errorf("make client of metadata: %w", err)
	}
	namespaces := cfg.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var wg sync.WaitGroup
	for _, kind := range cfg.Kinds {
		wg.Go(func() {
			if !cfg.await(ctx, kinds.RESTClient(), kind) {
				return
			}
			for _, namespace := range namespaces {
				wg.Go(func() { cfg.follow(ctx, heads, kind, namespace) })
			}
		})
	}
	wg.Wait()
	return nil
}

// await returns true once the cluster has a kind, false when ctx ends before.
func (cfg *Config) await(ctx context.Context, api rest.Interface, kind schema.GroupVersionResource) bool {
	path := "/apis/" + kind.Group + "/" + kind.Version
	if kind.Group == "" {
		path = "/api/" + kind.Version
	}
	again := time.NewTicker(cfg.Every)
	defer again.Stop()
	for {
		var has metav1.APIResourceList
		err := api.Get().AbsPath(path).Do(ctx).Into(&has)
		if err == nil && slices.ContainsFunc(has.APIResources, func(r metav1.APIResource) bool { return r.Name == kind.Resource }) {
			return true
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return false
		}
	}
}

// follow tells of one kind's changes until ctx ends. Where the kind goes and comes back, so does
// the watch, within a minute or two.
func (cfg *Config) follow(ctx context.Context, heads metadata.Interface, kind schema.GroupVersionResource, namespace string) {
	informer := metadatainformer.NewFilteredMetadataInformer(heads, kind, namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.LabelSelector = cfg.Selector
	}).Informer()
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		cfg.Logger.DebugContext(ctx, "watching a kind failed; it is tried again", "kind", kind.String(), "err", err)
	})
	if err == nil {
		err = informer.SetTransform(func(o any) (any, error) {
			if m, ok := o.(*metav1.PartialObjectMetadata); ok {
				m.ManagedFields = nil
			}
			return o, nil
		})
	}
	if err == nil {
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: cfg.updated, DeleteFunc: cfg.gone})
	}
	if err != nil {
		panic(fmt.Sprintf("BUG: an informer that wasn't started: %v", err))
	}
	informer.RunWithContext(ctx)
}

func (cfg *Config) updated(before, after any) {
	a, ok := before.(*metav1.PartialObjectMetadata)
	b, okToo := after.(*metav1.PartialObjectMetadata)
	if ok && okToo && edited(a, b) {
		cfg.Changed(b)
	}
}

func (cfg *Config) gone(o any) {
	if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		cfg.Changed(m)
	}
}

// edited says whether something other than the status changed. Kinds that count no generations,
// Services for one, may have changed each time.
func edited(a, b *metav1.PartialObjectMetadata) bool {
	if a.ResourceVersion == b.ResourceVersion {
		return false
	}
	return b.Generation == 0 || a.Generation != b.Generation || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
		!reflect.DeepEqual(a.Labels, b.Labels) || !reflect.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}
