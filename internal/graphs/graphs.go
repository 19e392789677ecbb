// Package graphs reconciles InferenceGraphs: it hands their lines to whoever keeps the routing
// table, and writes into their status whether the services that they name can answer.
package graphs

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Config is what the reconciler needs to know of its surroundings. All but GatewayHost is
// required.
type Config struct {
	// Domain is the last part of outside hosts.
	Domain string
	// URL makes a URL of a host.
	URL func(host string) string
	// InCluster says that graphs have names within a cluster; GatewayHost is then what those names
	// lead to, and empty leaves them out of its DNS.
	InCluster   bool
	GatewayHost string
	// Publish replaces a graph's line of the routing table, nil removes it, and returns the table
	// that came of it.
	Publish func(key spec.ServiceKey, line *route.Service) *route.Table
	Events  record.EventRecorder
}

// reconciler keeps graphs true to the services that they name.
type reconciler struct {
	cfg    Config
	client client.Client
}

// Add makes the reconciler part of a controller manager, which runs it.
func Add(mgr ctrl.Manager, cfg Config) error {
	r := &reconciler{cfg: cfg, client: mgr.GetClient()}
	skipNameCheck := true
	b := builder.ControllerManagedBy(mgr).
		Named("inferencegraph").
		For(&v1alpha1.InferenceGraph{}).
		Watches(&v1beta1.InferenceService{}, handler.EnqueueRequestsFromMapFunc(r.concerned)).
		WithOptions(controller.Options{SkipNameValidation: &skipNameCheck})
	if cfg.GatewayHost != "" {
		b = b.Owns(&corev1.Service{})
	}
	if err := b.Complete(r); err != nil {
		return fmt.Errorf("build graph controller: %w", err)
	}
	return nil
}

// concerned returns the graphs whose status a service may change: those that name it, and those
// that share a name with it.
func (r *reconciler) concerned(ctx context.Context, service client.Object) []reconcile.Request {
	var list v1alpha1.InferenceGraphList
	if err := r.client.List(ctx, &list); err != nil {
		return nil // the cache is gone, and with it this reconciler
	}
	var out []reconcile.Request
	for i := range list.Items {
		g := &list.Items[i]
		names := g.Namespace == service.GetNamespace() && slices.Contains(manifest.GraphServices(g), service.GetName())
		if names || g.Name == service.GetName() {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(g)})
		}
	}
	return out
}

// longest bounds one reconcile, which takes milliseconds where the API answers.
const longest = 30 * time.Second

// Reconcile brings one graph's line and status up to date.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancel()
	key := spec.ServiceKey{Namespace: req.Namespace, Name: req.Name}
	var g v1alpha1.InferenceGraph
	err := r.client.Get(ctx, req.NamespacedName, &g)
	if apierrors.IsNotFound(err) || err == nil && !g.DeletionTimestamp.IsZero() {
		r.cfg.Publish(key, nil)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read graph %s: %w", key, err)
	}
	line := routing.GraphLine(&g, r.cfg.Domain, r.cfg.InCluster)
	f := facts{graph: &g, line: &line, table: r.cfg.Publish(key, &line), services: map[string]*v1beta1.InferenceService{}}
	for _, name := range manifest.GraphServices(&g) {
		var is v1beta1.InferenceService
		err := r.client.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: name}, &is)
		if client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("read service %s of graph %s: %w", name, key, err)
		}
		if err == nil {
			f.services[name] = &is
		}
	}
	// A Service can't have a name that the graph is refused for.
	if r.cfg.GatewayHost != "" && len(g.Name) <= validation.DNS1035LabelMaxLength {
		if f.nameInCluster, err = r.serve(ctx, &g); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, r.write(ctx, &g, f.status(r.cfg, time.Now()))
}

// write writes a status that differs, with an event where Ready changes.
func (r *reconciler) write(ctx context.Context, g *v1alpha1.InferenceGraph, next v1alpha1.InferenceGraphStatus) error {
	if equality.Semantic.DeepEqual(g.Status, next) {
		return nil
	}
	before := g.DeepCopy()
	g.Status = next
	if err := r.client.Status().Patch(ctx, g, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write status of graph %s/%s: %w", g.Namespace, g.Name, err)
	}
	was, now := conditionOf(before.Status.Conditions, v1beta1.ConditionReady), conditionOf(next.Conditions, v1beta1.ConditionReady)
	switch {
	case now.Status == corev1.ConditionTrue && was.Status != corev1.ConditionTrue:
		r.cfg.Events.Eventf(g, corev1.EventTypeNormal, "InferenceGraphReady", "InferenceGraph [%s] is Ready", g.Name)
	case now.Status != corev1.ConditionTrue && was.Status == corev1.ConditionTrue:
		r.cfg.Events.Eventf(g, corev1.EventTypeWarning, "InferenceGraphNotReady", "InferenceGraph [%s] is no longer Ready: %s", g.Name, now.Message)
	case now.Status == corev1.ConditionFalse && was.Reason != now.Reason:
		r.cfg.Events.Eventf(g, corev1.EventTypeWarning, now.Reason, "%s", now.Message)
	}
	return nil
}

// serve gives the graph its name in the cluster's DNS, which leads to the gateway. It returns why
// it didn't: another Service has the name.
func (r *reconciler) serve(ctx context.Context, g *v1alpha1.InferenceGraph) (taken string, _ error) {
	var s corev1.Service
	err := r.client.Get(ctx, client.ObjectKeyFromObject(g), &s)
	switch {
	case err == nil && !metav1.IsControlledBy(&s, g):
		return fmt.Sprintf("a Service %s exists that isn't the graph's, so pods don't reach the graph by that name", s.Name), nil
	case err == nil && s.Spec.ExternalName == r.cfg.GatewayHost:
		return "", nil
	case err == nil:
		before := s.DeepCopy()
		s.Spec.ExternalName = r.cfg.GatewayHost
		if err := r.client.Patch(ctx, &s, client.MergeFrom(before)); err != nil {
			return "", fmt.Errorf("change service of graph %s/%s: %w", g.Namespace, g.Name, err)
		}
		return "", nil
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("read service of graph %s/%s: %w", g.Namespace, g.Name, err)
	}
	s = corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.Namespace, Name: g.Name, Labels: map[string]string{"serving.kserve.io/inferencegraph": g.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g, v1alpha1.GroupVersion.WithKind("InferenceGraph"))},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: r.cfg.GatewayHost,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	if err := r.client.Create(ctx, &s); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("make service of graph %s/%s: %w", g.Namespace, g.Name, err)
	}
	return "", nil
}
