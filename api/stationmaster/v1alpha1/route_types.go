package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Route says where the requests for a service go: which revision of each component gets
// which share.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=routes,singular=route
// +kubebuilder:printcolumn:name="Service",type="string",JSONPath=".spec.service"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="URL",type="string",JSONPath=".status.urls[0].url"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type Route struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Where requests are to go.
	Spec RouteSpec `json:"spec"`
	// Where they go, as last observed.
	// +optional
	Status RouteStatus `json:"status,omitempty"`
}

// RouteList is a list of Route.
//
// +kubebuilder:object:root=true
type RouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Route `json:"items"`
}

// RouteSpec says where the requests for a service go.
type RouteSpec struct {
	// The InferenceService, in the same namespace.
	// +kubebuilder:validation:MinLength=1
	Service string `json:"service"`
	// Where the requests for each component go.
	// +listType=map
	// +listMapKey=component
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	Components []ComponentRoute `json:"components"`
}

// ComponentRoute says where the requests for a component go.
//
// +kubebuilder:validation:XValidation:rule="self.targets.map(t, t.percent).sum() == 100",message="the percents of a component's targets must sum to 100"
// +kubebuilder:validation:XValidation:rule="!has(self.headerRules) || self.headerRules.all(r, self.targets.exists(t, has(t.tag) && t.tag == r.tag))",message="a header rule must name the tag of a target"
type ComponentRoute struct {
	// The component: predictor, transformer or explainer.
	// +kubebuilder:validation:Enum=predictor;transformer;explainer
	Component string `json:"component"`
	// The revisions that get requests; their percents sum to 100.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Targets []RouteTarget `json:"targets"`
	// A revision that gets copies of requests, whose answers are dropped.
	// +optional
	Mirror *MirrorTarget `json:"mirror,omitempty"`
	// Requests with a header go to a tagged target whatever the percents; the first that
	// matches wins.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	HeaderRules []HeaderRule `json:"headerRules,omitempty"`
	// What tells clients apart whose requests stay on one target; absent means that each
	// request goes by the percents.
	// +optional
	Sticky *Sticky `json:"sticky,omitempty"`
}

// Sticky names what tells clients apart: a header or a cookie.
//
// +kubebuilder:validation:XValidation:rule="has(self.header) != has(self.cookie)",message="set header or cookie, one of the two"
type Sticky struct {
	// The header's name; case doesn't matter.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Header string `json:"header,omitempty"`
	// The cookie's name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Cookie string `json:"cookie,omitempty"`
}

// RouteTarget is a revision that gets requests.
type RouteTarget struct {
	// The Revision, in the same namespace.
	// +kubebuilder:validation:MinLength=1
	RevisionName string `json:"revisionName"`
	// The share of requests in percent.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent int32 `json:"percent"`
	// A name under which this target can be called alone.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Tag string `json:"tag,omitempty"`
}

// MirrorTarget is a revision that gets copies of requests.
type MirrorTarget struct {
	// The Revision, in the same namespace.
	// +kubebuilder:validation:MinLength=1
	RevisionName string `json:"revisionName"`
	// The share of requests in percent that is copied.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent int32 `json:"percent"`
}

// HeaderRule sends requests with a header to a tagged target.
type HeaderRule struct {
	// The header's name; case doesn't matter.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Header string `json:"header"`
	// The exact value; empty matches any value.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value,omitempty"`
	// The tag of the target.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Tag string `json:"tag"`
}

// RouteStatus is what was last observed of a route.
type RouteStatus struct {
	// The generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// What holds, by condition type; Ready sums up.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The addresses that clients use.
	// +optional
	// +listType=atomic
	URLs []RouteURL `json:"urls,omitempty"`
}

// RouteURL is an address that clients use.
type RouteURL struct {
	// The component it calls; empty means the service as a whole.
	// +optional
	Component string `json:"component,omitempty"`
	// The tag of the one target it calls; empty means all by their percents.
	// +optional
	Tag string `json:"tag,omitempty"`
	// The URL.
	URL string `json:"url"`
}
