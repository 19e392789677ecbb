package kube

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Observer watches the pods of services and changes nothing: all that a gateway needs, with
// the right to read pods alone. All methods are safe for concurrent use. It keeps telling what
// it knew last while the API server doesn't answer.
type Observer struct {
	cache cache.Cache
	kinds []client.Object
	// namespaces are those that are watched; empty means all.
	namespaces []string
	// selector is that of our own objects' labels.
	selector string
	feed     platform.Feed
	synced   chan struct{}
	// deleted is told of objects that are gone; nil means nobody is.
	deleted func(client.Object)
}

// NewObserver makes an observer of the cluster that config leads to, of some namespaces or, if
// none are named, of all. It starts nothing.
func NewObserver(config *rest.Config, namespaces ...string) (*Observer, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	return newObserver(config, scheme, namespaces, slog.New(slog.DiscardHandler))
}

// byService is the index that finds a service's objects.
const byService = "service"

func newObserver(config *rest.Config, scheme *runtime.Scheme, namespaces []string, log *slog.Logger, kinds ...client.Object) (*Observer, error) {
	ofService, err := labels.NewRequirement(labelService, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("BUG: %w", err)
	}
	ofRevision, err := labels.NewRequirement(labelRevision, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("BUG: %w", err)
	}
	ours, err := labels.NewRequirement(labelManagedBy, selection.Equals, []string{manager})
	if err != nil {
		return nil, fmt.Errorf("BUG: %w", err)
	}
	own := labels.NewSelector().Add(*ofService, *ours)
	opts := cache.Options{
		Scheme:                      scheme,
		Mapper:                      mapper(scheme),
		DefaultTransform:            keepAdders,
		ReaderFailOnMissingInformer: true,
		DefaultWatchErrorHandler: func(ctx context.Context, _ *toolscache.Reflector, err error) {
			log.WarnContext(ctx, "watching the cluster failed; what was known last still counts", "err", err)
		},
		DefaultLabelSelector: own,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Label: labels.NewSelector().Add(*ofService, *ofRevision)},
		},
	}
	for _, n := range namespaces {
		if opts.DefaultNamespaces == nil {
			opts.DefaultNamespaces = map[string]cache.Config{}
		}
		opts.DefaultNamespaces[n] = cache.Config{}
	}
	c, err := cache.New(config, opts)
	if err != nil {
		return nil, fmt.Errorf("make cache: %w", err)
	}
	return &Observer{
		cache: c, kinds: append([]client.Object{&corev1.Pod{}}, kinds...), namespaces: namespaces, selector: own.String(), synced: make(chan struct{}),
	}, nil
}

// Run watches until ctx ends; it has joined all it started when it returns. It is called once.
func (o *Observer) Run(ctx context.Context) error {
	index := func(obj client.Object) []string { return []string{obj.GetLabels()[labelService]} }
	for _, kind := range o.kinds {
		if err := o.cache.IndexField(ctx, kind, byService, index); err != nil {
			return fmt.Errorf("index %T: %w", kind, err)
		}
		informer, err := o.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: o.added, UpdateFunc: o.updated, DeleteFunc: o.gone}); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- o.cache.Start(ctx) }()
	if o.cache.WaitForCacheSync(ctx) {
		close(o.synced)
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("watch the cluster: %w", err)
	}
	return nil
}

// Synced is closed once the cluster was read for the first time.
func (o *Observer) Synced() <-chan struct{} { return o.synced }

func (o *Observer) ready() error {
	select {
	case <-o.synced:
		return nil
	default:
		return errdef.New(errdef.ErrUnavailable, "the cluster wasn't read yet")
	}
}

// Observe returns what runs of a service now. A service without pods, or in a namespace that
// isn't watched, has no replicas.
func (o *Observer) Observe(ctx context.Context, key spec.ServiceKey) (spec.Observed, error) {
	pods, err := o.pods(ctx, key)
	if err != nil {
		return spec.Observed{}, err
	}
	return spec.Observed{Replicas: sorted(replicasOf(pods))}, nil
}

// Changes is described at platform.Platform. It starts with the services that are there.
func (o *Observer) Changes(ctx context.Context) <-chan spec.ServiceKey { return o.feed.Subscribe(ctx) }

func (o *Observer) pods(ctx context.Context, key spec.ServiceKey) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := o.list(ctx, key, &pods)
	return pods.Items, err
}

