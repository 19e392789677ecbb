package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TrainedModel is one of many models that share the replicas of an InferenceService whose runtime
// is multiModel.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=trainedmodels,singular=trainedmodel,shortName=tm
// +kubebuilder:printcolumn:name="URL",type="string",JSONPath=".status.url"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type TrainedModel struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the model is and where it is served.
	Spec TrainedModelSpec `json:"spec,omitempty"`
	// What was last observed of it.
	Status TrainedModelStatus `json:"status,omitempty"`
}

// TrainedModelList is a list of TrainedModel.
//
// +kubebuilder:object:root=true
type TrainedModelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TrainedModel `json:"items"`
}

// TrainedModelSpec says what a model is and where it is served.
type TrainedModelSpec struct {
	// The InferenceService of the same namespace that serves the model.
	InferenceService string `json:"inferenceService"`
	// The model.
	Model ModelSpec `json:"model"`
}

// ModelSpec is a model's bytes, format and size in memory.
type ModelSpec struct {
	// Where the model's bytes are.
	StorageURI string `json:"storageUri"`
	// The model's format, e.g. onnx.
	Framework string `json:"framework"`
	// The memory that the loaded model takes; it can't be changed.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity(string(oldSelf))) == 0",reason=FieldValueForbidden,messageExpression="\"can't be changed from \" + string(oldSelf) + \" to \" + string(self) + \"; delete the TrainedModel and create it anew\""
	Memory resource.Quantity `json:"memory"`
}

// TrainedModelStatus is what was last observed of a TrainedModel.
type TrainedModelStatus struct {
	// The generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// What holds, by condition type; Ready sums up.
	// +optional
	Conditions []TrainedModelCondition `json:"conditions,omitempty"`
	// Further facts for tools.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// The URL that clients send predictions to.
	// +optional
	URL string `json:"url,omitempty"`
	// The same inside the platform.
	// +optional
	Address *TrainedModelAddress `json:"address,omitempty"`
}

// TrainedModelConditionType names a condition of a TrainedModel.
type TrainedModelConditionType string

// The conditions of a TrainedModel, which are KServe's. Ready is True when all others are.
const (
	TrainedModelReady TrainedModelConditionType = "Ready"
	// TrainedModelServiceReady says whether the InferenceService exists and is Ready.
	TrainedModelServiceReady TrainedModelConditionType = "InferenceServiceReady"
	// TrainedModelFrameworkSupported says whether the InferenceService serves this format.
	TrainedModelFrameworkSupported TrainedModelConditionType = "FrameworkSupported"
	// TrainedModelMemoryAvailable says whether the model fits the service's memory for models.
	TrainedModelMemoryAvailable TrainedModelConditionType = "MemoryResourceAvailable"
	// TrainedModelIsMultiModel says whether the InferenceService serves many models.
	TrainedModelIsMultiModel TrainedModelConditionType = "IsMMSPredictor"
)

// TrainedModelCondition is one thing that holds or not, in the shape of Knative's condition.
type TrainedModelCondition struct {
	// The name of the condition.
	// +required
	Type TrainedModelConditionType `json:"type"`
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

// TrainedModelAddress is an address that can be called.
type TrainedModelAddress struct {
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
