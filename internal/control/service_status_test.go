package control

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// pure is a controller that has neither an API nor a platform.
func pure(shape ...func(*Config)) *Controller {
	cfg := Config{HTTP: "127.0.0.1:8080", GRPC: "127.0.0.1:8081", OneMachine: true, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range shape {
		f(&cfg)
	}
	return New(cfg, nil, &state.Topic[route.Table]{})
}

// of makes a component with one revision, and its replicas of these phases.
func of(name spec.Component, phases ...spec.Phase) (*component, []spec.Replica) {
	rev := smv1alpha1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "iris-" + string(name) + "-00001"}}
	rev.Spec.Protocols, rev.Spec.ModelName, rev.Spec.TimeoutSeconds = []string{"v2"}, "iris", 7
	comp := &component{name: name, replicas: 1, revisions: []smv1alpha1.Revision{rev}}
	comp.latest = &comp.revisions[0]
	var replicas []spec.Replica
	for i, p := range phases {
		r := replica(rev.Name, p, nil)
		r.ID = rev.Name + "-" + string(rune('a'+i))
		r.HTTP = "127.0.0.1:1"
		replicas = append(replicas, r)
	}
	return comp, replicas
}

// planned is a service of these components as reconcile has it when it writes the status.
func planned(c *Controller, observed []spec.Replica, comps ...*component) *service {
	is := newService("default", "iris")
	is.Generation, is.CreationTimestamp = 3, metav1.NewTime(t0)
	s := &service{
		key: spec.ServiceKey{Namespace: "default", Name: "iris"}, asWritten: is, is: is.DeepCopy(),
		comps: comps, observed: spec.Observed{Replicas: observed}, runtimeName: "onnx", runtimeKind: "ServingRuntime",
	}
	replan(c, s)
	return s
}

func replan(c *Controller, s *service) {
	s.plan = plan.Next(c.desired(s), s.observed, t0)
	c.remember(s)
}

func TestStatusOfAServiceSumsUpItsComponents(t *testing.T) {
	tests := map[string]struct {
		predictor, transformer []spec.Phase
		stopped                bool
		want                   map[v1beta1.ConditionType]corev1.ConditionStatus
		wantReason             string
	}{
		"a ready predictor alone": {
			predictor: []spec.Phase{spec.Ready},
			want:      map[v1beta1.ConditionType]corev1.ConditionStatus{"Ready": "True", "PredictorReady": "True", "IngressReady": "True", "FieldsInEffect": "True"},
		},
		"one that starts": {
			predictor:  []spec.Phase{spec.Loading},
			want:       map[v1beta1.ConditionType]corev1.ConditionStatus{"Ready": "Unknown", "PredictorReady": "Unknown", "IngressReady": "Unknown", "FieldsInEffect": "True"},
			wantReason: "Starting",
		},
		"requests enter by the transformer, so that its absence counts": {
			predictor: []spec.Phase{spec.Ready}, transformer: []spec.Phase{spec.Starting},
			want:       map[v1beta1.ConditionType]corev1.ConditionStatus{"Ready": "Unknown", "PredictorReady": "True", "TransformerReady": "Unknown", "IngressReady": "Unknown", "FieldsInEffect": "True"},
			wantReason: "Starting",
		},
		"and the predictor's counts beside a transformer that is there": {
			predictor: []spec.Phase{spec.Starting}, transformer: []spec.Phase{spec.Ready},
			want:       map[v1beta1.ConditionType]corev1.ConditionStatus{"Ready": "Unknown", "PredictorReady": "Unknown", "TransformerReady": "True", "IngressReady": "True", "FieldsInEffect": "True"},
			wantReason: "Starting",
		},
		"a stopped one is False and says that it is stopped": {
			predictor: []spec.Phase{spec.Ready}, stopped: true,
			want:       map[v1beta1.ConditionType]corev1.ConditionStatus{"Ready": "False", "PredictorReady": "False", "IngressReady": "False", "Stopped": "True", "FieldsInEffect": "True"},
			wantReason: "Stopped",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := pure()
			predictor, observed := of(spec.Predictor, tc.predictor...)
			comps := []*component{predictor}
			if tc.transformer != nil {
				transformer, more := of(spec.Transformer, tc.transformer...)
				comps, observed = append(comps, transformer), append(observed, more...)
			}
			s := planned(c, observed, comps...)
			s.stopped = tc.stopped
			replan(c, s)
			next := c.status(s, t0)
			got := map[v1beta1.ConditionType]corev1.ConditionStatus{}
			for _, cond := range next.Conditions {
				got[cond.Type] = cond.Status
				if info := cond.Type == "Stopped" || cond.Type == "FieldsInEffect"; info != (cond.Severity == "Info") {
					t.Errorf("%s has the severity %q", cond.Type, cond.Severity)
				}
			}
			if len(got) != len(tc.want) {
				t.Errorf("conditions %v, want %v", got, tc.want)
			}
			for k, v := range tc.want {
				if got[k] != v {
					t.Errorf("%s is %s, want %s", k, got[k], v)
				}
			}
			if first := next.Conditions[0]; first.Type != v1beta1.ConditionReady || first.Reason != tc.wantReason {
				t.Errorf("first is %s with the reason %q, want Ready with %q", first.Type, first.Reason, tc.wantReason)
			}
			if next.ObservedGeneration != 3 || next.ServingRuntimeName != "onnx" || next.ClusterServingRuntimeName != "" {
				t.Errorf("generation %d, runtimes %q and %q", next.ObservedGeneration, next.ServingRuntimeName, next.ClusterServingRuntimeName)
			}
		})
	}
}

