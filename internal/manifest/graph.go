package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/spec"
)

// PropagateAnnotation names the request's header fields that a graph's steps get, as a list of
// regular expressions with commas between. Without it our own services get all fields, and
// other URLs none.
const PropagateAnnotation = "stationmaster.dev/propagate-headers"

// StopAnnotation is KServe's: "true" takes a service or a graph out of use.
const StopAnnotation = "serving.kserve.io/stop"

// GraphStopped reports whether a graph was taken out of use by KServe's annotation.
func GraphStopped(g *v1alpha1.InferenceGraph) bool { return g.Annotations[StopAnnotation] == "true" }

// GraphDeploymentMode returns the mode that a graph's annotation asks for, under its present name.
// A graph runs in the gateway in each.
func GraphDeploymentMode(g *v1alpha1.InferenceGraph) string {
	return cmp.Or(presentMode(g.Annotations[DeploymentModeAnnotation]), ModeStandard)
}

// CompileGraph returns what a graph does with a request. One that isn't valid, or is stopped,
// says so in NotReady.
func CompileGraph(g *v1alpha1.InferenceGraph) *spec.Graph {
	out := &spec.Graph{Nodes: make(map[string]spec.GraphNode, len(g.Spec.Nodes))}
	if GraphStopped(g) {
		out.NotReady = "it is stopped by the annotation " + StopAnnotation
	} else if errs := ValidateGraph(g); len(errs) > 0 {
		out.NotReady = errs.ToAggregate().Error()
	}
	for name, n := range g.Spec.Nodes {
		node := spec.GraphNode{Kind: spec.NodeKind(n.RouterType)}
		for i := range n.Steps {
			s := &n.Steps[i]
			step := spec.GraphStep{
				Name: s.StepName, Node: s.NodeName, Service: s.ServiceName, URL: s.ServiceURL,
				FromResponse: s.Data == v1alpha1.DataResponse, MapPredictions: s.MapPredictionsToInstances,
				Condition: s.Condition, Hard: s.Dependency == v1alpha1.Hard,
			}
			if s.Weight != nil {
				step.Weight = int(*s.Weight)
			}
			node.Steps = append(node.Steps, step)
		}
		out.Nodes[name] = node
	}
	seconds := func(n *int64) time.Duration {
		if n == nil {
			return 0
		}
		return time.Duration(*n) * time.Second
	}
	out.Timeout = seconds(g.Spec.TimeoutSeconds)
	if t := g.Spec.RouterTimeouts; t != nil {
		out.StepTimeout = seconds(t.ServiceClient)
		if write := seconds(t.ServerWrite); write > 0 && (out.Timeout == 0 || write < out.Timeout) {
			out.Timeout = write
		}
	}
	// One that can't be read is told as not in effect.
	out.Propagate, _ = ParsePropagate(g.Annotations[PropagateAnnotation])
	return out
}

