package scale

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// maxReplicas and maxValue bound every count and every metric, so that arithmetic on an
// absurd one can't overflow.
const (
	maxReplicas = math.MaxInt32
	maxValue    = 1e12
)

// Observed is what is known of a revision besides its samples. The zero value is a revision
// that has nothing yet, and to which a route leads.
type Observed struct {
	// Ready counts the replicas that answer now.
	Ready int
	// Asked is the number of replicas that the platform was last told to run.
	Asked int
	// Held counts the requests that the gateways hold now because nothing is ready. While
	// there are some, a decision is at least one replica, whatever the samples say.
	Held int
	// Busy says that there were requests a moment ago, or that nothing is known of them. An HPA
	// keeps the last replica then, whatever its metrics say; a Scaler doesn't read it, for it
	// knows of the requests itself.
	Busy bool
	// Unreachable says that no route leads to the revision: it may go down at once, and
	// neither MinScale nor InitialScale keep it up.
	Unreachable bool
	// Initialized says that the revision has reached InitialScale once, in this process or
	// an earlier one. Keep Decision.Initialized with the revision and give it back here.
	Initialized bool
}

// Mode is how a Scaler weighs its windows.
type Mode string

// The modes.
const (
	// Stable follows the stable window.
	Stable Mode = "stable"
	// Panic follows the greater of both windows and never goes down.
	Panic Mode = "panic"
)

// Reading is what one window, or one metric, says.
type Reading struct {
	// Value is the average over the window, or the metric's value.
	Value float64
	// Want is the number of replicas that Value asks for, before any limit.
	Want int
}

// Decision is how many replicas a revision should have, and why.
type Decision struct {
	// Replicas is the number to run. It may always be applied: where nothing is known it is
	// what is asked for already.
	Replicas int
	// Wanted is what the metric asks for after the algorithm's own limits and before the
	// bounds, or -1 where nothing is known.
	Wanted int
	// From and Ready repeat what was observed.
	From, Ready int

	Mode Mode
	// Metric names what was measured: concurrency, rps, or the deciding metric's name.
	Metric string
	// Target is the value of Metric that one replica is aimed at.
	Target float64
	// Stable and Panic are the two windows; for an HPA only Stable is set.
	Stable, Panic Reading
	// Reasons says what limited or held the number.
	Reasons Reasons
	// ExcessBurst is the number of requests that the ready replicas can take beside the
	// present load and the target burst. Negative means fewer than that burst.
	ExcessBurst int
	// Hold says that all traffic must pass a gateway that can hold requests: there is no
	// replica, or not enough room for a burst.
	Hold bool
	// Initialized is to be kept with the revision; see Observed.Initialized.
	Initialized bool
}

// Reasons is a set of what shaped a decision.
type Reasons uint32

// The reasons. The names in the comment's brackets are what String and List give.
const (
	// NoData [NoData]: no sample in the window, so the number stays.
	NoData Reasons = 1 << iota
	// StaleData [StaleData]: the latest sample is too old, so the number stays.
	StaleData
	// ScaleUpRate [ScaleUpRate]: more was wanted than one step may add.
	ScaleUpRate
	// ScaleDownRate [ScaleDownRate]: less was wanted than one step may leave.
	ScaleDownRate
	// ActivationScaled [ActivationScale]: raised to the activation scale.
	ActivationScaled
	// PanicHeld [PanicHold]: less was wanted, and panic doesn't go down.
	PanicHeld
	// Delayed [ScaleDownDelay]: a greater number was wanted within the scale-down delay.
	Delayed
	// AtMinScale [MinScale]: raised to the lower bound.
	AtMinScale
	// AtMaxScale [MaxScale]: lowered to the upper bound.
	AtMaxScale
	// AtInitialScale [InitialScale]: raised until the initial scale was reached once.
	AtInitialScale
	// Activating [Activating]: replicas are starting, so they are not taken away.
	Activating
	// ActivationFailed [ActivationTimeout]: starting took too long and nobody waits.
	ActivationFailed
	// LastReplica [StableWindow]: idle, but active for less than a stable window.
	LastReplica
	// InGrace [GracePeriod]: idle, waiting until the gateway surely gets all traffic.
	InGrace
	// Retained [Retention]: idle, and the last replica is kept on purpose.
	Retained
	// NeverZero [ScaleToZeroDisabled]: the last replica stays.
	NeverZero
	// Demanded [Demand]: requests are held, so there is one replica at least.
	Demanded
	// Tolerated [Tolerance]: the metric is near enough to its target.
	Tolerated
	// MissingMetric [MissingMetric]: a metric is missing, so the number doesn't go down.
	MissingMetric
	// Stabilized [StabilizationWindow]: a recent recommendation holds.
	Stabilized
	// PolicyLimited [ScalingPolicy]: a behavior's policy bounds the change.
	PolicyLimited
	// PolicyDisabled [ScalingDisabled]: a behavior forbids this direction.
	PolicyDisabled

	endOfReasons
)

