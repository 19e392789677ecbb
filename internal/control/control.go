// Package control is the reconciler: it reads what manifests ask for, asks plan what should
// run, applies that to a platform, and writes back what was observed. The same code drives
// one machine and a cluster; only the platform differs.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/direct"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// Config is what the reconciler needs to know of its surroundings.
type Config struct {
	// Domain is the last part of service hosts; empty means "localhost".
	Domain string
	// HTTP and GRPC are the gateway's "host:port" addresses as clients on this platform reach
	// them; they stand in URLs.
	HTTP, GRPC string
	// ComponentAddress returns a "host:port" through which a component of a service alone is
	// reached from inside the platform: what a transformer gets as --predictor_host. Nil means
	// that the component's host name is used.
	ComponentAddress func(spec.ServiceKey, spec.Component) string
	// GatewayHost is the gateway's name in a cluster's DNS, which those of graphs lead to; empty
	// gives graphs no names there.
	GatewayHost string
	// History is how many revisions of a component are kept beside those in use; 0 means 10.
	History int
	// DirectGateway is the Gateway (Gateway API) on which HTTPRoutes hang that lead past our own; the
	// zero value means that there are none.
	DirectGateway types.NamespacedName
	// OneMachine says that fields which only a cluster can honour are reported as such, and that
	// the API's admission has refused what isn't valid. Otherwise the reconciler refuses it in the
	// status, and components are reached by their names within the cluster.
	OneMachine bool
	// ModelAt returns where an engine that fetches a trained model itself finds what a URI of a
	// namespace names. Nil means at the URI as it is written.
	ModelAt func(namespace, uri string) string
	// Models tells what replicas say of trained models. Nil means that nobody asks them, so that a
	// model counts as served once they were told of it.
	Models ModelWatch
	// Drain is how long a revision runs on after its traffic moved away: as long as those who
	// route may take to hear of it. Zero means plan.DrainDelay.
	Drain time.Duration
	// Namespaces restricts the reconciler to some namespaces; empty means all.
	Namespaces []string
	// Leader, when set, lets only one of several reconcilers of a cluster work.
	Leader *Leader
	// Scaling is where an autoscaler is told what may scale, and what it decided is read. Nil means
	// that there is none: minReplicas run, and one at least.
	Scaling *demand.Board
	// Evidence is what guarded rollouts are judged by. Nil means that there is none, so that they
	// wait at their first step.
	Evidence Evidence
	// Adapters is where it says which LoRA adapters engines should have, and reads which they have.
	// Nil means that nobody has them loaded.
	Adapters *lora.Board
	Logger   *slog.Logger
}

// Leader names the lease that reconcilers of one cluster compete for.
type Leader struct{ Namespace, Lease string }

// Scheme returns the kinds that the reconciler reads and writes.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, v1alpha1.AddToScheme, v1beta1.AddToScheme, smv1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}
	return s, nil
}

// Controller reconciles InferenceServices. Make it with New and drive it with Run.
type Controller struct {
	cfg      Config
	client   client.Client
	api      client.Reader
	readers  atomic.Pointer[Readers]
	platform platform.Platform
	events   record.EventRecorder
	table    *state.Topic[route.Table]
	log      *slog.Logger

	// wake asks for a service to be reconciled though nothing of its own changed.
	wake platform.Feed
	// heard has the trained models of which engines reported something new.
	heard chan event.GenericEvent
	// wanting is held while the adapters of all services are put together.
	wanting sync.Mutex
	// retold are the trained models of which engines were told something else than before.
	retold state.Feed[modellist.Key]

	mu sync.Mutex
	// first is what was reconciled so far and pending what wasn't of the services that were there
	// at the start (nil before they are known); synced is closed when there is none left.
	first   map[spec.ServiceKey]bool
	pending map[spec.ServiceKey]bool
	synced  chan struct{}
	// written holds objects whose latest write the cache may not show yet, as written.
	written map[types.UID]client.Object
	// routes holds each service's line of the routing table, graphs each graph's; rollouts what plan
	// must remember.
	routes   map[spec.ServiceKey]route.Service
	graphs   map[spec.ServiceKey]route.Service
	rollouts map[spec.ServiceKey]map[spec.Component]plan.Rollout
	// lists holds the trained models that each service's engines were told to serve.
	lists map[spec.ServiceKey]map[string]told
	// unseen are services that existed at the start and weren't looked at yet.
	unseen map[spec.ServiceKey]bool
}

