package graphs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/route"
)

// statusPath is the annotation of a status with the path prefix, as services have it.
const statusPath = "stationmaster.dev/path-prefix"

// facts is all that a graph's status follows from.
type facts struct {
	graph *v1alpha1.InferenceGraph
	line  *route.Service
	// table is what the gateway routes by, with the line in it.
	table *route.Table
	// services are those of the graph's that exist.
	services map[string]*v1beta1.InferenceService
	// nameInCluster says why the graph lacks its name in the cluster's DNS; empty when it has it.
	nameInCluster string
}

// status computes a graph's status.
func (f *facts) status(cfg Config, now time.Time) v1alpha1.InferenceGraphStatus {
	g := f.graph
	next := v1alpha1.InferenceGraphStatus{
		ObservedGeneration: g.Generation,
		DeploymentMode:     manifest.GraphDeploymentMode(g),
		Annotations:        map[string]string{},
	}
	set := func(t v1beta1.ConditionType, severity string, c v1beta1.Condition) {
		c.Type, c.Severity, c.LastTransitionTime = t, severity, metav1.NewTime(now)
		if old := conditionOf(g.Status.Conditions, t); old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		next.Conditions = append(next.Conditions, c)
	}
	set(v1beta1.ConditionReady, "", f.ready())
	set(v1beta1.ConditionFieldsInEffect, "Info", fieldsInEffect(g))
	if manifest.GraphStopped(g) {
		set(v1beta1.ConditionStopped, "Info", v1beta1.Condition{Status: corev1.ConditionTrue, Reason: "Stopped"})
		return next
	}
	if len(f.line.Hosts) > 0 {
		next.URL = cfg.URL(f.line.Hosts[0].Name)
	}
	if f.line.PathPrefix != "" {
		next.Annotations[statusPath] = f.line.PathPrefix
	}
	return next
}

// ready says whether a request that comes now finds the graph, and the graph its services.
func (f *facts) ready() v1beta1.Condition {
	no := func(reason, message string) v1beta1.Condition {
		return v1beta1.Condition{Status: corev1.ConditionFalse, Reason: reason, Message: message}
	}
	switch g := f.graph; {
	case manifest.GraphStopped(g):
		return no("Stopped", "stopped by the annotation serving.kserve.io/stop; remove it to serve again")
	case f.line.Graph.NotReady != "":
		return no("InvalidSpec", f.line.Graph.NotReady)
	}
	if holder := f.hostHolder(); holder != "" {
		return no("NameTaken", fmt.Sprintf("the host %s belongs to the older %s: give one of them another name", f.line.Hosts[0].Name, holder))
	}
	unknown := v1beta1.Condition{}
	for _, name := range manifest.GraphServices(f.graph) {
		is := f.services[name]
		if is == nil {
			return no("ServiceNotFound", fmt.Sprintf("there is no InferenceService %s in namespace %s", name, f.graph.Namespace))
		}
		switch c := conditionOf(is.Status.Conditions, v1beta1.ConditionIngressReady); c.Status {
		case corev1.ConditionTrue:
		case corev1.ConditionFalse:
			return no("ServiceNotReady", notReady(is, c))
		default:
			unknown = v1beta1.Condition{Status: corev1.ConditionUnknown, Reason: "ServiceNotReady", Message: notReady(is, c)}
		}
	}
	if unknown.Status != "" {
		return unknown
	}
	yes := v1beta1.Condition{Status: corev1.ConditionTrue}
	var told []string
	if holder := f.nameHolder(); holder != "" {
		yes.Reason = "ModelNameTaken"
		told = append(told, fmt.Sprintf("the model name %q on the bare address %s; reach this graph by its host or by %s", f.graph.Name, holder, f.line.PathPrefix))
	}
	if f.nameInCluster != "" {
		yes.Reason = cmp.Or(yes.Reason, "ServiceNameTaken")
		told = append(told, f.nameInCluster)
	}
	yes.Message = strings.Join(told, "; ")
	return yes
}

// notReady says why a service can't answer; its Ready condition tells more than where requests go.
func notReady(is *v1beta1.InferenceService, ingress v1beta1.Condition) string {
	ready := conditionOf(is.Status.Conditions, v1beta1.ConditionReady)
	why, _, _ := strings.Cut(cmp.Or(ready.Message, ingress.Message, "nothing was observed of it yet"), "\n")
	return fmt.Sprintf("service %s isn't ready: %s", is.Name, why)
}

// hostHolder names who has the graph's host instead of it.
func (f *facts) hostHolder() string {
	if len(f.line.Hosts) == 0 {
		return ""
	}
	m, ok := f.table.Host(f.line.Hosts[0].Name)
	if !ok || f.own(m.Service) {
		return ""
	}
	return named(m.Service)
}

// nameHolder says who has the graph's name on the bare address instead of it, as the end of a
// sentence.
func (f *facts) nameHolder() string {
	if len(f.line.BareNames) == 0 {
		return ""
	}
	m, err := f.table.Model(f.graph.Name, "/")
	switch {
	case err != nil:
		return "is that of another too, made in the same second, so requests by it are refused"
	case f.own(m.Service):
		return ""
	}
	return "belongs to the older " + named(m.Service)
}

func (f *facts) own(s *route.Service) bool { return s.Graph != nil && s.Key == f.line.Key }

func named(s *route.Service) string {
	if s.Graph != nil {
		return "graph " + s.Key.String()
	}
	return "service " + s.Key.String()
}

// fieldsInEffect tells of the fields that do nothing.
func fieldsInEffect(g *v1alpha1.InferenceGraph) v1beta1.Condition {
	var parts []string
	for _, n := range manifest.NotInEffectOfGraph(g) {
		parts = append(parts, n.Field+": "+n.Reason)
	}
	if len(parts) == 0 {
		return v1beta1.Condition{Status: corev1.ConditionTrue}
	}
	return v1beta1.Condition{
		Status: corev1.ConditionFalse, Reason: "NotYetInEffect",
		Message: "accepted and kept, without effect here: " + strings.Join(parts, "; "),
	}
}

func conditionOf(list []v1beta1.Condition, t v1beta1.ConditionType) v1beta1.Condition {
	if i := slices.IndexFunc(list, func(c v1beta1.Condition) bool { return c.Type == t }); i >= 0 {
		return list[i]
	}
	return v1beta1.Condition{}
}
