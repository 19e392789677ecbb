// Package direct leads requests past our gateway for services that ask for it: HTTPRoutes of the
// Gateway API to the pods of each revision, with the shares that the service's Route has.
package direct

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/foreign"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Config says which Gateway the HTTPRoutes hang on. All is required.
type Config struct {
	// Gateway is the Gateway's namespace and name.
	Gateway types.NamespacedName
	// Domain is the last part of outside hosts.
	Domain string
	Events record.EventRecorder
	// API and Namespaces are where HTTPRoutes are watched; no namespaces means all.
	API        *rest.Config
	Namespaces []string
	Logger     *slog.Logger
}

type reconciler struct {
	cfg    Config
	client client.Client
}

// Add makes the reconciler part of a controller manager, which runs it.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{cfg: cfg, client: mgr.GetClient()}
	skipNameCheck := true
	// A Route has its service's name.
	same := func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
	}
	// The status of neither concerns us.
	asked := builder.WithPredicates(predicate.Or(
		predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}))
	harmed := make(chan event.GenericEvent)
	if err := mgr.Add(runnable(func(ctx context.Context) error { return cfg.watch(ctx, harmed) })); err != nil {
		return fmt.Errorf("add watch of direct routes: %w", err)
	}
	err := builder.ControllerManagedBy(mgr).
		Named("direct").
		For(&smv1alpha1.Route{}, asked).
		Watches(&v1beta1.InferenceService{}, handler.EnqueueRequestsFromMapFunc(same), asked).
		WatchesRawSource(source.Channel(harmed, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{SkipNameValidation: &skipNameCheck}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("build controller of direct routes: %w", err)
	}
	return nil
}

type runnable func(context.Context) error

func (r runnable) Start(ctx context.Context) error { return r(ctx) }

// watch tells of the Routes whose HTTPRoutes or Services somebody edits or deletes, until ctx ends.
func (cfg *Config) watch(ctx context.Context, harmed chan<- event.GenericEvent) error {
	return foreign.Watch(ctx, foreign.Config{
		API: cfg.API, Namespaces: cfg.Namespaces, Logger: cfg.Logger, Selector: labelManagedBy + "=" + manager,
		Kinds: []schema.GroupVersionResource{httpRoute.GroupVersion().WithResource("httproutes"), corev1.SchemeGroupVersion.WithResource("services")},
		Changed: func(o *metav1.PartialObjectMetadata) {
			route := &smv1alpha1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Labels[labelService]}}
			select {
			case harmed <- event.GenericEvent{Object: route}:
			case <-ctx.Done():
			}
		},
	})
}

const (
	labelService   = "serving.kserve.io/inferenceservice"
	labelManagedBy = "app.kubernetes.io/managed-by"

	// made marks a Route of which there are HTTPRoutes.
	made    = "stationmaster.dev/direct-route"
	manager = "stationmaster-direct"
	// again is how long to wait for a cluster to learn of the Gateway API.
	again   = 30 * time.Second
	longest = 30 * time.Second
)

// Reconcile brings the HTTPRoutes of one service up to date.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancel()
	var is v1beta1.InferenceService
	var route smv1alpha1.Route
	for _, o := range []client.Object{&is, &route} {
		if err := r.client.Get(ctx, req.NamespacedName, o); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	if !manifest.Direct(&is) || !route.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, r.withdraw(ctx, &route)
	}
	components, err := r.components(ctx, &route)
	if err != nil {
		return reconcile.Result{}, err
	}
	err = r.publish(ctx, &route, components)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		r.cfg.Events.Event(&is, corev1.EventTypeWarning, "GatewayAPINotInstalled", "this cluster has no HTTPRoute, which "+manifest.DirectAnnotation+" needs: install the Gateway API; the gateway serves the service meanwhile")
		return reconcile.Result{RequeueAfter: again}, nil
	}
	return reconcile.Result{}, err
}

// components reads where the requests for each component go.
func (r *reconciler) components(ctx context.Context, route *smv1alpha1.Route) ([]component, error) {
	var out []component
	for _, c := range route.Spec.Components {
		comp := component{name: spec.Component(c.Component)}
		for _, t := range c.Targets {
			var rev smv1alpha1.Revision
			if err := r.client.Get(ctx, client.ObjectKey{Namespace: route.Namespace, Name: t.RevisionName}, &rev); err != nil {
				return nil, fmt.Errorf("read revision %s: %w", t.RevisionName, err)
			}
			w, err := manifest.WorkloadOf(rev.Namespace, rev.Name, &rev.Spec)
			if err != nil {
				return nil, err
			}
			to := target{name: t.RevisionName, percent: t.Percent}
			if p, ok := w.Server().HTTPPort(); ok {
				to.http = int32(p.Number)
			}
			if p, ok := w.Server().GRPCPort(); ok {
				to.grpc = int32(p.Number)
			}
			comp.timeout, comp.targets = rev.Spec.TimeoutSeconds, append(comp.targets, to)
		}
		out = append(out, comp)
	}
	return out, nil
}

// publish makes the Services, marks the Route, and makes the HTTPRoutes.
func (r *reconciler) publish(ctx context.Context, route *smv1alpha1.Route, components []component) error {
	for i := range components {
		for j := range components[i].targets {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(backend(route, &components[i], &components[i].targets[j]))
			if err != nil {
				return fmt.Errorf("encode Service: %w", err)
			}
			delete(content, "status")
			unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
			if err := r.apply(ctx, &unstructured.Unstructured{Object: content}); err != nil {
				return err
			}
		}
	}
	if err := r.mark(ctx, route, true); err != nil {
		return err
	}
	for _, u := range r.cfg.routesOf(route, components) {
		if err := r.apply(ctx, u); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) apply(ctx context.Context, u *unstructured.Unstructured) error {
	if err := r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// withdraw deletes the HTTPRoutes and Services of a Route that has some. Services of revisions
// that got requests earlier end with the Route.
func (r *reconciler) withdraw(ctx context.Context, route *smv1alpha1.Route) error {
	if route.Annotations[made] == "" || !route.DeletionTimestamp.IsZero() {
		return nil
	}
	names := []string{route.Spec.Service}
	for _, c := range route.Spec.Components {
		names = append(names, manifest.ComponentName(route.Spec.Service, spec.Component(c.Component)))
	}
	for _, name := range names {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(httpRoute)
		u.SetNamespace(route.Namespace)
		u.SetName(name)
		if err := r.client.Delete(ctx, u); err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
			return fmt.Errorf("delete HTTPRoute %s: %w", name, err)
		}
	}
	for _, c := range route.Spec.Components {
		for _, t := range c.Targets {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: route.Namespace, Name: t.RevisionName}}
			if err := r.client.Delete(ctx, s); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("delete Service %s: %w", t.RevisionName, err)
			}
		}
	}
	return r.mark(ctx, route, false)
}

func (r *reconciler) mark(ctx context.Context, route *smv1alpha1.Route, is bool) error {
	if (route.Annotations[made] != "") == is {
		return nil
	}
	before := route.DeepCopy()
	if delete(route.Annotations, made); is {
		metav1.SetMetaDataAnnotation(&route.ObjectMeta, made, "true")
	}
	if err := r.client.Patch(ctx, route, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("mark route: %w", err)
	}
	return nil
}
