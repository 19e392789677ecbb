package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/spec"
)

// graphFrom reads a graph's spec, with a name and annotations around it.
func graphFrom(t *testing.T, text string, annotations map[string]string) *v1alpha1.InferenceGraph {
	t.Helper()
	obj, err := DecodeStrict([]byte("apiVersion: serving.kserve.io/v1alpha1\nkind: InferenceGraph\nmetadata: {name: g}\nspec:\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	g := obj.(*v1alpha1.InferenceGraph)
	g.Annotations = annotations
	return g
}

// root is a spec of one node with steps in flow style.
func root(kind string, steps ...string) string {
	return fmt.Sprintf("  nodes: {root: {routerType: %s, steps: [%s]}}\n", kind, strings.Join(steps, ", "))
}

func TestGraphsThatCantBeAreRefused(t *testing.T) {
	for title, tc := range map[string]struct{ spec, want string }{
		"a sequence": {spec: root("Sequence", "{serviceName: a}", "{serviceName: b, data: $response}")},
		"a splitter": {spec: root("Splitter", "{serviceName: a, weight: 20}", "{serviceUrl: 'https://b/c', weight: 80}")},
		"a switch":   {spec: root("Switch", `{serviceName: a, condition: "[@this].#(decision_picker==ERROR)"}`)},
		"nodes": {spec: "  nodes:\n    root: {routerType: Ensemble, steps: [{nodeName: a}, {nodeName: a}]}\n" +
			"    a: {routerType: Sequence, steps: [{serviceName: a}]}\n"},
		"no nodes":            {spec: "  nodes: {}\n", want: `spec.nodes[root]: Required value: a request meets the node named root first: add it`},
		"no steps":            {spec: root("Sequence"), want: "spec.nodes[root].steps: Required value: a node without steps answers nothing: add one"},
		"an unknown type":     {spec: root("Loop", "{serviceName: a}"), want: `spec.nodes[root].routerType: Unsupported value: "Loop"`},
		"no target":           {spec: root("Sequence", "{name: a}"), want: "spec.nodes[root].steps[0]: Required value: one of nodeName, serviceName and serviceUrl"},
		"two targets":         {spec: root("Sequence", "{serviceName: a, nodeName: b}"), want: `spec.nodes[root].steps[0]: Invalid value: "nodeName, serviceName": only one of`},
		"an unknown node":     {spec: root("Sequence", "{nodeName: b}"), want: `spec.nodes[root].steps[0].nodeName: Not found: "b"`},
		"half a URL":          {spec: root("Sequence", "{serviceUrl: iris/predict}"), want: "must be a whole URL"},
		"one name twice":      {spec: root("Ensemble", "{serviceName: a, name: a}", "{serviceName: b, name: a}"), want: `spec.nodes[root].steps[1].name: Duplicate value: "a"`},
		"a name like a place": {spec: root("Ensemble", "{serviceName: a, name: '1'}", "{serviceName: b}"), want: `spec.nodes[root].steps[1].name: Duplicate value: "1"`},
		"no weight":           {spec: root("Splitter", "{serviceName: a, weight: 100}", "{serviceName: b}"), want: "spec.nodes[root].steps[1].weight: Required value"},
		"too little weight":   {spec: root("Splitter", "{serviceName: a, weight: 10}", "{serviceName: b, weight: 80}"), want: "spec.nodes[root].steps: Invalid value: 90: the weights of a Splitter's steps must sum to 100"},
		"less than nothing":   {spec: root("Splitter", "{serviceName: a, weight: -10}", "{serviceName: b, weight: 110}"), want: "must be a percentage, 0 to 100"},
		"a query that doesn't end": {
			spec: root("Switch", `{serviceName: a, condition: 'a.#(b=="c"'}`), want: `spec.nodes[root].steps[0].condition: Invalid value: "a.#(b==\"c\"": isn't a GJSON path: '(' has no counterpart`,
		},
		"a quotation that doesn't end": {spec: root("Switch", `{serviceName: a, condition: 'a.#(b=="c)'}`), want: "a quotation mark has no counterpart"},
		"a bracket within a name":      {spec: root("Switch", `{serviceName: a, condition: 'a(b.c\[.d"'}`)},
		"a first step with a condition": {
			spec: root("Sequence", "{serviceName: a, condition: b}"), want: "spec.nodes[root].steps[0].condition: Forbidden: in a Sequence it is about the answer before",
		},
		"a circle": {spec: "  nodes:\n    root: {routerType: Sequence, steps: [{nodeName: a}]}\n    a: {routerType: Sequence, steps: [{serviceName: s}, {nodeName: b}]}\n" +
			"    b: {routerType: Sequence, steps: [{nodeName: a}]}\n", want: `spec.nodes[a]: Invalid value: "a > b > a": nodes lead to each other in a circle`},
		"a negative time-out": {spec: root("Sequence", "{serviceName: a}") + "  timeout: -1\n", want: "spec.timeout: Invalid value: -1: must not be negative"},
		"a dependency of another sort": {
			spec: root("Sequence", "{serviceName: a, dependency: Firm}"), want: `spec.nodes[root].steps[0].dependency: Unsupported value: "Firm"`,
		},
	} {
		t.Run(title, func(t *testing.T) {
			g := graphFrom(t, tc.spec, nil)
			var got string
			if errs := ValidateGraph(g); len(errs) > 0 {
				got = errs.ToAggregate().Error()
			}
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("refused with %q, want %q", got, tc.want)
			}
			if notReady := CompileGraph(g).NotReady; notReady != got {
				t.Errorf("compiled with %q", notReady)
			}
		})
	}
	g := graphFrom(t, root("Sequence", "{serviceName: a}"), nil)
	g.Name = "9lives"
	if errs := ValidateGraph(g); len(errs) != 1 || errs[0].Field != "metadata.name" {
		t.Errorf("a name that KServe refuses: %v", errs)
	}
}

func TestWhatOfAGraphIsntInEffectIsTold(t *testing.T) {
	for title, tc := range map[string]struct {
		spec        string
		annotations map[string]string
		want        []string
	}{
		"all of it is": {
			spec:        root("Sequence", "{serviceName: a}", "{serviceName: b, data: $response, condition: predictions, mapPredictionsToInstances: true, dependency: Hard}") + "  timeout: 5\n  routerTimeouts: {serverWrite: 9, serviceClient: 2}\n",
			annotations: map[string]string{PropagateAnnotation: "X-.*, Authorization", DeploymentModeAnnotation: "RawDeployment"},
		},
		"what is the router pod's": {
			spec: root("Sequence", "{serviceName: a}") + "  minReplicas: 2\n  maxReplicas: 3\n  scaleMetric: rps\n  scaleTarget: 4\n  resources: {limits: {cpu: 1}}\n" +
				"  nodeSelector: {a: b}\n  nodeName: n1\n  serviceAccountName: r\n  affinity: {}\n  tolerations: [{key: a}]\n  routerTimeouts: {serverRead: 1, serverIdle: 2}\n",
			annotations: map[string]string{AutoscalerClassAnnotation: "hpa", "autoscaling.knative.dev/min-scale": "1", "sidecar.istio.io/inject": "true"},
			want: []string{
				"metadata.annotations[autoscaling.knative.dev/min-scale]", "metadata.annotations[serving.kserve.io/autoscalerClass]",
				"metadata.annotations[sidecar.istio.io/inject]",
				"spec.affinity", "spec.maxReplicas", "spec.minReplicas", "spec.nodeName", "spec.nodeSelector", "spec.resources",
				"spec.routerTimeouts.serverIdle", "spec.routerTimeouts.serverRead", "spec.scaleMetric", "spec.scaleTarget",
				"spec.serviceAccountName", "spec.tolerations",
			},
		},
		"what a node doesn't look at": {
			spec: "  nodes:\n    root: {routerType: Sequence, steps: [{serviceName: a, data: $response, weight: 3}, {serviceName: b, data: $response.predictions, mapPredictionsToInstances: true}]}\n" +
				"    alone: {routerType: Ensemble, steps: [{serviceName: a, data: $response, condition: c}]}\n",
			want: []string{
				"spec.nodes[alone]", "spec.nodes[alone].steps[0].condition", "spec.nodes[alone].steps[0].data",
				"spec.nodes[root].steps[0].data", "spec.nodes[root].steps[0].weight", "spec.nodes[root].steps[1].data",
				"spec.nodes[root].steps[1].mapPredictionsToInstances",
			},
		},
		"conditions that don't say what they seem to": {
			spec: root("Switch", `{serviceName: a, condition: '{ .class == "dog" }'}`, "{serviceName: b, condition: $.class}", "{serviceName: c}"),
			want: []string{"spec.nodes[root].steps[0].condition", "spec.nodes[root].steps[1].condition", "spec.nodes[root].steps[2].condition"},
		},
		"a pattern that is none": {
			spec: root("Sequence", "{serviceName: a}"), annotations: map[string]string{PropagateAnnotation: "X-("},
			want: []string{"metadata.annotations[stationmaster.dev/propagate-headers]"},
		},
	} {
		t.Run(title, func(t *testing.T) {
			var got []string
			for _, n := range NotInEffectOfGraph(graphFrom(t, tc.spec, tc.annotations)) {
				got = append(got, n.Field)
				if n.Reason == "" || strings.HasSuffix(n.Reason, ".") {
					t.Errorf("%s: reason %q", n.Field, n.Reason)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestEveryFieldOfAStepIsLookedAt fails for a field that CompileGraph doesn't know.
func TestEveryFieldOfAStepIsLookedAt(t *testing.T) {
	known := map[string]bool{
		"name": true, "nodeName": true, "serviceName": true, "serviceUrl": true, "data": true, "weight": true,
		"condition": true, "dependency": true, "mapPredictionsToInstances": true, "routerType": true, "steps": true,
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[v1alpha1.InferenceRouter](), reflect.TypeFor[v1alpha1.InferenceStep]()} {
		eachField(typ, func(_ reflect.StructField, name string) {
			if !known[name] {
				t.Errorf("%v.%s: neither in effect nor told as not", typ, name)
			}
		})
	}
}

func TestAGraphIsCompiled(t *testing.T) {
	g := graphFrom(t, "  timeout: 30\n  routerTimeouts: {serverWrite: 20, serviceClient: 3}\n"+
		"  nodes:\n    root: {routerType: Splitter, steps: [{name: a, serviceName: iris, weight: 40, dependency: Hard}, {nodeName: next, weight: 60}]}\n"+
		"    next: {routerType: Sequence, steps: [{serviceUrl: 'http://x/y'}, {serviceName: iris, data: $response, condition: c, mapPredictionsToInstances: true}]}\n",
		map[string]string{PropagateAnnotation: "a, b"})
	want := &spec.Graph{
		Timeout: 20 * time.Second, StepTimeout: 3 * time.Second, Propagate: []string{"a", "b"},
		Nodes: map[string]spec.GraphNode{
			"root": {Kind: spec.Splitter, Steps: []spec.GraphStep{{Name: "a", Service: "iris", Weight: 40, Hard: true}, {Node: "next", Weight: 60}}},
			"next": {Kind: spec.Sequence, Steps: []spec.GraphStep{{URL: "http://x/y"}, {Service: "iris", FromResponse: true, Condition: "c", MapPredictions: true}}},
		},
	}
	if diff := cmp.Diff(want, CompileGraph(g)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"iris"}, GraphServices(g)); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
	g.Annotations[StopAnnotation] = "true"
	if !strings.Contains(CompileGraph(g).NotReady, "stopped") {
		t.Errorf("a stopped graph: %q", CompileGraph(g).NotReady)
	}
}

func TestKServesGraphsAreAccepted(t *testing.T) {
	dir := os.Getenv("STATIONMASTER_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared")
	}
	dir = filepath.Join(dir, "corpus", "kserve")
	var files []string
	for _, pattern := range []string{"docs/samples/graph/*.yaml", "test/e2e/graph/test-resources/*.yaml"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Skip("the corpus of KServe's manifests is not here; set STATIONMASTER_SHARED to its parent")
	}
	graphs := 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("{{ graph_name }}", "g", "{{ success_200_isvc_id }}", "success", "{{ error_404_isvc_id }}", "error").Replace(string(raw))
		for doc := range strings.SplitSeq(text, "\n---\n") {
			if !strings.Contains(doc, "kind: InferenceGraph") {
				continue
			}
			obj, err := DecodeStrict([]byte(doc))
			if err != nil {
				t.Errorf("%s: %v", filepath.Base(file), err)
				continue
			}
			g := obj.(*v1alpha1.InferenceGraph)
			if errs := ValidateGraph(g); len(errs) > 0 {
				t.Errorf("%s: %v", filepath.Base(file), errs)
			}
			if n := NotInEffectOfGraph(g); n != nil {
				t.Errorf("%s: %v", filepath.Base(file), n)
			}
			graphs++
		}
	}
	if graphs != 7 {
		t.Errorf("%d graphs found, want 7", graphs)
	}
}

func TestAdmissionKnowsGraphs(t *testing.T) {
	object := func(steps string) map[string]any {
		return map[string]any{
			"apiVersion": "serving.kserve.io/v1alpha1", "kind": "InferenceGraph", "metadata": map[string]any{"name": "g"},
			"spec": map[string]any{"minReplicas": int64(2), "nodes": map[string]any{"root": map[string]any{
				"routerType": "Sequence", "steps": []any{map[string]any{steps: "iris"}},
			}}},
		}
	}
	v, err := Admit(Admission{Object: object("serviceName")})
	if err != nil || len(v.Refused) > 0 || len(v.Warnings) != 1 || !strings.HasPrefix(v.Warnings[0], "spec.minReplicas has no effect here: the graph runs in the gateway") {
		t.Errorf("%+v, %v", v, err)
	}
	v, err = Admit(Admission{Object: object("nodeName")})
	if err != nil || len(v.Refused) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err = Admit(Admission{Object: object("service")}); IsFieldErrors(err) == nil {
		t.Errorf("a field that graphs don't have: %v", err)
	}
	if _, err = Admit(Admission{Object: object("service"), FieldValidation: metav1.FieldValidationWarn}); err != nil {
		t.Errorf("and only warned of: %v", err)
	}
}
