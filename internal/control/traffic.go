package control

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

// route publishes the service's line of the routing table if it changed.
func (c *Controller) route(s *service) {
	line := c.line(s)
	c.mu.Lock()
	old, had := c.routes[s.key]
	c.mu.Unlock()
	if !had || !reflect.DeepEqual(old, line) {
		c.publish(s.key, &line)
	}
}

// line is what the gateway needs to know of a service.
func (c *Controller) line(s *service) route.Service {
	r := routing.Service{
		Key: s.key, Created: s.asWritten.CreationTimestamp.Time, Domain: c.cfg.Domain,
		InCluster: !c.cfg.OneMachine, Observed: s.observed, Models: s.modelNames(),
		Adapters: s.adapters,
	}
	for _, comp := range s.comps {
		rc := routing.NewComponent(s.asWritten, comp.name)
		rc.Route = s.routeOf(comp)
		if c.cfg.OneMachine && c.cfg.ComponentAddress != nil && comp.name == spec.Predictor && len(s.comps) > 1 {
			if host, _, err := net.SplitHostPort(c.cfg.ComponentAddress(s.key, comp.name)); err == nil {
				rc.Hosts = []string{host}
			}
		}
		if len(rc.Route.Targets) == 0 {
			f := s.facts(comp)
			rc.Why, rc.Returning = f.judge().message, f.returning(time.Now())
			rc.Stopped, rc.NextTry = f.stopped, routing.NextTry(f.of(cmp.Or(f.rolledOut, f.latest)))
		} else if f := s.facts(comp); f.asleep {
			rc.Why, rc.Cold = f.judge().message, f.comes(time.Now())
			rc.NextTry = routing.NextTry(f.of(f.rolledOut))
			rc.Hidden = true // what is ready of it is about to end
		}
		r.Components = append(r.Components, rc)
		r.Revisions = append(r.Revisions, comp.revisions...)
	}
	return routing.Line(r)
}

// routeOf is where the requests for a component go by the plan.
func (s *service) routeOf(comp *component) smv1alpha1.ComponentRoute {
	r := smv1alpha1.ComponentRoute{Component: string(comp.name)}
	for _, share := range s.plan.Traffic {
		if share.Component != comp.name {
			continue
		}
		r.Targets = append(r.Targets, smv1alpha1.RouteTarget{RevisionName: share.Revision, Percent: int32(share.Percent), Tag: s.tag(comp, share.Revision)})
	}
	// While one revision has all, there is nothing to tell apart, and no second host to guard.
	if len(r.Targets) == 1 && r.Targets[0].Tag == manifest.TagLatest && s.asWritten.Annotations[manifest.TagRoutingAnnotation] != "true" {
		r.Targets[0].Tag = ""
	}
	for _, t := range r.Targets {
		if t.Tag == "" {
			continue
		}
		r.HeaderRules = append(r.HeaderRules, smv1alpha1.HeaderRule{Header: manifest.TagHeader, Value: t.Tag, Tag: t.Tag})
		if t.Tag == manifest.TagLatest && routing.IsCanary(r) {
			r.HeaderRules = append(r.HeaderRules, smv1alpha1.HeaderRule{Header: manifest.TagHeader, Value: manifest.TagCanary, Tag: t.Tag})
		}
	}
	if len(r.Targets) > 0 {
		r.Mirror = s.mirror(comp, r)
		// One that can't be read is told as not in effect.
		r.Sticky, _ = manifest.ParseSticky(s.asWritten.Annotations[manifest.StickyAnnotation])
	}
	return r
}

// mirror is the canary that gets copies of requests: one at 0 %, if the service asks for that, and
// one whose drift is limited while its guarded rollout is under way.
func (s *service) mirror(comp *component, r smv1alpha1.ComponentRoute) *smv1alpha1.MirrorTarget {
	percent, err := manifest.ParseMirror(s.asWritten.Annotations[manifest.MirrorAnnotation])
	drift := s.guard.Has(spec.Drift) && slices.ContainsFunc(s.plan.Rollouts, func(r plan.Rollout) bool {
		return r.Component == comp.name && r.Guarded.Phase != "" && r.Guarded.Phase != plan.GuardRolledBack
	})
	if drift && percent == 0 {
		percent = manifest.DefaultGuardMirror
	}
	if err != nil || percent == 0 || !routing.IsCanary(r) {
		return nil
	}
	for _, t := range r.Targets {
		if t.Tag == manifest.TagLatest && (t.Percent == 0 || drift) {
			return &smv1alpha1.MirrorTarget{RevisionName: t.RevisionName, Percent: int32(percent)}
		}
	}
	return nil
}

