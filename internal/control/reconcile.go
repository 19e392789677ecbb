package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

// service is one reconcile's working set: the manifest, its compiled components and what was
// observed. It lives for one call.
type service struct {
	key spec.ServiceKey
	// asWritten is the object as the API has it; is has defaults filled in.
	asWritten *v1beta1.InferenceService
	is        *v1beta1.InferenceService
	stopped   bool
	comps     []*component
	observed  spec.Observed
	plan      plan.Plan
	// runtimeName and runtimeKind name the predictor's runtime; empty for a custom container.
	runtimeName, runtimeKind string
	// named says that it names config maps, which nobody watches.
	named bool
	// runtimeFaults is what keeps the runtimes that it uses from being accepted today.
	runtimeFaults []string
	notInEffect   []manifest.NotInEffect
	// models are the trained models that name it, and what engines are told of them; nil where it serves
	// one of its own.
	models map[string]told
	// relisted says that the list that engines read has changed.
	relisted bool
	// adapters are the names of the LoRA adapters that it lists.
	adapters []string
	// guard is how rollouts are guarded, nil if they aren't.
	guard *spec.Guard
}

// component is one component of a service on its way to revisions.
type component struct {
	name spec.Component
	// replicas are those that a rollout needs; scaling is set where the load moves them beside that.
	replicas int
	scaling  *scale.Config
	// metrics are what it scales on other than requests; nil means none.
	metrics *demand.Metrics
	// elsewhere says that somebody else of the platform sets the number of replicas.
	elsewhere bool
	// canary is the percent of traffic that latest is to get; nil means all.
	canary  *int
	refused *refusal
	// strategy is how a new revision takes over; nil means that all of it starts beside the old one.
	strategy *appsv1.DeploymentStrategy
	latest   *smv1alpha1.Revision
	// revisions are all that exist of this component, oldest first.
	revisions   []smv1alpha1.Revision
	unsupported []string
	// variants are the predictor's canaries of spec.canary.
	variants []*variant
}

// variant is a canary with a name and a share of its own.
type variant struct {
	name     string
	percent  int
	replicas int // 0 means what the share needs
	revision string
	refused  *refusal
}

func (c *component) revision(name string) *smv1alpha1.Revision {
	for i := range c.revisions {
		if c.revisions[i].Name == name {
			return &c.revisions[i]
		}
	}
	return nil
}

// reconcile runs one pass and returns when it should run again by itself.
func (c *Controller) reconcile(ctx context.Context, key spec.ServiceKey, is *v1beta1.InferenceService) (time.Time, error) {
	is = newest(c, is)
	if !controllerutil.ContainsFinalizer(is, finalizer) {
		before := is.DeepCopy()
		controllerutil.AddFinalizer(is, finalizer)
		if err := c.client.Patch(ctx, is, client.MergeFrom(before)); err != nil {
			return time.Time{}, fmt.Errorf("add finalizer: %w", err)
		}
		c.wrote(is)
	}
	s := &service{key: key, asWritten: is, is: is.DeepCopy(), stopped: is.Annotations[manifest.StopAnnotation] == "true", guard: guardOf(is)}
	if err := c.resolve(ctx, s); err != nil {
		return time.Time{}, err
	}
	observed, err := c.platform.Observe(ctx, key)
	if err != nil {
		return time.Time{}, fmt.Errorf("observe: %w", err)
	}
	s.observed = observed
	if err := c.listAdapters(ctx, s); err != nil {
		return time.Time{}, err
	}
	// An engine starts with its list in place.
	if err := c.listModels(ctx, s); err != nil {
		return time.Time{}, err
	}
	desired := c.desired(s)
	s.plan = plan.Next(desired, observed, time.Now())
	c.remember(s)
	c.tellGuard(s, desired)
	c.subjects(s)

	// The routing table goes first: a revision loses its traffic before it drains.
	c.route(s)
	// Digests must be written down before replicas are asked for anew, so that a restarted
	// replica gets the bytes that its revision was rolled out with.
	for _, comp := range s.comps {
		if err := c.writeRevisionStatus(ctx, s, comp); err != nil {
			return time.Time{}, err
		}
	}
	want, err := assignments(s)
	if err != nil {
		return time.Time{}, err
	}
	if err := c.platform.Apply(ctx, key, want); err != nil {
		return time.Time{}, fmt.Errorf("apply: %w", err)
	}
	c.listed(s)
	if err := c.writeRoute(ctx, s); err != nil {
		return time.Time{}, err
	}
	if err := c.writeStatus(ctx, s); err != nil {
		return time.Time{}, err
	}
	return c.again(s, time.Now()), c.trimHistory(ctx, s)
}

