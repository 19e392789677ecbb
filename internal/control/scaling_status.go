package control

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

// reasonMissing says that metrics which our own autoscaler is to follow aren't known.
const reasonMissing = "MetricsMissing"

// scalingActive says whether replicas follow the metrics that they should, for services that scale
// on something other than their requests.
func (c *Controller) scalingActive(s *service) (v verdict, scales bool) {
	v = verdict{status: corev1.ConditionTrue, reason: "ScalingActive"}
	var problems []string
	blame := func(revision, reason, problem string) {
		if len(problems) == 0 {
			v = verdict{status: corev1.ConditionFalse, reason: reason}
		}
		problems = append(problems, fmt.Sprintf("%s: %s", revision, problem))
	}
	for _, a := range s.plan.Assignments {
		comp := s.component(a.Component)
		switch {
		case s.stopped:
		case comp.elsewhere:
			scales = true
			if other := s.observed.Elsewhere[a.Revision]; other.Problem != "" {
				blame(a.Revision, other.Reason, other.Problem)
			}
		case comp.metrics != nil:
			scales = true
			want, _ := c.cfg.Scaling.Wants.Load(spec.RevisionKey{Namespace: s.key.Namespace, Name: a.Revision})
			if want.Missing != "" {
				blame(a.Revision, reasonMissing, want.Missing)
			}
		}
	}
	v.message = strings.Join(problems, "; ")
	return v, scales
}

// tellScaling writes an event where replicas stop, or begin again, to follow their metrics.
func (c *Controller) tellScaling(is *v1beta1.InferenceService, was, now v1beta1.Condition) {
	switch {
	case now.Status == corev1.ConditionFalse && (was.Status != now.Status || was.Reason != now.Reason):
		c.events.Eventf(is, corev1.EventTypeWarning, now.Reason, "replicas don't follow the metrics: %s", now.Message)
	case now.Status == corev1.ConditionTrue && was.Status == corev1.ConditionFalse:
		c.events.Eventf(is, corev1.EventTypeNormal, now.Reason, "replicas follow the metrics again")
	}
}

// tellSleep makes an event of each component that went to zero, or is woken.
func (c *Controller) tellSleep(is *v1beta1.InferenceService, before, after []v1beta1.Condition) {
	for _, t := range readyCondition {
		was, now := conditionOf(before, t), conditionOf(after, t)
		if now.Reason != was.Reason && (now.Reason == routing.ReasonAsleep || now.Reason == routing.ReasonWaking) {
			c.events.Eventf(is, corev1.EventTypeNormal, now.Reason, "%s: %s", t, now.Message)
		}
	}
}
