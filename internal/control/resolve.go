package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Labels of the objects that a service owns. The first two are KServe's.
const (
	labelService   = "serving.kserve.io/inferenceservice"
	labelComponent = "component"
	labelNumber    = "stationmaster.dev/revision-number"
)

// revisionsOf is the index of revisions by their service.
const revisionsOf = "service"

// resolve fills in defaults, chooses the runtime, compiles each component, and finds or makes
// its revision. What can't be compiled is written into the component, not returned: it is the
// manifest's fault and stands in its status.
func (c *Controller) resolve(ctx context.Context, s *service) error {
	manifest.Default(s.is, manifest.Defaults{})
	s.notInEffect = append(manifest.NotInEffectOf(s.asWritten), manifest.DirectNotInEffect(s.asWritten, c.cfg.DirectGateway.Name != "")...)
	prefill, err := PrefillNotInEffect(ctx, c.client, s.is)
	if err != nil {
		return err
	}
	s.notInEffect = append(s.notInEffect, prefill...)
	revisions, err := c.revisions(ctx, s.key)
	if err != nil {
		return err
	}
	for _, name := range []spec.Component{spec.Predictor, spec.Transformer, spec.Explainer} {
		ext := extension(s.is, name)
		if ext == nil {
			continue
		}
		comp := &component{name: name, canary: canary(ext), revisions: revisions[name]}
		c.scaleOf(s, comp, ext)
		comp.strategy = ext.DeploymentStrategy
		s.notInEffect = append(s.notInEffect, strategyNotInEffect(ext, name, comp.scaling != nil)...)
		s.comps = append(s.comps, comp)
	}
	if !c.cfg.OneMachine {
		if errs := manifest.Validate(s.is, nil); len(errs) > 0 {
			for _, comp := range s.comps {
				comp.refused = &refusal{v1beta1.InvalidPredictorSpec, errs.ToAggregate().Error()}
			}
			return nil
		}
	}
	for _, comp := range s.comps {
		if comp.refused != nil {
			continue
		}
		if err := c.resolveComponent(ctx, s, comp); err != nil {
			return err
		}
	}
	return nil
}

// strategyNotInEffect reports a rollingUpdate of a component whose number of replicas moves.
func strategyNotInEffect(ext *v1beta1.ComponentExtensionSpec, name spec.Component, moves bool) []manifest.NotInEffect {
	if _, _, ok := manifest.Rolling(ext.DeploymentStrategy, 1); !ok || !moves {
		return nil
	}
	return []manifest.NotInEffect{{
		Field:  fmt.Sprintf("spec.%s.deploymentStrategy.rollingUpdate", name),
		Reason: "the load decides how many replicas of a revision run; give minReplicas and maxReplicas the same number, or use type Recreate",
	}}
}

// replicas is the number of replicas of a component that doesn't scale: minReplicas, and one at
// least, for nothing would start the first.
func replicas(ext *v1beta1.ComponentExtensionSpec) int {
	if ext.MinReplicas == nil {
		return 1
	}
	return max(int(*ext.MinReplicas), 1)
}

// canary is the share of traffic that the newest shape is to get; nil means all.
func canary(ext *v1beta1.ComponentExtensionSpec) *int {
	if ext.CanaryTrafficPercent == nil {
		return nil
	}
	n := min(max(int(*ext.CanaryTrafficPercent), 0), 100)
	return &n
}

func extension(is *v1beta1.InferenceService, name spec.Component) *v1beta1.ComponentExtensionSpec {
	switch {
	case name == spec.Predictor:
		return &is.Spec.Predictor.ComponentExtensionSpec
	case name == spec.Transformer && is.Spec.Transformer != nil:
		return &is.Spec.Transformer.ComponentExtensionSpec
	case name == spec.Explainer && is.Spec.Explainer != nil:
		return &is.Spec.Explainer.ComponentExtensionSpec
	}
	return nil
}

func (c *Controller) resolveComponent(ctx context.Context, s *service, comp *component) error {
	if s.held() && comp.hold(s.asWritten.Status.Components[v1beta1.ComponentType(comp.name)], s.is.Spec.Canary) {
		// Compiled for what it doesn't support alone; a runtime that is gone or broken changes nothing.
		var ignored *refusal
		_, err := c.compile(ctx, s, comp, s.is)
		s.runtimeName, s.runtimeKind = s.heldRuntime()
		if err != nil {
			return refuse(err, &ignored)
		}
		return nil
	}
	var err error
	if comp.latest, err = c.revisionOf(ctx, s, comp, s.is); err != nil {
		return comp.refuse(err)
	}
	if comp.name != spec.Predictor {
		return nil
	}
	latest := comp.latest.Name
	for i := range s.is.Spec.Canary {
		if err := c.resolveVariant(ctx, s, comp, i); err != nil {
			return err
		}
	}
	comp.latest = comp.revision(latest) // the list may have moved
	return nil
}

