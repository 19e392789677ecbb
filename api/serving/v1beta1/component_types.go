package v1beta1

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// ComponentType names a component of an InferenceService.
type ComponentType string

// The components of an InferenceService.
const (
	PredictorComponent   ComponentType = "predictor"
	ExplainerComponent   ComponentType = "explainer"
	TransformerComponent ComponentType = "transformer"
)

// TransformerSpec is the component that rewrites requests and answers. Its container is
// given in containers.
type TransformerSpec struct {
	PodSpec                `json:",inline"`
	ComponentExtensionSpec `json:",inline"`
}

// ExplainerSpec is the component that answers :explain: art, or a container of one's own.
type ExplainerSpec struct {
	// The Adversarial Robustness Toolbox's explainer.
	// +optional
	ART *ARTExplainerSpec `json:"art,omitempty"`

	PodSpec                `json:",inline"`
	ComponentExtensionSpec `json:",inline"`
}

// ARTExplainerSpec is an explainer of the Adversarial Robustness Toolbox.
type ARTExplainerSpec struct {
	// The kind of explainer, e.g. SquareAttack.
	Type ARTExplainerType `json:"type,omitempty"`

	ExplainerExtensionSpec `json:",inline"`
}

// ARTExplainerType is a kind of ART explainer.
type ARTExplainerType string

// ARTSquareAttackExplainer is the square attack, the one kind KServe ships.
const ARTSquareAttackExplainer ARTExplainerType = "SquareAttack"

// ExplainerExtensionSpec is what every built-in explainer has.
type ExplainerExtensionSpec struct {
	// Where a trained explainer is.
	StorageURI string `json:"storageUri,omitempty"`
	// The version of the explainer's image.
	RuntimeVersion *string `json:"runtimeVersion,omitempty"`
	// Options passed to the explainer.
	Config map[string]string `json:"config,omitempty"`

	// Container fields, laid over the built-in ones.
	corev1.Container `json:",inline"`

	// Where a trained explainer is, by a key of the storage secret.
	// +optional
	Storage *ModelStorageSpec `json:"storage,omitempty"`
}

// StorageURI is one set of files to fetch and where to put them.
type StorageURI struct {
	// Where the files are.
	// +required
	// +kubebuilder:validation:MinLength=1
	URI string `json:"uri"`
	// The absolute directory where containers find them.
	// +optional
	// +kubebuilder:default=/mnt/models
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^/.*`
	MountPath string `json:"mountPath,omitempty"`
}

// ScaleMetric is what the number of replicas follows.
//
// +kubebuilder:validation:Enum=cpu;memory;concurrency;rps
type ScaleMetric string

// The scale metrics.
const (
	MetricCPU         ScaleMetric = "cpu"
	MetricMemory      ScaleMetric = "memory"
	MetricConcurrency ScaleMetric = "concurrency"
	MetricRPS         ScaleMetric = "rps"
)

// ComponentExtensionSpec is what every component has.
type ComponentExtensionSpec struct {
	// Sets of files to fetch, each to its own directory. Excludes model.storageUri.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	StorageURIs []StorageURI `json:"storageUris,omitempty"`

	// The least number of replicas; unset means 1, 0 allows scaling to zero.
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// The greatest number of replicas; 0 means no upper bound was set.
	// +optional
	MaxReplicas int32 `json:"maxReplicas,omitempty"`
	// The value of scaleMetric that each replica should see.
	// +optional
	ScaleTarget *int32 `json:"scaleTarget,omitempty"`
	// What the number of replicas follows: cpu, memory, concurrency or rps.
	// +optional
	ScaleMetric *ScaleMetric `json:"scaleMetric,omitempty"`
	// How scaleTarget is meant: Utilization (percent of the request), Value or AverageValue.
	// +optional
	ScaleMetricType *MetricTargetType `json:"scaleMetricType,omitempty"`
	// Scaling by several metrics and with a pace.
	// +optional
	AutoScaling *AutoScalingSpec `json:"autoScaling,omitempty"`
	// The most requests a replica works on at once; 0 means no limit.
	// +optional
	ContainerConcurrency *int64 `json:"containerConcurrency,omitempty"`
	// Seconds a request may take.
	// +optional
	TimeoutSeconds *int64 `json:"timeout,omitempty"`
	// The share of requests in percent that the latest revision gets; the rest goes to the
	// one rolled out before.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 100",message="must be 0 to 100"
	CanaryTrafficPercent *int64 `json:"canaryTrafficPercent,omitempty"`
	// Where requests and answers are logged to.
	// +optional
	Logger *LoggerSpec `json:"logger,omitempty"`
	// How single requests are put together into batches.
	// +optional
	Batcher *Batcher `json:"batcher,omitempty"`
	// Labels of the component's replicas.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the component's replicas.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// How replicas are replaced by newer ones.
	// +optional
	DeploymentStrategy *appsv1.DeploymentStrategy `json:"deploymentStrategy,omitempty"`
}

// LoggerType says what of a request is logged.
//
// +kubebuilder:validation:Enum=all;request;response
type LoggerType string

// The logger modes.
const (
	LogAll      LoggerType = "all"
	LogRequest  LoggerType = "request"
	LogResponse LoggerType = "response"
)

// LoggerSpec says where requests and answers are logged to.
type LoggerSpec struct {
	// The address that log entries are posted to.
	// +optional
	URL *string `json:"url,omitempty"`
	// Where log entries are stored.
	// +optional
	Storage *LoggerStorageSpec `json:"storage,omitempty"`
	// The address of the service that turns entries into files.
	// +optional
	MarshallerURL string `json:"marshallerUrl,omitempty"`
	// How many entries go into one file.
	// +optional
	BatchSize *int `json:"batchSize,omitempty"`
	// The longest time between two files, e.g. 10s.
	// +optional
	BatchInterval *string `json:"batchInterval,omitempty"`
	// What is logged: all, request or response.
	// +optional
	Mode LoggerType `json:"mode,omitempty"`
	// Request headers that are logged.
	// +optional
	MetadataHeaders []string `json:"metadataHeaders,omitempty"`
	// Annotations of the service that are logged.
	// +optional
	MetadataAnnotations []string `json:"metadataAnnotations,omitempty"`
}

// Batcher says how single requests are put together.
type Batcher struct {
	// The most instances in a batch.
	// +optional
	MaxBatchSize *int `json:"maxBatchSize,omitempty"`
	// Milliseconds that a batch waits to fill.
	// +optional
	MaxLatency *int `json:"maxLatency,omitempty"`
	// Seconds that a batched request may take.
	// +optional
	Timeout *int `json:"timeout,omitempty"`
}
