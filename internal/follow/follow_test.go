package follow_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/config/crd"
	"stationmaster.dev/stationmaster/internal/follow"
	"stationmaster.dev/stationmaster/internal/kubeapi"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/memory"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

const patience = 30 * time.Second

// start runs the embedded API, which ends with the test.
func start(t *testing.T) (*kubeapi.Server, client.Client) {
	t.Helper()
	crds, err := crd.Slim()
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubeapi.New(kubeapi.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", CRDs: crds})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "the API", api.Run)
	select {
	case <-api.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the API wasn't ready within a minute")
	}
	sch := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme, v1beta1.AddToScheme, smv1alpha1.AddToScheme} {
		if err := add(sch); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(api.RESTConfig(), client.Options{Scheme: sch})
	if err != nil {
		t.Fatal(err)
	}
	return api, c
}

// run runs a part until the test ends, and joins it.
func run(t *testing.T, name string, part func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s ended with %v", name, err)
			}
		case <-time.After(patience):
			t.Errorf("%s didn't end", name)
		}
	}
	t.Cleanup(stop)
	return stop
}

func until(t *testing.T, topic *state.Topic[route.Table], what string, ok func(*route.Table) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		table, changed := topic.Watch()
		if table != nil && ok(table) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no table in which %s within %v", what, patience)
		}
	}
}

func workload(key spec.ServiceKey, revision string) spec.Workload {
	return spec.Workload{
		Service: key, Revision: spec.RevisionKey{Namespace: key.Namespace, Name: revision}, Component: spec.Predictor,
		Containers: []spec.Container{{Name: "kserve-container"}}, Hash: revision,
	}
}

