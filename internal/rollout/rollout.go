// Package rollout is what a person does to a rollout from a shell: look at it, promote it, hold
// it, go back. It edits the InferenceService through the Kubernetes API and nothing else, so that
// one machine and a cluster, and a GitOps tool beside it, see the same.
package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
)

// Service is one InferenceService, reached through Client, which needs the kinds of
// serving.kserve.io/v1beta1 in its scheme. Its methods block until the API answered; errors are of
// kind ErrNotFound where there is no such service, and ErrConflict where its state doesn't allow
// what was asked.
type Service struct {
	Client          client.Client
	Namespace, Name string
	// Component, if not empty, is the only one that is changed.
	Component v1beta1.ComponentType
}

var components = []v1beta1.ComponentType{v1beta1.PredictorComponent, v1beta1.TransformerComponent, v1beta1.ExplainerComponent}

// Get reads the service.
func (s *Service) Get(ctx context.Context) (*v1beta1.InferenceService, error) {
	var is v1beta1.InferenceService
	err := s.Client.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, &is)
	switch {
	case apierrors.IsNotFound(err):
		return nil, errdef.New(errdef.ErrNotFound, fmt.Sprintf("there is no InferenceService %s in namespace %s", s.Name, s.Namespace))
	case err != nil:
		return nil, fmt.Errorf("read InferenceService %s/%s: %w", s.Namespace, s.Name, err)
	}
	return &is, nil
}

// Pause takes the traffic of the newest revision away; it runs on, called by its tag alone.
func (s *Service) Pause(ctx context.Context) error {
	zero := int64(0)
	return s.edit(ctx, "no canary to pause: the newest revision is rolled out; 'undo' goes back to the one before", &zero, func(is *v1beta1.InferenceService, name v1beta1.ComponentType) bool {
		cs := is.Status.Components[name]
		return canaryRuns(is, name) || cs.LatestCreatedRevision != cs.LatestRolledoutRevision && cs.LatestRolledoutRevision != ""
	})
}

// Undo brings each component back to the revision that had all traffic before the newest.
func (s *Service) Undo(ctx context.Context) error {
	zero := int64(0)
	return s.edit(ctx, "nothing to go back to: there is one revision that was rolled out", &zero, func(is *v1beta1.InferenceService, name v1beta1.ComponentType) bool {
		cs := is.Status.Components[name]
		if cs.LatestCreatedRevision != cs.LatestRolledoutRevision {
			return cs.LatestRolledoutRevision != ""
		}
		return cs.PreviousRolledoutRevision != "" && cs.PreviousRolledoutRevision != cs.LatestRolledoutRevision
	})
}

// Share gives the newest revision a percent of the traffic, 0 to 100, beside the one before.
func (s *Service) Share(ctx context.Context, percent int64) error {
	if percent < 0 || percent > 100 {
		return errdef.New(errdef.ErrInvalid, "a share is 0 to 100 percent")
	}
	return s.edit(ctx, "no canary to share with: the newest revision is rolled out", &percent, func(is *v1beta1.InferenceService, name v1beta1.ComponentType) bool {
		cs := is.Status.Components[name]
		return cs.LatestCreatedRevision != cs.LatestRolledoutRevision && cs.LatestRolledoutRevision != ""
	})
}

// canaryRuns reports whether a component's newest revision is held below all of the traffic.
func canaryRuns(is *v1beta1.InferenceService, name v1beta1.ComponentType) bool {
	cs, percent := is.Status.Components[name], percentOf(is, name)
	return percent != nil && *percent < 100 && cs.LatestCreatedRevision != cs.LatestRolledoutRevision
}

func percentOf(is *v1beta1.InferenceService, name v1beta1.ComponentType) *int64 {
	switch {
	case name == v1beta1.PredictorComponent:
		return is.Spec.Predictor.CanaryTrafficPercent
	case name == v1beta1.TransformerComponent && is.Spec.Transformer != nil:
		return is.Spec.Transformer.CanaryTrafficPercent
	case name == v1beta1.ExplainerComponent && is.Spec.Explainer != nil:
		return is.Spec.Explainer.CanaryTrafficPercent
	}
	return nil
}

// edit sets the percent of the components for which may holds; nil removes the field. none says
// why there is no such component.
func (s *Service) edit(ctx context.Context, none string, percent *int64, may func(*v1beta1.InferenceService, v1beta1.ComponentType) bool) error {
	is, err := s.Get(ctx)
	if err != nil {
		return err
	}
	if percent != nil {
		if err := s.rolledBack(is); err != nil {
			return err
		}
	}
	spec := map[string]any{}
	for _, name := range s.components(is) {
		if may(is, name) {
			spec[string(name)] = map[string]any{"canaryTrafficPercent": percent}
		}
	}
	if percent != nil && spec[string(v1beta1.PredictorComponent)] != nil {
		if err := s.ownCanaries(is); err != nil { // which don't go with a percent
			return err
		}
	}
	return s.patch(ctx, is, none, spec, nil)
}

// components are those of the service that a command is about.
func (s *Service) components(is *v1beta1.InferenceService) []v1beta1.ComponentType {
	return slices.DeleteFunc(slices.Clone(components), func(name v1beta1.ComponentType) bool {
		_, has := is.Status.Components[name]
		return !has || s.Component != "" && s.Component != name
	})
}