// desired puts the manifest's wish and the rollout's history into plan's words.
func (c *Controller) desired(s *service) plan.Desired {
	c.mu.Lock()
	remembered := maps.Clone(c.rollouts[s.key])
	c.mu.Unlock()
	// One that can't be read is told as not in effect.
	over, _ := manifest.ParseRolloutDuration(s.asWritten.Annotations[manifest.RolloutDurationAnnotation])
	d := plan.Desired{Drain: c.cfg.Drain}
	for _, comp := range s.comps {
		pc := plan.Component{Name: comp.name, Replicas: comp.replicas, Canary: comp.canary, Over: over}
		pc.Recreate = comp.strategy != nil && comp.strategy.Type == appsv1.RecreateDeploymentStrategyType
		pc.Rolling.Surge, pc.Rolling.Unavailable, _ = manifest.Rolling(comp.strategy, comp.replicas)
		for i := range comp.revisions {
			pc.Revisions = append(pc.Revisions, comp.revisions[i].Name)
		}
		if s.stopped {
			pc.Replicas = 0
		}
		if comp.latest != nil {
			pc.Latest = comp.latest.Name
		}
		for _, v := range comp.variants {
			if v.revision != "" {
				pc.Variants = append(pc.Variants, plan.Variant{Revision: v.revision, Percent: v.percent, Replicas: v.replicas})
			}
		}
		last, ok := remembered[comp.name]
		if !ok {
			last = rolloutOf(s.asWritten.Status.Components[v1beta1.ComponentType(comp.name)])
			last.Asleep = sleeper(s.asWritten, comp.name)
			last.Guarded = guardedBefore(s.asWritten, comp.name, last.Latest)
		}
		for _, name := range []*string{&last.Latest, &last.RolledOut, &last.Previous} {
			if comp.revision(*name) == nil {
				*name = ""
			}
		}
		last.Aside = slices.DeleteFunc(slices.Clone(last.Aside), func(name string) bool { return comp.revision(name) == nil })
		last.Draining = slices.DeleteFunc(slices.Clone(last.Draining), func(d plan.Drain) bool { return comp.revision(d.Revision) == nil })
		last.Variants = slices.DeleteFunc(slices.Clone(last.Variants), func(v plan.Variant) bool { return comp.revision(v.Revision) == nil })
		pc.Last = last
		c.guarded(s, &pc)
		c.wants(s, comp, &pc)
		d.Components = append(d.Components, pc)
	}
	return d
}

// rolloutOf reads a rollout from a status, which is the memory after a restart; what lost its
// traffic before has drained by then.
func rolloutOf(cs v1beta1.ComponentStatusSpec) plan.Rollout {
	r := plan.Rollout{Latest: cs.LatestCreatedRevision, RolledOut: cs.LatestRolledoutRevision, Previous: cs.PreviousRolledoutRevision}
	for _, t := range cs.Traffic {
		switch {
		case t.RevisionName == r.Latest && t.Percent != nil:
			r.Share = int(*t.Percent)
		case t.RevisionName != r.Latest && t.RevisionName != r.RolledOut && t.Tag == "":
			r.Aside = append(r.Aside, t.RevisionName) // or one of spec.canary, which plan tells apart
		}
	}
	return r
}

