package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ServingRuntime is an engine that serves models of some formats in one namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=servingruntimes,singular=servingruntime
// +kubebuilder:printcolumn:name="Disabled",type="boolean",JSONPath=".spec.disabled"
// +kubebuilder:printcolumn:name="ModelType",type="string",JSONPath=".spec.supportedModelFormats[*].name"
// +kubebuilder:printcolumn:name="Containers",type="string",JSONPath=".spec.containers[*].name"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type ServingRuntime struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the engine serves and how it is run.
	Spec ServingRuntimeSpec `json:"spec,omitempty"`
	// Empty; kept for KServe's clients.
	Status ServingRuntimeStatus `json:"status,omitempty"`
}

// ServingRuntimeList is a list of ServingRuntime.
//
// +kubebuilder:object:root=true
type ServingRuntimeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ServingRuntime `json:"items"`
}

// ClusterServingRuntime is an engine that serves models of some formats in every namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=clusterservingruntimes,singular=clusterservingruntime,scope=Cluster
// +kubebuilder:printcolumn:name="Disabled",type="boolean",JSONPath=".spec.disabled"
// +kubebuilder:printcolumn:name="ModelType",type="string",JSONPath=".spec.supportedModelFormats[*].name"
// +kubebuilder:printcolumn:name="Containers",type="string",JSONPath=".spec.containers[*].name"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type ClusterServingRuntime struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the engine serves and how it is run.
	Spec ServingRuntimeSpec `json:"spec,omitempty"`
	// Empty; kept for KServe's clients.
	Status ServingRuntimeStatus `json:"status,omitempty"`
}

// ClusterServingRuntimeList is a list of ClusterServingRuntime.
//
// +kubebuilder:object:root=true
type ClusterServingRuntimeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterServingRuntime `json:"items"`
}

// ServingRuntimeStatus is empty.
type ServingRuntimeStatus struct{}

// ServingRuntimeSpec says what an engine serves and how it is run.
type ServingRuntimeSpec struct {
	// The model formats that the engine serves.
	SupportedModelFormats []SupportedModelFormat `json:"supportedModelFormats,omitempty"`
	// Whether one replica serves many models that come and go (ModelMesh).
	// +optional
	MultiModel *bool `json:"multiModel,omitempty"`
	// Whether the runtime is left out of selection and refused when named.
	// +optional
	Disabled *bool `json:"disabled,omitempty"`
	// The inference protocols that the engine speaks: v1, v2, grpc-v1, grpc-v2; none listed
	// means any.
	// +optional
	ProtocolVersions []Protocol `json:"protocolVersions,omitempty"`
	// The workers of an engine that spans several nodes.
	// +optional
	WorkerSpec *WorkerSpec `json:"workerSpec,omitempty"`

	// How the engine's pod is made; the container that serves is named kserve-container.
	ServingRuntimePodSpec `json:",inline"`

	// Where a multi-model engine takes model management calls over gRPC.
	// +optional
	GrpcMultiModelManagementEndpoint *string `json:"grpcEndpoint,omitempty"`
	// Where a multi-model engine takes inference over gRPC.
	// +optional
	GrpcDataEndpoint *string `json:"grpcDataEndpoint,omitempty"`
	// Where a multi-model engine takes inference over HTTP.
	// +optional
	HTTPDataEndpoint *string `json:"httpDataEndpoint,omitempty"`
	// How many replicas a multi-model engine has.
	// +optional
	Replicas *uint16 `json:"replicas,omitempty"`
	// How a multi-model engine's models are fetched.
	// +optional
	StorageHelper *StorageHelper `json:"storageHelper,omitempty"`
	// The adapter of a multi-model engine.
	// +optional
	BuiltInAdapter *BuiltInAdapter `json:"builtInAdapter,omitempty"`
}

// Protocol is an inference protocol: v1, v2, grpc-v1 or grpc-v2.
type Protocol string

// SupportedModelFormat is a model format that an engine serves.
type SupportedModelFormat struct {
	// The format's name; case matters.
	// +required
	Name string `json:"name"`
	// The format's version; empty means unversioned.
	// +optional
	Version *string `json:"version,omitempty"`
	// Whether the runtime may be chosen for this format without being named.
	// +optional
	AutoSelect *bool `json:"autoSelect,omitempty"`
	// Which runtime is chosen when several fit: the higher one, and a set one before an unset
	// one. It must be the same for every entry of one name.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Priority *int32 `json:"priority,omitempty"`
}

// ServingRuntimePodSpec holds the pod fields that a runtime may set; they mean what they mean
// in a pod.
type ServingRuntimePodSpec struct {
	// Containers of the engine's pod; the one that serves is named kserve-container.
	Containers []corev1.Container `json:"containers" patchStrategy:"merge" patchMergeKey:"name"`
	// +optional
	Volumes []corev1.Volume `json:"volumes,omitempty" patchStrategy:"merge,retainKeys" patchMergeKey:"name"`
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Labels of the engine's pods.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the engine's pods.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`
	// +optional
	HostIPC bool `json:"hostIPC,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=name
	ResourceClaims []corev1.PodResourceClaim `json:"resourceClaims,omitempty" patchStrategy:"merge,retainKeys" patchMergeKey:"name"`
}

// Core returns the same fields, labels and annotations apart, as a corev1.PodSpec. It shares
// memory with p.
func (p *ServingRuntimePodSpec) Core() corev1.PodSpec {
	return corev1.PodSpec{
		Containers:       p.Containers,
		Volumes:          p.Volumes,
		NodeSelector:     p.NodeSelector,
		Affinity:         p.Affinity,
		Tolerations:      p.Tolerations,
		ImagePullSecrets: p.ImagePullSecrets,
		SchedulerName:    p.SchedulerName,
		HostIPC:          p.HostIPC,
		ResourceClaims:   p.ResourceClaims,
	}
}

// WorkerSpec is the worker part of an engine that spans several nodes.
type WorkerSpec struct {
	ServingRuntimePodSpec `json:",inline"`
	// Number of nodes that a model's layers are spread over, the head included.
	// +optional
	PipelineParallelSize *int `json:"pipelineParallelSize,omitempty"`
	// Number of devices that each layer is split over.
	// +optional
	TensorParallelSize *int `json:"tensorParallelSize,omitempty"`
}

// ServerType names the engine behind a built-in adapter: triton, mlserver, ovms or torchserve.
type ServerType string

// StorageHelper says how a multi-model engine's models are fetched.
type StorageHelper struct {
	// Whether the engine fetches models itself.
	// +optional
	Disabled bool `json:"disabled,omitempty"`
}

// BuiltInAdapter is the adapter of a multi-model engine.
type BuiltInAdapter struct {
	// The engine: triton, mlserver, ovms or torchserve.
	ServerType ServerType `json:"serverType,omitempty"`
	// The port of the engine's management calls.
	RuntimeManagementPort int `json:"runtimeManagementPort,omitempty"`
	// Bytes of memory that aren't for models.
	MemBufferBytes int `json:"memBufferBytes,omitempty"`
	// Milliseconds that loading a model may take.
	ModelLoadingTimeoutMillis int `json:"modelLoadingTimeoutMillis,omitempty"`
	// Environment of the adapter's container.
	Env []corev1.EnvVar `json:"env,omitempty"`
}
