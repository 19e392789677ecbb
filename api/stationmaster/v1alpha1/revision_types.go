package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Revision is one rolled-out shape of one component of a service. Its spec never changes, so
// it answers later what was served at a time.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=revisions,singular=revision,shortName=rev
// +kubebuilder:printcolumn:name="Service",type="string",JSONPath=".spec.service"
// +kubebuilder:printcolumn:name="Component",type="string",JSONPath=".spec.component"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Replicas",type="integer",JSONPath=".status.readyReplicas"
// +kubebuilder:printcolumn:name="Digest",type="string",JSONPath=".status.models[0].digest"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type Revision struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What was rolled out. It can't be changed.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable: a changed service gets a new Revision"
	Spec RevisionSpec `json:"spec"`
	// What was last observed of it.
	// +optional
	Status RevisionStatus `json:"status,omitempty"`
}

// RevisionList is a list of Revision.
//
// +kubebuilder:object:root=true
type RevisionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Revision `json:"items"`
}

// RevisionSpec is one rolled-out shape of one component.
type RevisionSpec struct {
	// The InferenceService, in the same namespace.
	// +kubebuilder:validation:MinLength=1
	Service string `json:"service"`
	// The component: predictor, transformer or explainer.
	// +kubebuilder:validation:Enum=predictor;transformer;explainer
	Component string `json:"component"`
	// The pod, with runtime and manifest merged and placeholders filled in.
	PodTemplate corev1.PodTemplateSpec `json:"podTemplate"`
	// The other pods of a replica that spans several nodes; absent where a replica is one pod.
	// +optional
	Workers *RevisionWorkers `json:"workers,omitempty"`
	// The runtime it was made from; absent for a custom container.
	// +optional
	Runtime *RuntimeIdentity `json:"runtime,omitempty"`
	// The format of the model; absent for a custom container.
	// +optional
	ModelFormat *ModelFormat `json:"modelFormat,omitempty"`
	// The name under which the engine serves its model.
	// +optional
	ModelName string `json:"modelName,omitempty"`
	// The inference protocols that the engine speaks.
	// +optional
	// +listType=atomic
	Protocols []string `json:"protocols,omitempty"`
	// The models it needs, as the manifest names them.
	// +optional
	// +listType=atomic
	Models []RevisionModel `json:"models,omitempty"`
	// Seconds a request may take; 0 means the gateway's default.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TimeoutSeconds int64 `json:"timeoutSeconds,omitempty"`
	// The most requests a replica works on at once; 0 means no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ContainerConcurrency int64 `json:"containerConcurrency,omitempty"`
	// Identifies the shape: two revisions of one component with equal hashes run the same.
	// +kubebuilder:validation:MinLength=1
	Hash string `json:"hash"`
}

// RevisionWorkers are the pods of a replica beside the one that takes its requests.
type RevisionWorkers struct {
	// How many pods a replica has, the one that takes its requests included.
	// +kubebuilder:validation:Minimum=1
	Size int32 `json:"size"`
	// Each of the others, with runtime and manifest merged and placeholders filled in.
	PodTemplate corev1.PodTemplateSpec `json:"podTemplate"`
}

// RuntimeIdentity names the runtime that a revision was made from.
type RuntimeIdentity struct {
	// The runtime's name.
	Name string `json:"name"`
	// ServingRuntime or ClusterServingRuntime.
	// +kubebuilder:validation:Enum=ServingRuntime;ClusterServingRuntime
	Kind string `json:"kind"`
	// The image of the serving container; empty where only a local command runs it.
	// +optional
	Image string `json:"image,omitempty"`
}

// ModelFormat is the format a model is stored in.
type ModelFormat struct {
	// The format's name, e.g. onnx.
	Name string `json:"name"`
	// The format's version; empty means not told.
	// +optional
	Version string `json:"version,omitempty"`
}

// RevisionModel is a model that a revision needs.
type RevisionModel struct {
	// Where the model is, as the manifest has it.
	URI string `json:"uri"`
	// The directory where containers find it.
	// +optional
	MountPath string `json:"mountPath,omitempty"`
}

// RevisionStatus is what was last observed of a revision.
type RevisionStatus struct {
	// The generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// What holds, by condition type; Ready sums up.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Replicas that exist.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// Replicas that take requests.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// The models as resolved.
	// +optional
	// +listType=atomic
	Models []ResolvedModel `json:"models,omitempty"`
	// What ran it: the image's digest, or the sha256 of the binary.
	// +optional
	RuntimeDigest string `json:"runtimeDigest,omitempty"`
	// How long each phase of the first replica's start took.
	// +optional
	Startup *StartupDurations `json:"startup,omitempty"`
}

// ResolvedModel is a model's content as it was found.
type ResolvedModel struct {
	// Where the model is, as the manifest has it.
	URI string `json:"uri"`
	// The digest of its content, "sha256:" and 64 hex digits.
	// +optional
	Digest string `json:"digest,omitempty"`
	// The size of its content in bytes.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
}

// StartupDurations tells how long each phase of a start took; absent means not reached.
type StartupDurations struct {
	// Fetching the model.
	// +optional
	Pull *metav1.Duration `json:"pull,omitempty"`
	// Checking its digest and signatures.
	// +optional
	Verify *metav1.Duration `json:"verify,omitempty"`
	// Starting the process.
	// +optional
	Start *metav1.Duration `json:"start,omitempty"`
	// Loading the model into the engine.
	// +optional
	Load *metav1.Duration `json:"load,omitempty"`
	// All of it, from the decision to start to the first ready replica.
	// +optional
	Ready *metav1.Duration `json:"ready,omitempty"`
}
