package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

func pointer[T any](v T) *T { return &v }

// onQueue scales a service on a metric of its engines, one replica for each 4.
func onQueue(is *v1beta1.InferenceService) {
	is.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: []v1beta1.MetricsSpec{{
		Type: v1beta1.PodMetricMetricSourceType,
		PodMetric: &v1beta1.PodMetricSource{
			Metric: v1beta1.PodMetrics{Backend: "opentelemetry", MetricNames: []string{"queue"}, OperationOverTime: "avg"},
			Target: v1beta1.MetricTarget{Type: v1beta1.ValueMetricType, Value: pointer(resource.MustParse("4"))},
		},
	}}}
}

func TestWhatMetricsMean(t *testing.T) {
	target := func(v1 string) v1beta1.MetricTarget {
		return v1beta1.MetricTarget{Type: v1beta1.ValueMetricType, Value: pointer(resource.MustParse(v1))}
	}
	use := func(memory, percent bool) demand.Source {
		return demand.Source{Resource: &demand.ResourceUse{Memory: memory, Percent: percent}}
	}
	ofResource := func(name v1beta1.ResourceMetric, t v1beta1.MetricTarget) v1beta1.MetricsSpec {
		return v1beta1.MetricsSpec{Type: v1beta1.ResourceMetricSourceType, Resource: &v1beta1.ResourceMetricSource{Name: name, Target: t}}
	}
	external := func(m v1beta1.ExternalMetrics, t v1beta1.MetricTarget) v1beta1.MetricsSpec {
		return v1beta1.MetricsSpec{Type: v1beta1.ExternalMetricSourceType, External: &v1beta1.ExternalMetricSource{Metric: m, Target: t}}
	}
	ofPods := func(m v1beta1.PodMetrics, t v1beta1.MetricTarget) v1beta1.MetricsSpec {
		return v1beta1.MetricsSpec{Type: v1beta1.PodMetricMetricSourceType, PodMetric: &v1beta1.PodMetricSource{Metric: m, Target: t}}
	}
	for name, tc := range map[string]struct {
		spec   v1beta1.MetricsSpec
		target scale.MetricTarget
		source demand.Source
	}{
		"the processor in percent": {
			ofResource("cpu", v1beta1.MetricTarget{Type: v1beta1.UtilizationMetricType, AverageUtilization: pointer[int32](60)}),
			scale.MetricTarget{Name: "cpu", Type: scale.Utilization, Target: 60}, use(false, true),
		},
		"the processor as usual": {
			ofResource("cpu", v1beta1.MetricTarget{Type: v1beta1.UtilizationMetricType}),
			scale.MetricTarget{Name: "cpu", Type: scale.Utilization, Target: 80}, use(false, true),
		},
		"memory in bytes": {
			ofResource("memory", v1beta1.MetricTarget{Type: v1beta1.AverageValueMetricType, AverageValue: pointer(resource.MustParse("1Gi"))}),
			scale.MetricTarget{Name: "memory", Type: scale.AverageValue, Target: 1 << 30}, use(true, false),
		},
		"a query": {
			external(v1beta1.ExternalMetrics{Backend: "prometheus", ServerAddress: "http://p:9090", Query: "sum(\n  queue)", Namespace: "team"}, target("500m")),
			scale.MetricTarget{Name: "sum( queue)", Type: scale.AverageValue, Target: 0.5},
			demand.Source{Prometheus: &demand.PrometheusQuery{Server: "http://p:9090", Query: "sum(\n  queue)", Namespace: "team"}},
		},
		"a metric of the engines": {
			ofPods(v1beta1.PodMetrics{Query: "queue", OperationOverTime: "max"}, target("4")),
			scale.MetricTarget{Name: "queue", Type: scale.AverageValue, Target: 4},
			demand.Source{Engine: &demand.EngineMetric{Query: "queue", Over: demand.OverMax}},
		},
		"a metric of the engines at a server": {
			ofPods(v1beta1.PodMetrics{Query: "sum(queue)", ServerAddress: "http://p:9090"}, target("4")),
			scale.MetricTarget{Name: "sum(queue)", Type: scale.AverageValue, Target: 4},
			demand.Source{Prometheus: &demand.PrometheusQuery{Server: "http://p:9090", Query: "sum(queue)"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ext := &v1beta1.ComponentExtensionSpec{AutoScaling: &v1beta1.AutoScalingSpec{Metrics: []v1beta1.MetricsSpec{tc.spec}}}
			got, err := metrics(ext, &scale.Scaling{Class: scale.ClassKPA, Config: scale.Config{MaxScale: 3}})
			if err != nil {
				t.Fatal(err)
			}
			want := &demand.Metrics{
				HPA:     scale.HPAConfig{Metrics: []scale.MetricTarget{tc.target}, MaxScale: 3, Behavior: scale.DefaultBehavior()},
				Sources: []demand.Source{tc.source},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	graphite := external(v1beta1.ExternalMetrics{Backend: "graphite", ServerAddress: "http://g", Query: "q"}, target("4"))
	ext := &v1beta1.ComponentExtensionSpec{AutoScaling: &v1beta1.AutoScalingSpec{Metrics: []v1beta1.MetricsSpec{graphite}}}
	if m, err := metrics(ext, &scale.Scaling{Class: scale.ClassKPA}); m != nil || err != nil {
		t.Errorf("Graphite is asked: %+v, %v", m, err)
	}
}

func TestBehaviorReplacesTheDefaultsThatItNames(t *testing.T) {
	is := newService("n", "iris", toZero(3), onQueue)
	least := autoscalingv2.MinChangePolicySelect
	is.Spec.Predictor.AutoScaling.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: &autoscalingv2.HPAScalingRules{
			SelectPolicy: &least, Tolerance: pointer(resource.MustParse("50m")),
			Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: 30}},
		},
		ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: pointer[int32](7)},
	}
	how, err := scaling(is, &is.Spec.Predictor.ComponentExtensionSpec, true)
	if err != nil {
		t.Fatal(err)
	}
	want := scale.DefaultBehavior()
	want.ScaleUp = scale.Rules{Select: scale.SelectMin, Tolerance: 0.05, Policies: []scale.Policy{{Type: scale.PodsPolicy, Value: 1, Period: 30 * time.Second}}}
	want.ScaleDown.StabilizationWindow = 7 * time.Second
	if diff := cmp.Diff(want, how.metrics.HPA.Behavior); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	is.Spec.Predictor.AutoScaling.Behavior.ScaleDown.StabilizationWindowSeconds = pointer[int32](7200)
	if _, err := scaling(is, &is.Spec.Predictor.ComponentExtensionSpec, true); err == nil || !strings.Contains(err.Error(), "behavior.scaleDown.stabilizationWindowSeconds") {
		t.Errorf("two hours: %v", err)
	}
}

func TestWhoSetsReplicasOnACluster(t *testing.T) {
	class := func(v string) func(*v1beta1.InferenceService) {
		return func(is *v1beta1.InferenceService) {
			if v != "" {
				is.Annotations = map[string]string{"serving.kserve.io/autoscalerClass": v}
			}
		}
	}
	metric := func(m v1beta1.ScaleMetric) func(*v1beta1.InferenceService) {
		return func(is *v1beta1.InferenceService) { is.Spec.Predictor.ScaleMetric = &m }
	}
	for name, tc := range map[string]struct {
		change    []func(*v1beta1.InferenceService)
		elsewhere bool
	}{
		"requests":                       {nil, false},
		"the processor":                  {[]func(*v1beta1.InferenceService){metric("cpu")}, true},
		"memory without a target":        {[]func(*v1beta1.InferenceService){metric("memory")}, false},
		"an engine's metric":             {[]func(*v1beta1.InferenceService){onQueue}, false},
		"an engine's metric and KEDA":    {[]func(*v1beta1.InferenceService){onQueue, class("keda")}, true},
		"KEDA without a metric":          {[]func(*v1beta1.InferenceService){class("keda")}, false},
		"Kubernetes' autoscaler":         {[]func(*v1beta1.InferenceService){class("hpa")}, true},
		"somebody else":                  {[]func(*v1beta1.InferenceService){class("external")}, true},
		"nobody, whatever the metric is": {[]func(*v1beta1.InferenceService){onQueue, class("none")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			is := newService("n", "iris", append(tc.change, toZero(3))...)
			how, err := scaling(is, &is.Spec.Predictor.ComponentExtensionSpec, false)
			if err != nil || how.elsewhere != tc.elsewhere {
				t.Errorf("%+v, %v; want elsewhere %v", how, err, tc.elsewhere)
			}
			if how.elsewhere && how.least != 1 {
				t.Errorf("begins with %d", how.least)
			}
		})
	}
}

func TestMetricsReachTheAutoscalerAndTheirAbsenceTheStatus(t *testing.T) {
	b := newBench(t, scalable)
	key := b.key("iris")
	b.service("iris", toZero(3), onQueue)
	b.ready("iris")
	b.eventually("the autoscaler is told what to measure", func() string {
		s, _ := b.cfg.Scaling.Subjects.Load(key)
		if len(s) == 1 && s[0].Metrics != nil && len(s[0].Metrics.Replicas) == 1 && s[0].Metrics.HPA.MaxScale == 3 {
			return ""
		}
		return fmt.Sprintf("%+v", s)
	})
	is := b.until("iris", "scaling on a metric", func(is *v1beta1.InferenceService) bool {
		return conditionOf(is.Status.Conditions, v1beta1.ConditionScalingActive).Status == corev1.ConditionTrue
	})
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionFieldsInEffect); c.Status != corev1.ConditionTrue {
		t.Errorf("FieldsInEffect %+v", c)
	}
	rev := spec.RevisionKey{Namespace: key.Namespace, Name: "iris-predictor-00001"}
	b.cfg.Scaling.Wants.Store(rev, demand.Want{Replicas: 1, Missing: "queue: no answer"})
	b.cfg.Scaling.Changed.Notify(key)
	b.until("iris", "told that the metric is missing", func(is *v1beta1.InferenceService) bool {
		c := conditionOf(is.Status.Conditions, v1beta1.ConditionScalingActive)
		return c.Status == corev1.ConditionFalse && c.Reason == "MetricsMissing" && c.Severity == "Info" && c.Message == "iris-predictor-00001: queue: no answer" && isReady(is)
	})
	b.eventually("an event", func() string {
		var list corev1.EventList
		if err := b.List(t.Context(), &list); err != nil {
			return err.Error()
		}
		for _, e := range list.Items {
			if e.Reason == "MetricsMissing" && e.InvolvedObject.Name == "iris" && strings.Contains(e.Message, "queue: no answer") {
				return ""
			}
		}
		return "none"
	})
}