var reasonNames = [...]string{
	"NoData", "StaleData", "ScaleUpRate", "ScaleDownRate", "ActivationScale", "PanicHold",
	"ScaleDownDelay", "MinScale", "MaxScale", "InitialScale", "Activating", "ActivationTimeout",
	"StableWindow", "GracePeriod", "Retention", "ScaleToZeroDisabled", "Demand", "Tolerance",
	"MissingMetric", "StabilizationWindow", "ScalingPolicy", "ScalingDisabled",
}

// Has reports whether all of r is in the set.
func (s Reasons) Has(r Reasons) bool { return s&r == r }

// List returns the names in a fixed order; nil for none.
func (s Reasons) List() []string {
	var names []string
	for left := s & (endOfReasons - 1); left != 0; left &= left - 1 {
		names = append(names, reasonNames[bits.TrailingZeros32(uint32(left))])
	}
	return names
}

// String returns the names with commas between, or "none".
func (s Reasons) String() string {
	if s == 0 {
		return "none"
	}
	return strings.Join(s.List(), ",")
}

// String says the decision in one sentence, for a status or a log line.
func (d Decision) String() string {
	var b strings.Builder
	switch {
	case d.Replicas == d.From:
		fmt.Fprintf(&b, "keep %s", replicas(d.Replicas))
	case d.Replicas > d.From:
		fmt.Fprintf(&b, "scale up from %d to %s", d.From, replicas(d.Replicas))
	default:
		fmt.Fprintf(&b, "scale down from %d to %s", d.From, replicas(d.Replicas))
	}
	switch {
	case d.Reasons&(NoData|StaleData) != 0 && d.From == 0 && d.Replicas == 0:
		b.WriteString(": no demand since it went to zero")
	case d.Reasons.Has(NoData):
		b.WriteString(": no data on " + d.Metric)
	case d.Reasons.Has(StaleData):
		b.WriteString(": data on " + d.Metric + " is stale")
	case d.Metric != "":
		fmt.Fprintf(&b, ": %s %s at %s a replica wants %d", d.Metric, number(d.Stable.Value), number(d.Target), d.Stable.Want)
		if d.Mode == Panic {
			fmt.Fprintf(&b, ", panic value %s wants %d", number(d.Panic.Value), d.Panic.Want)
		}
	}
	if words := d.Reasons.words(); len(words) > 0 {
		b.WriteString("; " + strings.Join(words, ", "))
	}
	return b.String()
}

// words returns the reasons as parts of a sentence, less those that String leads with.
func (s Reasons) words() []string {
	var words []string
	for left := s & (endOfReasons - 1) &^ (NoData | StaleData); left != 0; left &= left - 1 {
		words = append(words, reasonWords[bits.TrailingZeros32(uint32(left))])
	}
	return words
}

var reasonWords = [len(reasonNames)]string{
	2:  "limited by the scale-up rate",
	3:  "limited by the scale-down rate",
	4:  "raised to the activation scale",
	5:  "not going down in panic",
	6:  "held by the scale-down delay",
	7:  "raised to the minimum",
	8:  "limited by the maximum",
	9:  "raised to the initial scale",
	10: "waiting for replicas that start",
	11: "giving up on a start that took too long",
	12: "the last replica stays for the rest of the stable window",
	13: "the last replica stays for the grace period",
	14: "the last replica is retained",
	15: "scaling to zero is off",
	16: "requests are waiting",
	17: "within the tolerance",
	18: "not going down while a metric is missing",
	19: "held by the stabilization window",
	20: "limited by a scaling policy",
	21: "scaling in this direction is disabled",
}

func replicas(n int) string {
	if n == 1 {
		return "1 replica"
	}
	return strconv.Itoa(n) + " replicas"
}

func number(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// count turns a number of replicas that arithmetic on floats gave into one that fits.
func count(f float64) int {
	if f <= 0 || math.IsNaN(f) {
		return 0
	}
	return int(min(f, maxReplicas))
}
