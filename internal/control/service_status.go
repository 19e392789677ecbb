package control

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Annotations of the status that make visible what KServe's status has no field for
// (kserve.md section 3, issues 5297 and 3674).
const (
	statusProtocols = "stationmaster.dev/protocols"
	statusModelName = "stationmaster.dev/model-name"
	statusDigest    = "stationmaster.dev/model-digest"
	statusPath      = "stationmaster.dev/path-prefix"
)

var readyCondition = map[spec.Component]v1beta1.ConditionType{
	spec.Predictor:   v1beta1.ConditionPredictorReady,
	spec.Transformer: v1beta1.ConditionTransformerReady,
	spec.Explainer:   v1beta1.ConditionExplainerReady,
}

// status computes what the InferenceService's status should say. It reads nothing but s.
func (c *Controller) status(s *service, now time.Time) v1beta1.InferenceServiceStatus {
	old := s.asWritten.Status
	next := v1beta1.InferenceServiceStatus{
		ObservedGeneration: s.asWritten.Generation,
		Components:         map[v1beta1.ComponentType]v1beta1.ComponentStatusSpec{},
		DeploymentMode:     manifest.DeploymentMode(s.is, ""),
		Annotations:        map[string]string{},
		URL:                c.url(manifest.Host(s.key.Name, s.key.Namespace, c.cfg.Domain)),
		Address:            &v1beta1.Addressable{URL: c.address(s)},
	}
	if !c.cfg.OneMachine && manifest.ClusterLocal(s.is.Labels) {
		next.URL = next.Address.URL
	}
	if s.runtimeKind == "ServingRuntime" {
		next.ServingRuntimeName = s.runtimeName
	} else {
		next.ClusterServingRuntimeName = s.runtimeName
	}
	conds := &conditions{old: old.Conditions, now: metav1.NewTime(now)}
	ready := verdict{status: corev1.ConditionTrue}
	for _, comp := range s.comps {
		f := s.facts(comp)
		v := f.judge()
		conds.set(readyCondition[comp.name], v, "")
		ready = worse(ready, v)
		next.Components[v1beta1.ComponentType(comp.name)] = c.componentStatus(s, comp, f)
		if comp.name == spec.Predictor {
			next.ModelStatus = f.modelStatus()
			c.annotate(next.Annotations, s, comp, f)
			s.annotateGuard(next.Annotations)
			if len(comp.variants) > 0 {
				var canaries verdict
				next.CanaryStatuses, canaries = s.canaries(comp)
				conds.set(v1beta1.ConditionCanaryPredictorReady, canaries, "Info")
			}
		}
	}
	ingress := c.ingress(s)
	conds.set(v1beta1.ConditionIngressReady, ingress, "")
	ready = worse(ready, ingress)
	if s.stopped {
		conds.set(v1beta1.ConditionStopped, verdict{corev1.ConditionTrue, "Stopped", ""}, "Info")
	}
	conds.set(v1beta1.ConditionFieldsInEffect, fieldsInEffect(s, c.cfg.OneMachine), "Info")
	if v, faulty := runtimeValid(s); faulty {
		conds.set(v1beta1.ConditionRuntimeValid, v, "Info")
	}
	if v, scales := c.scalingActive(s); scales {
		conds.set(v1beta1.ConditionScalingActive, v, "Info")
	}
	conds.set(v1beta1.ConditionReady, ready, "")
	// Ready comes first, as people read from the top.
	slices.SortStableFunc(conds.list, func(a, b v1beta1.Condition) int { return rank(a.Type) - rank(b.Type) })
	next.Conditions = conds.list
	return next
}

// address is the URL by which others on the platform reach the service.
func (c *Controller) address(s *service) string {
	if c.cfg.OneMachine {
		return "http://" + c.cfg.HTTP + manifest.PathPrefix(s.key.Namespace, s.key.Name)
	}
	return "http://" + manifest.ClusterHost(s.key.Name, s.entry(), s.key.Namespace)
}

