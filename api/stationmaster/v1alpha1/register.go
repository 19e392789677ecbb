// Package v1alpha1 is the published contract of Stationmaster's own kinds: Revision, what
// was rolled out, and Route, where traffic goes. It holds types only.
//
// +kubebuilder:object:generate=true
// +groupName=stationmaster.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "stationmaster.dev", Version: "v1alpha1"}

// The labels that Revision and Route carry, KServe's own.
const (
	// LabelService holds the name of the InferenceService.
	LabelService = "serving.kserve.io/inferenceservice"
	// LabelComponent holds the component: predictor, transformer or explainer.
	LabelComponent = "component"
)

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Revision{}, &RevisionList{}, &Route{}, &RouteList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Resource qualifies a resource name with the group.
func Resource(name string) schema.GroupResource {
	return GroupVersion.WithResource(name).GroupResource()
}