// held reports whether a changed runtime must not roll out: the service asks for that, is Ready,
// and its own spec is the one that it became Ready with.
func (s *service) held() bool {
	st := &s.asWritten.Status
	return s.asWritten.Annotations[manifest.DisableAutoUpdateAnnotation] == "true" &&
		st.ObservedGeneration == s.asWritten.Generation && conditionOf(st.Conditions, v1beta1.ConditionReady).Status == corev1.ConditionTrue
}

func (s *service) heldRuntime() (name, kind string) {
	if st := &s.asWritten.Status; st.ServingRuntimeName != "" {
		return st.ServingRuntimeName, "ServingRuntime"
	}
	return s.asWritten.Status.ClusterServingRuntimeName, "ClusterServingRuntime"
}

// hold keeps the revisions that a status names, and reports whether all of them are there.
func (comp *component) hold(cs v1beta1.ComponentStatusSpec, canaries []v1beta1.CanarySpec) bool {
	latest := comp.revision(cs.LatestCreatedRevision)
	if latest == nil {
		return false
	}
	var variants []*variant
	if comp.name == spec.Predictor {
		for i := range canaries {
			v := newVariant(&canaries[i])
			for _, t := range cs.Traffic {
				if t.Tag == v.name && comp.revision(t.RevisionName) != nil {
					v.revision = t.RevisionName
				}
			}
			if v.revision == "" {
				return false
			}
			variants = append(variants, v)
		}
	}
	comp.latest, comp.variants = latest, variants
	return true
}

func newVariant(canary *v1beta1.CanarySpec) *variant {
	v := &variant{name: canary.Predictor.Name, percent: int(canary.TrafficPercent)}
	if least := canary.Predictor.MinReplicas; least != nil {
		v.replicas = int(*least)
	}
	return v
}

// resolveVariant does for a canary of spec.canary what resolveComponent does for the stable
// predictor. Its revisions stand in the same history, so that a promoted one is found again.
func (c *Controller) resolveVariant(ctx context.Context, s *service, comp *component, i int) error {
	v := newVariant(&s.is.Spec.Canary[i])
	comp.variants = append(comp.variants, v)
	is, err := manifest.CanaryService(s.is, i)
	if err != nil {
		return refuse(err, &v.refused)
	}
	rev, err := c.revisionOf(ctx, s, comp, is)
	if err != nil {
		return refuse(err, &v.refused)
	}
	v.revision = rev.Name
	return nil
}

// revisionOf finds or makes the revision for the shape that a component has in is.
func (c *Controller) revisionOf(ctx context.Context, s *service, comp *component, is *v1beta1.InferenceService) (*smv1alpha1.Revision, error) {
	compiled, err := c.compile(ctx, s, comp, is)
	if err != nil {
		return nil, err
	}
	// A manifest that is put back finds the revision that was made of it, with its bytes.
	for i := len(comp.revisions) - 1; i >= 0; i-- {
		if compiled.Is(&comp.revisions[i].Spec) {
			return &comp.revisions[i], nil
		}
	}
	rev := newRevision(s, comp, compiled)
	if err := c.client.Create(ctx, rev); err != nil {
		return nil, fmt.Errorf("create revision %s: %w", rev.Name, err)
	}
	c.wrote(rev)
	comp.revisions = append(comp.revisions, *rev)
	c.events.Eventf(s.asWritten, "Normal", "RevisionCreated", "Created revision %s", rev.Name)
	return &comp.revisions[len(comp.revisions)-1], nil
}

// compile chooses the runtime and merges it with the shape that a component has in is.
func (c *Controller) compile(ctx context.Context, s *service, comp *component, is *v1beta1.InferenceService) (manifest.Compiled, error) {
	in := manifest.Input{Service: is, Component: comp.name}
	if comp.name == spec.Predictor && is.Spec.Predictor.Model != nil {
		chosen, err := c.chooseRuntime(ctx, s, is)
		if err != nil {
			return manifest.Compiled{}, err
		}
		in.Runtime, in.RuntimeName, in.RuntimeKind, in.RuntimeAnnotations = chosen.Spec, chosen.Name, chosen.Kind, chosen.Annotations
		if is == s.is {
			s.runtimeName, s.runtimeKind = chosen.Name, chosen.Kind
		}
	}
	if comp.name != spec.Predictor {
		in.PredictorHost = manifest.Host(manifest.ComponentName(s.key.Name, spec.Predictor), s.key.Namespace, c.cfg.Domain)
		if c.cfg.ComponentAddress != nil {
			in.PredictorHost = c.cfg.ComponentAddress(s.key, spec.Predictor)
		}
	}
	var unread error
	in.ConfigMap = func(name string) (map[string]string, error) {
		s.named = true
		data, err := c.configMap(ctx, s.key.Namespace, name)
		if err != nil && !errors.Is(err, errdef.ErrNotFound) {
			unread = err
		}
		return data, err
	}
	compiled, err := manifest.Compile(in)
	if unread != nil {
		return manifest.Compiled{}, unread
	}
	if err != nil {
		return manifest.Compiled{}, err
	}
	comp.unsupported = append(comp.unsupported, compiled.Unsupported...)
	return compiled, nil
}

