package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
)

// PredictorSpec is the component that runs the model.
type PredictorSpec struct {
	// The name of this variant. Set, it becomes part of the workload's name; needed for canaries.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// A scikit-learn model; the same as model with modelFormat sklearn.
	// +optional
	SKLearn *FrameworkSpec `json:"sklearn,omitempty"`
	// An XGBoost model; the same as model with modelFormat xgboost.
	// +optional
	XGBoost *FrameworkSpec `json:"xgboost,omitempty"`
	// A TensorFlow model; the same as model with modelFormat tensorflow.
	// +optional
	Tensorflow *FrameworkSpec `json:"tensorflow,omitempty"`
	// A PyTorch model; the same as model with modelFormat pytorch.
	// +optional
	PyTorch *FrameworkSpec `json:"pytorch,omitempty"`
	// A model repository for Triton; the same as model with modelFormat triton.
	// +optional
	Triton *FrameworkSpec `json:"triton,omitempty"`
	// An ONNX model; the same as model with modelFormat onnx.
	// +optional
	ONNX *FrameworkSpec `json:"onnx,omitempty"`
	// A Hugging Face model; the same as model with modelFormat huggingface.
	// +optional
	HuggingFace *FrameworkSpec `json:"huggingface,omitempty"`
	// A PMML model; the same as model with modelFormat pmml.
	// +optional
	PMML *FrameworkSpec `json:"pmml,omitempty"`
	// A LightGBM model; the same as model with modelFormat lightgbm.
	// +optional
	LightGBM *FrameworkSpec `json:"lightgbm,omitempty"`
	// A PaddlePaddle model; the same as model with modelFormat paddle.
	// +optional
	Paddle *FrameworkSpec `json:"paddle,omitempty"`

	// The model, whatever its format, served by a ServingRuntime.
	// +optional
	Model *ModelSpec `json:"model,omitempty"`

	// Workers of a predictor that spans several nodes.
	// +optional
	WorkerSpec *WorkerSpec `json:"workerSpec,omitempty"`

	// The ClusterStorageContainer that fetches the model; empty means the first that matches
	// the URI.
	// +optional
	StorageContainerName *string `json:"storageContainerName,omitempty"`

	// Pod fields; a predictor with containers and no model is a custom one.
	PodSpec `json:",inline"`
	// What every component has.
	ComponentExtensionSpec `json:",inline"`
}

// ModelFormat is the format a model is stored in.
type ModelFormat struct {
	// The format's name as runtimes list it, e.g. onnx; case matters.
	// +required
	Name string `json:"name"`
	// The format's version as runtimes list it; empty matches any.
	// +optional
	Version *string `json:"version,omitempty"`
}

// ModelSpec is a model and how to serve it. Container fields given here are laid over those
// of the runtime.
type ModelSpec struct {
	// The format of the model; with it a runtime is chosen when none is named.
	ModelFormat ModelFormat `json:"modelFormat"`
	// The ServingRuntime, or else the ClusterServingRuntime, to use; empty means choose one.
	// +optional
	Runtime *string `json:"runtime,omitempty"`

	PredictorExtensionSpec `json:",inline"`
}

// FrameworkSpec is a model whose format is told by the field that holds it.
type FrameworkSpec struct {
	PredictorExtensionSpec `json:",inline"`
}

// PredictorExtensionSpec is what a model has whatever its format.
type PredictorExtensionSpec struct {
	// Where the model is, e.g. file:///models/iris, pvc://claim/dir, https://host/m.tar.gz.
	// Excludes storageUris.
	// +optional
	StorageURI *string `json:"storageUri,omitempty"`
	// The version of the runtime: replaces the tag of the image.
	// +optional
	RuntimeVersion *string `json:"runtimeVersion,omitempty"`
	// The inference protocol to speak: v1, v2, grpc-v1 or grpc-v2.
	// +optional
	ProtocolVersion *Protocol `json:"protocolVersion,omitempty"`

	// Container fields, laid over those of the runtime.
	corev1.Container `json:",inline"`

	// Where the model is, by a key of the storage secret instead of a URI.
	// +optional
	Storage *ModelStorageSpec `json:"storage,omitempty"`
	// How to decrypt a model that is stored encrypted.
	// +optional
	Confidential *ConfidentialSpec `json:"confidential,omitempty"`
}

// Protocol is an inference protocol: v1, v2, grpc-v1 or grpc-v2.
type Protocol string

// The inference protocols that protocolVersion may name.
const (
	ProtocolV1     Protocol = "v1"
	ProtocolV2     Protocol = "v2"
	ProtocolGRPCV1 Protocol = "grpc-v1"
	ProtocolGRPCV2 Protocol = "grpc-v2"
)

// ConfidentialSpec says how to decrypt a model.
type ConfidentialSpec struct {
	// Whether the model is stored encrypted.
	Enabled bool `json:"enabled"`
	// The name of the key at the key broker.
	// +optional
	ResourceID *string `json:"resourceId,omitempty"`
}

// StorageSpec names an entry of the storage secret.
type StorageSpec struct {
	// The path of the object within the bucket.
	// +optional
	Path *string `json:"path,omitempty"`
	// Values that override those of the storage secret.
	// +optional
	Parameters *map[string]string `json:"parameters,omitempty"`
	// The key in the storage secret; empty means the default entry.
	// +optional
	StorageKey *string `json:"key,omitempty"`
}

// ModelStorageSpec names where a model is by an entry of the storage secret.
type ModelStorageSpec struct {
	StorageSpec `json:",inline"`
	// The path of the model's schema file within the bucket.
	// +optional
	SchemaPath *string `json:"schemaPath,omitempty"`
}

// LoggerStorageSpec names where to log to by an entry of the storage secret.
type LoggerStorageSpec struct {
	StorageSpec `json:",inline"`
	// The service account whose secrets are used.
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
}

// WorkerSpec is the worker part of a predictor that spans several nodes.
type WorkerSpec struct {
	// Pod fields of a worker; its container is named worker-container.
	PodSpec `json:",inline"`

	// Number of nodes that the model's layers are spread over, the head included.
	// +optional
	PipelineParallelSize *int `json:"pipelineParallelSize,omitempty"`
	// Number of devices that each layer is split over.
	// +optional
	TensorParallelSize *int `json:"tensorParallelSize,omitempty"`
}