// tag is what a revision with a share is called: latest, prev, or the name of its canary.
func (s *service) tag(comp *component, revision string) string {
	if comp.latest != nil && revision == comp.latest.Name {
		return manifest.TagLatest
	}
	for _, v := range comp.variants {
		if v.revision == revision {
			if manifest.IsTag(v.name) {
				return v.name
			}
			return ""
		}
	}
	for _, r := range s.plan.Rollouts {
		if r.Component == comp.name && slices.Contains(r.Aside, revision) {
			return "" // it is neither what comes nor what goes back
		}
	}
	return manifest.TagPrevious
}

// writeRoute keeps the Route object equal to where traffic goes. While nothing is ready the
// object stays as it was: a Route always sums to 100.
func (c *Controller) writeRoute(ctx context.Context, s *service) error {
	var comps []smv1alpha1.ComponentRoute
	for _, comp := range s.comps {
		if r := s.routeOf(comp); len(r.Targets) > 0 {
			comps = append(comps, r)
		}
	}
	if len(comps) == 0 {
		return nil
	}
	var r smv1alpha1.Route
	err := c.client.Get(ctx, client.ObjectKey{Namespace: s.key.Namespace, Name: s.key.Name}, &r)
	switch {
	case apierrors.IsNotFound(err):
		r = smv1alpha1.Route{ObjectMeta: metav1.ObjectMeta{
			Namespace: s.key.Namespace, Name: s.key.Name,
			Labels:          map[string]string{labelService: s.key.Name},
			OwnerReferences: []metav1.OwnerReference{owner(s.asWritten)},
		}}
		r.Spec = smv1alpha1.RouteSpec{Service: s.key.Name, Components: comps}
		if err := c.client.Create(ctx, &r); err != nil {
			return fmt.Errorf("create route: %w", err)
		}
	case err != nil:
		return fmt.Errorf("read route: %w", err)
	case !equality.Semantic.DeepEqual(r.Spec.Components, comps):
		before := r.DeepCopy()
		r.Spec.Components = comps
		if err := c.client.Patch(ctx, &r, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("write route: %w", err)
		}
	}
	return c.writeRouteStatus(ctx, s, &r)
}

func (c *Controller) writeRouteStatus(ctx context.Context, s *service, r *smv1alpha1.Route) error {
	before := r.DeepCopy()
	r.Status.ObservedGeneration = r.Generation
	r.Status.URLs = []smv1alpha1.RouteURL{{URL: c.url(manifest.Host(s.key.Name, s.key.Namespace, c.cfg.Domain))}}
	for _, comp := range s.comps {
		r.Status.URLs = append(r.Status.URLs, smv1alpha1.RouteURL{Component: string(comp.name), URL: c.url(manifest.Host(manifest.ComponentName(s.key.Name, comp.name), s.key.Namespace, c.cfg.Domain))})
		for _, t := range s.routeOf(comp).Targets {
			if t.Tag != "" {
				r.Status.URLs = append(r.Status.URLs, smv1alpha1.RouteURL{Component: string(comp.name), Tag: t.Tag, URL: c.url(manifest.TagHost(t.Tag, manifest.ComponentName(s.key.Name, comp.name), s.key.Namespace, c.cfg.Domain))})
			}
		}
	}
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Published", Message: "the gateway routes by this", ObservedGeneration: r.Generation, LastTransitionTime: metav1.Now()}
	if len(before.Status.Conditions) == 1 && before.Status.Conditions[0].Status == ready.Status {
		ready.LastTransitionTime = before.Status.Conditions[0].LastTransitionTime
	}
	r.Status.Conditions = []metav1.Condition{ready}
	if equality.Semantic.DeepEqual(before.Status, r.Status) {
		return nil
	}
	if err := c.client.Status().Patch(ctx, r, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("write status of route: %w", err)
	}
	return nil
}

func owner(is *v1beta1.InferenceService) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: v1beta1.GroupVersion.String(), Kind: "InferenceService", Name: is.Name, UID: is.UID, Controller: &yes, BlockOwnerDeletion: &yes}
}