// list fills in a service's objects from the cache. They are shared: nobody may change them.
func (o *Observer) list(ctx context.Context, key spec.ServiceKey, into client.ObjectList) error {
	if err := o.ready(); err != nil {
		return err
	}
	if !o.watches(key.Namespace) {
		return nil
	}
	err := o.cache.List(ctx, into, client.InNamespace(key.Namespace), client.MatchingFields{byService: key.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("list %T of %s: %w", into, key, err)
	}
	return nil
}

func (o *Observer) watches(namespace string) bool {
	return len(o.namespaces) == 0 || slices.Contains(o.namespaces, namespace)
}

func (o *Observer) added(obj any) {
	if c, ok := obj.(client.Object); ok {
		o.feed.Notify(serviceOf(c))
	}
}

func (o *Observer) updated(before, after any) {
	a, ok := before.(client.Object)
	b, okToo := after.(client.Object)
	if ok && okToo && telling(a, b) {
		o.feed.Notify(serviceOf(b))
	}
}

func (o *Observer) gone(obj any) {
	if t, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = t.Obj
	}
	c, ok := obj.(client.Object)
	if !ok {
		return
	}
	if o.deleted != nil {
		o.deleted(c)
	}
	o.feed.Notify(serviceOf(c))
}

// telling says whether a change of an object matters: a pod that looks different, or one of
// our objects that somebody may have changed.
func telling(a, b client.Object) bool {
	if a.GetResourceVersion() == b.GetResourceVersion() {
		return false
	}
	switch b := b.(type) {
	case *corev1.Pod:
		before, ok := a.(*corev1.Pod)
		return !ok || living(before) != living(b) || !reflect.DeepEqual(replicaOf(before), replicaOf(b))
	case *appsv1.Deployment:
		before, ok := a.(*appsv1.Deployment)
		return !ok || edited(a, b) || !reflect.DeepEqual(obstacle(before), obstacle(b))
	case *autoscalingv2.HorizontalPodAutoscaler:
		before, ok := a.(*autoscalingv2.HorizontalPodAutoscaler)
		if !ok || edited(a, b) || !reflect.DeepEqual(before.Spec, b.Spec) {
			return true
		}
		_, was := inactive(before)
		_, is := inactive(b)
		return was != is
	}
	return b.GetGeneration() == 0 || edited(a, b)
}

// edited says whether something other than the status changed.
func edited(a, b metav1.Object) bool {
	return a.GetGeneration() != b.GetGeneration() || (a.GetDeletionTimestamp() == nil) != (b.GetDeletionTimestamp() == nil) ||
		!reflect.DeepEqual(a.GetLabels(), b.GetLabels()) || !reflect.DeepEqual(a.GetOwnerReferences(), b.GetOwnerReferences())
}

func serviceOf(o metav1.Object) spec.ServiceKey {
	return spec.ServiceKey{Namespace: o.GetNamespace(), Name: o.GetLabels()[labelService]}
}

// items returns a list's objects. The list is of a kind that the platform watches.
func items(list client.ObjectList) []client.Object {
	var out []client.Object
	switch l := list.(type) {
	case *corev1.PodList:
		out = pointers[corev1.Pod, *corev1.Pod](l.Items)
	case *appsv1.DeploymentList:
		out = pointers[appsv1.Deployment, *appsv1.Deployment](l.Items)
	case *corev1.ServiceList:
		out = pointers[corev1.Service, *corev1.Service](l.Items)
	case *corev1.ConfigMapList:
		out = pointers[corev1.ConfigMap, *corev1.ConfigMap](l.Items)
	case *policyv1.PodDisruptionBudgetList:
		out = pointers[policyv1.PodDisruptionBudget, *policyv1.PodDisruptionBudget](l.Items)
	case *autoscalingv2.HorizontalPodAutoscalerList:
		out = pointers[autoscalingv2.HorizontalPodAutoscaler, *autoscalingv2.HorizontalPodAutoscaler](l.Items)
	case *networkingv1.NetworkPolicyList:
		out = pointers[networkingv1.NetworkPolicy, *networkingv1.NetworkPolicy](l.Items)
	default:
		panic(fmt.Sprintf("BUG: %T isn't watched", list))
	}
	return out
}

func pointers[T any, P interface {
	*T
	client.Object
}](list []T) []client.Object {
	out := make([]client.Object, len(list))
	for i := range list {
		out[i] = P(&list[i])
	}
	return out
}
