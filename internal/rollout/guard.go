package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
)

// Guarded returns where a component's guarded rollout stands; false means that there is none, or
// none of its newest revision.
func Guarded(is *v1beta1.InferenceService, name v1beta1.ComponentType) (smv1alpha1.GuardedRollout, bool) {
	var all map[string]smv1alpha1.GuardedRollout
	if raw := is.Status.Annotations[smv1alpha1.RolloutAnnotation]; raw == "" || json.Unmarshal([]byte(raw), &all) != nil {
		return smv1alpha1.GuardedRollout{}, false
	}
	g, ok := all[string(name)]
	return g, ok && g.Revision == is.Status.Components[name].LatestCreatedRevision
}

// Promote gives the newest revision of each component with a canary all traffic, and that of each
// component whose rollout is guarded, whatever was counted of it.
func (s *Service) Promote(ctx context.Context) error {
	is, err := s.Get(ctx)
	if err != nil {
		return err
	}
	var promoted []string
	spec := map[string]any{}
	for _, name := range s.components(is) {
		g, guarded := Guarded(is, name)
		if !guarded && !canaryRuns(is, name) {
			continue
		}
		spec[string(name)] = map[string]any{"canaryTrafficPercent": nil}
		if guarded {
			promoted = append(promoted, g.Revision)
		}
	}
	if len(promoted) == 0 {
		return s.patch(ctx, is, "no canary to promote: the newest revision is rolled out", spec, nil)
	}
	// One that was promoted before and isn't rolled out yet stays so.
	for name := range strings.SplitSeq(is.Annotations[smv1alpha1.PromotedAnnotation], ",") {
		for _, cs := range is.Status.Components {
			if cs.LatestCreatedRevision == name && !slices.Contains(promoted, name) {
				promoted = append(promoted, name)
			}
		}
	}
	return s.patch(ctx, is, "", spec, map[string]string{smv1alpha1.PromotedAnnotation: strings.Join(promoted, ",")})
}

// Resume lets a guarded rollout that was paused, or held at a share, go on by itself.
func (s *Service) Resume(ctx context.Context) error {
	return s.edit(ctx, "no guarded rollout that is held; 'promote' gives a canary all traffic", nil, func(is *v1beta1.InferenceService, name v1beta1.ComponentType) bool {
		_, guarded := Guarded(is, name)
		return guarded && canaryRuns(is, name)
	})
}

// promoted reports whether a revision is to get all traffic in any case; the status may not show
// that yet.
func promoted(is *v1beta1.InferenceService, revision string) bool {
	return slices.Contains(strings.Split(is.Annotations[smv1alpha1.PromotedAnnotation], ","), revision)
}

// rolledBack returns an error where every component that could be changed was rolled back by its
// guard: no share brings it back.
func (s *Service) rolledBack(is *v1beta1.InferenceService) error {
	var back *smv1alpha1.GuardedRollout
	for _, name := range s.components(is) {
		cs := is.Status.Components[name]
		g, guarded := Guarded(is, name)
		switch {
		case guarded && g.Phase == smv1alpha1.RolloutRolledBack && !promoted(is, g.Revision):
			back = &g
		case cs.LatestCreatedRevision != cs.LatestRolledoutRevision:
			return nil
		}
	}
	if back == nil {
		return nil
	}
	return errdef.New(errdef.ErrConflict, fmt.Sprintf(
		"%s/%s: revision %s was rolled back already (%s): change the manifest, or 'promote' it nevertheless", s.Namespace, s.Name, back.Revision, back.Why))
}

// describeGuard says in lines where a guarded rollout stands, as of now.
func describeGuard(b *strings.Builder, g *smv1alpha1.GuardedRollout, now time.Time) {
	if g.Phase == smv1alpha1.RolloutRolledBack {
		fmt.Fprintf(b, "  rolled back from %d %% at %s: %s\n", g.Percent, g.At.UTC().Format(time.RFC3339), g.Why)
	} else {
		fmt.Fprintf(b, "  guarded: step %d of %d, %d %%: %s", g.Step, g.Steps, g.Percent, g.Phase)
		if g.Until != nil && g.Phase == smv1alpha1.RolloutBaking {
			fmt.Fprintf(b, ", %v left", max(g.Until.Sub(now), 0).Round(time.Second))
		}
		b.WriteByte('\n')
	}
	switch g.Phase {
	case smv1alpha1.RolloutBaking, smv1alpha1.RolloutRolledBack:
		for _, r := range g.Readings {
			fmt.Fprintf(b, "    %s\n", r.Text)
		}
	default: // it says why with the numbers
		fmt.Fprintf(b, "    %s\n", g.Why)
	}
	if p := g.Passed; p != nil {
		fmt.Fprintf(b, "    passed %d %% at %s: %s\n", p.Percent, p.At.UTC().Format(time.RFC3339), p.Why)
	}
}
