package manifest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestGuardOf(t *testing.T) {
	type annotations = map[string]string
	errorRatio := func(most float64) spec.Limit { return spec.Limit{Metric: spec.ErrorRatio, Max: most} }
	tests := map[string]struct {
		annotations annotations
		want        *spec.Guard
		errs        []string
	}{
		"none": {},
		"steps alone": {
			annotations: annotations{GuardStepsAnnotation: "5,25,50,100"},
			want:        &spec.Guard{Steps: []int{5, 25, 50}, Bake: 5 * time.Minute, MinRequests: 100, Limits: []spec.Limit{errorRatio(.01)}},
		},
		"all of them": {
			annotations: annotations{
				GuardStepsAnnotation: "1 %, 10", GuardBakeAnnotation: "90s", GuardMinRequestsAnnotation: "20",
				GuardErrorsAnnotation: "0", GuardP99Annotation: "500ms", GuardTTFTAnnotation: "2s", GuardDriftAnnotation: "2.5%",
			},
			want: &spec.Guard{Steps: []int{1, 10}, Bake: 90 * time.Second, MinRequests: 20, Limits: []spec.Limit{
				errorRatio(0), {Metric: spec.P99, Max: .5}, {Metric: spec.TTFT, Max: 2}, {Metric: spec.Drift, Max: .025},
			}},
		},
		"a promoted revision, with and without a guard": {annotations: annotations{PromotedAnnotation: "iris-predictor-00002"}},
		"steps that fall":                   {annotations: annotations{GuardStepsAnnotation: "25,5"}, errs: []string{"metadata.annotations[stationmaster.dev/rollout-steps]"}},
		"a step twice":                      {annotations: annotations{GuardStepsAnnotation: "5,5"}, errs: []string{"must be percents that rise"}},
		"a step of nothing":                 {annotations: annotations{GuardStepsAnnotation: "0,5"}, errs: []string{"must be percents that rise"}},
		"a step too far":                    {annotations: annotations{GuardStepsAnnotation: "5,101"}, errs: []string{"must be percents that rise"}},
		"no step":                           {annotations: annotations{GuardStepsAnnotation: ""}, errs: []string{"must be percents that rise"}},
		"words":                             {annotations: annotations{GuardStepsAnnotation: "slowly"}, errs: []string{"must be percents that rise"}},
		"100 alone":                         {annotations: annotations{GuardStepsAnnotation: "100"}, errs: []string{"guards nothing"}},
		"a limit without steps":             {annotations: annotations{GuardP99Annotation: "1s"}, errs: []string{"metadata.annotations[stationmaster.dev/rollout-max-p99]: Invalid value: \"1s\": means nothing without stationmaster.dev/rollout-steps"}},
		"a name that nobody knows":          {annotations: annotations{GuardStepsAnnotation: "5", "stationmaster.dev/rollout-max-errors": "1%"}, want: &spec.Guard{Steps: []int{5}, Bake: 5 * time.Minute, MinRequests: 100, Limits: []spec.Limit{errorRatio(.01)}}, errs: []string{"metadata.annotations[stationmaster.dev/rollout-max-errors]"}},
		"a time without a unit":             {annotations: annotations{GuardBakeAnnotation: "10"}, errs: []string{"must be a duration from 1s to 168h0m0s"}},
		"no time":                           {annotations: annotations{GuardBakeAnnotation: "0s"}, errs: []string{"must be a duration"}},
		"no requests":                       {annotations: annotations{GuardMinRequestsAnnotation: "0"}, errs: []string{"must be a number of requests"}},
		"a ratio beyond all":                {annotations: annotations{GuardErrorsAnnotation: "5"}, errs: []string{"must be a share from 0 to 1"}},
		"a ratio that is no number":         {annotations: annotations{GuardDriftAnnotation: "NaN"}, errs: []string{"must be a share"}},
		"a latency of nothing":              {annotations: annotations{GuardP99Annotation: "0s"}, errs: []string{"must be a duration from 1ms"}},
		"a time to first token as a number": {annotations: annotations{GuardTTFTAnnotation: "2"}, errs: []string{"must be a duration from 1ms"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			is := &v1beta1.InferenceService{}
			is.Annotations = tc.annotations
			got, errs := GuardOf(is)
			if tc.errs == nil || tc.want != nil {
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			text := ""
			for _, e := range errs {
				text += e.Error() + "\n"
			}
			for _, want := range tc.errs {
				if !strings.Contains(text, want) {
					t.Errorf("errors %q, want %q", text, want)
				}
			}
			if len(tc.errs) == 0 && len(errs) > 0 {
				t.Errorf("errors %v", errs)
			}
		})
	}
}

func TestAGuardedRolloutIsRefusedBesideWhatContradictsIt(t *testing.T) {
	is := with(func(s *v1beta1.InferenceService) { annotate(s, GuardStepsAnnotation, "5,50") })
	if errs := Validate(is, nil); len(errs) > 0 {
		t.Fatalf("alone: %v", errs)
	}
	is.Spec.Predictor.DeploymentStrategy = &appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	is.Spec.Canary = []v1beta1.CanarySpec{{TrafficPercent: 5}}
	text := Validate(is, nil).ToAggregate().Error()
	for _, want := range []string{"spec.predictor.deploymentStrategy.type: Forbidden", "metadata.annotations[stationmaster.dev/rollout-steps]: Forbidden: spec.canary"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q isn't in %s", want, text)
		}
	}
	is = with(func(s *v1beta1.InferenceService) { annotate(s, GuardStepsAnnotation, "fast") })
	if errs := Validate(is, nil); len(errs) != 1 || errs[0].Field != "metadata.annotations[stationmaster.dev/rollout-steps]" {
		t.Errorf("%v", errs)
	}
}

func TestWhatAGuardMakesMootIsTold(t *testing.T) {
	is := with(func(s *v1beta1.InferenceService) {
		annotate(s, GuardStepsAnnotation, "5,50")
		annotate(s, RolloutDurationAnnotation, "10m")
	})
	hundred := int64(100)
	is.Spec.Predictor.CanaryTrafficPercent = &hundred
	var fields []string
	for _, n := range NotInEffectOf(is) {
		fields = append(fields, n.Field)
	}
	want := []string{"metadata.annotations[serving.knative.dev/rollout-duration]"}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzGuardOf(f *testing.F) {
	f.Add("5,25,50,100", "10m", "1%", "500ms")
	f.Add("5 %", "1h", "0.5", "1s")
	f.Fuzz(func(t *testing.T, steps, bake, ratio, p99 string) {
		is := &v1beta1.InferenceService{}
		is.Annotations = map[string]string{GuardStepsAnnotation: steps, GuardBakeAnnotation: bake, GuardErrorsAnnotation: ratio, GuardP99Annotation: p99}
		g, errs := GuardOf(is)
		if g == nil {
			return
		}
		last := 0
		for _, s := range g.Steps {
			if s <= last || s > 99 {
				t.Fatalf("steps %v of %q", g.Steps, steps)
			}
			last = s
		}
		if len(errs) == 0 && (g.Bake < time.Second || g.Limits[0].Max < 0 || g.Limits[0].Max > 1 || g.Limits[1].Max <= 0) {
			t.Fatalf("%+v of %q, %q, %q", g, bake, ratio, p99)
		}
	})
}
