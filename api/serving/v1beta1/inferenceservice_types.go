package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InferenceService serves a model: a predictor that runs it and, where wanted, a transformer
// before it and an explainer beside it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=inferenceservices,singular=inferenceservice,shortName=isvc,categories=all
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="URL",type="string",JSONPath=".status.url"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Prev",type="integer",JSONPath=".status.components.predictor.traffic[?(@.tag=='prev')].percent"
// +kubebuilder:printcolumn:name="Latest",type="integer",JSONPath=".status.components.predictor.traffic[?(@.latestRevision==true)].percent"
// +kubebuilder:printcolumn:name="PrevRolledoutRevision",type="string",JSONPath=".status.components.predictor.traffic[?(@.tag=='prev')].revisionName"
// +kubebuilder:printcolumn:name="LatestReadyRevision",type="string",JSONPath=".status.components.predictor.traffic[?(@.latestRevision==true)].revisionName"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type InferenceService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What to serve.
	Spec InferenceServiceSpec `json:"spec,omitempty"`
	// What is served, as last observed.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	Status InferenceServiceStatus `json:"status,omitempty"`
}

// InferenceServiceList is a list of InferenceService.
//
// +kubebuilder:object:root=true
type InferenceServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferenceService `json:"items"`
}

// InferenceServiceSpec says what an InferenceService is made of.
type InferenceServiceSpec struct {
	// The component that runs the model. Name exactly one implementation: model, one of the
	// framework fields, or containers.
	Predictor PredictorSpec `json:"predictor"`
	// The component that answers :explain; absent means none.
	// +optional
	Explainer *ExplainerSpec `json:"explainer,omitempty"`
	// The component that rewrites requests before the predictor and answers after it; absent
	// means none.
	// +optional
	Transformer *TransformerSpec `json:"transformer,omitempty"`
	// Predictors that take a share of the traffic beside the stable one.
	// +optional
	// +listType=atomic
	Canary []CanarySpec `json:"canary,omitempty"`
}

// CanarySpec is one predictor that takes a share of the traffic beside the stable one.
type CanarySpec struct {
	// What differs from the stable predictor; fields left out are taken from it. The name is
	// required and distinct.
	Predictor PredictorSpec `json:"predictor"`
	// The share of requests in percent, 0 to 100; all canaries together take at most 100.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	TrafficPercent int32 `json:"trafficPercent"`
}
