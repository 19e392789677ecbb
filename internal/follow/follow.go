// Package follow keeps a gateway's routing table true to a cluster: it watches services, their
// routes and revisions, asks for their ready replicas, and publishes a new table when a line
// changed. It only reads, so any number of gateways can do it side by side, and one that loses
// the API server goes on with what it knew.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	toolscache "k8s.io/client-go/tools/cache"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// Replicas tells what runs of a service. A platform is one.
type Replicas interface {
	Observe(ctx context.Context, service spec.ServiceKey) (spec.Observed, error)
	Changes(ctx context.Context) <-chan spec.ServiceKey
}

// Config is what a follower needs to know. API, Replicas and Table are required.
type Config struct {
	// API is where objects are watched.
	API *rest.Config
	// Domain is the last part of outside hosts.
	Domain string
	// Namespaces restricts it to some namespaces; empty means all.
	Namespaces []string
	Replicas   Replicas
	Table      *state.Topic[route.Table]
	Logger     *slog.Logger
}

// settle is how long changes are collected before the table is compiled anew: a thousand
// replicas that become ready together then cost a few tables, not a thousand.
const settle = 10 * time.Millisecond

// unknownKinds is how long to wait where the kinds aren't there yet: on a first installation
// the gateway may start before the API server has them.
const unknownKinds = time.Second

// subject is what a line of the table is about: a service, or a graph.
type subject struct {
	spec.ServiceKey
	graph bool
}

// Follower follows one cluster. Make it with New and drive it with Run.
type Follower struct {
	cfg   Config
	cache cache.Cache
	// indexed is set once trained models are indexed; it is Run's.
	indexed bool
	synced  chan struct{}
	queue   workqueue.TypedRateLimitingInterface[subject]

	mu    sync.Mutex
	lines map[subject]route.Service
	// changed holds a value while lines are newer than the table.
	changed chan struct{}
}

// New makes a follower; it starts nothing.
func New(cfg Config) (*Follower, error) {
	sch := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, v1beta1.AddToScheme, smv1alpha1.AddToScheme} {
		if err := add(sch); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}
	options := cache.Options{Scheme: sch, DefaultTransform: cache.TransformStripManagedFields()}
	for _, n := range cfg.Namespaces {
		if options.DefaultNamespaces == nil {
			options.DefaultNamespaces = map[string]cache.Config{}
		}
		options.DefaultNamespaces[n] = cache.Config{}
	}
	c, err := cache.New(cfg.API, options)
	if err != nil {
		return nil, fmt.Errorf("make cache: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Follower{
		cfg: cfg, cache: c, synced: make(chan struct{}), lines: map[subject]route.Service{}, changed: make(chan struct{}, 1),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[subject](20*time.Millisecond, 5*time.Second)),
	}, nil
}

// Synced is closed once the table has every service that existed when Run began.
func (f *Follower) Synced() <-chan struct{} { return f.synced }

// Run follows until ctx ends; it has joined all it started when it returns.
func (f *Follower) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	defer f.queue.ShutDown()
	failed := make(chan error, 1)
	parts.Go(func() {
		if err := f.cache.Start(ctx); err != nil {
			failed <- fmt.Errorf("watch: %w", err)
			cancel()
		}
	})
	changes := f.cfg.Replicas.Changes(ctx)
	parts.Go(func() {
		for key := range changes {
			f.queue.Add(subject{ServiceKey: key})
		}
	})
	for err := f.watch(ctx); err != nil; err = f.watch(ctx) {
		if !meta.IsNoMatchError(err) {
			return err
		}
		f.cfg.Logger.WarnContext(ctx, "the cluster doesn't know our kinds; asking again", "err", err)
		select {
		case <-time.After(unknownKinds):
		case <-ctx.Done():
			return because(ctx, failed)
		}
	}
	if !f.cache.WaitForCacheSync(ctx) {
		return because(ctx, failed)
	}
	if err := f.first(ctx); err != nil {
		return err
	}
	close(f.synced)
	parts.Go(func() { f.compile(ctx) })
	parts.Go(func() {
		<-ctx.Done()
		f.queue.ShutDown()
	})
	for f.step(ctx) {
	}
	return because(ctx, failed)
}

