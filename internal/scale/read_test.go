package scale_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/scale"
)

const knative = "autoscaling.knative.dev/"

func ptr(n int) *int { return &n }

func TestReadTakesWhatAManifestSays(t *testing.T) {
	for name, tc := range map[string]struct {
		settings scale.Settings
		class    scale.Class
		resource string
		change   func(*scale.Config)
		notes    []string
	}{
		"nothing given is Knative's defaults": {class: scale.ClassKPA},
		"every annotation": {
			settings: scale.Settings{Annotations: map[string]string{
				knative + "class":                              "kpa.autoscaling.knative.dev",
				knative + "metric":                             "rps",
				knative + "target":                             "12.5",
				knative + "target-utilization-percentage":      "80",
				knative + "target-burst-capacity":              "-1",
				knative + "window":                             "2m",
				knative + "panic-window-percentage":            "5.0",
				knative + "panic-threshold-percentage":         "150.0",
				knative + "scale-down-delay":                   "15m",
				knative + "initial-scale":                      "3",
				knative + "activation-scale":                   "4",
				knative + "min-scale":                          "2",
				knative + "max-scale":                          "9",
				knative + "scale-to-zero-pod-retention-period": "1m5s",
				knative + "metric-aggregation-algorithm":       "weightedExponential",
				"prometheus.io/scrape":                         "true",
			}},
			class: scale.ClassKPA,
			change: func(c *scale.Config) {
				c.Metric, c.Target, c.Utilization, c.TargetBurstCapacity = scale.RPS, 12.5, 0.8, -1
				c.Window, c.PanicWindowPercentage, c.PanicThresholdPercentage = 2*time.Minute, 5, 150
				c.ScaleDownDelay, c.InitialScale, c.ActivationScale = 15*time.Minute, 3, 4
				c.MinScale, c.MaxScale, c.Retention = 2, 9, 65*time.Second
				c.Aggregation = scale.WeightedExponential
			},
		},
		"older spellings": {
			settings: scale.Settings{Annotations: map[string]string{
				knative + "minScale": "2", knative + "maxScale": "5", knative + "scaleDownDelay": "30s",
			}},
			class:  scale.ClassKPA,
			change: func(c *scale.Config) { c.MinScale, c.MaxScale, c.ScaleDownDelay = 2, 5, 30*time.Second },
		},
		"both spellings": {
			settings: scale.Settings{Annotations: map[string]string{knative + "minScale": "2", knative + "min-scale": "3"}},
			class:    scale.ClassKPA,
			change:   func(c *scale.Config) { c.MinScale = 3 },
			notes:    []string{knative + "minScale is overruled by " + knative + "min-scale"},
		},
		"fields rule over annotations, as in KServe": {
			settings: scale.Settings{
				Annotations: map[string]string{
					knative + "min-scale": "2", knative + "max-scale": "5", knative + "target": "7", knative + "metric": "rps",
				},
				MinReplicas: ptr(0), MaxReplicas: 5, ScaleTarget: ptr(9), ScaleMetric: "concurrency",
			},
			class:  scale.ClassKPA,
			change: func(c *scale.Config) { c.MinScale, c.MaxScale, c.Target = 0, 5, 9 },
			notes: []string{
				knative + "min-scale is overruled by minReplicas",
				knative + "target is overruled by scaleTarget",
				knative + "metric is overruled by scaleMetric",
			},
		},
		"the hard limit": {
			settings: scale.Settings{ContainerConcurrency: 4},
			class:    scale.ClassKPA,
			change:   func(c *scale.Config) { c.ContainerConcurrency = 4 },
		},
		"cpu is for the hpa": {
			settings: scale.Settings{ScaleMetric: "cpu", ScaleTarget: ptr(80), MinReplicas: ptr(1), MaxReplicas: 3},
			class:    scale.ClassHPA, resource: "cpu",
			change: func(c *scale.Config) { c.Target, c.MinScale, c.MaxScale = 80, 1, 3 },
		},
		"nobody scales": {
			settings: scale.Settings{Annotations: map[string]string{scale.ClassAnnotation: "none"}, MinReplicas: ptr(2)},
			class:    scale.ClassNone,
			change:   func(c *scale.Config) { c.MinScale = 2 },
		},
		"keda": {
			settings: scale.Settings{Annotations: map[string]string{scale.ClassAnnotation: "keda"}},
			class:    scale.ClassKEDA,
		},
		"both classes agree": {
			settings: scale.Settings{Annotations: map[string]string{
				scale.ClassAnnotation: "hpa", scale.KnativeClassAnnotation: "hpa.autoscaling.knative.dev",
			}},
			class: scale.ClassHPA,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := scale.Read(scale.Default(), tc.settings)
			if err != nil {
				t.Fatal(err)
			}
			want := scale.Scaling{Class: tc.class, Config: scale.Default(), Resource: tc.resource, Notes: tc.notes}
			if tc.change != nil {
				tc.change(&want.Config)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestReadRefusesAndNamesWhat(t *testing.T) {
	for name, tc := range map[string]struct {
		settings scale.Settings
		want     string
	}{
		"no number":                    {annotated("target", "many"), knative + `target is "many" and must be a number from 0.01`},
		"a number that is none":        {annotated("target", "NaN"), knative + `target is "NaN"`},
		"a target of zero":             {annotated("target", "0"), knative + `target is "0"`},
		"too small a window":           {annotated("window", "5s"), knative + `window is "5s" and must be whole seconds from 6s to 1h0m0s`},
		"half a second":                {annotated("window", "6500ms"), knative + "window"},
		"a negative delay":             {annotated("scale-down-delay", "-1s"), knative + "scale-down-delay"},
		"a retention beyond an hour":   {annotated("scale-to-zero-pod-retention-period", "61m"), knative + "scale-to-zero-pod-retention-period"},
		"a panic window of nothing":    {annotated("panic-window-percentage", "0"), knative + "panic-window-percentage"},
		"a panic that never ends":      {annotated("panic-threshold-percentage", "100"), knative + "panic-threshold-percentage"},
		"more than all":                {annotated("target-utilization-percentage", "101"), knative + "target-utilization-percentage"},
		"a burst below minus one":      {annotated("target-burst-capacity", "-2"), knative + "target-burst-capacity"},
		"a negative minimum":           {annotated("min-scale", "-1"), knative + `min-scale is "-1" and must be a whole number from 0`},
		"too large for a count":        {annotated("max-scale", "2147483648"), knative + "max-scale"},
		"no initial replica":           {annotated("initial-scale", "0"), knative + `initial-scale is "0" and must be 1 or more here`},
		"an activation scale of one":   {annotated("activation-scale", "1"), knative + "activation-scale"},
		"an unknown aggregation":       {annotated("metric-aggregation-algorithm", "median"), knative + "metric-aggregation-algorithm"},
		"a misspelt annotation":        {annotated("targets", "1"), knative + `targets is "1" and must be no annotation of the autoscaler`},
		"the old name is given":        {annotated("minScale", "x"), knative + "minScale"},
		"an unknown metric":            {annotated("metric", "latency"), `scaleMetric is "latency"`},
		"an unknown Knative class":     {annotated("class", "mine"), knative + `class is "mine"`},
		"an unknown class":             {scale.Settings{Annotations: map[string]string{scale.ClassAnnotation: "HPA"}}, scale.ClassAnnotation + ` is "HPA" and must be none, hpa, keda or external`},
		"rps with the hpa":             {scale.Settings{Annotations: map[string]string{scale.ClassAnnotation: "hpa"}, ScaleMetric: "rps"}, `scaleMetric is "rps" and must be cpu or memory`},
		"cpu with the kpa":             {scale.Settings{Annotations: map[string]string{scale.KnativeClassAnnotation: "kpa.autoscaling.knative.dev"}, ScaleMetric: "cpu"}, `scaleMetric is "cpu"`},
		"two classes":                  {scale.Settings{Annotations: map[string]string{scale.KnativeClassAnnotation: "kpa.autoscaling.knative.dev", scale.ClassAnnotation: "keda"}}, scale.ClassAnnotation},
		"a maximum below the minimum":  {scale.Settings{MinReplicas: ptr(3), MaxReplicas: 2}, "max-scale must be not below min-scale"},
		"an activation beyond maximum": {scale.Settings{Annotations: map[string]string{knative + "activation-scale": "5"}, MaxReplicas: 2}, "activation-scale must be not above max-scale"},
		"a negative field":             {scale.Settings{MinReplicas: ptr(-1)}, "min-scale must be 0 or more"},
		"a negative hard limit":        {scale.Settings{ContainerConcurrency: -1}, "containerConcurrency"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := scale.Read(scale.Default(), tc.settings)
			if !errors.Is(err, errdef.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want an error of kind invalid with %q", err, tc.want)
			}
			if got.Class != "" {
				t.Errorf("settings beside an error: %+v", got)
			}
		})
	}
}

func annotated(name, value string) scale.Settings {
	return scale.Settings{Annotations: map[string]string{knative + name: value}}
}

// FuzzRead: whatever annotations say, they are refused by name or make settings that are valid.
func FuzzRead(f *testing.F) {
	f.Add("target", "10", "window", "90s", 1, 3, 0)
	f.Add("target", "NaN", "minScale", "2", -1, 0, 4)
	f.Add("panic-window-percentage", "0x1p3", "panic-threshold-percentage", "1e3", 0, 0, 0)
	f.Add("scale-down-delay", "1h0m0.5s", "metric", "rps", 2, 1, -3)
	f.Add("class", "hpa.autoscaling.knative.dev", "metric", "cpu", 1, 1, 1)
	f.Add("target-burst-capacity", "-1", "metric-aggregation-algorithm", "weighted-exponential", 0, 9, 1)
	f.Fuzz(func(t *testing.T, a, x, b, y string, low, high, limit int) {
		settings := scale.Settings{
			Annotations: map[string]string{knative + a: x, knative + b: y},
			MinReplicas: &low, MaxReplicas: high, ContainerConcurrency: limit,
		}
		got, err := scale.Read(scale.Default(), settings)
		if err != nil {
			if !errors.Is(err, errdef.ErrInvalid) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		if err := got.Config.Validate(); err != nil {
			t.Fatalf("%v made settings that aren't valid: %v", settings.Annotations, err)
		}
		target, total := got.Config.TargetValue()
		if !(target >= scale.TargetMin) || math.IsNaN(total) || math.IsInf(total, 0) {
			t.Fatalf("%v made a target of %v of %v", settings.Annotations, target, total)
		}
		s, err := scale.New(got.Config, t0, scale.Observed{})
		if err != nil {
			t.Fatal(err)
		}
		s.Record(t0, scale.Sample{Concurrency: 100, RPS: 100})
		if d := s.Decide(t0, scale.Observed{Ready: 1, Asked: 1}); d.Replicas < 0 || d.Replicas > math.MaxInt32 {
			t.Fatalf("%v decided %v", settings.Annotations, d)
		}
	})
}
