package kubeapi

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
)

const (
	sweepFirst = 100 * time.Millisecond
	sweepMost  = 10 * time.Second
	sweepPage  = 500
)

// sweep empties terminating namespaces and removes them, until ctx is done. Content that has
// finalizers of its own is waited for.
func (a *api) sweep(ctx context.Context, log *slog.Logger) error {
	core, err := v1.NewForConfig(a.loopback)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	meta, err := metadata.NewForConfig(a.loopback)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(a.loopback)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	// What was terminating when an earlier run ended is found by the first round.
	wait := sweepFirst
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.namespaces.doomed:
			wait = sweepFirst
		case <-timer.C:
		}
		left, err := sweepOnce(ctx, core, meta, disco)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			log.LogAttrs(ctx, slog.LevelDebug, "sweep of namespaces will be tried again", slog.Any("err", err))
		}
		if left || err != nil {
			timer.Reset(wait)
			wait = min(2*wait, sweepMost)
		}
	}
}

// sweepOnce does what can be done now and reports whether namespaces are left to finish.
func sweepOnce(ctx context.Context, core *v1.CoreV1Client, meta metadata.Interface, disco discovery.DiscoveryInterface) (left bool, err error) {
	list, err := core.Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return true, fmt.Errorf("list namespaces: %w", err)
	}
	for i := range list.Items {
		ns := &list.Items[i]
		if ns.DeletionTimestamp == nil {
			continue
		}
		remains, err := empty(ctx, meta, disco, ns.Name)
		if err != nil {
			return true, err
		}
		if len(remains) > 0 {
			left = true
			if err := report(ctx, core, ns, remains); err != nil {
				return true, err
			}
			continue
		}
		ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		if _, err := core.Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return true, fmt.Errorf("finalize namespace %s: %w", ns.Name, err)
		}
	}
	return left, nil
}

// empty deletes all that the namespace holds and says what is still there.
func empty(ctx context.Context, meta metadata.Interface, disco discovery.DiscoveryInterface, ns string) (remains []string, err error) {
	kinds, err := deletable(disco)
	if err != nil {
		return nil, err
	}
	background := metav1.DeletePropagationBackground
	for _, kind := range kinds {
		c := meta.Resource(kind).Namespace(ns)
		found, err := c.List(ctx, metav1.ListOptions{Limit: sweepPage})
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s in %s: %w", kind.Resource, ns, err)
		}
		if len(found.Items) == 0 {
			continue
		}
		if err := c.DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("delete %s in %s: %w", kind.Resource, ns, err)
		}
		if found, err = c.List(ctx, metav1.ListOptions{Limit: sweepPage}); err != nil {
			return nil, fmt.Errorf("list %s in %s: %w", kind.Resource, ns, err)
		}
		if n := len(found.Items); n > 0 {
			remains = append(remains, fmt.Sprintf("%s has %d resource instances", kind.GroupResource(), n))
		}
	}
	return remains, nil
}

// deletable lists the namespaced kinds, events last: deleting the others may make some.
func deletable(disco discovery.DiscoveryInterface) ([]schema.GroupVersionResource, error) {
	_, lists, err := disco.ServerGroupsAndResources()
	if err != nil {
		return nil, fmt.Errorf("discover kinds: %w", err)
	}
	seen := map[schema.GroupResource]bool{}
	var kinds, events []schema.GroupVersionResource
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range l.APIResources {
			kind := gv.WithResource(r.Name)
			if !r.Namespaced || strings.Contains(r.Name, "/") || seen[kind.GroupResource()] ||
				!slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "deletecollection") {
				continue
			}
			seen[kind.GroupResource()] = true
			if r.Name == "events" {
				events = append(events, kind)
			} else {
				kinds = append(kinds, kind)
			}
		}
	}
	return append(kinds, events...), nil
}

// report says in the namespace's status what holds it up, as Kubernetes does.
func report(ctx context.Context, core *v1.CoreV1Client, ns *corev1.Namespace, remains []string) error {
	cond := corev1.NamespaceCondition{
		Type: corev1.NamespaceContentRemaining, Status: corev1.ConditionTrue, Reason: "SomeResourcesRemain",
		Message:            "Some resources are remaining: " + strings.Join(remains, ", "),
		LastTransitionTime: metav1.Now(),
	}
	at := slices.IndexFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool { return c.Type == cond.Type })
	if at >= 0 && ns.Status.Conditions[at].Message == cond.Message {
		return nil
	}
	if at >= 0 {
		ns.Status.Conditions[at] = cond
	} else {
		ns.Status.Conditions = append(ns.Status.Conditions, cond)
	}
	if _, err := core.Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("update the status of namespace %s: %w", ns.Name, err)
	}
	return nil
}
