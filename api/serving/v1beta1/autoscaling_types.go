package v1beta1

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
)

// AutoScalingSpec scales by several metrics and with a pace.
type AutoScalingSpec struct {
	// The metrics; the one that asks for most replicas wins.
	// +optional
	Metrics []MetricsSpec `json:"metrics,omitempty"`
	// How fast replicas are added and removed.
	// +optional
	Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior,omitempty"`
}

// MetricSourceType names the member of MetricsSpec that is set.
//
// +kubebuilder:validation:Enum=Resource;External;PodMetric
type MetricSourceType string

// The metric sources.
const (
	ResourceMetricSourceType  MetricSourceType = "Resource"
	ExternalMetricSourceType  MetricSourceType = "External"
	PodMetricMetricSourceType MetricSourceType = "PodMetric"
)

// MetricsSpec is one metric to scale by.
type MetricsSpec struct {
	// Which source is used: Resource, External or PodMetric.
	Type MetricSourceType `json:"type"`
	// A resource that replicas use.
	// +optional
	Resource *ResourceMetricSource `json:"resource,omitempty"`
	// A metric of another system.
	// +optional
	External *ExternalMetricSource `json:"external,omitempty"`
	// A metric that replicas report themselves.
	// +optional
	PodMetric *PodMetricSource `json:"podmetric,omitempty"`
}

// ResourceMetric is a resource to scale by.
//
// +kubebuilder:validation:Enum=cpu;memory
type ResourceMetric string

// ResourceMetricSource scales by a resource that replicas use.
type ResourceMetricSource struct {
	// The resource: cpu or memory.
	Name ResourceMetric `json:"name"`
	// What each replica should use.
	Target MetricTarget `json:"target"`
}

// ExternalMetricSource scales by a metric of another system.
type ExternalMetricSource struct {
	// The metric.
	Metric ExternalMetrics `json:"metric"`
	// The value aimed for.
	Target MetricTarget `json:"target"`
	// How to authenticate at the system.
	// +optional
	AuthenticationRef *ExtMetricAuthentication `json:"authenticationRef,omitempty"`
}

// PodMetricSource scales by a metric that replicas report.
type PodMetricSource struct {
	// The metric.
	Metric PodMetrics `json:"metric"`
	// The value aimed for.
	Target MetricTarget `json:"target"`
}

// MetricsBackend is a system that external metrics come from.
//
// +kubebuilder:validation:Enum=prometheus;graphite
type MetricsBackend string

// PodMetricsBackend is a system that pods' metrics come from.
//
// +kubebuilder:validation:Enum=opentelemetry
type PodMetricsBackend string

// ExternalMetrics is a metric of another system.
type ExternalMetrics struct {
	// The system: prometheus or graphite.
	// +optional
	Backend MetricsBackend `json:"backend,omitempty"`
	// The system's address.
	// +optional
	ServerAddress string `json:"serverAddress,omitempty"`
	// The query in the system's language.
	// +optional
	Query string `json:"query,omitempty"`
	// The namespace for systems that are shared by several.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// PodMetrics is a metric that pods report.
type PodMetrics struct {
	// The system: opentelemetry.
	// +optional
	Backend PodMetricsBackend `json:"backend,omitempty"`
	// The system's address.
	// +optional
	ServerAddress string `json:"serverAddress,omitempty"`
	// The names of the metrics.
	// +optional
	MetricNames []string `json:"metricNames,omitempty"`
	// The query in the system's language.
	// +optional
	Query string `json:"query,omitempty"`
	// How values are put together over time, e.g. avg.
	// +optional
	OperationOverTime string `json:"operationOverTime,omitempty"`
}

// ExtMetricAuthentication says how to authenticate at a metrics system.
type ExtMetricAuthentication struct {
	// The modes, e.g. bearer, basic, tls.
	// +optional
	AuthModes string `json:"authModes,omitempty"`
	// The object that holds the credentials.
	AuthenticationRef AuthenticationRef `json:"authenticationRef"`
}

// AuthenticationRef names the object that holds credentials.
type AuthenticationRef struct {
	// The object's name.
	Name string `json:"name"`
}

// MetricTargetType says how a target value is meant.
//
// +kubebuilder:validation:Enum=Utilization;Value;AverageValue
type MetricTargetType string

// The ways to mean a target value.
const (
	UtilizationMetricType  MetricTargetType = "Utilization"
	ValueMetricType        MetricTargetType = "Value"
	AverageValueMetricType MetricTargetType = "AverageValue"
)

// MetricTarget is the value aimed for.
type MetricTarget struct {
	// Which of the values is meant: Utilization, Value or AverageValue.
	// +optional
	Type MetricTargetType `json:"type,omitempty"`
	// The value over all replicas.
	// +optional
	Value *resource.Quantity `json:"value,omitempty"`
	// The value for each replica.
	// +optional
	AverageValue *resource.Quantity `json:"averageValue,omitempty"`
	// The share of what was requested, in percent.
	// +optional
	AverageUtilization *int32 `json:"averageUtilization,omitempty"`
}
