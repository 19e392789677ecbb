package kube

import (
	"cmp"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/scale"
)

// scaledObject is KEDA's kind. Its objects are made without its types: whether a cluster has
// KEDA, and which one, shows when they are applied.
var scaledObject = schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}

// defaultCPU is KServe's target for CPU, in percent of what is requested.
const defaultCPU = 80

// otelScaler is where KEDA finds the scaler of KServe's PodMetrics unless the manifest says.
const otelScaler = "keda-otel-scaler.keda.svc:4318"

// scaler makes the object that sets the replicas of a revision's Deployment, in the revision's
// name, so that while two revisions run each has its own. Nil means that the class is external.
func scaler(is *v1beta1.InferenceService, meta metav1.ObjectMeta, component string) (client.Object, error) {
	ext := manifest.Extension(is, component)
	if ext == nil {
		return nil, fmt.Errorf("service %s/%s has no %s", is.Namespace, is.Name, component)
	}
	s, _, err := manifest.Scaling(is, ext)
	if err != nil {
		return nil, err
	}
	switch s.Class {
	case scale.ClassHPA:
		return podAutoscaler(meta, ext, s), nil
	case scale.ClassKEDA:
		return kedaObject(meta, ext, s)
	}
	return nil, nil
}

// podAutoscaler makes a HorizontalPodAutoscaler as KServe does, with all of behavior.
func podAutoscaler(meta metav1.ObjectMeta, ext *v1beta1.ComponentExtensionSpec, s *scale.Scaling) *autoscalingv2.HorizontalPodAutoscaler {
	least := int32(max(s.Config.MinScale, 1))
	h := &autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta:   metav1.TypeMeta{APIVersion: autoscalingv2.SchemeGroupVersion.String(), Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: meta,
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment", Name: meta.Name,
			},
			MinReplicas: &least, MaxReplicas: max(int32(s.Config.MaxScale), least),
		},
	}
	var given []v1beta1.MetricsSpec
	if ext.AutoScaling != nil {
		given, h.Spec.Behavior = ext.AutoScaling.Metrics, ext.AutoScaling.Behavior.DeepCopy()
	}
	for i := range given {
		if r := given[i].Resource; r != nil {
			h.Spec.Metrics = append(h.Spec.Metrics, resourceMetric(corev1.ResourceName(r.Name), resourceTarget(r)))
		}
	}
	if len(given) == 0 {
		name := cmp.Or(s.Resource, string(corev1.ResourceCPU))
		percent := int32(s.Config.Target)
		if name == string(corev1.ResourceCPU) {
			percent = cmp.Or(percent, defaultCPU)
		}
		h.Spec.Metrics = append(h.Spec.Metrics, resourceMetric(corev1.ResourceName(name), utilization(percent)))
	}
	return h
}

func resourceMetric(name corev1.ResourceName, target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type:     autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{Name: name, Target: target},
	}
}

func utilization(percent int32) autoscalingv2.MetricTarget {
	return autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent}
}

// resourceTarget is what replicas should use on average; a plain value means the same, for the
// cluster knows no other.
func resourceTarget(r *v1beta1.ResourceMetricSource) autoscalingv2.MetricTarget {
	each := r.Target.AverageValue
	if each == nil {
		each = r.Target.Value
	}
	switch {
	case r.Target.AverageUtilization != nil:
		return utilization(*r.Target.AverageUtilization)
	case each != nil:
		return autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: each}
	}
	return utilization(defaultCPU)
}

// kedaObject makes a ScaledObject as KServe does, with all of behavior.
func kedaObject(meta metav1.ObjectMeta, ext *v1beta1.ComponentExtensionSpec, s *scale.Scaling) (client.Object, error) {
	most := max(s.Config.MaxScale, s.Config.MinScale, 1)
	spec := map[string]any{
		"scaleTargetRef":  map[string]any{"apiVersion": appsv1.SchemeGroupVersion.String(), "kind": "Deployment", "name": meta.Name},
		"minReplicaCount": int64(s.Config.MinScale), "maxReplicaCount": int64(most),
	}
	var triggers []any
	for i := range ext.AutoScaling.Metrics {
		triggers = append(triggers, trigger(&ext.AutoScaling.Metrics[i], meta))
	}
	spec["triggers"] = triggers
	if b := ext.AutoScaling.Behavior; b != nil {
		behavior, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
		if err != nil {
			return nil, fmt.Errorf("encode behavior: %w", err)
		}
		spec["advanced"] = map[string]any{"horizontalPodAutoscalerConfig": map[string]any{"behavior": behavior}}
	}
	head, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&meta)
	if err != nil {
		return nil, fmt.Errorf("encode metadata: %w", err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"metadata": head, "spec": spec}}
	u.SetGroupVersionKind(scaledObject)
	return u, nil
}

// trigger puts one metric into KEDA's words.
func trigger(m *v1beta1.MetricsSpec, of metav1.ObjectMeta) map[string]any {
	switch {
	case m.Resource != nil:
		t := resourceTarget(m.Resource)
		var value string
		if t.AverageUtilization != nil {
			value = strconv.Itoa(int(*t.AverageUtilization))
		} else {
			value = t.AverageValue.String()
		}
		return map[string]any{"type": string(m.Resource.Name), "metricType": string(t.Type), "metadata": map[string]any{"value": value}}
	case m.External != nil:
		x := &m.External.Metric
		out := map[string]any{"type": cmp.Or(string(x.Backend), "prometheus")}
		data := map[string]any{"serverAddress": x.ServerAddress, "query": x.Query, "threshold": number(&m.External.Target)}
		if x.Namespace != "" {
			data["namespace"] = x.Namespace
		}
		if a := m.External.AuthenticationRef; a != nil {
			if a.AuthModes != "" {
				data["authModes"] = a.AuthModes
			}
			out["authenticationRef"] = map[string]any{"name": a.AuthenticationRef.Name}
		}
		out["metadata"] = data
		return out
	}
	p := &m.PodMetric.Metric
	query := p.Query
	if query == "" && len(p.MetricNames) > 0 {
		query = p.MetricNames[0]
	}
	data := map[string]any{
		"scalerAddress": cmp.Or(p.ServerAddress, otelScaler), "targetValue": number(&m.PodMetric.Target),
		// The scaler gathers all pods' metrics; these are the revision's.
		"metricQuery": fmt.Sprintf("sum(%s{namespace=%q, deployment=%q})", query, of.Namespace, of.Name),
	}
	if p.OperationOverTime != "" {
		data["operationOverTime"] = p.OperationOverTime
	}
	return map[string]any{"type": "external", "metadata": data}
}

// number writes a target as KEDA reads it.
func number(t *v1beta1.MetricTarget) string {
	for _, q := range []*resource.Quantity{t.AverageValue, t.Value} {
		if q != nil {
			return strconv.FormatFloat(q.AsApproximateFloat64(), 'f', -1, 64)
		}
	}
	return "0"
}
