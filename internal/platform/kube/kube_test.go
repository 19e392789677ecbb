package kube_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/kube"
	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
	"stationmaster.dev/stationmaster/internal/platform/platformtest"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded is a platform that makes the revisions of the workloads it is told to run.
type recorded struct {
	*kube.Platform
	mu        sync.Mutex
	revisions map[spec.RevisionKey]*smv1alpha1.Revision
	// service is what is read as any service.
	service *v1beta1.InferenceService
	// change, when set, is done to each revision that is made.
	change func(*smv1alpha1.Revision)
}

func (r *recorded) Apply(ctx context.Context, key spec.ServiceKey, want []platform.Assignment) error {
	r.mu.Lock()
	for _, a := range want {
		rev := revisionOf(a.Workload)
		if r.change != nil {
			r.change(rev)
		}
		r.revisions[a.Workload.Revision] = rev
	}
	r.mu.Unlock()
	return r.Platform.Apply(ctx, key, want)
}

func (r *recorded) read(_ context.Context, key spec.RevisionKey) (*smv1alpha1.Revision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rev := r.revisions[key]; rev != nil {
		return rev, nil
	}
	return nil, errdef.New(errdef.ErrNotFound, "no revision "+key.String())
}

func (r *recorded) readService(context.Context, spec.ServiceKey) (*v1beta1.InferenceService, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.service, nil
}

// revisionOf turns a workload back into the revision that it could have been made from.
func revisionOf(w spec.Workload) *smv1alpha1.Revision {
	grace := int64(w.GracePeriod / time.Second)
	rev := &smv1alpha1.Revision{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Revision.Namespace, Name: w.Revision.Name},
		Spec:       smv1alpha1.RevisionSpec{Service: w.Service.Name, Component: string(w.Component), Hash: w.Hash},
	}
	pod := &rev.Spec.PodTemplate.Spec
	pod.TerminationGracePeriodSeconds = &grace
	for _, c := range w.Containers {
		pod.Containers = append(pod.Containers, corev1.Container{Name: c.Name, Image: c.Image, Command: c.Command, Args: c.Args})
	}
	for _, m := range w.Models {
		rev.Spec.Models = append(rev.Spec.Models, smv1alpha1.RevisionModel{URI: m.URI, MountPath: m.MountPath})
	}
	return rev
}

// start runs a platform on a cluster until the test ends.
func start(t *testing.T, c *cluster, cfg kube.Config) *recorded {
	t.Helper()
	r := &recorded{revisions: map[spec.RevisionKey]*smv1alpha1.Revision{}}
	cfg.Revisions, cfg.Service = r.read, r.readService
	p, err := kube.New(c.config(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Platform = p
	run(t, p.Run)
	<-p.Synced()
	return r
}

func run(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run ended with %v", err)
		}
	})
}

func TestConformance(t *testing.T) {
	platformtest.Run(t, func(t *testing.T) platformtest.Fixture {
		container := func(command string) func() []spec.Container {
			return func() []spec.Container {
				return []spec.Container{{Name: "kserve-container", Image: "registry.example/engine:1", Command: []string{command}}}
			}
		}
		return platformtest.Fixture{Platform: start(t, newCluster(t), kube.Config{}), Serve: container("serve"), Fail: container("fail")}
	})
}

var iris = spec.ServiceKey{Namespace: "default", Name: "iris"}

func workload(revision, hash string, uris ...string) spec.Workload {
	w := spec.Workload{
		Service: iris, Revision: spec.RevisionKey{Namespace: "default", Name: revision}, Component: spec.Predictor, Hash: hash,
		Containers:  []spec.Container{{Name: "kserve-container", Image: "registry.example/engine:1", Command: []string{"serve"}}},
		GracePeriod: 30 * time.Second,
	}
	for _, u := range uris {
		w.Models = append(w.Models, spec.Model{URI: u, MountPath: "/mnt/models"})
	}
	return w
}