// New makes a controller that applies to p and publishes the routing table to table. It starts
// nothing.
func New(cfg Config, p platform.Platform, table *state.Topic[route.Table]) *Controller {
	if cfg.Domain == "" {
		cfg.Domain = "localhost"
	}
	if cfg.History == 0 {
		cfg.History = 10
	}
	return &Controller{
		cfg: cfg, platform: p, table: table, log: cfg.Logger,
		first:    map[spec.ServiceKey]bool{},
		synced:   make(chan struct{}),
		written:  map[types.UID]client.Object{},
		routes:   map[spec.ServiceKey]route.Service{},
		graphs:   map[spec.ServiceKey]route.Service{},
		rollouts: map[spec.ServiceKey]map[spec.Component]plan.Rollout{},
		lists:    map[spec.ServiceKey]map[string]told{},
		unseen:   map[spec.ServiceKey]bool{},
		heard:    make(chan event.GenericEvent),
	}
}

// Synced is closed once every service that existed when Run began was reconciled once, so that
// the routing table has all that can serve.
func (c *Controller) Synced() <-chan struct{} { return c.synced }

// Run reconciles against the API until ctx ends; it has joined all it started when it returns.
func (c *Controller) Run(ctx context.Context, config *rest.Config) error {
	sch, err := Scheme()
	if err != nil {
		return err
	}
	quiet := logr.FromSlogHandler(warnings{c.log.Handler()})
	ctrl.SetLogger(quiet)
	if !c.awaitAll(ctx, config) {
		return nil
	}
	options := ctrl.Options{
		Scheme:                 sch,
		Logger:                 quiet,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache:                  cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Client: client.Options{Cache: &client.CacheOptions{
			DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}},
		}},
	}
	for _, n := range c.cfg.Namespaces {
		if options.Cache.DefaultNamespaces == nil {
			options.Cache.DefaultNamespaces = map[string]cache.Config{}
		}
		options.Cache.DefaultNamespaces[n] = cache.Config{}
	}
	if l := c.cfg.Leader; l != nil {
		options.LeaderElection, options.LeaderElectionNamespace, options.LeaderElectionID = true, l.Namespace, l.Lease
		options.LeaderElectionReleaseOnCancel = true
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("make controller manager: %w", err)
	}
	c.client, c.api = mgr.GetClient(), mgr.GetAPIReader()
	c.readers.Store(&Readers{Cached: c.client, Live: c.api})
	events, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make events client: %w", err)
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: events.Events("")})
	c.events = broadcaster.NewRecorder(sch, corev1.EventSource{Component: "stationmaster"})

	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.TrainedModel{}, byService, indexByService); err != nil {
		return fmt.Errorf("index trained models: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1beta1.InferenceService{}, byReader, indexByReader); err != nil {
		return fmt.Errorf("index services by who reads their prompts: %w", err)
	}
	ofService := func(o client.Object) []string { return []string{o.GetLabels()[labelService]} }
	if err := mgr.GetFieldIndexer().IndexField(ctx, &smv1alpha1.Revision{}, revisionsOf, ofService); err != nil {
		return fmt.Errorf("index revisions: %w", err)
	}
	changed, said := make(chan event.GenericEvent), make(chan event.GenericEvent)
	if err := c.buildTrainedModel(mgr, said); err != nil {
		return err
	}
	if err := mgr.Add(managerRunnable(func(ctx context.Context) error { return c.followModels(ctx, said) })); err != nil {
		return fmt.Errorf("add watch of what replicas say: %w", err)
	}
	if err := c.build(mgr, changed); err != nil {
		return err
	}
	if err := c.addGraphs(mgr); err != nil {
		return err
	}
	if c.cfg.DirectGateway != (types.NamespacedName{}) {
		if err := direct.Add(mgr, direct.Config{
			Gateway: c.cfg.DirectGateway, Domain: c.cfg.Domain, Events: c.events, API: config, Namespaces: c.cfg.Namespaces, Logger: c.log,
		}); err != nil {
			return err
		}
	}
	if err := mgr.Add(managerRunnable(func(ctx context.Context) error { return c.follow(ctx, changed) })); err != nil {
		return fmt.Errorf("add platform watch: %w", err)
	}
	if err := mgr.Add(managerRunnable(c.followAdapters)); err != nil {
		return fmt.Errorf("add watch of adapters: %w", err)
	}
	if err := mgr.Start(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("run controllers: %w", err)
	}
	return nil
}

