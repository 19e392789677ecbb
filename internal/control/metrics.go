package control

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

// defaultCPU is the use of CPU that is aimed at, in percent of what is asked for, where nothing
// else is said; KServe has the same.
const defaultCPU = 80

// metrics reads which metrics a component scales on; nil means that it names none. What is read
// holds for all of its revisions but for what a replica asks for, and who the replicas are.
func metrics(ext *v1beta1.ComponentExtensionSpec, s *scale.Scaling) (*demand.Metrics, error) {
	m := &demand.Metrics{}
	add := func(name string, t scale.TargetType, target float64, source demand.Source) {
		m.HPA.Metrics = append(m.HPA.Metrics, scale.MetricTarget{Name: name, Type: t, Target: target})
		m.Sources = append(m.Sources, source)
	}
	var given []v1beta1.MetricsSpec
	if ext.AutoScaling != nil {
		given = ext.AutoScaling.Metrics
	}
	for i := range given {
		if err := oneMetric(&given[i], add); err != nil {
			return nil, fmt.Errorf("autoScaling.metrics[%d]: %w", i, err)
		}
	}
	if len(given) == 0 && (s.Class == scale.ClassHPA || s.Class == scale.ClassKEDA) {
		memory, target := s.Resource == "memory", s.Config.Target
		if !memory {
			target = cmp.Or(target, defaultCPU)
		}
		if target > 0 { // KServe has no default for memory
			add(cmp.Or(s.Resource, "cpu"), scale.Utilization, target, demand.Source{Resource: &demand.ResourceUse{Memory: memory, Percent: true}})
		}
	}
	if len(m.Sources) == 0 {
		return nil, nil
	}
	m.HPA.Behavior = scale.DefaultBehavior()
	if ext.AutoScaling != nil && ext.AutoScaling.Behavior != nil {
		b := ext.AutoScaling.Behavior
		pace(&m.HPA.Behavior.ScaleUp, b.ScaleUp)
		pace(&m.HPA.Behavior.ScaleDown, b.ScaleDown)
	}
	m.HPA.MinScale, m.HPA.MaxScale = s.Config.MinScale, s.Config.MaxScale
	return m, m.HPA.Validate()
}

func oneMetric(spec *v1beta1.MetricsSpec, add func(string, scale.TargetType, float64, demand.Source)) error {
	switch {
	case spec.Resource != nil:
		r := spec.Resource
		memory := r.Name == "memory"
		use := &demand.ResourceUse{Memory: memory}
		percent := r.Target.AverageUtilization
		if percent == nil && r.Target.AverageValue == nil && r.Target.Value == nil && !memory {
			n := int32(defaultCPU)
			percent = &n
		}
		if percent != nil {
			use.Percent = true
			add(string(r.Name), scale.Utilization, float64(*percent), demand.Source{Resource: use})
			return nil
		}
		each, err := perReplica(&r.Target)
		if err != nil {
			return err
		}
		add(string(r.Name), scale.AverageValue, each, demand.Source{Resource: use})
	case spec.External != nil:
		m := &spec.External.Metric
		if m.Backend != "" && m.Backend != "prometheus" {
			return nil // told as not in effect
		}
		each, err := perReplica(&spec.External.Target)
		if err != nil {
			return err
		}
		add(title(m.Query), scale.AverageValue, each, prometheus(m.ServerAddress, m.Query, m.Namespace))
	case spec.PodMetric != nil:
		m := &spec.PodMetric.Metric
		query := m.Query
		if query == "" && len(m.MetricNames) == 1 {
			query = m.MetricNames[0]
		}
		each, err := perReplica(&spec.PodMetric.Target)
		if err != nil {
			return err
		}
		if m.ServerAddress != "" {
			add(title(query), scale.AverageValue, each, prometheus(m.ServerAddress, query, ""))
			return nil
		}
		add(title(query), scale.AverageValue, each, demand.Source{Engine: &demand.EngineMetric{Query: query, Over: demand.Over(m.OperationOverTime)}})
	}
	return nil
}

func prometheus(server, query, namespace string) demand.Source {
	return demand.Source{Prometheus: &demand.PrometheusQuery{Server: server, Query: query, Namespace: namespace}}
}

// perReplica is how much of a total one replica is meant to carry. KServe gives the number to
// KEDA, which takes `value` for that, whatever the target's type says.
func perReplica(t *v1beta1.MetricTarget) (float64, error) {
	for _, q := range []*resource.Quantity{t.AverageValue, t.Value} {
		if q != nil {
			return q.AsApproximateFloat64(), nil
		}
	}
	return 0, errdef.New(errdef.ErrInvalid, "target.value is missing: say how much one replica is meant to carry")
}

// title shortens a query to what names it in a sentence.
func title(query string) string {
	const most = 60
	query = strings.Join(strings.Fields(query), " ")
	if len(query) > most {
		query = strings.ToValidUTF8(query[:most], "") + "…"
	}
	return query
}

// pace sets what a manifest says of one direction.
func pace(r *scale.Rules, given *autoscalingv2.HPAScalingRules) {
	if given == nil {
		return
	}
	if s := given.StabilizationWindowSeconds; s != nil {
		r.StabilizationWindow = time.Duration(*s) * time.Second
	}
	if s := given.SelectPolicy; s != nil {
		r.Select = scale.SelectPolicy(*s)
	}
	if given.Tolerance != nil {
		r.Tolerance = given.Tolerance.AsApproximateFloat64()
	}
	if len(given.Policies) > 0 {
		r.Policies = nil
	}
	for _, p := range given.Policies {
		r.Policies = append(r.Policies, scale.Policy{Type: scale.PolicyType(p.Type), Value: int(p.Value), Period: time.Duration(p.PeriodSeconds) * time.Second})
	}
}

// onlyResources reports whether none of the metrics would tell that a service at zero is wanted.
func onlyResources(m *demand.Metrics) bool {
	for i := range m.Sources {
		if m.Sources[i].Resource == nil {
			return false
		}
	}
	return true
}

// ofRevision returns a component's metrics with what its revision asks for, and its replicas.
func ofRevision(m *demand.Metrics, rev *smv1alpha1.Revision, replicas []spec.Replica, oneMachine bool) *demand.Metrics {
	out := &demand.Metrics{HPA: m.HPA, Security: routing.Security(rev)}
	for _, s := range m.Sources {
		if s.Resource != nil && s.Resource.Percent {
			use := *s.Resource
			use.Request = request(&rev.Spec.PodTemplate.Spec, use.Memory)
			s.Resource = &use
		}
		out.Sources = append(out.Sources, s)
	}
	pages := routing.PagesOf(rev, !oneMachine)
	if a := routing.EngineOf(rev); a != nil {
		out.Engine = a.Name
	}
	for _, r := range replicas {
		if r.Revision.Name == rev.Name && r.Phase == spec.Ready {
			out.Replicas = append(out.Replicas, demand.Replica{ID: r.ID, Metrics: pages.Of(r)})
		}
	}
	return out
}

// request is what one replica asks for, in cores or bytes: zero if one of its containers doesn't
// say.
func request(pod *corev1.PodSpec, memory bool) float64 {
	name := corev1.ResourceCPU
	if memory {
		name = corev1.ResourceMemory
	}
	sum := 0.0
	for i := range pod.Containers {
		r := &pod.Containers[i].Resources
		q, ok := r.Requests[name]
		if !ok {
			q, ok = r.Limits[name]
		}
		if !ok {
			return 0
		}
		sum += q.AsApproximateFloat64()
	}
	return sum
}