func apply(t *testing.T, p platform.Platform, want ...platform.Assignment) {
	t.Helper()
	if err := p.Apply(t.Context(), iris, want); err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition, looking again whenever the platform tells of a change.
func until(t *testing.T, p interface {
	Changes(context.Context) <-chan spec.ServiceKey
	Observe(context.Context, spec.ServiceKey) (spec.Observed, error)
}, what string, ok func(spec.Observed) bool,
) spec.Observed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	changes := p.Changes(ctx)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		o, err := p.Observe(ctx, iris)
		if err != nil {
			t.Fatal(err)
		}
		if ok(o) {
			cancel()
			for range changes {
			}
			return o
		}
		select {
		case <-changes:
		case <-tick.C:
		}
		if ctx.Err() != nil {
			t.Fatalf("no %s in time: %+v", what, o.Replicas)
		}
	}
}

func ready(n int) func(spec.Observed) bool {
	return func(o spec.Observed) bool {
		count := 0
		for _, r := range o.Replicas {
			if r.Phase == spec.Ready {
				count++
			}
		}
		return count == n && len(o.Replicas) == n
	}
}

var guarded = kube.Config{
	Image: "registry.example/stationmaster:1", GatewayHost: "gateway.system.svc.cluster.local",
	GatewayPods: []kube.PodSelector{{Namespace: "system", Labels: map[string]string{"app": "gateway"}}},
}

func TestApplyingTheSameCallsNobody(t *testing.T) {
	c := newCluster(t)
	p := start(t, c, guarded)
	want := platform.Assignment{Workload: workload("iris-predictor-00001", "a", "https://models.example/m"), Replicas: 2}
	apply(t, p, want)
	first := []string{
		"PATCH networkpolicies/default/iris", "PATCH configmaps/default/iris-predictor-00001", "PATCH services/default/iris-predictor",
		"PATCH deployments/default/iris-predictor-00001", "PATCH poddisruptionbudgets/default/iris-predictor-00001",
	}
	if d := cmp.Diff(first, c.written()); d != "" {
		t.Errorf("first apply (-want +got):\n%s", d)
	}
	until(t, p, "two ready", ready(2))
	for range 3 {
		apply(t, p, want)
	}
	// A control plane that starts anew knows nothing but what the cluster says.
	other := start(t, c, guarded)
	apply(t, other, want)
	if got := c.written(); len(got) > 0 {
		t.Errorf("a steady state made the calls %v", got)
	}
	// The digest, once known, changes what later pods pull and no pod that runs.
	want.Workload.Models[0].Digest = "sha256:aa"
	apply(t, p, want)
	if d := cmp.Diff([]string{"PATCH configmaps/default/iris-predictor-00001"}, c.written()); d != "" {
		t.Errorf("pinning (-want +got):\n%s", d)
	}
	if v, _, _ := unstructured.NestedString(c.get("configmaps/default/iris-predictor-00001").Object, "data", "digest-1"); v != "sha256:aa" {
		t.Errorf("pinned to %q, want sha256:aa", v)
	}
}

