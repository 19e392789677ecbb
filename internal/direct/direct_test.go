package direct

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

var update = flag.Bool("update", false, "write the objects into testdata")

var gateway = types.NamespacedName{Namespace: "infra", Name: "public"}

func TestHTTPRoutesLeadToRevisionsByTheirShares(t *testing.T) {
	r := &smv1alpha1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "iris", UID: "1"}, Spec: smv1alpha1.RouteSpec{Service: "iris"}}
	cfg := Config{Gateway: gateway, Domain: "example.com"}
	components := []component{
		{name: spec.Predictor, timeout: 30, targets: []target{{"iris-predictor-00001", 90, 8080, 9000}, {"iris-predictor-00002", 10, 8080, 9000}}},
		{name: spec.Transformer, targets: []target{{"iris-transformer-00001", 100, 8080, 0}}},
		{name: spec.Explainer, targets: []target{{"iris-explainer-00001", 100, 8080, 0}}},
	}
	var have string
	write := func(o any) {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		have += "---\n" + string(text)
	}
	write(backend(r, &components[0], &components[0].targets[1]))
	for _, u := range cfg.routesOf(r, components) {
		write(u.Object)
	}
	const golden = "testdata/routes.yaml"
	if *update {
		if err := os.WriteFile(golden, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), have); d != "" {
		t.Errorf("-update rewrites it (-want +got):\n%s", d)
	}
}

// cluster is an API with a service, its Route and its revision.
func cluster(t *testing.T, annotations map[string]string) (*reconciler, client.Client) {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1beta1.AddToScheme, smv1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	is := &v1beta1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "iris", Annotations: annotations}}
	route := &smv1alpha1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "iris", UID: "1"}, Spec: smv1alpha1.RouteSpec{
		Service: "iris", Components: []smv1alpha1.ComponentRoute{{Component: "predictor", Targets: []smv1alpha1.RouteTarget{{RevisionName: "iris-predictor-00001", Percent: 100}}}},
	}}
	rev := &smv1alpha1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "iris-predictor-00001"}, Spec: smv1alpha1.RevisionSpec{Service: "iris", Component: "predictor"}}
	rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Name: "kserve-container", Image: "i"}}
	api := fake.NewClientBuilder().WithScheme(s).WithObjects(is, route, rev).Build()
	return &reconciler{cfg: Config{Gateway: gateway, Domain: "example.com", Events: record.NewFakeRecorder(9)}, client: api}, api
}

func there(t *testing.T, api client.Client, kind, name string) bool {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(httpRoute)
	if kind == "Service" {
		u.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	}
	err := api.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: name}, u)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err == nil
}

func TestRoutesComeAndGoWithTheAnnotation(t *testing.T) {
	r, api := cluster(t, nil)
	key := types.NamespacedName{Namespace: "team", Name: "iris"}
	for _, asked := range []string{"", "true", "true", "false", "true"} {
		var is v1beta1.InferenceService
		if err := api.Get(t.Context(), key, &is); err != nil {
			t.Fatal(err)
		}
		is.Annotations = map[string]string{manifest.DirectAnnotation: asked}
		if err := api.Update(t.Context(), &is); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		want := asked == "true"
		for name, kind := range map[string]string{"iris": "HTTPRoute", "iris-predictor": "HTTPRoute", "iris-predictor-00001": "Service"} {
			if there(t, api, kind, name) != want {
				t.Errorf("asked with %q, %s %s is there: %v", asked, kind, name, !want)
			}
		}
	}
}

func TestAServiceThatMayGoToZeroHasNoRoute(t *testing.T) {
	r, api := cluster(t, map[string]string{manifest.DirectAnnotation: "true"})
	key := types.NamespacedName{Namespace: "team", Name: "iris"}
	var is v1beta1.InferenceService
	if err := api.Get(t.Context(), key, &is); err != nil {
		t.Fatal(err)
	}
	zero := int32(0)
	is.Spec.Predictor.MinReplicas = &zero
	if err := api.Update(t.Context(), &is); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	if there(t, api, "HTTPRoute", "iris") {
		t.Error("it has one")
	}
}
