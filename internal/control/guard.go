package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/plan/guard"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Evidence is what gateways counted of revisions' answers, each from a beginning that stays the
// same.
type Evidence interface {
	Of(revision spec.RevisionKey) evidence.Counts
}

// guardOf is how a service's rollouts are guarded; nil means that they aren't. What can't be read
// was refused.
func guardOf(is *v1beta1.InferenceService) *spec.Guard {
	g, errs := manifest.GuardOf(is)
	if len(errs) > 0 {
		return nil
	}
	return g
}

// guarded tells plan what it has to know for a guarded rollout of a component.
func (c *Controller) guarded(s *service, pc *plan.Component) {
	pc.Guard = s.guard
	latest := pc.Latest
	if latest == "" {
		latest = pc.Last.Latest
	}
	if latest == "" {
		return
	}
	for name := range strings.SplitSeq(s.asWritten.Annotations[manifest.PromotedAnnotation], ",") {
		pc.Promoted = pc.Promoted || strings.TrimSpace(name) == latest
	}
	if pc.Guard != nil && c.cfg.Evidence != nil {
		pc.Seen = c.cfg.Evidence.Of(spec.RevisionKey{Namespace: s.key.Namespace, Name: latest})
	}
}

// guardedBefore reads from a status how far the guarded rollout of a component had come, which is
// the memory after a restart. The step it was at begins anew.
func guardedBefore(is *v1beta1.InferenceService, comp spec.Component, latest string) plan.Guarded {
	was, ok := guardedStatus(is)[string(comp)]
	if !ok || was.Revision != latest {
		return plan.Guarded{}
	}
	g := plan.Guarded{Phase: plan.GuardPhase(was.Phase), Step: max(was.Step-1, 0), Why: was.Why, At: was.At.Time}
	if p := was.Passed; p != nil {
		g.Passed = &plan.Passed{Share: p.Percent, Why: p.Why, At: p.At.Time, Readings: readingsOf(p.Readings)}
	}
	if g.Phase != plan.GuardRolledBack {
		return g
	}
	g.Share, g.Readings = was.Percent, readingsOf(was.Readings)
	return g
}

func readingsOf(written []smv1alpha1.GuardReading) []guard.Reading {
	var out []guard.Reading
	for _, r := range written {
		out = append(out, guard.Reading{
			Limit: spec.Limit{Metric: spec.Metric(r.Metric), Max: r.Max}, Value: r.Value, Of: r.Of, Exceeds: r.Exceeds,
		})
	}
	return out
}

func readingStatus(readings []guard.Reading) []smv1alpha1.GuardReading {
	var out []smv1alpha1.GuardReading
	for _, m := range readings {
		out = append(out, smv1alpha1.GuardReading{
			Metric: string(m.Metric), Value: m.Value, Max: m.Max, Of: m.Of, Exceeds: m.Exceeds, Text: m.String(),
		})
	}
	return out
}

func guardedStatus(is *v1beta1.InferenceService) map[string]smv1alpha1.GuardedRollout {
	var out map[string]smv1alpha1.GuardedRollout
	if raw := is.Status.Annotations[smv1alpha1.RolloutAnnotation]; raw != "" && json.Unmarshal([]byte(raw), &out) != nil {
		return nil // nobody but this writes it
	}
	return out
}

// annotateGuard writes into a status' annotations where guarded rollouts stand.
func (s *service) annotateGuard(a map[string]string) {
	out := map[string]smv1alpha1.GuardedRollout{}
	for i := range s.plan.Rollouts {
		if r := &s.plan.Rollouts[i]; r.Guarded.Phase != "" {
			out[string(r.Component)] = s.guardStatus(r)
		}
	}
	if len(out) == 0 {
		return
	}
	if raw, err := json.Marshal(out); err == nil {
		a[smv1alpha1.RolloutAnnotation] = string(raw)
	}
}