// remember keeps the rollouts for the next pass.
func (c *Controller) remember(s *service) {
	m := make(map[spec.Component]plan.Rollout, len(s.plan.Rollouts))
	for _, r := range s.plan.Rollouts {
		m[r.Component] = r
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rollouts[s.key] = m
}

// assignments turns the plan into what a platform understands.
func assignments(s *service) ([]platform.Assignment, error) {
	var out []platform.Assignment
	for _, a := range s.plan.Assignments {
		comp := s.component(a.Component)
		rev := comp.revision(a.Revision)
		if rev == nil {
			return nil, fmt.Errorf("plan names revision %s, which doesn't exist", a.Revision)
		}
		w, err := manifest.WorkloadOf(rev.Namespace, rev.Name, &rev.Spec)
		if err != nil {
			return nil, fmt.Errorf("read revision %s: %w", rev.Name, err)
		}
		for i := range w.Models {
			for _, m := range rev.Status.Models {
				if m.URI == w.Models[i].URI {
					w.Models[i].Digest = m.Digest
				}
			}
		}
		out = append(out, platform.Assignment{Workload: w, Replicas: a.Replicas, Elsewhere: comp.elsewhere, Startup: comp.startup(rev)})
	}
	return out, nil
}

// startup is how long an engine of a revision took until it was ready: the longest that was measured
// of the component's revisions with the same models.
func (comp *component) startup(rev *smv1alpha1.Revision) time.Duration {
	var longest time.Duration
	for i := range comp.revisions {
		r := &comp.revisions[i]
		if u := r.Status.Startup; u != nil && u.Load != nil && slices.Equal(r.Spec.Models, rev.Spec.Models) {
			longest = max(longest, u.Load.Duration)
		}
	}
	return longest
}

func (s *service) component(name spec.Component) *component {
	for _, c := range s.comps {
		if c.name == name {
			return c
		}
	}
	return &component{name: name}
}

// facts gathers what a component's status follows from.
func (s *service) facts(comp *component) *facts {
	f := &facts{component: comp.name, want: comp.replicas, refused: comp.refused, stopped: s.stopped}
	if comp.latest != nil {
		f.latest = comp.latest.Name
	}
	for _, r := range s.plan.Rollouts {
		if r.Component == comp.name {
			f.rolledOut, f.previous, f.settled, f.asleep = r.RolledOut, r.Previous, r.Settled, !r.Asleep.IsZero()
			if r.Guarded.Phase != "" {
				f.guard = s.guardStatus(&r)
			}
		}
	}
	most := 0
	for _, t := range s.plan.Traffic {
		if t.Component == comp.name {
			f.traffic = append(f.traffic, t)
			// A canary of spec.canary speaks for itself only.
			own := t.Percent
			if t.Revision == f.rolledOut || comp.latest != nil && t.Revision == comp.latest.Name {
				own += 100
			}
			if t.Percent > 0 && own > most {
				f.serving, most = t.Revision, own
			}
		}
	}
	if f.latest == "" {
		f.latest = f.rolledOut
	}
	for _, a := range s.plan.Assignments {
		if a.Component == comp.name && a.Revision == f.latest {
			f.want = a.Replicas
		}
	}
	if (comp.scaling != nil || comp.elsewhere) && f.latest == f.rolledOut {
		f.want = min(f.want, comp.replicas) // what the load wants beside that comes when it comes
	}
	for _, r := range s.observed.Replicas {
		if comp.revision(r.Revision.Name) != nil {
			f.replicas = append(f.replicas, r)
		}
	}
	return f
}

// writeRevisionStatus records what a component's revisions do: replicas, digests, timings.
func (c *Controller) writeRevisionStatus(ctx context.Context, s *service, comp *component) error {
	for i := range comp.revisions {
		rev := &comp.revisions[i]
		next := revisionStatus(rev, s.observed.Of(spec.RevisionKey{Namespace: rev.Namespace, Name: rev.Name}), time.Now())
		if equality.Semantic.DeepEqual(rev.Status, next) || s.begins(rev, &next) {
			continue
		}
		before := rev.DeepCopy()
		rev.Status = next
		if err := c.client.Status().Patch(ctx, rev, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("write status of revision %s: %w", rev.Name, err)
		}
		c.wrote(rev)
	}
	return nil
}

// begins reports whether a revision is about to get its first replicas: there is nothing to tell of
// it until the platform shows them, a moment later.
func (s *service) begins(rev *smv1alpha1.Revision, next *smv1alpha1.RevisionStatus) bool {
	return rev.Status.ObservedGeneration == 0 && next.Replicas == 0 && slices.ContainsFunc(s.plan.Assignments, func(a plan.Assignment) bool {
		return a.Revision == rev.Name && a.Replicas > 0
	})
}

// revisionStatus computes a revision's status. Digests and start-up times are written once
// and stay when the replicas are gone: they answer later what was served.
func revisionStatus(rev *smv1alpha1.Revision, replicas []spec.Replica, now time.Time) smv1alpha1.RevisionStatus {
	next := *rev.Status.DeepCopy()
	next.ObservedGeneration = rev.Generation
	next.Replicas = int32(len(replicas))
	next.ReadyReplicas = 0
	for _, r := range replicas {
		if r.Phase == spec.Ready {
			next.ReadyReplicas++
		}
		if next.RuntimeDigest == "" {
			next.RuntimeDigest = r.RuntimeDigest
		}
		for _, m := range rev.Spec.Models {
			digest := r.Digests[m.URI]
			known := slices.ContainsFunc(next.Models, func(k smv1alpha1.ResolvedModel) bool { return k.URI == m.URI })
			if digest != "" && !known {
				next.Models = append(next.Models, smv1alpha1.ResolvedModel{URI: m.URI, Digest: digest})
			}
		}
		if t := r.Timings; next.Startup == nil && !t.ReadyAt.IsZero() {
			next.Startup = &smv1alpha1.StartupDurations{
				Pull:  &metav1.Duration{Duration: t.Pull.Round(time.Millisecond)},
				Start: &metav1.Duration{Duration: t.Start.Round(time.Millisecond)},
				Load:  &metav1.Duration{Duration: t.Load.Round(time.Millisecond)},
				Ready: &metav1.Duration{Duration: (t.Pull + t.Start + t.Load).Round(time.Millisecond)},
			}
		}
	}
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "NoReplicas", Message: "no replica runs", ObservedGeneration: rev.Generation, LastTransitionTime: metav1.NewTime(now)}
	switch failed := worst(replicas); {
	case next.ReadyReplicas > 0:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, "Serving", fmt.Sprintf("%d of %d replicas ready", next.ReadyReplicas, next.Replicas)
	case failed != nil:
		ready.Reason, ready.Message = string(failed.Failure.Reason), bounded(failed.Failure.Message)
	case len(replicas) > 0:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionUnknown, "Starting", "starting"+phases(replicas)
	}
	if len(next.Conditions) == 1 && next.Conditions[0].Status == ready.Status {
		ready.LastTransitionTime = next.Conditions[0].LastTransitionTime
	}
	next.Conditions = []metav1.Condition{ready}
	return next
}

