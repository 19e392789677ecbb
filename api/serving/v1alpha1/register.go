// Package v1alpha1 is the published contract of ServingRuntime, ClusterServingRuntime,
// TrainedModel and InferenceGraph, field for field the one that KServe serves as
// serving.kserve.io/v1alpha1. It holds types only; selection and merging live in internal/catalogue and internal/manifest.
//
// +kubebuilder:object:generate=true
// +groupName=serving.kserve.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "serving.kserve.io", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&ServingRuntime{}, &ServingRuntimeList{},
		&ClusterServingRuntime{}, &ClusterServingRuntimeList{},
		&TrainedModel{}, &TrainedModelList{},
		&InferenceGraph{}, &InferenceGraphList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Resource qualifies a resource name with the group.
func Resource(name string) schema.GroupResource {
	return GroupVersion.WithResource(name).GroupResource()
}