func (s *service) guardStatus(r *plan.Rollout) smv1alpha1.GuardedRollout {
	g := &r.Guarded
	out := smv1alpha1.GuardedRollout{
		Revision: r.Latest, Phase: string(g.Phase), Step: g.Step + 1, Steps: s.steps(g), Percent: s.stepPercent(g),
		Why: g.Why, At: metav1.NewTime(g.At).Rfc3339Copy(),
	}
	if !g.Since.IsZero() && s.guard != nil {
		since, until := metav1.NewTime(g.Since).Rfc3339Copy(), metav1.NewTime(g.Since.Add(s.guard.Bake)).Rfc3339Copy()
		out.Since, out.Until = &since, &until
	}
	out.Readings = readingStatus(g.Readings)
	if p := g.Passed; p != nil {
		out.Passed = &smv1alpha1.PassedStep{Percent: p.Share, Why: p.Why, At: metav1.NewTime(p.At).Rfc3339Copy(), Readings: readingStatus(p.Readings)}
	}
	return out
}

// steps is how many steps there are, the one to all traffic included.
func (s *service) steps(g *plan.Guarded) int {
	n := g.Step + 1
	if s.guard != nil {
		n = max(n, len(s.guard.Steps)+1)
	}
	return n
}

// stepPercent is what a step is about: the share that it has, or had, or is to get.
func (s *service) stepPercent(g *plan.Guarded) int {
	switch {
	case g.Phase == plan.GuardRolledBack, !g.Since.IsZero():
		return g.Share
	case g.Phase == plan.GuardHeld:
		return 0
	case s.guard != nil && g.Step < len(s.guard.Steps):
		return s.guard.Steps[g.Step]
	}
	return 100
}

// guardVerdict is a component's condition while its guarded rollout decides on it; false means
// that it doesn't.
func (f *facts) guardVerdict() (verdict, bool) {
	g := f.guard
	switch {
	case g.Phase == smv1alpha1.RolloutRolledBack:
		return verdict{"False", "RolledBack", fmt.Sprintf(
			"revision %s was rolled back from %d %% at %s: %s%s; it gets no traffic until the manifest changes, or 'stationmaster rollout promote' says so",
			g.Revision, g.Percent, g.At.UTC().Format(time.RFC3339), g.Why, f.goes())}, true
	case g.Phase == "" || f.settled:
		return verdict{}, false
	}
	return verdict{"Unknown", "RollingOut", fmt.Sprintf("revision %s, step %d of %d, to %d %%: %s%s", g.Revision, g.Step, g.Steps, g.Percent, g.Why, f.goes())}, true
}

// tellGuard makes events and log lines of what a plan changed of guarded rollouts.
func (c *Controller) tellGuard(s *service, before plan.Desired) {
	for i := range s.plan.Rollouts {
		next := &s.plan.Rollouts[i]
		at := slices.IndexFunc(before.Components, func(d plan.Component) bool { return d.Name == next.Component })
		if at < 0 {
			continue
		}
		was, now := &before.Components[at].Last.Guarded, &next.Guarded
		switch {
		case now.Phase == plan.GuardRolledBack && was.Phase != plan.GuardRolledBack:
			c.log.Warn("rolled back", "service", s.key.String(), "revision", next.Latest, "from", now.Share, "why", now.Why)
			c.events.Eventf(s.asWritten, "Warning", "RolloutRolledBack", "Rolled revision %s back from %d %%: %s", next.Latest, now.Share, now.Why)
		case now.Phase != "" && was.Phase != "" && now.Step > was.Step && before.Components[at].Last.Latest == next.Latest:
			why := "it had as much before it was guarded"
			if now.Passed != nil {
				why = now.Passed.Why
			}
			c.log.Info("rollout advances", "service", s.key.String(), "revision", next.Latest, "to", s.stepPercent(now), "why", why)
			c.events.Eventf(s.asWritten, "Normal", "RolloutAdvanced", "Revision %s goes on to %d %%: %s", next.Latest, s.stepPercent(now), why)
		case was.Phase != "" && now.Phase == "" && next.RolledOut == next.Latest && before.Components[at].Last.Latest == next.Latest:
			c.log.Info("rolled out", "service", s.key.String(), "revision", next.Latest)
			text := fmt.Sprintf("Revision %s has all traffic", next.Latest)
			if now.Passed != nil {
				text += fmt.Sprintf("; it passed %d %%: %s", now.Passed.Share, now.Passed.Why)
			}
			c.events.Eventf(s.asWritten, "Normal", "RolloutCompleted", "%s", text)
		}
	}
}
