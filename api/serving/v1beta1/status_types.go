package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InferenceServiceStatus is what was last observed of an InferenceService.
type InferenceServiceStatus struct {
	// The generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// What holds, by condition type; Ready sums up.
	// +optional
	Conditions []Condition `json:"conditions,omitempty"`
	// Further facts for tools.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// The address inside the platform.
	// +optional
	Address *Addressable `json:"address,omitempty"`
	// The URL that clients use.
	// +optional
	URL string `json:"url,omitempty"`
	// What was observed of each component.
	// +optional
	Components map[ComponentType]ComponentStatusSpec `json:"components,omitempty"`
	// What was observed of the model.
	// +optional
	ModelStatus ModelStatus `json:"modelStatus,omitempty,omitzero"`
	// What was observed of each canary.
	// +optional
	// +listType=atomic
	CanaryStatuses []CanaryStatus `json:"canaryStatuses,omitempty"`
	// The deployment mode in use; it can't be changed later.
	// +optional
	DeploymentMode string `json:"deploymentMode,omitempty"`
	// The ServingRuntime in use, if it is a namespaced one.
	// +optional
	ServingRuntimeName string `json:"servingRuntimeName,omitempty"`
	// The ClusterServingRuntime in use, if it is a cluster-wide one.
	// +optional
	ClusterServingRuntimeName string `json:"clusterServingRuntimeName,omitempty"`
}

// ConditionType names a condition.
type ConditionType string

// The conditions of an InferenceService. All but the last two are KServe's.
const (
	ConditionReady                ConditionType = "Ready"
	ConditionPredictorReady       ConditionType = "PredictorReady"
	ConditionTransformerReady     ConditionType = "TransformerReady"
	ConditionExplainerReady       ConditionType = "ExplainerReady"
	ConditionIngressReady         ConditionType = "IngressReady"
	ConditionCanaryPredictorReady ConditionType = "CanaryPredictorReady"
	ConditionStopped              ConditionType = "Stopped"
	// ConditionFieldsInEffect is False when the manifest holds fields that are accepted and
	// kept but do nothing yet; its message names each and why. It never gates Ready.
	ConditionFieldsInEffect ConditionType = "FieldsInEffect"
	// ConditionScalingActive is False while replicas don't follow a metric that they should; its
	// message says why. Services that scale on their requests don't have it. It never gates Ready.
	ConditionScalingActive ConditionType = "ScalingActive"
	// ConditionRuntimeValid is False while a runtime that the service uses is stored but would be
	// refused if it was applied now; its message names each fault and what to do. Services whose
	// runtimes are in order don't have it. It never gates Ready.
	ConditionRuntimeValid ConditionType = "RuntimeValid"
)

// Condition is one thing that holds or not, in the shape that KServe's clients read
// (Knative's condition).
type Condition struct {
	// The name of the condition.
	// +required
	Type ConditionType `json:"type"`
	// True, False or Unknown.
	// +required
	Status corev1.ConditionStatus `json:"status"`
	// How grave a False is: empty is an error; Warning and Info don't gate Ready.
	// +optional
	Severity string `json:"severity,omitempty"`
	// When status last changed.
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty,omitzero"`
	// A word for programs on why the status is what it is.
	// +optional
	Reason string `json:"reason,omitempty"`
	// A sentence for people on why, and what to do.
	// +optional
	Message string `json:"message,omitempty"`
}

// Addressable is an address that can be called.
type Addressable struct {
	// The address' name.
	// +optional
	Name *string `json:"name,omitempty"`
	// The URL.
	// +optional
	URL string `json:"url,omitempty"`
	// PEM certificates of the authorities to trust.
	// +optional
	CACerts *string `json:"CACerts,omitempty"`
	// The audience of tokens for this address.
	// +optional
	Audience *string `json:"audience,omitempty"`
}

// ComponentStatusSpec is what was observed of a component.
type ComponentStatusSpec struct {
	// The latest revision that was ready.
	// +optional
	LatestReadyRevision string `json:"latestReadyRevision,omitempty"`
	// The latest revision that was made.
	// +optional
	LatestCreatedRevision string `json:"latestCreatedRevision,omitempty"`
	// The revision that had all traffic before the latest rolled-out one.
	// +optional
	PreviousRolledoutRevision string `json:"previousRolledoutRevision,omitempty"`
	// The latest revision that got all traffic.
	// +optional
	LatestRolledoutRevision string `json:"latestRolledoutRevision,omitempty"`
	// Where traffic goes.
	// +optional
	Traffic []TrafficTarget `json:"traffic,omitempty"`
	// The component's URL.
	// +optional
	URL string `json:"url,omitempty"`
	// The component's URL for REST.
	// +optional
	RestURL string `json:"restUrl,omitempty"`
	// The component's URL for gRPC.
	// +optional
	GrpcURL string `json:"grpcUrl,omitempty"`
	// The address inside the platform.
	// +optional
	Address *Addressable `json:"address,omitempty"`
}

