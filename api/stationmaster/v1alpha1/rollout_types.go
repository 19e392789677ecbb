package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RolloutAnnotation is the annotation of an InferenceService's status that holds, as JSON, a
// GuardedRollout for each component whose rollout is guarded and under way, or was rolled back.
const RolloutAnnotation = "stationmaster.dev/rollout"

// PromotedAnnotation is the annotation of an InferenceService that names revisions, with commas
// between, that get all traffic whatever their guarded rollout says.
const PromotedAnnotation = "stationmaster.dev/rollout-promoted"

// The phases of a GuardedRollout.
const (
	RolloutStarting   = "Starting"
	RolloutBaking     = "Baking"
	RolloutWaiting    = "Waiting"
	RolloutHeld       = "Held"
	RolloutRolledBack = "RolledBack"
)

// GuardedRollout is where the guarded rollout of a component stands.
//
// +kubebuilder:object:generate=false
type GuardedRollout struct {
	// Revision is the one that is rolled out.
	Revision string `json:"revision"`
	// Phase is Starting (waits for replicas), Baking, Waiting (for requests), Held (by
	// canaryTrafficPercent) or RolledBack.
	Phase string `json:"phase"`
	// Step counts from 1 to Steps; the last one is all traffic.
	Step  int `json:"step"`
	Steps int `json:"steps"`
	// Percent is the share that the step is about: of a revision that was rolled back, the one
	// that it had.
	Percent int `json:"percent"`
	// Since is when the share came into effect with all replicas ready, and Until when the step
	// may end at the earliest; absent while it isn't.
	Since *metav1.Time `json:"since,omitempty"`
	Until *metav1.Time `json:"until,omitempty"`
	// Why says why the phase is what it is, with the numbers and limits, as of At.
	Why string      `json:"why"`
	At  metav1.Time `json:"at"`
	// Readings are what is limited.
	Readings []GuardReading `json:"readings,omitempty"`
	// Passed is the last step that was passed, with the numbers that decided it.
	Passed *PassedStep `json:"passed,omitempty"`
}

// PassedStep is a step of a guarded rollout that was passed.
//
// +kubebuilder:object:generate=false
type PassedStep struct {
	// Percent is the share that was judged.
	Percent int `json:"percent"`
	// Why says with numbers and limits why it was passed, at At; Readings are those.
	Why      string         `json:"why"`
	At       metav1.Time    `json:"at"`
	Readings []GuardReading `json:"readings,omitempty"`
}

// GuardReading is a limited metric of the step.
//
// +kubebuilder:object:generate=false
type GuardReading struct {
	// Metric is errors, p99, ttft or drift.
	Metric string `json:"metric"`
	// Value and Max are shares of 0 to 1, or seconds; Value is 0 where Of is.
	Value float64 `json:"value"`
	Max   float64 `json:"max"`
	// Of is how many requests, streams or comparisons Value is about.
	Of uint64 `json:"of"`
	// Exceeds says that the limit is exceeded.
	Exceeds bool `json:"exceeds,omitempty"`
	// Text says all this to a person.
	Text string `json:"text"`
}