// trimHistory deletes the oldest revisions that are neither in use nor within the history.
func (c *Controller) trimHistory(ctx context.Context, s *service) error {
	for _, comp := range s.comps {
		used := map[string]bool{}
		f := s.facts(comp)
		for _, name := range []string{f.latest, f.rolledOut, f.previous, f.serving} {
			used[name] = true
		}
		for _, v := range comp.variants {
			used[v.revision] = true
		}
		for _, r := range f.replicas {
			used[r.Revision.Name] = true
		}
		idle := slices.DeleteFunc(slices.Clone(comp.revisions), func(r smv1alpha1.Revision) bool { return used[r.Name] })
		for i := range max(0, len(idle)-c.cfg.History) {
			c.forget(&idle[i])
			if err := c.client.Delete(ctx, &idle[i]); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("trim revision %s: %w", idle[i].Name, err)
			}
		}
	}
	return nil
}

// writeStatus computes the service's status and writes it if it differs, with an event for
// each transition of Ready.
func (c *Controller) writeStatus(ctx context.Context, s *service) error {
	next := c.status(s, time.Now())
	is := s.asWritten
	if equality.Semantic.DeepEqual(is.Status, next) {
		return nil
	}
	before := is.DeepCopy()
	is.Status = next
	if err := c.client.Status().Patch(ctx, is, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	c.wrote(is)
	c.tellSleep(is, before.Status.Conditions, next.Conditions)
	c.tellScaling(is, conditionOf(before.Status.Conditions, v1beta1.ConditionScalingActive), conditionOf(next.Conditions, v1beta1.ConditionScalingActive))
	if is, was := conditionOf(next.Conditions, v1beta1.ConditionRuntimeValid), conditionOf(before.Status.Conditions, v1beta1.ConditionRuntimeValid); is.Message != was.Message && is.Message != "" {
		c.events.Eventf(s.asWritten, corev1.EventTypeWarning, is.Reason, "%s", is.Message)
	}
	was, now := conditionOf(before.Status.Conditions, v1beta1.ConditionReady), conditionOf(next.Conditions, v1beta1.ConditionReady)
	switch {
	case now.Status == corev1.ConditionTrue && was.Status != corev1.ConditionTrue:
		c.events.Eventf(is, corev1.EventTypeNormal, "InferenceServiceReady", "InferenceService [%s] is Ready", is.Name)
	case now.Status != corev1.ConditionTrue && was.Status == corev1.ConditionTrue:
		c.events.Eventf(is, corev1.EventTypeWarning, "InferenceServiceNotReady", "InferenceService [%s] is no longer Ready: %s", is.Name, cmp.Or(now.Message, now.Reason))
	case now.Reason == smv1alpha1.RolloutRolledBack: // tellGuard did
	case now.Status == corev1.ConditionFalse && was.Reason != now.Reason:
		c.events.Eventf(is, corev1.EventTypeWarning, cmp.Or(now.Reason, "InferenceServiceNotReady"), "%s", now.Message)
	}
	return nil
}