// configMap reads a config map's data. The error is errdef.ErrNotFound for one that isn't there.
func (c *Controller) configMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	var m corev1.ConfigMap
	err := c.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &m)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: there is no config map %s in the namespace %s; create it", errdef.ErrNotFound, name, namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("read config map %s: %w", name, err)
	}
	return m.Data, nil
}

func (comp *component) refuse(err error) error { return refuse(err, &comp.refused) }

// refuse keeps an error that the manifest caused; others are returned for another try.
func refuse(err error, into **refusal) error {
	var selection *catalogue.SelectionError
	switch {
	case errors.As(err, &selection):
		*into = &refusal{v1beta1.FailureReason(selection.Reason), selection.Error()}
	case errors.Is(err, errdef.ErrInvalid), errors.Is(err, errdef.ErrUnsupported):
		*into = &refusal{v1beta1.InvalidPredictorSpec, err.Error()}
	default:
		return err
	}
	return nil
}

func (c *Controller) chooseRuntime(ctx context.Context, s *service, is *v1beta1.InferenceService) (catalogue.Selection, error) {
	var namespaced v1alpha1.ServingRuntimeList
	if err := c.client.List(ctx, &namespaced, client.InNamespace(is.Namespace)); err != nil {
		return catalogue.Selection{}, fmt.Errorf("list serving runtimes: %w", err)
	}
	var cluster v1alpha1.ClusterServingRuntimeList
	if err := c.client.List(ctx, &cluster); err != nil {
		return catalogue.Selection{}, fmt.Errorf("list cluster serving runtimes: %w", err)
	}
	request, _ := catalogue.RequestOf(&is.Spec.Predictor)
	chosen, err := catalogue.Select(request, namespaced.Items, cluster.Items)
	if err == nil {
		s.runtimeFaults = append(s.runtimeFaults, catalogue.Faults(chosen, namespaced.Items, cluster.Items)...)
	}
	return chosen, err
}

// revisions returns a service's revisions by component, oldest first.
func (c *Controller) revisions(ctx context.Context, key spec.ServiceKey) (map[spec.Component][]smv1alpha1.Revision, error) {
	list, err := c.listRevisions(ctx, key)
	if err != nil {
		return nil, err
	}
	out := map[spec.Component][]smv1alpha1.Revision{}
	for _, r := range list {
		name := spec.Component(r.Spec.Component)
		out[name] = append(out[name], *newest(c, &r))
	}
	for _, revs := range out {
		slices.SortFunc(revs, func(a, b smv1alpha1.Revision) int { return number(&a) - number(&b) })
	}
	return out, nil
}

// listRevisions returns a service's revisions as the cache has them.
func (c *Controller) listRevisions(ctx context.Context, key spec.ServiceKey) ([]smv1alpha1.Revision, error) {
	var list smv1alpha1.RevisionList
	if err := c.client.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingFields{revisionsOf: key.Name}); err != nil {
		return nil, fmt.Errorf("list revisions of %s: %w", key, err)
	}
	return list.Items, nil
}

// number is a revision's place in its component's history, from 1.
func number(r *smv1alpha1.Revision) int {
	n, err := strconv.Atoi(r.Labels[labelNumber])
	if err != nil {
		return 0
	}
	return n
}

func newRevision(s *service, comp *component, compiled manifest.Compiled) *smv1alpha1.Revision {
	n := 1
	if len(comp.revisions) > 0 {
		n = number(&comp.revisions[len(comp.revisions)-1]) + 1
	}
	rev := &smv1alpha1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.key.Namespace,
			Name:      manifest.RevisionName(s.key.Name, comp.name, int64(n)),
			Labels: map[string]string{
				labelService: s.key.Name, labelComponent: string(comp.name), labelNumber: strconv.Itoa(n),
			},
			OwnerReferences: []metav1.OwnerReference{owner(s.asWritten)},
		},
		Spec: compiled.RevisionSpec(),
	}
	return rev
}