func TestPlanFollowsWhoeverSetsReplicas(t *testing.T) {
	told := func(n int) spec.Elsewhere { return spec.Elsewhere{Asked: n} }
	for name, tc := range map[string]struct {
		elsewhere map[string]spec.Elsewhere
		latest    string
		replicas  int
		wants     map[string]int
	}{
		"nobody has spoken yet":                 {nil, "one", 2, map[string]int{"one": 2}},
		"more are asked for":                    {map[string]spec.Elsewhere{"one": told(5)}, "one", 2, map[string]int{"one": 5}},
		"none is asked for":                     {map[string]spec.Elsewhere{"one": told(0)}, "one", 1, map[string]int{"one": 0}},
		"a new one must carry what the old one": {map[string]spec.Elsewhere{"one": told(5)}, "two", 5, map[string]int{"one": 5, "two": 2}},
		"and no more than it is let have":       {map[string]spec.Elsewhere{"one": told(5), "two": told(3)}, "two", 3, map[string]int{"one": 5, "two": 3}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &service{observed: spec.Observed{Elsewhere: tc.elsewhere}}
			pc := &plan.Component{Latest: tc.latest, Replicas: 2, Last: plan.Rollout{Latest: "one", RolledOut: "one"}}
			s.wantsOfOthers(&component{replicas: 2}, pc)
			if diff := cmp.Diff(tc.wants, pc.Wants); diff != "" || pc.Replicas != tc.replicas {
				t.Errorf("%d replicas, want %d; wants (-want +got):\n%s", pc.Replicas, tc.replicas, diff)
			}
		})
	}
}