// Revision reads a revision that was made a moment ago as well as older ones. It is for the
// platform, and answers once Run has begun to reconcile.
func (c *Controller) Revision(ctx context.Context, key spec.RevisionKey) (*smv1alpha1.Revision, error) {
	var r smv1alpha1.Revision
	at := client.ObjectKey{Namespace: key.Namespace, Name: key.Name}
	err := c.client.Get(ctx, at, &r)
	if apierrors.IsNotFound(err) {
		err = c.api.Get(ctx, at, &r)
	}
	if err != nil {
		return nil, fmt.Errorf("read revision %s: %w", key, err)
	}
	return &r, nil
}

// Service reads a service, from a cache that may lag. It is for the platform, and answers once Run
// has begun to reconcile.
func (c *Controller) Service(ctx context.Context, key spec.ServiceKey) (*v1beta1.InferenceService, error) {
	var is v1beta1.InferenceService
	if err := c.client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, &is); err != nil {
		return nil, fmt.Errorf("read service %s: %w", key, err)
	}
	return &is, nil
}

// warnings lets through what is at least a warning: controller-runtime tells at info about its
// own inner life, and about KServe's finalizer, whose name isn't ours to choose.
type warnings struct{ slog.Handler }

func (w warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && w.Handler.Enabled(ctx, l)
}

func (w warnings) WithAttrs(as []slog.Attr) slog.Handler { return warnings{w.Handler.WithAttrs(as)} }

func (w warnings) WithGroup(n string) slog.Handler { return warnings{w.Handler.WithGroup(n)} }

// longestRetry is the most that a service waits for another try after errors of the API or the
// platform, which pass; controller-runtime's own limit of 17 minutes is for busier places.
const longestRetry = 30 * time.Second

// workers is how many services are reconciled at a time: most of it is waiting for the API.
const workers = 8

// notCreated lets deletions and changes of the spec through.
type notCreated struct {
	predicate.GenerationChangedPredicate
}

func (notCreated) Create(event.CreateEvent) bool { return false }

type managerRunnable func(context.Context) error

func (r managerRunnable) Start(ctx context.Context) error { return r(ctx) }

func (c *Controller) build(mgr ctrl.Manager, changed chan event.GenericEvent) error {
	skipNameCheck := true
	err := builder.ControllerManagedBy(mgr).
		Named("inferenceservice").
		// Status writes of our own don't wake us; changes of metadata (annotations) do.
		For(&v1beta1.InferenceService{}, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&v1alpha1.ClusterServingRuntime{}, handler.EnqueueRequestsFromMapFunc(c.everyService),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ServingRuntime{}, handler.EnqueueRequestsFromMapFunc(c.everyService),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.TrainedModel{}, handler.EnqueueRequestsFromMapFunc(serviceOf), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1beta1.InferenceService{}, handler.EnqueueRequestsFromMapFunc(c.readBy), builder.WithPredicates(comesOrGoes)).
		// What we own and somebody else deletes or edits is put right.
		Owns(&smv1alpha1.Revision{}, builder.WithPredicates(notCreated{})).
		Owns(&smv1alpha1.Route{}, builder.WithPredicates(notCreated{})).
		WatchesRawSource(source.Channel(changed, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers, SkipNameValidation: &skipNameCheck,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](20*time.Millisecond, longestRetry),
		}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("build controller: %w", err)
	}
	return nil
}

// everyService wakes the services that a changed runtime could concern: all of its namespace,
// or all for a cluster-wide one.
func (c *Controller) everyService(ctx context.Context, runtime client.Object) []reconcile.Request {
	var list v1beta1.InferenceServiceList
	if err := c.client.List(ctx, &list, client.InNamespace(runtime.GetNamespace())); err != nil {
		c.log.ErrorContext(ctx, "list services after a runtime changed", "runtime", runtime.GetName(), "err", err)
		return nil
	}
	out := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		out[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
	}
	return out
}

// follow turns what the platform reports into reconciles. It begins with the services that
// the platform has from before, so that those deleted while the control plane was away end.
func (c *Controller) follow(ctx context.Context, out chan<- event.GenericEvent) error {
	send := func(key spec.ServiceKey) {
		is := &v1beta1.InferenceService{}
		is.Namespace, is.Name = key.Namespace, key.Name
		select {
		case out <- event.GenericEvent{Object: is}:
		case <-ctx.Done():
		}
	}
	if err := c.expect(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // being told to end is no error
		}
		return err
	}
	changes, woken := c.platform.Changes(ctx), c.wake.Subscribe(ctx)
	scaled := make(<-chan spec.ServiceKey)
	if c.cfg.Scaling != nil {
		scaled = c.cfg.Scaling.Changed.Subscribe(ctx)
	}
	known, err := c.platform.Services(ctx)
	if err != nil {
		return fmt.Errorf("list the platform's services: %w", err)
	}
	for _, key := range known {
		send(key)
	}
	for {
		select {
		case key := <-changes:
			send(key)
		case key := <-woken:
			send(key)
		case key := <-scaled:
			send(key)
		case <-ctx.Done():
			// All end with ctx; their goroutines have left when they are closed.
			for range changes {
			}
			for range woken {
			}
			if c.cfg.Scaling != nil {
				for range scaled {
				}
			}
			return nil
		}
	}
}