func TestAStatusIsTheSameWhenNothingChanged(t *testing.T) {
	c := pure()
	comp, observed := of(spec.Predictor, spec.Ready, spec.Ready)
	s := planned(c, observed, comp)
	s.asWritten.Status = c.status(s, t0)
	again := c.status(s, t0.Add(time.Hour))
	for i, cond := range again.Conditions {
		if cond != s.asWritten.Status.Conditions[i] {
			t.Errorf("an hour later %+v, before %+v", cond, s.asWritten.Status.Conditions[i])
		}
	}
}

func TestAddressesAreThoseOfTheGateway(t *testing.T) {
	comp, observed := of(spec.Predictor, spec.Ready)
	comp.latest.Spec.Protocols = []string{"v2", "grpc-v2"}
	comp.latest.Status.Models = []smv1alpha1.ResolvedModel{{URI: "file:///m", Digest: "sha256:1"}}
	for name, tc := range map[string]struct {
		domain, http, wantURL, wantComponent string
	}{
		"with its port":    {"", "127.0.0.1:8080", "http://iris-default.localhost:8080", "http://iris-predictor-default.localhost:8080"},
		"port 80 goes":     {"", "127.0.0.1:80", "http://iris-default.localhost", "http://iris-predictor-default.localhost"},
		"a domain of ours": {"models.example.test", "127.0.0.1:8080", "http://iris-default.models.example.test:8080", "http://iris-predictor-default.models.example.test:8080"},
	} {
		t.Run(name, func(t *testing.T) {
			c := pure(func(cfg *Config) { cfg.Domain, cfg.HTTP = tc.domain, tc.http })
			s := planned(c, observed, comp)
			s.runtimeKind = "ClusterServingRuntime"
			next := c.status(s, t0)
			cs := next.Components[v1beta1.ComponentType(spec.Predictor)]
			if next.URL != tc.wantURL || cs.URL != tc.wantComponent || cs.RestURL != tc.wantComponent || cs.GrpcURL != "127.0.0.1:8081" {
				t.Errorf("%s; component %s, %s, %s", next.URL, cs.URL, cs.RestURL, cs.GrpcURL)
			}
			if next.Address.URL != "http://"+tc.http+"/serving/default/iris" {
				t.Errorf("address %s", next.Address.URL)
			}
			if next.ClusterServingRuntimeName != "onnx" || next.ServingRuntimeName != "" {
				t.Errorf("runtimes %q and %q", next.ClusterServingRuntimeName, next.ServingRuntimeName)
			}
			if a := next.Annotations; a[statusProtocols] != "v2,grpc-v2" || a[statusModelName] != "iris" || a[statusDigest] != "sha256:1" || a[statusPath] != "/serving/default/iris" {
				t.Errorf("annotations %v", a)
			}
		})
	}
}

func TestWhatHasNoEffectIsToldOnceAndInOrder(t *testing.T) {
	s := &service{
		notInEffect: []manifest.NotInEffect{{Field: "spec.predictor.logger", Reason: "comes later"}},
		comps:       []*component{{unsupported: []string{"spec.predictor.affinity"}}, {unsupported: []string{"spec.predictor.affinity"}}},
	}
	v := fieldsInEffect(s, true)
	want := "accepted and kept, without effect here: spec.predictor.affinity: has no meaning for a process on one machine; spec.predictor.logger: comes later"
	if v.status != corev1.ConditionFalse || v.reason != "NotYetInEffect" || v.message != want {
		t.Errorf("got %+v, want %q", v, want)
	}
	s.notInEffect[0].ClusterOnly = true
	if v := fieldsInEffect(s, false); v.status != corev1.ConditionTrue {
		t.Errorf("on a cluster, where all of it has effect: %+v", v)
	}
	if v := fieldsInEffect(&service{}, true); v.status != corev1.ConditionTrue || v.message != "" {
		t.Errorf("of a service without such fields %+v", v)
	}
}