func rank(t v1beta1.ConditionType) int {
	if t == v1beta1.ConditionReady {
		return 0
	}
	return 1
}

// worse returns the verdict that sums up two: False before Unknown before True, the first one
// of equals.
func worse(a, b verdict) verdict {
	order := map[corev1.ConditionStatus]int{corev1.ConditionTrue: 0, corev1.ConditionUnknown: 1, corev1.ConditionFalse: 2}
	if order[b.status] > order[a.status] {
		return b
	}
	return a
}

// ingress says whether a request that comes now finds a ready replica: IngressReady is about
// serving, the component conditions are about being what the manifest asks for.
func (c *Controller) ingress(s *service) verdict {
	entry := s.entry()
	f := s.facts(s.component(entry))
	switch {
	case s.stopped:
		return verdict{corev1.ConditionFalse, "Stopped", "stopped by the annotation serving.kserve.io/stop"}
	case f.serving == "", f.asleep && !f.comes(time.Now()):
		return verdict{corev1.ConditionUnknown, "NoReadyReplica", fmt.Sprintf("the %s has no ready replica; requests are answered with 503", entry)}
	}
	v := verdict{status: corev1.ConditionTrue}
	if s.models != nil {
		return v // its models have the names that it answers to
	}
	other, tie, taken := c.nameTaken(s.key, s.asWritten.CreationTimestamp.Time, s.key.Name)
	if !taken {
		return v
	}
	v.reason = "ModelNameTaken"
	why := fmt.Sprintf("belongs to the older %s", other)
	if tie {
		why = fmt.Sprintf("is that of %s too, made in the same second, so requests by it are refused", other)
	}
	if other == "graph "+s.key.String() {
		v.reason = "NameTaken"
		v.message = fmt.Sprintf("host, path prefix and model name may lead to %s instead: give one of the two another name", other)
		return v
	}
	v.message = fmt.Sprintf("the model name %q on the bare address %s; reach this service by its host or by %s", s.key.Name, why, manifest.PathPrefix(s.key.Namespace, s.key.Name))
	return v
}

func (s *service) entry() spec.Component {
	if s.component(spec.Transformer).replicas > 0 {
		return spec.Transformer
	}
	return spec.Predictor
}

func fieldsInEffect(s *service, oneMachine bool) verdict {
	var parts []string
	for _, n := range s.notInEffect {
		if oneMachine || !n.ClusterOnly {
			parts = append(parts, n.Field+": "+n.Reason)
		}
	}
	for _, comp := range s.comps {
		if !oneMachine {
			break
		}
		for _, field := range comp.unsupported {
			parts = append(parts, field+": has no meaning for a process on one machine")
		}
	}
	if len(parts) == 0 {
		return verdict{status: corev1.ConditionTrue}
	}
	slices.Sort(parts)
	parts = slices.Compact(parts)
	return verdict{corev1.ConditionFalse, "NotYetInEffect", "accepted and kept, without effect here: " + strings.Join(parts, "; ")}
}

// runtimeValid tells of runtimes that wouldn't be accepted today, and reports whether there are any.
func runtimeValid(s *service) (verdict, bool) {
	if len(s.runtimeFaults) == 0 {
		return verdict{}, false
	}
	slices.Sort(s.runtimeFaults)
	return verdict{corev1.ConditionFalse, "InvalidRuntime", strings.Join(slices.Compact(s.runtimeFaults), "; ")}, true
}