// expect lists the services of the start, which Synced waits for.
func (c *Controller) expect(ctx context.Context) error {
	var list v1beta1.InferenceServiceList
	if err := c.client.List(ctx, &list); err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = map[spec.ServiceKey]bool{}
	for i := range list.Items {
		if key := (spec.ServiceKey{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name}); !c.first[key] {
			c.pending[key] = true
		}
	}
	c.first = nil
	if len(c.pending) == 0 {
		close(c.synced)
	}
	return nil
}

// done counts a service's first reconcile, however it went.
func (c *Controller) done(key spec.ServiceKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.pending == nil:
		c.first[key] = true
	case c.pending[key]:
		delete(c.pending, key)
		if len(c.pending) == 0 {
			close(c.synced)
		}
	}
}

// longest bounds one reconcile, which takes milliseconds where the API answers.
const longest = 30 * time.Second

// Reconcile brings one service to what its manifest asks for. One that has begun isn't cut off
// when Run is told to end: half of its writes would be left undone, with an error that is none.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancel()
	key := spec.ServiceKey{Namespace: req.Namespace, Name: req.Name}
	var is v1beta1.InferenceService
	err := c.client.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, &is)
	switch {
	case apierrors.IsNotFound(err):
		c.seen(key)
		defer c.done(key)
		return reconcile.Result{}, c.remove(ctx, key)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read service %s: %w", key, err)
	case !is.DeletionTimestamp.IsZero():
		c.seen(key)
		defer c.done(key)
		return c.finalize(ctx, key, &is)
	}
	again, err := c.reconcile(ctx, key, &is)
	c.done(key)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		// The cache lags behind what somebody wrote; a moment later it doesn't.
		return reconcile.Result{RequeueAfter: cacheLag}, nil
	}
	c.seen(key)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reconcile service %s: %w", key, err)
	}
	if again.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(time.Until(again), time.Millisecond)}, nil
}

// publish replaces one service's line of the routing table; nil removes it. Where that changes
// who holds a bare model name, the others that want it are woken, for their status says so.
func (c *Controller) publish(key spec.ServiceKey, s *route.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, had := c.routes[key]
	if s == nil {
		delete(c.routes, key)
		delete(c.rollouts, key)
		if c.cfg.Scaling != nil {
			c.cfg.Scaling.Subjects.Delete(key)
		}
	} else {
		c.routes[key] = *s
	}
	if had && s != nil {
		if t, ok := c.table.Load().With(*s); ok {
			c.table.Publish(t)
			return
		}
	}
	var claimed []string // names whose holder may have changed
	switch {
	case !had && s == nil:
		return
	case !had:
		claimed = s.BareNames
	case s == nil:
		claimed = old.BareNames
	}
	for other, r := range c.routes {
		if other != key && slices.ContainsFunc(r.BareNames, func(n string) bool { return slices.Contains(claimed, n) }) {
			c.wake.Notify(other)
		}
	}
	c.publishTable()
}

// nameTaken returns the service or graph for which a bare model name doesn't lead to key, if any:
// an older one, or one made in the same second, for the API's times are no finer; tie says that
// it is the latter. Of equals none gets the name: the gateway asks for a host or a prefix.
func (c *Controller) nameTaken(key spec.ServiceKey, created time.Time, name string) (found string, tie, taken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest := created
	look := func(word string, lines map[spec.ServiceKey]route.Service, but spec.ServiceKey) {
		for other, s := range lines {
			if other == but || !slices.Contains(s.BareNames, name) || s.Created.After(oldest) {
				continue
			}
			if called := word + " " + other.String(); s.Created.Before(oldest) || found == "" || called < found {
				found, oldest = called, s.Created
			}
		}
	}
	look("service", c.routes, key)
	look("graph", c.graphs, spec.ServiceKey{})
	return found, oldest.Equal(created), found != ""
}

// url builds the http URL of a host at the gateway's port.
func (c *Controller) url(host string) string {
	_, port, err := net.SplitHostPort(c.cfg.HTTP)
	if err != nil || port == "80" {
		return "http://" + host
	}
	return "http://" + host + ":" + port
}