func because(ctx context.Context, failed <-chan error) error {
	select {
	case err := <-failed:
		return err
	default:
	}
	if err := ctx.Err(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// watch turns changes of objects into work.
func (f *Follower) watch(ctx context.Context) error {
	ofItself := func(o client.Object) subject {
		_, graph := o.(*v1alpha1.InferenceGraph)
		return subject{spec.ServiceKey{Namespace: o.GetNamespace(), Name: o.GetName()}, graph}
	}
	watches := []struct {
		object   client.Object
		key      func(client.Object) subject
		informer cache.Informer
	}{
		{object: &v1beta1.InferenceService{}, key: ofItself},
		{object: &v1alpha1.InferenceGraph{}, key: ofItself},
		{object: &smv1alpha1.Route{}, key: ofService},
		{object: &smv1alpha1.Revision{}, key: ofService},
		{object: &v1alpha1.TrainedModel{}, key: ofTrainedModel},
	}
	if !f.indexed {
		index := func(o client.Object) []string { return []string{ofTrainedModel(o).Name} }
		if err := f.cache.IndexField(ctx, &v1alpha1.TrainedModel{}, byService, index); err != nil {
			return fmt.Errorf("index trained models: %w", err)
		}
		f.indexed = true
	}
	for i := range watches {
		var err error
		if watches[i].informer, err = f.cache.GetInformer(ctx, watches[i].object); err != nil {
			return fmt.Errorf("watch %T: %w", watches[i].object, err)
		}
	}
	for _, w := range watches {
		enqueue := func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(client.Object); ok {
				f.queue.Add(w.key(o))
			}
		}
		if _, err := w.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			// The old one may be of another service.
			AddFunc: enqueue, UpdateFunc: func(old, obj any) { enqueue(old); enqueue(obj) }, DeleteFunc: enqueue,
		}); err != nil {
			return fmt.Errorf("watch %T: %w", w.object, err)
		}
	}
	return nil
}

func ofService(o client.Object) subject {
	return subject{ServiceKey: spec.ServiceKey{Namespace: o.GetNamespace(), Name: o.GetLabels()[smv1alpha1.LabelService]}}
}

// byService is the index of trained models by the service that they name.
const byService = "spec.inferenceService"

func ofTrainedModel(o client.Object) subject {
	of := subject{ServiceKey: spec.ServiceKey{Namespace: o.GetNamespace()}}
	if tm, ok := o.(*v1alpha1.TrainedModel); ok {
		of.Name = tm.Spec.InferenceService
	}
	return of
}

// first makes the first table whole, before anything is answered by it.
func (f *Follower) first(ctx context.Context) error {
	var list v1beta1.InferenceServiceList
	if err := f.cache.List(ctx, &list); err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	for i := range list.Items {
		key := spec.ServiceKey{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name}
		if err := f.look(ctx, subject{ServiceKey: key}); err != nil {
			return err
		}
	}
	var graphs v1alpha1.InferenceGraphList
	if err := f.cache.List(ctx, &graphs); err != nil {
		return fmt.Errorf("list graphs: %w", err)
	}
	for i := range graphs.Items {
		key := spec.ServiceKey{Namespace: graphs.Items[i].Namespace, Name: graphs.Items[i].Name}
		if err := f.look(ctx, subject{key, true}); err != nil {
			return err
		}
	}
	f.publish()
	return nil
}

// step handles one service; it returns false when the queue has ended.
func (f *Follower) step(ctx context.Context) bool {
	key, ended := f.queue.Get()
	if ended {
		return false
	}
	defer f.queue.Done(key)
	if err := f.look(ctx, key); err != nil {
		if ctx.Err() == nil {
			f.cfg.Logger.WarnContext(ctx, "look at a service again later", "service", key.String(), "err", err)
		}
		f.queue.AddRateLimited(key)
		return true
	}
	f.queue.Forget(key)
	return true
}

// look brings the line of a service or graph up to date.
func (f *Follower) look(ctx context.Context, of subject) error {
	if of.graph {
		return f.lookAtGraph(ctx, of)
	}
	key := of.ServiceKey
	var is v1beta1.InferenceService
	err := f.cache.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, &is)
	if apierrors.IsNotFound(err) || (err == nil && !is.DeletionTimestamp.IsZero()) {
		f.set(of, nil)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read service %s: %w", key, err)
	}
	s := routing.Service{Key: key, Created: is.CreationTimestamp.Time, Domain: f.cfg.Domain, InCluster: true}
	var r smv1alpha1.Route
	if err := f.cache.Get(ctx, client.ObjectKeyFromObject(&is), &r); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read route %s: %w", key, err)
	}
	var revisions smv1alpha1.RevisionList
	if err := f.cache.List(ctx, &revisions, client.InNamespace(key.Namespace), client.MatchingLabels{smv1alpha1.LabelService: key.Name}); err != nil {
		return fmt.Errorf("list revisions of %s: %w", key, err)
	}
	s.Revisions = revisions.Items
	if s.Observed, err = f.cfg.Replicas.Observe(ctx, key); err != nil {
		return fmt.Errorf("observe %s: %w", key, err)
	}
	var models v1alpha1.TrainedModelList
	if err := f.cache.List(ctx, &models, client.InNamespace(key.Namespace), client.MatchingFields{byService: key.Name}); err != nil {
		return fmt.Errorf("list trained models of %s: %w", key, err)
	}
	s.Models = routing.ModelNames(s.Revisions, models.Items)
	s.Adapters = routing.AdapterNames(models.Items)
	s.Components = components(&is, &r, s.Observed)
	line := routing.Line(s)
	line = routing.Visible(line, is.Labels, f.cfg.Domain)
	f.set(of, &line)
	return nil
}

