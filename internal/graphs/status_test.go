package graphs

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

var t0 = time.Unix(1_700_000_000, 0).UTC()

// chain is a graph of one service.
func chain(change ...func(*v1alpha1.InferenceGraph)) *v1alpha1.InferenceGraph {
	g := &v1alpha1.InferenceGraph{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "chain", Generation: 3, CreationTimestamp: metav1.NewTime(t0), Annotations: map[string]string{}, Labels: map[string]string{},
	}}
	g.Spec.Nodes = map[string]v1alpha1.InferenceRouter{"root": {RouterType: v1alpha1.Sequence, Steps: []v1alpha1.InferenceStep{
		{InferenceTarget: v1alpha1.InferenceTarget{ServiceName: "iris"}},
	}}}
	for _, c := range change {
		c(g)
	}
	return g
}

func serving(status corev1.ConditionStatus) *v1beta1.InferenceService {
	is := &v1beta1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "iris"}}
	if status != "" {
		is.Status.Conditions = []v1beta1.Condition{
			{Type: v1beta1.ConditionReady, Status: corev1.ConditionFalse, Message: "the engine crashed\nlast words"},
			{Type: v1beta1.ConditionIngressReady, Status: status},
		}
	}
	return is
}

func TestAGraphsStatus(t *testing.T) {
	other := func(key spec.ServiceKey, created time.Time) route.Service {
		return route.Service{Key: key, Created: created, BareNames: []string{key.Name}, Hosts: []route.Host{{Name: key.Name + "-" + key.Namespace + ".example.com"}}}
	}
	for title, tc := range map[string]struct {
		graph   *v1alpha1.InferenceGraph
		service *v1beta1.InferenceService
		others  []route.Service
		dns     string
		status  corev1.ConditionStatus
		reason  string
		says    string
	}{
		"its service can answer":          {service: serving(corev1.ConditionTrue), status: corev1.ConditionTrue},
		"its service isn't there":         {status: corev1.ConditionFalse, reason: "ServiceNotFound", says: "there is no InferenceService iris in namespace team"},
		"its service can't answer":        {service: serving(corev1.ConditionFalse), status: corev1.ConditionFalse, reason: "ServiceNotReady", says: "service iris isn't ready: the engine crashed"},
		"its service starts":              {service: serving(corev1.ConditionUnknown), status: corev1.ConditionUnknown, reason: "ServiceNotReady"},
		"nothing is known of its service": {service: serving(""), status: corev1.ConditionUnknown, reason: "ServiceNotReady", says: "nothing was observed of it yet"},
		"it is stopped": {
			graph: chain(func(g *v1alpha1.InferenceGraph) { g.Annotations["serving.kserve.io/stop"] = "true" }), service: serving(corev1.ConditionTrue),
			status: corev1.ConditionFalse, reason: "Stopped",
		},
		"it isn't valid": {
			graph: chain(func(g *v1alpha1.InferenceGraph) { delete(g.Spec.Nodes, "root") }), status: corev1.ConditionFalse, reason: "InvalidSpec", says: "spec.nodes[root]",
		},
		"an older service has its name": {
			service: serving(corev1.ConditionTrue), others: []route.Service{other(spec.ServiceKey{Namespace: "team", Name: "chain"}, t0.Add(-time.Hour))},
			status: corev1.ConditionFalse, reason: "NameTaken", says: "the host chain-team.example.com belongs to the older service team/chain",
		},
		"a service of the same second has its name": {
			service: serving(corev1.ConditionTrue), others: []route.Service{other(spec.ServiceKey{Namespace: "team", Name: "chain"}, t0)},
			status: corev1.ConditionFalse, reason: "NameTaken",
		},
		"a younger service has its name": {
			service: serving(corev1.ConditionTrue), others: []route.Service{other(spec.ServiceKey{Namespace: "team", Name: "chain"}, t0.Add(time.Hour))}, status: corev1.ConditionTrue,
		},
		"an older service has its model name": {
			service: serving(corev1.ConditionTrue), others: []route.Service{other(spec.ServiceKey{Namespace: "a", Name: "chain"}, t0.Add(-time.Hour))},
			status: corev1.ConditionTrue, reason: "ModelNameTaken", says: `the model name "chain" on the bare address belongs to the older service a/chain; reach this graph by its host or by /serving/team/chain`,
		},
		"a model name of the same second": {
			service: serving(corev1.ConditionTrue), others: []route.Service{other(spec.ServiceKey{Namespace: "a", Name: "chain"}, t0)},
			status: corev1.ConditionTrue, reason: "ModelNameTaken", says: "made in the same second",
		},
		"its name in the cluster is taken": {service: serving(corev1.ConditionTrue), dns: "a Service chain exists", status: corev1.ConditionTrue, reason: "ServiceNameTaken", says: "a Service chain exists"},
	} {
		t.Run(title, func(t *testing.T) {
			g := tc.graph
			if g == nil {
				g = chain()
			}
			line := routing.GraphLine(g, "example.com", false)
			f := facts{graph: g, line: &line, table: route.Compile(append(tc.others, line)), services: map[string]*v1beta1.InferenceService{}, nameInCluster: tc.dns}
			if tc.service != nil {
				f.services["iris"] = tc.service
			}
			cfg := Config{URL: func(host string) string { return "http://" + host }}
			s := f.status(cfg, t0)
			c := s.Conditions[0]
			if c.Type != v1beta1.ConditionReady || c.Status != tc.status || c.Reason != tc.reason || !strings.Contains(c.Message, tc.says) || strings.Contains(c.Message, "\n") {
				t.Errorf("%+v, want %s %s %q", c, tc.status, tc.reason, tc.says)
			}
			if stopped := tc.reason == "Stopped"; (s.URL == "http://chain-team.example.com") == stopped || (s.Annotations[statusPath] == "/serving/team/chain") == stopped {
				t.Errorf("URL %q, annotations %v", s.URL, s.Annotations)
			}
			if s.ObservedGeneration != 3 || s.DeploymentMode != "Standard" {
				t.Errorf("%+v", s)
			}
			// A second look finds nothing new, a later one keeps the time of the last change.
			g.Status = s
			if again := f.status(cfg, t0.Add(time.Hour)); again.Conditions[0] != c {
				t.Errorf("a second look: %+v", again.Conditions[0])
			}
		})
	}
}

func TestFieldsWithoutEffectAreInTheStatus(t *testing.T) {
	n := int32(2)
	g := chain(func(g *v1alpha1.InferenceGraph) { g.Spec.MinReplicas = &n })
	line := routing.GraphLine(g, "example.com", true)
	f := facts{graph: g, line: &line, table: route.Compile([]route.Service{line})}
	s := f.status(Config{URL: func(string) string { return "" }}, t0)
	c := conditionOf(s.Conditions, v1beta1.ConditionFieldsInEffect)
	if c.Status != corev1.ConditionFalse || c.Severity != "Info" || !strings.Contains(c.Message, "spec.minReplicas: the graph runs in the gateway") {
		t.Errorf("%+v", c)
	}
}