func (c *Controller) componentStatus(s *service, comp *component, f *facts) v1beta1.ComponentStatusSpec {
	host := manifest.Host(manifest.ComponentName(s.key.Name, comp.name), s.key.Namespace, c.cfg.Domain)
	cs := v1beta1.ComponentStatusSpec{
		LatestCreatedRevision:     f.latest,
		LatestReadyRevision:       s.asWritten.Status.Components[v1beta1.ComponentType(comp.name)].LatestReadyRevision,
		LatestRolledoutRevision:   f.rolledOut,
		PreviousRolledoutRevision: s.asWritten.Status.Components[v1beta1.ComponentType(comp.name)].PreviousRolledoutRevision,
		URL:                       c.url(host),
		RestURL:                   c.url(host),
	}
	if rev := comp.latest; rev != nil && slices.Contains(rev.Spec.Protocols, string(spec.GRPCV2)) {
		cs.GrpcURL = c.cfg.GRPC
	}
	if f.previous != "" {
		cs.PreviousRolledoutRevision = f.previous
	}
	for _, r := range f.of(f.latest) {
		if r.Phase == spec.Ready {
			cs.LatestReadyRevision = f.latest
		}
	}
	for _, target := range s.routeOf(comp).Targets {
		percent := int64(target.Percent)
		t := v1beta1.TrafficTarget{RevisionName: target.RevisionName, Percent: &percent, Tag: target.Tag}
		if t.RevisionName == f.latest {
			yes := true
			t.LatestRevision = &yes
		}
		if t.Tag != "" {
			t.URL = c.url(manifest.TagHost(t.Tag, manifest.ComponentName(s.key.Name, comp.name), s.key.Namespace, c.cfg.Domain))
		}
		cs.Traffic = append(cs.Traffic, t)
	}
	return cs
}

// canaries tells of each canary of spec.canary, and sums up. Ready doesn't depend on them, as in
// KServe: the stable predictor serves without.
func (s *service) canaries(comp *component) ([]v1beta1.CanaryStatus, verdict) {
	var out []v1beta1.CanaryStatus
	var why []string
	for _, v := range comp.variants {
		f := s.variantFacts(comp, v)
		verdict := f.judge()
		one := v1beta1.CanaryStatus{Name: v.name, Ready: verdict.status == corev1.ConditionTrue}
		for _, t := range f.traffic {
			one.TrafficPercent += int32(t.Percent)
		}
		model := f.modelStatus()
		one.ModelStatus = &model
		if !one.Ready {
			why = append(why, v.name+": "+verdict.message)
		}
		out = append(out, one)
	}
	switch {
	case s.stopped:
		return out, verdict{corev1.ConditionFalse, "Stopped", ""}
	case len(why) > 0:
		return out, verdict{corev1.ConditionFalse, "CanariesNotReady", strings.Join(why, "; ")}
	}
	return out, verdict{corev1.ConditionTrue, "AllCanariesReady", ""}
}

// variantFacts are a canary's, as if it were a component of its own.
func (s *service) variantFacts(comp *component, v *variant) *facts {
	f := &facts{component: comp.name, refused: v.refused, latest: v.revision, rolledOut: v.revision, stopped: s.stopped}
	for _, a := range s.plan.Assignments {
		if a.Component == comp.name && a.Revision == v.revision {
			f.want = a.Replicas
		}
	}
	for _, t := range s.plan.Traffic {
		if t.Component == comp.name && t.Revision == v.revision {
			f.traffic, f.serving = append(f.traffic, t), t.Revision
		}
	}
	for _, r := range s.observed.Replicas {
		if v.revision != "" && r.Revision.Name == v.revision {
			f.replicas = append(f.replicas, r)
		}
	}
	ready := 0
	for _, r := range f.of(v.revision) {
		if r.Phase == spec.Ready {
			ready++
		}
	}
	f.settled = f.want > 0 && ready >= f.want
	return f
}

func (c *Controller) annotate(a map[string]string, s *service, comp *component, f *facts) {
	a[statusPath] = manifest.PathPrefix(s.key.Namespace, s.key.Name)
	rev := comp.revision(f.serving)
	if rev == nil {
		rev = comp.latest
	}
	if rev == nil {
		return
	}
	a[statusProtocols] = strings.Join(rev.Spec.Protocols, ",")
	a[statusModelName] = rev.Spec.ModelName
	if len(rev.Status.Models) > 0 {
		a[statusDigest] = rev.Status.Models[0].Digest
	}
}