func (f *Follower) lookAtGraph(ctx context.Context, of subject) error {
	var g v1alpha1.InferenceGraph
	err := f.cache.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: of.Name}, &g)
	if apierrors.IsNotFound(err) || (err == nil && !g.DeletionTimestamp.IsZero()) {
		f.set(of, nil)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read graph %s: %w", of, err)
	}
	line := routing.GraphLine(&g, f.cfg.Domain, true)
	f.set(of, &line)
	return nil
}

// components puts a service's route and status into routing's words.
func components(is *v1beta1.InferenceService, r *smv1alpha1.Route, o spec.Observed) []routing.Component {
	var out []routing.Component
	for _, c := range []struct {
		name      spec.Component
		has       bool
		condition v1beta1.ConditionType
	}{
		{spec.Predictor, true, v1beta1.ConditionPredictorReady},
		{spec.Transformer, is.Spec.Transformer != nil, v1beta1.ConditionTransformerReady},
		{spec.Explainer, is.Spec.Explainer != nil, v1beta1.ConditionExplainerReady},
	} {
		if !c.has {
			continue
		}
		comp := routing.NewComponent(is, c.name)
		for _, have := range r.Spec.Components {
			if have.Component == string(c.name) {
				comp.Route = have
			}
		}
		for _, cond := range is.Status.Conditions {
			if cond.Type == c.condition {
				comp.Why = cond.Message
				comp.Hidden = cond.Reason == routing.ReasonAsleep
				comp.Cold = comp.Hidden || cond.Reason == routing.ReasonWaking
			}
		}
		comp.Returning = returning(comp.Route, is, o)
		comp.Stopped = is.Annotations[stop] == "true"
		comp.NextTry = routing.NextTry(replicasOf(is, c.name, comp.Route, o))
		out = append(out, comp)
	}
	return out
}

// returning reports whether a component that was routed has a replica on its way that nothing
// is wrong with.
func returning(r smv1alpha1.ComponentRoute, is *v1beta1.InferenceService, o spec.Observed) bool {
	if is.Annotations[stop] == "true" {
		return false
	}
	for _, t := range r.Targets {
		for _, replica := range o.Of(spec.RevisionKey{Namespace: is.Namespace, Name: t.RevisionName}) {
			if replica.Phase != spec.Draining && replica.Failure == nil {
				return true
			}
		}
	}
	return false
}

// replicasOf are those of the revisions that a component's requests go to, or that are to be the
// first.
func replicasOf(is *v1beta1.InferenceService, c spec.Component, r smv1alpha1.ComponentRoute, o spec.Observed) []spec.Replica {
	names := []string{is.Status.Components[v1beta1.ComponentType(c)].LatestCreatedRevision}
	if len(r.Targets) > 0 {
		names = names[:0]
	}
	for _, t := range r.Targets {
		names = append(names, t.RevisionName)
	}
	var out []spec.Replica
	for _, name := range names {
		out = append(out, o.Of(spec.RevisionKey{Namespace: is.Namespace, Name: name})...)
	}
	return out
}

// stop is KServe's annotation that takes a service out of use.
const stop = "serving.kserve.io/stop"

// set replaces a line; nil removes it.
func (f *Follower) set(key subject, line *route.Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, had := f.lines[key]
	switch {
	case line == nil && !had, line != nil && had && reflect.DeepEqual(old, *line):
		return
	case line == nil:
		delete(f.lines, key)
	default:
		f.lines[key] = *line
	}
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// compile publishes what changed, at most once in settle, and sleeps while nothing does.
func (f *Follower) compile(ctx context.Context) {
	for {
		select {
		case <-f.changed:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(settle):
			f.publish()
		case <-ctx.Done():
			return
		}
	}
}

func (f *Follower) publish() {
	f.mu.Lock()
	all := make([]route.Service, 0, len(f.lines))
	for _, l := range f.lines {
		all = append(all, l)
	}
	f.mu.Unlock()
	f.cfg.Table.Publish(route.Compile(all))
}