func TestATableFollowsTheCluster(t *testing.T) {
	api, c := start(t)
	ctx := t.Context()
	key := spec.ServiceKey{Namespace: "default", Name: "iris"}
	replicas := memory.New(memory.Config{Address: func(spec.Workload) (string, string) { return "10.0.0.1:8080", "10.0.0.1:9000" }})
	create := func(o client.Object) {
		t.Helper()
		if err := c.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	is := &v1beta1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	is.Spec.Predictor.Containers = []corev1.Container{{Name: "kserve-container", Image: "engine"}}
	create(is)
	before := is.DeepCopy()
	is.Status.Conditions = []v1beta1.Condition{{Type: v1beta1.ConditionPredictorReady, Status: corev1.ConditionFalse, Message: "the image can't be pulled", LastTransitionTime: metav1.Now()}}
	if err := c.Status().Patch(ctx, is, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}

	var table state.Topic[route.Table]
	f, err := follow.New(follow.Config{API: api.RESTConfig(), Domain: "example.com", Replicas: replicas, Table: &table})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, "the follower", f.Run)
	select {
	case <-f.Synced():
	case <-time.After(patience):
		t.Fatal("not synced")
	}
	// The first table is whole: what isn't ready is there and says why.
	m, ok := table.Load().Named(key, "/")
	if want := "the predictor of service default/iris isn't ready: the image can't be pulled"; !ok || m.Backend.NotReady != want {
		t.Fatalf("found %v, not ready because %q, want %q", ok, m.Backend.NotReady, want)
	}

	labels := map[string]string{smv1alpha1.LabelService: key.Name, smv1alpha1.LabelComponent: "predictor"}
	for n := 1; n <= 2; n++ {
		create(&smv1alpha1.Revision{
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: fmt.Sprintf("iris-predictor-%05d", n), Labels: labels},
			Spec: smv1alpha1.RevisionSpec{
				Service: key.Name, Component: "predictor", ModelName: "iris", Protocols: []string{"v2"}, Hash: fmt.Sprint(n),
				PodTemplate: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: is.Spec.Predictor.Containers}},
			},
		})
	}
	r := &smv1alpha1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: labels}}
	r.Spec = smv1alpha1.RouteSpec{Service: key.Name, Components: []smv1alpha1.ComponentRoute{{
		Component: "predictor", Targets: []smv1alpha1.RouteTarget{{RevisionName: "iris-predictor-00001", Percent: 100}},
	}}}
	create(r)
	if err := replicas.Apply(ctx, key, []platform.Assignment{{Workload: workload(key, "iris-predictor-00001"), Replicas: 2}}); err != nil {
		t.Fatal(err)
	}
	endpoints := func(weights ...int) func(*route.Table) bool {
		return func(table *route.Table) bool {
			m, ok := table.Host("iris-predictor.default.svc.cluster.local")
			if !ok || len(m.Backend.Targets) != len(weights) {
				return false
			}
			for i, t := range m.Backend.Targets {
				if t.Weight != weights[i] || len(t.Endpoints) != 2 || t.Endpoints[0].HTTP != "10.0.0.1:8080" {
					return false
				}
			}
			return true
		}
	}
	until(t, &table, "the service has two endpoints", endpoints(100))

	// A share for the second revision takes effect once it has replicas.
	if err := replicas.Apply(ctx, key, []platform.Assignment{
		{Workload: workload(key, "iris-predictor-00001"), Replicas: 2}, {Workload: workload(key, "iris-predictor-00002"), Replicas: 2},
	}); err != nil {
		t.Fatal(err)
	}
	was := r.DeepCopy()
	r.Spec.Components[0].Targets = []smv1alpha1.RouteTarget{{RevisionName: "iris-predictor-00001", Percent: 90}, {RevisionName: "iris-predictor-00002", Percent: 10}}
	if err := c.Patch(ctx, r, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
	until(t, &table, "two revisions share", endpoints(90, 10))

	// What goes to sleep gets no requests though it still runs, and those that come wait for it.
	condition := func(reason string) {
		t.Helper()
		before := is.DeepCopy()
		is.Status.Conditions = []v1beta1.Condition{{Type: v1beta1.ConditionPredictorReady, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.Now()}}
		if err := c.Status().Patch(ctx, is, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	cold := func(table *route.Table) bool {
		m, _ := table.Named(key, "/")
		return m.Backend.Cold && len(m.Backend.Targets) == 2 && len(m.Backend.Targets[0].Endpoints) == 0
	}
	condition(routing.ReasonAsleep)
	until(t, &table, "requests wait for what sleeps", cold)
	if err := replicas.Apply(ctx, key, []platform.Assignment{{Workload: workload(key, "iris-predictor-00001")}}); err != nil {
		t.Fatal(err)
	}
	condition(routing.ReasonWaking)
	until(t, &table, "requests wait for what is being started", cold)
	// The first ready replica counts, before the operator has said so.
	if err := replicas.Apply(ctx, key, []platform.Assignment{
		{Workload: workload(key, "iris-predictor-00001"), Replicas: 2}, {Workload: workload(key, "iris-predictor-00002"), Replicas: 2},
	}); err != nil {
		t.Fatal(err)
	}
	until(t, &table, "both serve again", endpoints(90, 10))

	// What the manifest alone says needs no new revision.
	as := is.DeepCopy()
	collector := "http://collector.default"
	is.Spec.Predictor.Logger = &v1beta1.LoggerSpec{Mode: v1beta1.LogAll, URL: &collector}
	is.Spec.Predictor.Batcher = &v1beta1.Batcher{}
	if err := c.Patch(ctx, is, client.MergeFrom(as)); err != nil {
		t.Fatal(err)
	}
	until(t, &table, "requests are logged and put together", func(table *route.Table) bool {
		m, ok := table.Named(key, "/")
		return ok && m.Backend.Log != nil && m.Backend.Log.URL == collector && m.Backend.Batch != nil && m.Backend.Batch.MaxSize == 32
	})

	// A service that is gone leads nowhere.
	if err := c.Delete(ctx, is); err != nil {
		t.Fatal(err)
	}
	until(t, &table, "the service is gone", func(table *route.Table) bool {
		_, ok := table.Named(key, "/")
		return !ok
	})
	stop()
}

func TestTrainedModelsComeAndGo(t *testing.T) {
	api, c := start(t)
	ctx := t.Context()
	key := spec.ServiceKey{Namespace: "default", Name: "many"}
	create := func(o client.Object) {
		t.Helper()
		if err := c.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	is := &v1beta1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	is.Spec.Predictor.Model = &v1beta1.ModelSpec{ModelFormat: v1beta1.ModelFormat{Name: "onnx"}}
	create(is)
	list := corev1.Volume{Name: "list", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "modelconfig-many-0"}}}}
	rev := &smv1alpha1.Revision{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "many-predictor-00001", Labels: map[string]string{smv1alpha1.LabelService: key.Name, smv1alpha1.LabelComponent: "predictor"}},
		Spec:       smv1alpha1.RevisionSpec{Service: key.Name, Component: "predictor", Hash: "1"},
	}
	rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Name: "kserve-container", Image: "engine"}}
	rev.Spec.PodTemplate.Spec.Volumes = []corev1.Volume{list}
	create(rev)

	var table state.Topic[route.Table]
	f, err := follow.New(follow.Config{API: api.RESTConfig(), Domain: "example.com", Replicas: memory.New(memory.Config{}), Table: &table})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "the follower", f.Run)
	leads := func(model string) func(*route.Table) bool {
		return func(table *route.Table) bool {
			m, err := table.Model(model, "/")
			return err == nil && m.Service.Key == key
		}
	}
	tm := &v1alpha1.TrainedModel{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "m"}}
	tm.Spec = v1alpha1.TrainedModelSpec{InferenceService: key.Name, Model: v1alpha1.ModelSpec{StorageURI: "https://x/m", Framework: "onnx"}}
	create(tm)
	before := tm.DeepCopy()
	for _, typ := range []v1alpha1.TrainedModelConditionType{v1alpha1.TrainedModelIsMultiModel, v1alpha1.TrainedModelFrameworkSupported, v1alpha1.TrainedModelMemoryAvailable} {
		tm.Status.Conditions = append(tm.Status.Conditions, v1alpha1.TrainedModelCondition{Type: typ, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	}
	if err := c.Status().Patch(ctx, tm, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	until(t, &table, "the model leads to its service", leads("m"))
	if err := c.Delete(ctx, tm); err != nil {
		t.Fatal(err)
	}
	until(t, &table, "the model is gone", func(table *route.Table) bool { return !leads("m")(table) })
}
