package graphs

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// over is a reconciler over objects, as on a cluster.
func over(t *testing.T, objects ...client.Object) (*reconciler, *record.FakeRecorder) {
	t.Helper()
	sch := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(sch); err != nil {
			t.Fatal(err)
		}
	}
	lines := map[spec.ServiceKey]route.Service{}
	events := record.NewFakeRecorder(10)
	return &reconciler{
		client: fake.NewClientBuilder().WithScheme(sch).WithObjects(objects...).WithStatusSubresource(&v1alpha1.InferenceGraph{}).Build(),
		cfg: Config{
			Domain: "example.com", InCluster: true, GatewayHost: "gateway.system.svc.cluster.local", Events: events,
			URL: func(host string) string { return "http://" + host },
			Publish: func(key spec.ServiceKey, line *route.Service) *route.Table {
				delete(lines, key)
				if line != nil {
					lines[key] = *line
				}
				var all []route.Service
				for _, l := range lines {
					all = append(all, l)
				}
				return route.Compile(all)
			},
		},
	}, events
}

func (r *reconciler) once(t *testing.T, name string) *v1alpha1.InferenceGraph {
	t.Helper()
	key := client.ObjectKey{Namespace: "team", Name: name}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	g := new(v1alpha1.InferenceGraph)
	if err := r.client.Get(t.Context(), key, g); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestAGraphOnAClusterHasANameInItsDNS(t *testing.T) {
	taken := chain(func(g *v1alpha1.InferenceGraph) { g.Name = "taken" })
	other := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "taken"}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}
	r, events := over(t, chain(), taken, other, serving(corev1.ConditionTrue))
	for range 2 {
		g := r.once(t, "chain")
		if c := g.Status.Conditions[0]; c.Status != corev1.ConditionTrue || c.Reason != "" {
			t.Errorf("%+v", c)
		}
	}
	var s corev1.Service
	if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(chain()), &s); err != nil {
		t.Fatal(err)
	}
	if s.Spec.ExternalName != r.cfg.GatewayHost || s.Spec.Type != corev1.ServiceTypeExternalName || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Name != "chain" {
		t.Errorf("%+v of %v", s.Spec, s.OwnerReferences)
	}
	// A gateway that moved takes the name along.
	r.cfg.GatewayHost = "gateway.elsewhere.svc.cluster.local"
	r.once(t, "chain")
	if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(chain()), &s); err != nil || s.Spec.ExternalName != r.cfg.GatewayHost {
		t.Errorf("%+v, %v", s.Spec, err)
	}
	if c := r.once(t, "taken").Status.Conditions[0]; c.Status != corev1.ConditionTrue || c.Reason != "ServiceNameTaken" {
		t.Errorf("%+v", c)
	}
	if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(other), &s); err != nil || s.Spec.ExternalName != "" {
		t.Errorf("another's Service was changed: %+v, %v", s.Spec, err)
	}
	close(events.Events)
	var told []string
	for e := range events.Events {
		told = append(told, e)
	}
	want := []string{"Normal InferenceGraphReady InferenceGraph [chain] is Ready", "Normal InferenceGraphReady InferenceGraph [taken] is Ready"}
	if !slices.Equal(told, want) {
		t.Errorf("events %q", told)
	}
}

func TestAServiceWakesTheGraphsThatItConcerns(t *testing.T) {
	named := chain(func(g *v1alpha1.InferenceGraph) { g.Namespace, g.Name = "elsewhere", "iris" })
	apart := chain(func(g *v1alpha1.InferenceGraph) { g.Namespace = "elsewhere" })
	r, _ := over(t, chain(), named, apart)
	var got []string
	for _, q := range r.concerned(t.Context(), serving("")) {
		got = append(got, q.String())
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"elsewhere/iris", "team/chain"}) {
		t.Errorf("%v", got)
	}
}