func TestDriftIsRepaired(t *testing.T) {
	for name, tc := range map[string]struct {
		key    string
		change func(*unstructured.Unstructured)
	}{
		"replicas": {"deployments/default/iris-predictor-00001", func(o *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(o.Object, int64(0), "spec", "replicas")
		}},
		"an argument": {"deployments/default/iris-predictor-00001", func(o *unstructured.Unstructured) {
			cs, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			c, _ := cs[0].(map[string]any)
			c["command"] = []any{"other"}
			_ = unstructured.SetNestedSlice(o.Object, cs, "spec", "template", "spec", "containers")
		}},
		"a container beside ours": {"deployments/default/iris-predictor-00001", func(o *unstructured.Unstructured) {
			cs, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			cs = append(cs, map[string]any{"name": "beside", "image": "x"})
			_ = unstructured.SetNestedSlice(o.Object, cs, "spec", "template", "spec", "containers")
			o.SetManagedFields([]metav1.ManagedFieldsEntry{
				{Manager: "stationmaster", Operation: "Apply", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:template":{"f:spec":{"f:volumes":{}}}}}`)},
				{Manager: "kubectl-patch", Operation: "Update", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"beside\"}":{".":{}}}}}}}`)},
			})
		}},
		"where a service leads": {"services/default/iris-predictor", func(o *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(o.Object, "elsewhere", "spec", "externalName")
		}},
		"who may reach engines": {"networkpolicies/default/iris", func(o *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(o.Object, map[string]any{}, "spec", "podSelector")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			p := start(t, c, guarded)
			want := platform.Assignment{Workload: workload("iris-predictor-00001", "a"), Replicas: 1}
			apply(t, p, want)
			until(t, p, "one ready", ready(1))
			before := c.get(tc.key)
			c.written()

			ctx, cancel := context.WithCancel(t.Context())
			changes := p.Changes(ctx)
			c.edit(tc.key, tc.change)
			for len(c.written()) == 0 {
				// Each change wakes the reconciler, which applies what it wants anew.
				<-changes
				apply(t, p, want)
			}
			cancel()
			for range changes {
			}
			after := c.get(tc.key)
			if d := cmp.Diff(before.Object["spec"], after.Object["spec"]); d != "" {
				t.Errorf("it stays changed (-want +got):\n%s", d)
			}
		})
	}
}

func TestADeletedDeploymentComesBack(t *testing.T) {
	c := newCluster(t)
	p := start(t, c, kube.Config{})
	want := platform.Assignment{Workload: workload("iris-predictor-00001", "a"), Replicas: 1}
	apply(t, p, want)
	until(t, p, "one ready", ready(1))
	rec, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, c.URL+"/apis/apps/v1/namespaces/default/deployments/iris-predictor-00001", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Client().Do(rec)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	until(t, p, "none", ready(0))
	until(t, p, "one again", func(o spec.Observed) bool {
		apply(t, p, want)
		return ready(1)(o)
	})
}

func TestAStaleCacheNeitherHidesNorRepeatsAWrite(t *testing.T) {
	c := newCluster(t)
	p := start(t, c, kube.Config{})
	w := workload("iris-predictor-00001", "a")
	apply(t, p, platform.Assignment{Workload: w, Replicas: 1})
	until(t, p, "one ready", ready(1))
	c.written()
	c.freeze()
	apply(t, p, platform.Assignment{Workload: w, Replicas: 3})
	apply(t, p, platform.Assignment{Workload: w, Replicas: 3})
	// The cache still has one replica, as is wanted again, and three were asked for since.
	apply(t, p, platform.Assignment{Workload: w, Replicas: 1})
	var deployments int
	for _, call := range c.written() {
		if strings.HasPrefix(call, "PATCH deployments/") {
			deployments++
		}
	}
	if deployments != 2 {
		t.Errorf("the Deployment was written %d times, want 2", deployments)
	}
	c.thaw()
	until(t, p, "one ready", ready(1))
}

func TestAnUnnamedRevisionAndAnEmptyListLeaveNothing(t *testing.T) {
	c := newCluster(t)
	p := start(t, c, guarded)
	one := platform.Assignment{Workload: workload("iris-predictor-00001", "a", "https://models.example/m"), Replicas: 2}
	two := platform.Assignment{Workload: workload("iris-predictor-00002", "b"), Replicas: 0}
	apply(t, p, one, two)
	until(t, p, "two ready", ready(2))
	until(t, p, "both", func(spec.Observed) bool { return len(c.keys()) == 6 })
	apply(t, p, two)
	until(t, p, "none", ready(0))
	left := []string{"deployments/default/iris-predictor-00002", "networkpolicies/default/iris", "services/default/iris-predictor"}
	if d := cmp.Diff(left, c.keys()); d != "" {
		t.Errorf("after the first revision ended (-want +got):\n%s", d)
	}
	apply(t, p)
	if got := c.keys(); len(got) > 0 {
		t.Errorf("%v are left of a removed service", got)
	}
}

func TestWhatTheClusterRefusesShowsAsAFailedReplica(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg     kube.Config
		refuse  func(*unstructured.Unstructured) *metav1.Status
		uris    []string
		message string
		final   bool
	}{
		"an invalid pod": {refuse: func(o *unstructured.Unstructured) *metav1.Status {
			if o.GetKind() != "Deployment" {
				return nil
			}
			return &metav1.Status{Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: 422, Message: "limits: must be positive"}
		}, message: "limits: must be positive", final: true},
		"a quota": {refuse: func(o *unstructured.Unstructured) *metav1.Status {
			if o.GetKind() != "Deployment" {
				return nil
			}
			return &metav1.Status{Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: 403, Message: "exceeded quota"}
		}, message: "exceeded quota"},
		"a model that nothing pulls": {uris: []string{"https://models.example/m"}, message: "wasn't told the image", final: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.refuse = tc.refuse
			p := start(t, c, tc.cfg)
			want := platform.Assignment{Workload: workload("iris-predictor-00001", "a", tc.uris...), Replicas: 1}
			apply(t, p, want)
			o := until(t, p, "failure", func(o spec.Observed) bool { return len(o.Replicas) == 1 })
			f := o.Replicas[0].Failure
			if o.Replicas[0].Phase != spec.Failed || f == nil || f.Reason != spec.StartFailed || !strings.Contains(f.Message, tc.message) || f.Terminal != tc.final {
				t.Errorf("replica %+v with failure %+v, want a failed one that says %q", o.Replicas[0], f, tc.message)
			}
			apply(t, p, want)
			if again := until(t, p, "failure", func(o spec.Observed) bool { return len(o.Replicas) == 1 }); !again.Replicas[0].Failure.At.Equal(f.At) {
				t.Error("the time of the failure moves with each apply")
			}
			apply(t, p)
			until(t, p, "none", ready(0))
		})
	}
}

func TestAnErrorOfTheAPIIsOneOfApply(t *testing.T) {
	c := newCluster(t)
	c.refuse = func(*unstructured.Unstructured) *metav1.Status {
		return &metav1.Status{Status: "Failure", Reason: metav1.StatusReasonInternalError, Code: 500, Message: "etcd is away"}
	}
	p := start(t, c, kube.Config{})
	err := p.Apply(t.Context(), iris, []platform.Assignment{{Workload: workload("iris-predictor-00001", "a"), Replicas: 1}})
	if !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("error %v, want one of kind unavailable", err)
	}
}

func TestBeforeTheClusterWasReadNothingIsClaimed(t *testing.T) {
	p, err := kube.New(newCluster(t).config(), kube.Config{Revisions: (&recorded{}).read})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Observe(t.Context(), iris); !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("observe: error %v, want one of kind unavailable", err)
	}
	if _, err := p.Services(t.Context()); !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("services: error %v, want one of kind unavailable", err)
	}
	if err := p.Apply(t.Context(), iris, nil); !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("apply: error %v, want one of kind unavailable", err)
	}
}

func TestANamespaceThatIsntWatchedHasNothingAndTakesNothing(t *testing.T) {
	p := start(t, newCluster(t), kube.Config{Namespaces: []string{"elsewhere"}})
	if o, err := p.Observe(t.Context(), iris); err != nil || len(o.Replicas) > 0 {
		t.Errorf("observed %v (%v), want nothing", o, err)
	}
	apply(t, p)
	err := p.Apply(t.Context(), iris, []platform.Assignment{{Workload: workload("iris-predictor-00001", "a"), Replicas: 1}})
	if !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("error %v, want one of kind invalid", err)
	}
}

func TestAnObserverSeesWhatAPlatformRuns(t *testing.T) {
	c := newCluster(t)
	o, err := kube.NewObserver(c.config(), "default")
	if err != nil {
		t.Fatal(err)
	}
	run(t, o.Run)
	<-o.Synced()
	p := start(t, c, kube.Config{})
	apply(t, p, platform.Assignment{Workload: workload("iris-predictor-00001", "a"), Replicas: 2})
	seen := until(t, o, "two ready", ready(2))
	if r := seen.Replicas[0]; r.HTTP != "10.0.0.1:8080" || r.Hash != "a" {
		t.Errorf("replica %+v lacks address or hash", r)
	}
}

func TestAMeasuredStartSizesTheProbeOfPodsThatAreMadeAnew(t *testing.T) {
	c := newCluster(t)
	p := start(t, c, guarded)
	p.change = func(rev *smv1alpha1.Revision) {
		rev.Spec.PodTemplate.Spec.Containers[0].LivenessProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}},
			PeriodSeconds: 10, FailureThreshold: 3,
		}
	}
	const first, second = "iris-predictor-00001", "iris-predictor-00002"
	tries := func(revision string) int64 {
		containers, _, _ := unstructured.NestedSlice(c.get("deployments/default/"+revision).Object, "spec", "template", "spec", "containers")
		n, _, _ := unstructured.NestedInt64(containers[0].(map[string]any), "startupProbe", "failureThreshold")
		return n
	}
	want := platform.Assignment{Workload: workload(first, "a"), Replicas: 1}
	apply(t, p, want)
	until(t, p, "one ready", ready(1))
	c.written()
	want.Startup = 100 * time.Second
	apply(t, p, want)
	if got := c.written(); len(got) > 0 {
		t.Errorf("what was measured of pods that run made the calls %v", got)
	}
	next := platform.Assignment{Workload: workload(second, "b"), Replicas: 1, Startup: want.Startup}
	apply(t, p, want, next)
	if got := [2]int64{tries(first), tries(second)}; got != [2]int64{0, 36} {
		t.Errorf("the startup probes may fail %v times", got)
	}
	// From zero the first one gets it as well.
	want.Replicas = 0
	apply(t, p, want)
	until(t, p, "none", func(o spec.Observed) bool { return len(o.Replicas) == 0 })
	want.Replicas = 1
	apply(t, p, want)
	if got := tries(first); got != 36 {
		t.Errorf("from zero, the startup probe may fail %d times", got)
	}
}

func TestAnUpgradedOperatorReplacesNoPod(t *testing.T) {
	c := newCluster(t)
	want := platform.Assignment{Workload: workload("iris-predictor-00001", "a", "https://models.example/m"), Replicas: 1}
	old := start(t, c, guarded)
	apply(t, old, want)
	until(t, old, "one ready", ready(1))
	c.written()
	upgraded := guarded
	upgraded.Image = "registry.example/stationmaster:2"
	p := start(t, c, upgraded)
	apply(t, p, want)
	if got := c.written(); len(got) > 0 {
		t.Errorf("the upgrade made the calls %v", got)
	}
	// A revision that starts anew, or from zero, gets the new image.
	next := platform.Assignment{Workload: workload("iris-predictor-00002", "b", "https://models.example/m"), Replicas: 1}
	apply(t, p, want, next)
	cs, _, _ := unstructured.NestedSlice(c.get("deployments/default/iris-predictor-00002").Object, "spec", "template", "spec", "initContainers")
	if pull, _ := cs[0].(map[string]any); pull["image"] != "registry.example/stationmaster:2" {
		t.Errorf("a new revision pulls with %v", pull["image"])
	}
}

func TestAnOperatorThatDeliversOtherwiseReplacesNoPod(t *testing.T) {
	c := newCluster(t)
	want := platform.Assignment{Workload: workload("iris-predictor-00001", "a", "oci://registry.example/m:1"), Replicas: 1}
	old := start(t, c, guarded)
	apply(t, old, want)
	until(t, old, "one ready", ready(1))
	c.written()
	cfg := guarded
	cfg.Images = oci.Modelcar
	p := start(t, c, cfg)
	apply(t, p, want)
	if got := c.written(); len(got) > 0 {
		t.Errorf("the other setting made the calls %v", got)
	}
	shares := func(revision string) bool {
		on, _, _ := unstructured.NestedBool(c.get("deployments/default/"+revision).Object, "spec", "template", "spec", "shareProcessNamespace")
		return on
	}
	// A revision that is new, or starts from zero, comes the new way.
	next := platform.Assignment{Workload: workload("iris-predictor-00002", "b", "oci://registry.example/m:2"), Replicas: 1}
	apply(t, p, want, next)
	if shares("iris-predictor-00001") || !shares("iris-predictor-00002") {
		t.Error("the one that runs came by modelcar, or the new one didn't")
	}
	want.Replicas = 0
	apply(t, p, want, next)
	until(t, p, "the new one alone", func(o spec.Observed) bool { return len(o.Replicas) == 1 })
	want.Replicas = 1
	apply(t, p, want, next)
	if !shares("iris-predictor-00001") {
		t.Error("from zero, it didn't come by modelcar")
	}
}