func TestABareNameThatAnotherHoldsIsToldInIngressReady(t *testing.T) {
	tests := map[string]struct {
		other  time.Time
		reason string
		says   string
	}{
		"an older service keeps it":         {t0.Add(-time.Minute), "ModelNameTaken", "belongs to the older service team/iris"},
		"of the same second none has it":    {t0, "ModelNameTaken", "is that of service team/iris too"},
		"a younger service doesn't take it": {t0.Add(time.Minute), "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := pure()
			other := spec.ServiceKey{Namespace: "team", Name: "iris"}
			c.publish(other, &route.Service{Key: other, BareNames: []string{"iris"}, Created: tc.other})
			comp, observed := of(spec.Predictor, spec.Ready)
			v := c.ingress(planned(c, observed, comp))
			if v.status != corev1.ConditionTrue || v.reason != tc.reason || !strings.Contains(v.message, tc.says) {
				t.Errorf("got %+v, want %q and %q", v, tc.reason, tc.says)
			}
			if tc.reason != "" && !strings.Contains(v.message, "/serving/default/iris") {
				t.Errorf("%q doesn't say how it is reached", v.message)
			}
		})
	}
}

func TestTheWorseVerdictSumsUp(t *testing.T) {
	yes, no, unknown := verdict{status: corev1.ConditionTrue}, verdict{corev1.ConditionFalse, "a", ""}, verdict{corev1.ConditionUnknown, "b", ""}
	order := []verdict{yes, unknown, no}
	for i, a := range order {
		for j, b := range order {
			if got := worse(a, b); got != order[max(i, j)] {
				t.Errorf("of %v and %v the worse is %v", a, b, got)
			}
		}
	}
	if first := (verdict{corev1.ConditionFalse, "first", ""}); worse(first, no) != first {
		t.Error("of equals the first one counts")
	}
}

func TestALineLeadsToReadyReplicasAndSaysWhyThereAreNone(t *testing.T) {
	c := pure(func(cfg *Config) {
		cfg.ComponentAddress = func(spec.ServiceKey, spec.Component) string { return "127.9.9.9:8080" }
	})
	predictor, observed := of(spec.Predictor, spec.Ready, spec.Loading)
	s := planned(c, observed, predictor)
	line := c.line(s)
	b := line.Components[spec.Predictor]
	if line.Entry != spec.Predictor || line.Timeout != 7*time.Second || len(b.Targets) != 1 || b.NotReady != "" {
		t.Fatalf("line %+v", line)
	}
	if e := b.Targets[0].Endpoints; len(e) != 1 || e[0].Replica != "iris-predictor-00001-a" {
		t.Errorf("endpoints %+v, want the ready one alone", e)
	}
	if slices.ContainsFunc(line.Hosts, func(h route.Host) bool { return h.Name == "127.9.9.9" }) {
		t.Error("a predictor that nobody of its service calls has an address of its own")
	}

	// The engine went: the line says why, and that it returns.
	s.observed.Replicas = []spec.Replica{replica("iris-predictor-00001", spec.Loading, nil)}
	replan(c, s)
	b = c.line(s).Components[spec.Predictor]
	if len(b.Targets) != 0 || !b.Returning || !strings.Contains(b.NotReady, "the predictor of service default/iris isn't ready: revision iris-predictor-00001: 0 of 1 replicas ready (1 Loading)") {
		t.Errorf("backend %+v", b)
	}

	// With a transformer the predictor gets an address, and the transformer the requests.
	transformer, more := of(spec.Transformer, spec.Ready)
	predictor, observed = of(spec.Predictor, spec.Ready)
	line = c.line(planned(c, append(observed, more...), predictor, transformer))
	if line.Entry != spec.Transformer || !slices.Contains(line.Hosts, route.Host{Name: "127.9.9.9", Component: spec.Predictor}) {
		t.Errorf("entry %s, hosts %v", line.Entry, line.Hosts)
	}
}

func TestPublishingWakesWhoWantsTheSameName(t *testing.T) {
	c := pure()
	woken := c.wake.Subscribe(t.Context())
	a, b, other := spec.ServiceKey{Namespace: "a", Name: "x"}, spec.ServiceKey{Namespace: "b", Name: "x"}, spec.ServiceKey{Namespace: "c", Name: "y"}
	for _, key := range []spec.ServiceKey{other, a} {
		c.publish(key, &route.Service{Key: key, BareNames: []string{key.Name}, Created: t0})
	}
	c.publish(b, &route.Service{Key: b, BareNames: []string{"x"}, Created: t0})
	if got := <-woken; got != a {
		t.Errorf("the newcomer woke %v, want %v", got, a)
	}
	c.publish(a, nil)
	if got := <-woken; got != b {
		t.Errorf("the one that left woke %v, want %v", got, b)
	}
	if m, ok := c.table.Load().Named(other, "/"); !ok || m.Backend != nil && len(m.Backend.Targets) > 0 {
		t.Errorf("the bystander's line is %+v, %v", m, ok)
	}
	c.publish(a, nil) // gone already: nothing to say
	select {
	case got := <-woken:
		t.Errorf("%v was woken for nothing", got)
	default:
	}
}
