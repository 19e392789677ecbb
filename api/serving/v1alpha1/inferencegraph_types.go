package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// InferenceGraph is several services that answer one request together.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=inferencegraphs,singular=inferencegraph,shortName=ig
// +kubebuilder:printcolumn:name="URL",type="string",JSONPath=".status.url"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type InferenceGraph struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The nodes, and how long they may take.
	Spec InferenceGraphSpec `json:"spec,omitempty"`
	// What was last observed.
	Status InferenceGraphStatus `json:"status,omitempty"`
}

// InferenceGraphList is a list of InferenceGraph.
//
// +kubebuilder:object:root=true
type InferenceGraphList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferenceGraph `json:"items"`
}

// GraphRoot is the name of the node that a request meets first.
const GraphRoot = "root"

// InferenceGraphSpec is what a graph is asked to do.
type InferenceGraphSpec struct {
	// The nodes by name; the one called root is met first.
	// +required
	// +kubebuilder:validation:XValidation:rule="'root' in self",reason=FieldValueRequired,message="a request meets the node named root first: add it"
	Nodes map[string]InferenceRouter `json:"nodes"`
	// Resources of KServe's router pod.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty,omitzero"`
	// Affinity of KServe's router pod.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// Tolerations of KServe's router pod.
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Node labels that KServe's router pod needs.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// The node of KServe's router pod.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// The account of KServe's router pod.
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// Seconds that the whole graph may take for one request.
	// +optional
	TimeoutSeconds *int64 `json:"timeout,omitempty"`
	// Least number of KServe's router pods.
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// Greatest number of KServe's router pods.
	// +optional
	MaxReplicas int32 `json:"maxReplicas,omitempty"`
	// What KServe's router pods are scaled to.
	// +optional
	ScaleTarget *int32 `json:"scaleTarget,omitempty"`
	// What KServe's router pods are scaled on.
	// +optional
	ScaleMetric *GraphScaleMetric `json:"scaleMetric,omitempty"`
	// Time-outs of KServe's router, in seconds.
	// +optional
	RouterTimeouts *InferenceGraphRouterTimeouts `json:"routerTimeouts,omitempty"`
}

// GraphScaleMetric is what KServe's router pods are scaled on.
//
// +kubebuilder:validation:Enum=cpu;memory;concurrency;rps
type GraphScaleMetric string

// InferenceGraphRouterTimeouts are time-outs of KServe's router, in seconds.
type InferenceGraphRouterTimeouts struct {
	// For reading a request.
	// +optional
	ServerRead *int64 `json:"serverRead,omitempty"`
	// For answering a request that was read.
	// +optional
	ServerWrite *int64 `json:"serverWrite,omitempty"`
	// For the next request on a connection.
	// +optional
	ServerIdle *int64 `json:"serverIdle,omitempty"`
	// For one step's answer.
	// +optional
	ServiceClient *int64 `json:"serviceClient,omitempty"`
}

// InferenceRouterType says what a node does with its steps.
//
// +kubebuilder:validation:Enum=Sequence;Splitter;Ensemble;Switch
type InferenceRouterType string

// The types of nodes.
const (
	// Sequence takes its steps one after another.
	Sequence InferenceRouterType = "Sequence"
	// Splitter takes one of its steps by chance, as their weights say.
	Splitter InferenceRouterType = "Splitter"
	// Ensemble takes all of its steps at once and answers with all answers by step name.
	Ensemble InferenceRouterType = "Ensemble"
	// Switch takes the first of its steps whose condition the request meets.
	Switch InferenceRouterType = "Switch"
)

// InferenceRouter is a node of a graph.
type InferenceRouter struct {
	// What the node does with its steps: Sequence, Splitter, Ensemble or Switch.
	// +required
	RouterType InferenceRouterType `json:"routerType"`
	// The steps, in order.
	// +optional
	Steps []InferenceStep `json:"steps,omitempty"`
}

// InferenceTarget is where a step goes; exactly one of its fields is set.
type InferenceTarget struct {
	// Another node of the graph.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// An InferenceService of the graph's namespace.
	// +optional
	ServiceName string `json:"serviceName,omitempty"`
	// A URL, called as it is.
	// +optional
	ServiceURL string `json:"serviceUrl,omitempty"`
}

// InferenceStepDependencyType says what a step's failure means.
//
// +kubebuilder:validation:Enum=Soft;Hard
type InferenceStepDependencyType string

// The kinds of dependency; Soft is the default.
const (
	// Soft goes on with whatever the step answered.
	Soft InferenceStepDependencyType = "Soft"
	// Hard ends the node with the step's answer where that isn't a 2xx.
	Hard InferenceStepDependencyType = "Hard"
)

// The values of InferenceStep.Data.
const (
	// DataRequest gives a step the node's request; it is the default.
	DataRequest = "$request"
	// DataResponse gives a step of a Sequence the answer of the one before.
	DataResponse = "$response"
)

// InferenceStep is one step of a node.
type InferenceStep struct {
	// A name that is unique within the node; an Ensemble's answer has the step's under it.
	// +optional
	StepName string `json:"name,omitempty"`
	// Where the step goes.
	InferenceTarget `json:",inline"`
	// What the step is given, in a Sequence: $request, which is the default, or $response.
	// +optional
	Data string `json:"data,omitempty"`
	// The percent of requests that the step gets, in a Splitter.
	// +optional
	Weight *int64 `json:"weight,omitempty"`
	// A GJSON path that has to exist: in the request for a Switch, in the answer before for a
	// Sequence.
	// +optional
	Condition string `json:"condition,omitempty"`
	// What the step's failure means: Soft, which is the default, or Hard.
	// +optional
	Dependency InferenceStepDependencyType `json:"dependency,omitempty"`
	// With data $response, hand the answer's predictions on as instances.
	// +optional
	MapPredictionsToInstances bool `json:"mapPredictionsToInstances,omitempty"`
}

// InferenceGraphStatus is what was last observed of a graph.
type InferenceGraphStatus struct {
	// The generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// What holds, by condition type; Ready sums up.
	// +optional
	Conditions []v1beta1.Condition `json:"conditions,omitempty"`
	// Further facts for tools.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// The URL that clients use.
	// +optional
	URL string `json:"url,omitempty"`
	// How the graph is run.
	// +optional
	DeploymentMode string `json:"deploymentMode,omitempty"`
}
