package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// guardedService has a guarded rollout of r2, or of another revision.
func guardedService(t *testing.T, percent *int64, g smv1alpha1.GuardedRollout) *Service {
	t.Helper()
	s := service(t, percent, status("r2", "r1", ""))
	is, err := s.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]smv1alpha1.GuardedRollout{"predictor": g})
	if err != nil {
		t.Fatal(err)
	}
	is.Status.Annotations = map[string]string{smv1alpha1.RolloutAnnotation: string(raw)}
	if err := s.Client.Update(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCommandsOnAGuardedRollout(t *testing.T) {
	share := func(s *Service, ctx context.Context) error { return s.Share(ctx, 10) }
	baking := smv1alpha1.GuardedRollout{Revision: "r2", Phase: smv1alpha1.RolloutBaking}
	held := smv1alpha1.GuardedRollout{Revision: "r2", Phase: smv1alpha1.RolloutHeld}
	back := smv1alpha1.GuardedRollout{Revision: "r2", Phase: smv1alpha1.RolloutRolledBack, Why: "errors 5 %"}
	stale := smv1alpha1.GuardedRollout{Revision: "r0", Phase: smv1alpha1.RolloutRolledBack}
	tests := map[string]struct {
		act         func(*Service, context.Context) error
		percent     *int64
		guard       smv1alpha1.GuardedRollout
		want        *int64
		wantPromote string
		err         error
		says        string
	}{
		"promote one that bakes":                  {act: (*Service).Promote, guard: baking, wantPromote: "r2"},
		"promote one that is held":                {act: (*Service).Promote, guard: held, percent: ptr[int64](0), wantPromote: "r2"},
		"promote one that was rolled back":        {act: (*Service).Promote, guard: back, wantPromote: "r2"},
		"promote beside one of another revision":  {act: (*Service).Promote, guard: stale, err: errdef.ErrConflict},
		"pause one that bakes":                    {act: (*Service).Pause, guard: baking, want: ptr[int64](0)},
		"undo one that bakes":                     {act: (*Service).Undo, guard: baking, want: ptr[int64](0)},
		"hold one at a share":                     {act: share, guard: baking, want: ptr[int64](10)},
		"resume one that is held":                 {act: (*Service).Resume, guard: held, percent: ptr[int64](0)},
		"resume one that isn't":                   {act: (*Service).Resume, guard: baking, err: errdef.ErrConflict, says: "no guarded rollout that is held"},
		"resume a canary that isn't guarded":      {act: (*Service).Resume, guard: stale, percent: ptr[int64](10), want: ptr[int64](10), err: errdef.ErrConflict},
		"pause one that was rolled back":          {act: (*Service).Pause, guard: back, err: errdef.ErrConflict, says: "was rolled back already (errors 5 %)"},
		"undo one that was rolled back":           {act: (*Service).Undo, guard: back, err: errdef.ErrConflict, says: "was rolled back already"},
		"a share for one that was rolled back":    {act: share, guard: back, err: errdef.ErrConflict, says: "was rolled back already"},
		"pause beside another that was taken bad": {act: (*Service).Pause, guard: stale, want: ptr[int64](0)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := guardedService(t, tc.percent, tc.guard)
			err := tc.act(s, t.Context())
			if !errors.Is(err, tc.err) || tc.says != "" && !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("error %v, want %v with %q", err, tc.err, tc.says)
			}
			is, err := s.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := is.Spec.Predictor.CanaryTrafficPercent
			if (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
				t.Errorf("canaryTrafficPercent %v, want %v", got, tc.want)
			}
			if got := is.Annotations[smv1alpha1.PromotedAnnotation]; got != tc.wantPromote {
				t.Errorf("promoted %q, want %q", got, tc.wantPromote)
			}
		})
	}
}

func TestDescribeSaysWhereAGuardedRolloutStands(t *testing.T) {
	until := metav1.NewTime(noon.Add(250 * time.Second))
	errors := smv1alpha1.GuardReading{Metric: "errors", Text: "errors 0.4 % of 512 requests (limit 1 %)"}
	tests := map[string]struct {
		guard smv1alpha1.GuardedRollout
		want  string
	}{
		"baking": {
			smv1alpha1.GuardedRollout{Revision: "r2", Phase: smv1alpha1.RolloutBaking, Step: 2, Steps: 4, Percent: 25, Until: &until, Why: "bakes", Readings: []smv1alpha1.GuardReading{errors}},
			"  guarded: step 2 of 4, 25 %: Baking, 4m10s left\n    errors 0.4 % of 512 requests (limit 1 %)\n",
		},
		"waiting": {
			smv1alpha1.GuardedRollout{Revision: "r2", Phase: smv1alpha1.RolloutWaiting, Step: 1, Steps: 4, Percent: 5, Until: &until, Why: "needs 100 requests and has 3; " + errors.Text},
			"  guarded: step 1 of 4, 5 %: Waiting\n    needs 100 requests and has 3; errors 0.4 % of 512 requests (limit 1 %)\n",
		},
		"rolled back": {
			smv1alpha1.GuardedRollout{Revision: "r2", Phase: smv1alpha1.RolloutRolledBack, Step: 2, Steps: 4, Percent: 25, At: metav1.NewTime(noon), Why: "errors 4 % of 512 requests (limit 1 %)"},
			"  rolled back from 25 % at 2026-11-30T12:00:00Z: errors 4 % of 512 requests (limit 1 %)\n",
		},
		"baking after a step": {
			smv1alpha1.GuardedRollout{
				Revision: "r2", Phase: smv1alpha1.RolloutBaking, Step: 2, Steps: 4, Percent: 25, Until: &until, Why: "bakes", Readings: []smv1alpha1.GuardReading{errors},
				Passed: &smv1alpha1.PassedStep{Percent: 5, Why: "120 requests in 1m0s", At: metav1.NewTime(noon)},
			},
			"  guarded: step 2 of 4, 25 %: Baking, 4m10s left\n    errors 0.4 % of 512 requests (limit 1 %)\n    passed 5 % at 2026-11-30T12:00:00Z: 120 requests in 1m0s\n",
		},
		"of an older revision": {smv1alpha1.GuardedRollout{Revision: "r0", Phase: smv1alpha1.RolloutRolledBack}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			is, err := guardedService(t, nil, tc.guard).Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := "team/iris  Ready=Unknown (NotReconciled)\n  nothing was observed yet\npredictor\n  no revision gets traffic\n       r2  not ready\n" + tc.want
			if got := Describe(is, noon); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

func TestWaitEndsWhenTheGuardRollsBack(t *testing.T) {
	s := guardedService(t, nil, smv1alpha1.GuardedRollout{Revision: "r2", Phase: smv1alpha1.RolloutRolledBack, Why: "errors 5 %"})
	is, err := s.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	is.Status.ObservedGeneration = is.Generation
	is.Status.Conditions = []v1beta1.Condition{{Type: v1beta1.ConditionReady, Status: corev1.ConditionFalse, Reason: "RolledBack", Message: "errors 5 %"}}
	if err := s.Client.Update(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(t.Context()); !errors.Is(err, errdef.ErrConflict) || !strings.Contains(err.Error(), "errors 5 %") {
		t.Errorf("error %v", err)
	}
	if err := s.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*poll)
	defer cancel()
	if _, err := s.Wait(ctx); !errors.Is(err, errdef.ErrTimeout) {
		t.Errorf("what was promoted a moment ago: error %v", err)
	}
}
