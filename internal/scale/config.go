// Package scale decides how many replicas a revision should have. It is pure: samples and
// what is observed go in, a decision with its reasons comes out, and `now` is an argument.
//
// Scaler follows Knative's pod autoscaler (KPA) for concurrency and requests a second. HPA
// follows Kubernetes' HorizontalPodAutoscaler for any other metric. Both return a Decision.
package scale

import (
	"fmt"
	"math"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// The limits that Knative sets on its annotations (knative.dev/serving pkg/apis/autoscaling).
const (
	// Tick is how often a revision is decided on; the scale-down delay counts in ticks.
	Tick = 2 * time.Second
	// WindowMin and WindowMax bound the stable window.
	WindowMin = 6 * time.Second
	WindowMax = time.Hour
	// TargetMin is the least value a replica may be aimed at.
	TargetMin = 0.01

	panicWindowMin    = 1.0
	panicWindowMax    = 100.0
	panicThresholdMin = 110.0
	panicThresholdMax = 1000.0
)

// Metric is what a Scaler scales on.
type Metric string

// The metrics of the KPA.
const (
	// Concurrency counts requests in flight, held ones included.
	Concurrency Metric = "concurrency"
	// RPS counts requests that began in a second.
	RPS Metric = "rps"
)

// Aggregation is how samples of a window become one value.
type Aggregation string

// The aggregations of the KPA; empty means Linear.
const (
	Linear              Aggregation = "linear"
	WeightedExponential Aggregation = "weighted-exponential"
)

// Config says how one revision scales. Start from Default; Validate says what is wrong.
// Names and defaults are those of Knative's config-autoscaler and annotations.
type Config struct {
	Metric      Metric
	Aggregation Aggregation
	// Target is what one replica is meant to carry, before Utilization: requests in flight,
	// or requests a second. Zero means ConcurrencyTarget or RPSTarget, by Metric.
	Target float64
	// ConcurrencyTarget and RPSTarget are the defaults for Target.
	ConcurrencyTarget float64
	RPSTarget         float64
	// Utilization is the part of Target that is aimed at, in (0, 1].
	Utilization float64
	// ContainerConcurrency is the most requests that one replica takes at once; it caps the
	// target of Concurrency. Zero means no limit.
	ContainerConcurrency int

	// Window is the stable window, in whole seconds.
	Window time.Duration
	// PanicWindowPercentage is the panic window as a part of Window, 1 to 100. The panic
	// window is rounded to whole seconds and is one second at least.
	PanicWindowPercentage float64
	// PanicThresholdPercentage is how far above what the ready replicas are meant to carry
	// the panic value must be for panic to begin.
	PanicThresholdPercentage float64

	// MaxScaleUpRate and MaxScaleDownRate bound one decision relative to the ready replicas;
	// both are above 1. A decision may always go one replica up, and to zero.
	MaxScaleUpRate   float64
	MaxScaleDownRate float64

	// MinScale and MaxScale bound the replicas; a MaxScale of zero means no bound.
	MinScale int
	MaxScale int
	// InitialScale is the least number of replicas until it was reached once. Zero means that
	// the revision starts without a replica; the reader refuses it unless
	// AllowZeroInitialScale is set.
	InitialScale          int
	AllowZeroInitialScale bool
	// ActivationScale is the least number of replicas when there are any for demand. Below 2
	// it changes nothing.
	ActivationScale int
	// ScaleToZero allows zero replicas; without it the last one stays.
	ScaleToZero bool
	// ScaleDownDelay is how long a smaller number must have been wanted before it is followed,
	// in whole seconds. Zero means at once.
	ScaleDownDelay time.Duration
	// GracePeriod is how long the last replica stays at most until all traffic surely passes
	// a gateway that can hold it. Time during which decisions said Hold counts.
	GracePeriod time.Duration
	// Retention is how long the last replica stays at least after it was found idle.
	Retention time.Duration
	// ActivationTimeout is how long a revision may be starting before demand that went away
	// is followed to zero (Knative: the progress deadline of 600 s, and 30 s).
	ActivationTimeout time.Duration
	// TargetBurstCapacity is the burst, in requests, that ready replicas must be able to take
	// beside the present load for traffic to bypass the gateway's queue. -1 means that all
	// traffic always passes it; 0 that only a revision at zero is held.
	TargetBurstCapacity float64

	// StaleAfter is the age of the latest sample from which on nothing is known. Zero means
	// that samples grow stale only with the window, which is Knative's rule.
	StaleAfter time.Duration
}

// Default returns Knative's defaults, and our own for StaleAfter.
func Default() Config {
	return Config{
		Metric:                   Concurrency,
		Aggregation:              Linear,
		ConcurrencyTarget:        100,
		RPSTarget:                200,
		Utilization:              0.7,
		Window:                   time.Minute,
		PanicWindowPercentage:    10,
		PanicThresholdPercentage: 200,
		MaxScaleUpRate:           1000,
		MaxScaleDownRate:         2,
		InitialScale:             1,
		ScaleToZero:              true,
		GracePeriod:              30 * time.Second,
		ActivationTimeout:        630 * time.Second,
		TargetBurstCapacity:      211,
		StaleAfter:               10 * time.Second,
	}
}

// TargetValue returns the value that one replica is aimed at, and the total that it is meant
// to carry at most. (Knative: ResolveMetricTarget.)
func (c *Config) TargetValue() (target, total float64) {
	limit := float64(c.ContainerConcurrency)
	total = c.Target
	switch {
	case c.Metric == RPS && total == 0:
		total = c.RPSTarget
	case c.Metric != RPS && total == 0 && limit > 0:
		total = limit
	case c.Metric != RPS && total == 0:
		total = c.ConcurrencyTarget
	case c.Metric != RPS && limit > 0:
		total = min(total, limit)
	}
	return max(TargetMin, total*c.Utilization), total
}

// PanicWindow returns the panic window in whole seconds, one at least.
func (c *Config) PanicWindow() time.Duration {
	w := time.Duration(float64(c.Window) * c.PanicWindowPercentage / 100).Round(time.Second)
	return max(w, time.Second)
}

// Validate returns an error of kind errdef.ErrInvalid that names the first field that is out
// of its range, or nil.
func (c *Config) Validate() error {
	rules := []struct {
		field string
		ok    bool
		want  string
	}{
		{"metric", c.Metric == Concurrency || c.Metric == RPS, "concurrency or rps"},
		{"metric-aggregation-algorithm", c.Aggregation == "" || c.Aggregation == Linear || c.Aggregation == WeightedExponential, "linear or weighted-exponential"},
		{"target", c.Target == 0 || within(c.Target, TargetMin, maxValue), fmt.Sprintf("%g to %g", TargetMin, maxValue)},
		{"container-concurrency-target-default", within(c.ConcurrencyTarget, TargetMin, maxValue), fmt.Sprintf("%g to %g", TargetMin, maxValue)},
		{"requests-per-second-target-default", within(c.RPSTarget, TargetMin, maxValue), fmt.Sprintf("%g to %g", TargetMin, maxValue)},
		{"target-utilization-percentage", c.Utilization > 0 && c.Utilization <= 1, "above 0 and at most 100"},
		{"containerConcurrency", c.ContainerConcurrency >= 0, "0 or more"},
		{"window", c.Window >= WindowMin && c.Window <= WindowMax && c.Window%time.Second == 0, fmt.Sprintf("whole seconds from %v to %v", WindowMin, WindowMax)},
		{"panic-window-percentage", within(c.PanicWindowPercentage, panicWindowMin, panicWindowMax), "1 to 100"},
		{"panic-threshold-percentage", within(c.PanicThresholdPercentage, panicThresholdMin, panicThresholdMax), "110 to 1000"},
		{"max-scale-up-rate", c.MaxScaleUpRate > 1 && c.MaxScaleUpRate <= math.MaxFloat64, "above 1"},
		{"max-scale-down-rate", c.MaxScaleDownRate > 1 && c.MaxScaleDownRate <= math.MaxFloat64, "above 1"},
		{"min-scale", c.MinScale >= 0 && c.MinScale <= maxReplicas, "0 or more"},
		{"max-scale", c.MaxScale >= 0 && c.MaxScale <= maxReplicas, "0 (no bound) or more"},
		{"max-scale", c.MaxScale == 0 || c.MaxScale >= c.MinScale, "not below min-scale"},
		{"initial-scale", c.InitialScale >= 0 && c.InitialScale <= maxReplicas, "0 or more"},
		{"activation-scale", c.ActivationScale >= 0 && c.ActivationScale <= maxReplicas, "2 or more, or unset"},
		{"activation-scale", c.ActivationScale < 2 || c.ActivationScale >= c.MinScale, "not below min-scale"},
		{"activation-scale", c.ActivationScale < 2 || c.MaxScale == 0 || c.ActivationScale <= c.MaxScale, "not above max-scale"},
		{"scale-down-delay", c.ScaleDownDelay >= 0 && c.ScaleDownDelay <= WindowMax && c.ScaleDownDelay%time.Second == 0, fmt.Sprintf("whole seconds from 0s to %v", WindowMax)},
		{"scale-to-zero-grace-period", c.GracePeriod >= 0, "0s or more"},
		{"scale-to-zero-pod-retention-period", c.Retention >= 0 && c.Retention <= WindowMax, fmt.Sprintf("0s to %v", WindowMax)},
		{"activation-timeout", c.ActivationTimeout >= 0, "0s or more"},
		{"target-burst-capacity", c.TargetBurstCapacity == -1 || within(c.TargetBurstCapacity, 0, maxValue), "-1, or 0 and more"},
		{"stale-after", c.StaleAfter >= 0, "0s or more"},
	}
	for _, r := range rules {
		if !r.ok {
			return errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s must be %s", r.field, r.want))
		}
	}
	return nil
}

// within reports whether v is a number from low to high; NaN is none.
func within(v, low, high float64) bool { return v >= low && v <= high }

// clamp returns n within MinScale, or another floor, and MaxScale.
func (c *Config) clamp(floor, n int) int {
	n = max(n, floor)
	if c.MaxScale > 0 {
		n = min(n, c.MaxScale)
	}
	return n
}