// patch changes the service as it was read; none says why there is nothing to change.
func (s *Service) patch(ctx context.Context, is *v1beta1.InferenceService, none string, spec map[string]any, annotations map[string]string) error {
	if len(spec) == 0 {
		if err := s.ownCanaries(is); err != nil {
			return err
		}
		return errdef.New(errdef.ErrConflict, fmt.Sprintf("%s/%s has %s", s.Namespace, s.Name, none))
	}
	metadata := map[string]any{"resourceVersion": is.ResourceVersion} // what was looked at is what is changed
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "spec": spec})
	if err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	err = s.Client.Patch(ctx, is, client.RawPatch(types.MergePatchType, patch))
	switch {
	case apierrors.IsConflict(err):
		return errdef.New(errdef.ErrConflict, fmt.Sprintf("%s/%s changed meanwhile: look at it and try again", s.Namespace, s.Name))
	case err != nil:
		return fmt.Errorf("change InferenceService %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// ownCanaries returns an error where what was meant may be a canary of spec.canary, which these
// commands leave alone: its share and its life are in the manifest.
func (s *Service) ownCanaries(is *v1beta1.InferenceService) error {
	if len(is.Spec.Canary) == 0 || s.Component != "" && s.Component != v1beta1.PredictorComponent {
		return nil
	}
	var all []string
	for _, c := range is.Spec.Canary {
		all = append(all, fmt.Sprintf("%s at %d %%", c.Predictor.Name, c.TrafficPercent))
	}
	return errdef.New(errdef.ErrConflict, fmt.Sprintf(
		"%s/%s has canaries in spec.canary (%s), which this command doesn't change. Edit the manifest: to promote one, give spec.predictor its name and what it sets, and drop its entry; to pause it, set its trafficPercent to 0; to go back, drop its entry",
		s.Namespace, s.Name, strings.Join(all, ", ")))
}

// poll is how often Wait looks.
const poll = 200 * time.Millisecond

// Wait blocks until the service is as its manifest asks, a canary's share included, and returns it.
// It fails with the status' own words when the rollout can't go on by itself, or when ctx ends.
func (s *Service) Wait(ctx context.Context) (*v1beta1.InferenceService, error) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		is, err := s.Get(ctx)
		if err != nil {
			return nil, err
		}
		ready := condition(is, v1beta1.ConditionReady)
		if is.Status.ObservedGeneration == is.Generation {
			switch {
			case ready.Status == corev1.ConditionTrue:
				return is, nil
			case is.Status.ModelStatus.TransitionStatus == v1beta1.InvalidSpec:
				return is, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s/%s: %s: %s", s.Namespace, s.Name, ready.Reason, ready.Message))
			case ready.Reason == smv1alpha1.RolloutRolledBack && s.rolledBack(is) != nil:
				return is, s.rolledBack(is)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return is, errdef.New(errdef.ErrTimeout, fmt.Sprintf("%s/%s isn't ready: %s: %s", s.Namespace, s.Name, ready.Reason, ready.Message))
		}
	}
}

func condition(is *v1beta1.InferenceService, t v1beta1.ConditionType) v1beta1.Condition {
	i := slices.IndexFunc(is.Status.Conditions, func(c v1beta1.Condition) bool { return c.Type == t })
	if i < 0 {
		return v1beta1.Condition{Type: t, Status: corev1.ConditionUnknown, Reason: "NotReconciled", Message: "nothing was observed yet"}
	}
	return is.Status.Conditions[i]
}

// Describe says in lines for a person where a rollout stands, as of now.
func Describe(is *v1beta1.InferenceService, now time.Time) string {
	var b strings.Builder
	ready := condition(is, v1beta1.ConditionReady)
	fmt.Fprintf(&b, "%s/%s  Ready=%s", is.Namespace, is.Name, ready.Status)
	if ready.Reason != "" {
		fmt.Fprintf(&b, " (%s)", ready.Reason)
	}
	b.WriteByte('\n')
	if ready.Message != "" {
		fmt.Fprintf(&b, "  %s\n", ready.Message)
	}
	if is.Status.ObservedGeneration != is.Generation {
		b.WriteString("  the latest change wasn't seen by the controller yet\n")
	}
	for _, name := range components {
		cs, has := is.Status.Components[name]
		if !has {
			continue
		}
		fmt.Fprintf(&b, "%s", name)
		if p := percentOf(is, name); p != nil {
			fmt.Fprintf(&b, "  canaryTrafficPercent=%d", *p)
		}
		b.WriteByte('\n')
		if len(cs.Traffic) == 0 {
			b.WriteString("  no revision gets traffic\n")
		}
		for _, t := range cs.Traffic {
			percent := int64(0)
			if t.Percent != nil {
				percent = *t.Percent
			}
			fmt.Fprintf(&b, "  %3d %%  %s", percent, t.RevisionName)
			if t.Tag != "" {
				fmt.Fprintf(&b, "  %s  %s", t.Tag, t.URL)
			}
			b.WriteByte('\n')
		}
		if cs.LatestCreatedRevision != "" && !slices.ContainsFunc(cs.Traffic, func(t v1beta1.TrafficTarget) bool { return t.RevisionName == cs.LatestCreatedRevision }) {
			fmt.Fprintf(&b, "       %s  not ready\n", cs.LatestCreatedRevision)
		}
		if g, guarded := Guarded(is, name); guarded {
			describeGuard(&b, &g, now)
		}
		if p := cs.PreviousRolledoutRevision; p != "" && p != cs.LatestRolledoutRevision {
			fmt.Fprintf(&b, "  before: %s\n", p)
		}
	}
	return b.String()
}