// TrafficTarget is a revision that gets traffic.
type TrafficTarget struct {
	// A name under which this target can be called alone.
	// +optional
	Tag string `json:"tag,omitempty"`
	// The revision.
	// +optional
	RevisionName string `json:"revisionName,omitempty"`
	// Unused; kept for Knative's clients.
	// +optional
	ConfigurationName string `json:"configurationName,omitempty"`
	// Whether this is the latest ready revision.
	// +optional
	LatestRevision *bool `json:"latestRevision,omitempty"`
	// The share of requests in percent.
	// +optional
	Percent *int64 `json:"percent,omitempty"`
	// The URL of this target alone.
	// +optional
	URL string `json:"url,omitempty"`
}

// CanaryStatus is what was observed of a canary.
type CanaryStatus struct {
	// The canary predictor's name.
	Name string `json:"name"`
	// Whether it can take traffic.
	Ready bool `json:"ready"`
	// The share of requests in percent that it gets.
	TrafficPercent int32 `json:"trafficPercent"`
	// What was observed of its model.
	// +optional
	ModelStatus *ModelStatus `json:"modelStatus,omitempty"`
}

// TransitionStatus says whether the target model is the active one.
//
// +kubebuilder:validation:Enum="";UpToDate;InProgress;BlockedByFailedLoad;InvalidSpec
type TransitionStatus string

// The transition statuses.
const (
	UpToDate            TransitionStatus = "UpToDate"
	InProgress          TransitionStatus = "InProgress"
	BlockedByFailedLoad TransitionStatus = "BlockedByFailedLoad"
	InvalidSpec         TransitionStatus = "InvalidSpec"
)

// ModelState is how far a model is on its way to serving.
//
// +kubebuilder:validation:Enum="";Pending;Standby;Loading;Loaded;FailedToLoad
type ModelState string

// The model states.
const (
	Pending      ModelState = "Pending"
	Standby      ModelState = "Standby"
	Loading      ModelState = "Loading"
	Loaded       ModelState = "Loaded"
	FailedToLoad ModelState = "FailedToLoad"
)

// FailureReason is a word for why a model isn't served.
//
// +kubebuilder:validation:Enum=ModelLoadFailed;RuntimeUnhealthy;RuntimeDisabled;NoSupportingRuntime;RuntimeNotRecognized;InvalidPredictorSpec
type FailureReason string

// The failure reasons.
const (
	ModelLoadFailed      FailureReason = "ModelLoadFailed"
	RuntimeUnhealthy     FailureReason = "RuntimeUnhealthy"
	RuntimeDisabled      FailureReason = "RuntimeDisabled"
	NoSupportingRuntime  FailureReason = "NoSupportingRuntime"
	RuntimeNotRecognized FailureReason = "RuntimeNotRecognized"
	InvalidPredictorSpec FailureReason = "InvalidPredictorSpec"
)

// ModelStatus is what was observed of a model.
type ModelStatus struct {
	// Whether the target model is the active one.
	// +kubebuilder:default=UpToDate
	TransitionStatus TransitionStatus `json:"transitionStatus"`
	// How far the active and the target model are.
	// +optional
	ModelRevisionStates *ModelRevisionStates `json:"states,omitempty"`
	// Why the model last failed; absent once it has recovered.
	// +optional
	LastFailureInfo *FailureInfo `json:"lastFailureInfo,omitempty"`
	// How many copies of the model there are.
	// +optional
	ModelCopies *ModelCopies `json:"copies,omitempty"`
}

// ModelRevisionStates says how far the active and the target model are.
type ModelRevisionStates struct {
	// The model that gets requests.
	// +kubebuilder:default=Pending
	ActiveModelState ModelState `json:"activeModelState"`
	// The model that is to get them.
	// +kubebuilder:default=""
	TargetModelState ModelState `json:"targetModelState,omitempty"`
}

// ModelCopies counts copies of a model.
type ModelCopies struct {
	// Copies that failed to load.
	// +kubebuilder:default=0
	FailedCopies int `json:"failedCopies"`
	// All copies.
	// +optional
	TotalCopies int `json:"totalCopies,omitempty"`
}

// FailureInfo says why a model failed.
type FailureInfo struct {
	// The replica that failed.
	// +optional
	Location string `json:"location,omitempty"`
	// A word for programs.
	// +optional
	Reason FailureReason `json:"reason,omitempty"`
	// A text for people, with the last lines of the log where there are.
	// +optional
	Message string `json:"message,omitempty"`
	// The revision that failed.
	// +optional
	ModelRevisionName string `json:"modelRevisionName,omitempty"`
	// When it failed.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// The process' exit code.
	// +optional
	ExitCode int32 `json:"exitCode,omitempty"`
}
