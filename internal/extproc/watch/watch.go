// Package watch keeps what is known of an InferencePool true to a cluster: it watches the pool and
// the pods of its namespace, and publishes the ready ones' addresses. It only reads, and goes on with
// what it knew when it loses the API server.
package watch

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/extproc/pool"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// settle is how long changes are collected until they are published.
const settle = 10 * time.Millisecond

// askAgain is how long to wait where the cluster doesn't know the kind.
const askAgain = 2 * time.Second

// Watcher watches one pool. Make it with New and drive it with Run.
type Watcher struct {
	key    spec.ServiceKey
	cache  cache.Cache
	topic  *state.Topic[pool.Pool]
	log    *slog.Logger
	wake   chan struct{}
	synced chan struct{}
}

// New makes a watcher of the pool of a name, which publishes to a topic; it starts nothing.
func New(api *rest.Config, key spec.ServiceKey, topic *state.Topic[pool.Pool], log *slog.Logger) (*Watcher, error) {
	sch := runtime.NewScheme()
	if err := corev1.AddToScheme(sch); err != nil {
		return nil, fmt.Errorf("build scheme: %w", err)
	}
	// Nothing here asks the API server, which may not be there yet, or may not know the kind.
	c, err := cache.New(api, cache.Options{
		Scheme: sch, DefaultNamespaces: map[string]cache.Config{key.Namespace: {}}, DefaultTransform: strip,
	})
	if err != nil {
		return nil, fmt.Errorf("make cache: %w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Watcher{
		key: key, cache: c, topic: topic, log: log.With("pool", key.String()), wake: make(chan struct{}, 1), synced: make(chan struct{}),
	}, nil
}

func object() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(Kind)
	return o
}

// strip keeps of a pod what is looked at.
func strip(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return cache.TransformStripManagedFields()(o)
	}
	pod.ManagedFields, pod.Annotations, pod.OwnerReferences, pod.Spec = nil, nil, nil, corev1.PodSpec{}
	pod.Status = corev1.PodStatus{PodIP: pod.Status.PodIP, Conditions: pod.Status.Conditions}
	return pod, nil
}

// Synced is closed once the topic says what the cluster had when Run began, even if that is nothing.
func (w *Watcher) Synced() <-chan struct{} { return w.synced }

// Run watches until ctx ends; it has joined all it started when it returns.
func (w *Watcher) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	failed := make(chan error, 1)
	parts.Go(func() {
		if err := w.cache.Start(ctx); err != nil {
			failed <- fmt.Errorf("watch: %w", err)
			cancel()
		}
	})
	told := false
	for err := w.watch(ctx); err != nil; err = w.watch(ctx) {
		if ctx.Err() != nil {
			return because(failed)
		}
		if !meta.IsNoMatchError(err) && !told {
			w.log.WarnContext(ctx, "the pool can't be watched; trying again", "err", err)
		}
		if meta.IsNoMatchError(err) {
			if !told {
				w.log.WarnContext(ctx, "the cluster doesn't know the kind InferencePool: install the Gateway API Inference Extension's definitions; asking until it does", "err", err)
			}
			w.unknown("the cluster doesn't know the kind InferencePool: install the Gateway API Inference Extension's definitions")
		}
		told = true
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return because(failed)
		}
	}
	if !w.cache.WaitForCacheSync(ctx) {
		return because(failed)
	}
	for {
		if err := w.look(ctx); err != nil && ctx.Err() == nil {
			w.log.WarnContext(ctx, "the pool can't be read", "err", err)
		}
		w.sync()
		select {
		case <-w.wake:
		case <-ctx.Done():
			return because(failed)
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return because(failed)
		}
	}
}

func because(failed <-chan error) error {
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// sync says that the topic has what there is.
func (w *Watcher) sync() {
	select {
	case <-w.synced:
	default:
		close(w.synced)
	}
}

// unknown publishes that there is no pool, and why.
func (w *Watcher) unknown(why string) {
	w.publish(&pool.Pool{Key: w.key, Problem: why})
	w.sync()
}

// watch has changes wake the loop.
func (w *Watcher) watch(ctx context.Context) error {
	var informers []cache.Informer
	for _, o := range []client.Object{object(), &corev1.Pod{}} {
		i, err := w.cache.GetInformer(ctx, o)
		if err != nil {
			return fmt.Errorf("watch %T: %w", o, err)
		}
		informers = append(informers, i)
	}
	wake := func(any) {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	for _, i := range informers {
		if _, err := i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: wake, UpdateFunc: func(_, now any) { wake(now) }, DeleteFunc: wake,
		}); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	return nil
}

// look publishes what the cluster has now.
func (w *Watcher) look(ctx context.Context) error {
	o := object()
	err := w.cache.Get(ctx, client.ObjectKey{Namespace: w.key.Namespace, Name: w.key.Name}, o)
	if apierrors.IsNotFound(err) {
		w.publish(&pool.Pool{Key: w.key, Problem: "there is no InferencePool of this name"})
		return nil
	}
	if err != nil {
		return fmt.Errorf("read InferencePool: %w", err)
	}
	_, chosen, err := selector(o)
	if err != nil {
		return err
	}
	var pods corev1.PodList
	if err := w.cache.List(ctx, &pods, client.InNamespace(w.key.Namespace), client.MatchingLabelsSelector{Selector: chosen}); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	p, err := members(w.key, o, pods.Items)
	if err != nil {
		return err
	}
	w.publish(p)
	return nil
}

// publish tells of a pool that isn't as it was.
func (w *Watcher) publish(p *pool.Pool) {
	if old := w.topic.Load(); old == nil || !old.Equal(p) {
		w.topic.Publish(p)
	}
}