// ParsePropagate reads PropagateAnnotation's value; empty is nil.
func ParsePropagate(value string) ([]string, error) {
	var out []string
	for p := range strings.SplitSeq(value, ",") {
		if p = strings.TrimSpace(p); p == "" {
			continue
		}
		if _, err := regexp.Compile(p); err != nil {
			return nil, fmt.Errorf("%q isn't a regular expression: %w", p, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// GraphServices returns the names of the services that a graph's steps call, sorted, each once.
func GraphServices(g *v1alpha1.InferenceGraph) []string {
	found := map[string]bool{}
	for _, n := range g.Spec.Nodes {
		for i := range n.Steps {
			if name := n.Steps[i].ServiceName; name != "" {
				found[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// ValidateGraph returns what keeps a graph from being accepted, as KServe's admission does and
// for what could never be answered, with what to do about it; empty means accepted.
func ValidateGraph(g *v1alpha1.InferenceGraph) field.ErrorList {
	var errs field.ErrorList
	if !serviceName.MatchString(g.Name) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), g.Name, nameRule))
	}
	errs = append(errs, validateLength(g.Name)...)
	nodes := field.NewPath("spec", "nodes")
	if _, ok := g.Spec.Nodes[v1alpha1.GraphRoot]; !ok {
		errs = append(errs, field.Required(nodes.Key(v1alpha1.GraphRoot), "a request meets the node named root first: add it"))
	}
	for _, name := range slices.Sorted(maps.Keys(g.Spec.Nodes)) {
		errs = append(errs, validateNode(g, name, nodes.Key(name))...)
	}
	if loop := graphLoop(g); loop != nil {
		errs = append(errs, field.Invalid(nodes.Key(loop[0]), strings.Join(loop, " > "), "nodes lead to each other in a circle: no request would come to an end"))
	}
	for _, t := range []struct {
		at    *field.Path
		value *int64
	}{
		{field.NewPath("spec", "timeout"), g.Spec.TimeoutSeconds},
		{field.NewPath("spec", "routerTimeouts", "serverWrite"), timeouts(g).ServerWrite},
		{field.NewPath("spec", "routerTimeouts", "serviceClient"), timeouts(g).ServiceClient},
	} {
		if t.value != nil && *t.value < 0 {
			errs = append(errs, field.Invalid(t.at, *t.value, "must not be negative; 0 means no bound"))
		}
	}
	return errs
}

func timeouts(g *v1alpha1.InferenceGraph) v1alpha1.InferenceGraphRouterTimeouts {
	if g.Spec.RouterTimeouts == nil {
		return v1alpha1.InferenceGraphRouterTimeouts{}
	}
	return *g.Spec.RouterTimeouts
}

var routerTypes = []v1alpha1.InferenceRouterType{v1alpha1.Sequence, v1alpha1.Splitter, v1alpha1.Ensemble, v1alpha1.Switch}

func validateNode(g *v1alpha1.InferenceGraph, name string, at *field.Path) field.ErrorList {
	n := g.Spec.Nodes[name]
	var errs field.ErrorList
	if !slices.Contains(routerTypes, n.RouterType) {
		errs = append(errs, field.NotSupported(at.Child("routerType"), n.RouterType, routerTypes))
	}
	if len(n.Steps) == 0 {
		errs = append(errs, field.Required(at.Child("steps"), "a node without steps answers nothing: add one"))
	}
	keys, weights := map[string]bool{}, int64(0)
	for i := range n.Steps {
		s, at := &n.Steps[i], at.Child("steps").Index(i)
		key := s.StepName
		if key == "" {
			key = strconv.Itoa(i) // as an Ensemble's answer calls it
		}
		if keys[key] {
			errs = append(errs, field.Duplicate(at.Child("name"), key))
		}
		keys[key] = true
		errs = append(errs, validateStepTarget(g, &s.InferenceTarget, at)...)
		if s.Dependency != "" && s.Dependency != v1alpha1.Soft && s.Dependency != v1alpha1.Hard {
			errs = append(errs, field.NotSupported(at.Child("dependency"), s.Dependency, []v1alpha1.InferenceStepDependencyType{v1alpha1.Soft, v1alpha1.Hard}))
		}
		switch n.RouterType {
		case v1alpha1.Splitter:
			switch {
			case s.Weight == nil:
				errs = append(errs, field.Required(at.Child("weight"), "each step of a Splitter needs the percent of requests that it gets"))
			case *s.Weight < 0 || *s.Weight > 100:
				errs = append(errs, field.Invalid(at.Child("weight"), *s.Weight, "must be a percentage, 0 to 100"))
			default:
				weights += *s.Weight
			}
		case v1alpha1.Sequence, v1alpha1.Switch:
			if err := checkCondition(s.Condition); err != nil {
				errs = append(errs, field.Invalid(at.Child("condition"), s.Condition, err.Error()))
			}
			if n.RouterType == v1alpha1.Sequence && i == 0 && s.Condition != "" {
				errs = append(errs, field.Forbidden(at.Child("condition"), "in a Sequence it is about the answer before, which the first step has none of: use a Switch to ask about the request"))
			}
		}
	}
	if n.RouterType == v1alpha1.Splitter && len(errs) == 0 && weights != 100 {
		errs = append(errs, field.Invalid(at.Child("steps"), weights, "the weights of a Splitter's steps must sum to 100"))
	}
	return errs
}

func validateStepTarget(g *v1alpha1.InferenceGraph, t *v1alpha1.InferenceTarget, at *field.Path) field.ErrorList {
	var set []string
	for name, value := range map[string]string{"nodeName": t.NodeName, "serviceName": t.ServiceName, "serviceUrl": t.ServiceURL} {
		if value != "" {
			set = append(set, name)
		}
	}
	slices.Sort(set)
	switch {
	case len(set) == 0:
		return field.ErrorList{field.Required(at, "one of nodeName, serviceName and serviceUrl has to say where the step goes")}
	case len(set) > 1:
		return field.ErrorList{field.Invalid(at, strings.Join(set, ", "), "only one of nodeName, serviceName and serviceUrl can be set")}
	case t.ServiceURL != "":
		u, err := url.Parse(t.ServiceURL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return field.ErrorList{field.Invalid(at.Child("serviceUrl"), t.ServiceURL, "must be a whole URL, as in http://host/v1/models/iris:predict")}
		}
	case t.NodeName != "":
		if _, ok := g.Spec.Nodes[t.NodeName]; !ok {
			return field.ErrorList{field.NotFound(at.Child("nodeName"), t.NodeName)}
		}
	}
	return nil
}

// graphLoop returns the nodes of a circle, the first one again at its end, or nil.
func graphLoop(g *v1alpha1.InferenceGraph) []string {
	const (
		under = 1 + iota
		done
	)
	state := map[string]int{}
	var path []string
	var visit func(name string) []string
	visit = func(name string) []string {
		switch state[name] {
		case under:
			return append(slices.Clone(path[slices.Index(path, name):]), name)
		case done:
			return nil
		}
		state[name] = under
		path = append(path, name)
		steps := g.Spec.Nodes[name].Steps
		for i := range steps {
			if next := steps[i].NodeName; next != "" {
				if loop := visit(next); loop != nil {
					return loop
				}
			}
		}
		path, state[name] = path[:len(path)-1], done
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(g.Spec.Nodes)) {
		if loop := visit(name); loop != nil {
			return loop
		}
	}
	return nil
}

// checkCondition finds what surely is wrong with a GJSON path, whose library takes any text: a
// query, an array or an object that doesn't end.
func checkCondition(path string) error {
	var open []byte
	closing := map[byte]byte{'(': ')', '[': ']', '{': '}'}
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case c == '\\':
			i++
		case len(open) == 0:
			// Only where a component begins, or behind #, do brackets mean anything.
			first := i == 0 || path[i-1] == '.' || path[i-1] == '|'
			if first && (c == '[' || c == '{') || c == '(' && i > 0 && path[i-1] == '#' {
				open = append(open, c)
			}
		case c == '"':
			for i++; i < len(path) && path[i] != '"'; i++ {
				if path[i] == '\\' {
					i++
				}
			}
			if i >= len(path) {
				return fmt.Errorf("isn't a GJSON path: a quotation mark has no counterpart")
			}
		case c == '(' || c == '[' || c == '{':
			open = append(open, c)
		case c == closing[open[len(open)-1]]:
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("isn't a GJSON path: %q has no counterpart", open[len(open)-1])
	}
	return nil
}

// NotInEffectOfGraph does for a graph what NotInEffectOf does for a service.
func NotInEffectOfGraph(g *v1alpha1.InferenceGraph) []NotInEffect {
	var w effectWalk
	for _, key := range slices.Sorted(maps.Keys(g.Annotations)) {
		if reason := graphAnnotationReason(key, g.Annotations[key]); reason != "" {
			w.found = append(w.found, NotInEffect{Field: field.NewPath("metadata", "annotations").Key(key).String(), Reason: reason})
		}
	}
	w.object(reflect.ValueOf(g.Spec), field.NewPath("spec"))
	met := reached(g)
	for name, n := range g.Spec.Nodes {
		at := field.NewPath("spec", "nodes").Key(name)
		if !met[name] {
			w.found = append(w.found, NotInEffect{Field: at.String(), Reason: "no step leads to it from the node root"})
		}
		for i := range n.Steps {
			w.step(n.RouterType, &n.Steps[i], i, at.Child("steps").Index(i))
		}
	}
	return w.sorted()
}

// reached are the nodes that a request can meet.
func reached(g *v1alpha1.InferenceGraph) map[string]bool {
	out := map[string]bool{}
	next := []string{v1alpha1.GraphRoot}
	for len(next) > 0 {
		name := next[0]
		next = next[1:]
		if out[name] {
			continue
		}
		out[name] = true
		steps := g.Spec.Nodes[name].Steps
		for i := range steps {
			if steps[i].NodeName != "" {
				next = append(next, steps[i].NodeName)
			}
		}
	}
	return out
}

// step reports the fields of a step that its node doesn't look at.
func (w *effectWalk) step(kind v1alpha1.InferenceRouterType, s *v1alpha1.InferenceStep, i int, at *field.Path) {
	report := func(name, reason string) {
		w.found = append(w.found, NotInEffect{Field: at.Child(name).String(), Reason: reason})
	}
	switch {
	case s.Data == "" || s.Data == v1alpha1.DataRequest:
	case s.Data != v1alpha1.DataResponse:
		report("data", `only $request and $response mean something; the step gets the node's request`)
	case kind != v1alpha1.Sequence:
		report("data", "only in a Sequence there is an answer before; the step gets the node's request")
	case i == 0:
		report("data", "the first step of a Sequence has no answer before it; it gets the node's request")
	}
	if s.MapPredictionsToInstances && (kind != v1alpha1.Sequence || i == 0 || s.Data != v1alpha1.DataResponse) {
		report("mapPredictionsToInstances", "it is about the answer that a step is given by data: $response")
	}
	if s.Weight != nil && kind != v1alpha1.Splitter {
		report("weight", "only a Splitter chooses by weight")
	}
	switch word := strings.TrimSpace(s.Condition); {
	case s.Condition == "" && kind == v1alpha1.Switch:
		report("condition", "without one the step of a Switch is never taken; @this is met by every request")
	case s.Condition == "":
	case kind != v1alpha1.Switch && kind != v1alpha1.Sequence:
		report("condition", "only a Switch and a Sequence look at conditions")
	case strings.HasPrefix(word, "{"):
		report("condition", "GJSON makes an object of what stands in braces, which always exists; write the path without them")
	case strings.HasPrefix(word, "$"):
		report("condition", "in a GJSON path $ is a name like any other; begin with the first field's")
	}
}

// graphAnnotationReason is annotationReason for graphs.
func graphAnnotationReason(key, value string) string {
	switch key {
	case PropagateAnnotation:
		if _, err := ParsePropagate(value); err != nil {
			return err.Error()
		}
		return ""
	case DeploymentModeAnnotation:
		return "" // a graph runs in the gateway in every mode
	case AutoscalerClassAnnotation:
		return noRouter
	}
	if strings.HasPrefix(key, "autoscaling.knative.dev/") {
		return noRouter
	}
	if strings.HasPrefix(key, "serving.knative.dev/") || strings.HasPrefix(key, "sidecar.istio.io/") || strings.HasPrefix(key, "networking.knative.dev/") {
		return "neither Knative nor Istio is used"
	}
	return ""
}
