package control

import (
	"context"
	"errors"
	"fmt"

	"log/slog"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/config/crd"
	"stationmaster.dev/stationmaster/internal/kubeapi"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/memory"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// patience is how long a test waits for what should take milliseconds; this machine may be busy.
const patience = 2 * time.Minute

// api is the embedded API that all tests of this room share, each in namespaces of its own. It
// starts with the first test that asks for it.
var api struct {
	once   sync.Once
	server *kubeapi.Server
	err    error
	stop   func() error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if api.stop != nil {
		if err := api.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "the API ended with", err)
			code = 1
		}
	}
	os.Exit(code)
}

func startAPI() {
	dir, err := os.MkdirTemp("", "control")
	if err != nil {
		api.err = err
		return
	}
	crds, err := crd.Slim()
	if err == nil {
		api.server, err = kubeapi.New(kubeapi.Config{DataDir: dir, Listen: "127.0.0.1:0", CRDs: crds})
	}
	if err != nil {
		api.err = err
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.server.Run(ctx) }()
	api.stop = func() error {
		cancel()
		return errors.Join(<-done, os.RemoveAll(dir))
	}
	select {
	case <-api.server.Ready():
	case api.err = <-done:
		done <- nil
	case <-time.After(time.Minute):
		api.err = errors.New("the API wasn't ready within a minute")
	}
}

// bench is a controller over the real API and the platform in memory, in a namespace of its own.
type bench struct {
	t *testing.T
	client.Client
	platform *memory.Platform
	table    *state.Topic[route.Table]
	control  *Controller
	cfg      Config
	ns       string
	// writes counts the controller's requests that change something, by method and path.
	writes struct {
		sync.Mutex
		n map[string]int
	}
	fails atomic.Pointer[func(spec.Workload) *spec.Failure]
	stop  func()
}

var namespaces atomic.Int64

func newBench(t *testing.T, shape ...func(*Config)) *bench {
	t.Helper()
	api.once.Do(startAPI)
	if api.err != nil {
		t.Fatal(api.err)
	}
	sch, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, table: &state.Topic[route.Table]{}}
	if b.Client, err = client.New(api.server.RESTConfig(), client.Options{Scheme: sch}); err != nil {
		t.Fatal(err)
	}
	b.platform = memory.New(memory.Config{
		Fails: func(w spec.Workload) *spec.Failure {
			if f := b.fails.Load(); f != nil {
				return (*f)(w)
			}
			return nil
		},
		Address: func(spec.Workload) (string, string) { return "127.0.0.1:1", "127.0.0.1:2" },
	})
	b.cfg = Config{HTTP: "127.0.0.1:8080", GRPC: "127.0.0.1:8081", OneMachine: true, Logger: slog.New(slog.DiscardHandler)}
	if testing.Verbose() {
		b.cfg.Logger = slog.New(slog.NewTextHandler(logTo{t}, nil))
	}
	for _, f := range shape {
		f(&b.cfg)
	}
	b.ns = b.namespace()
	b.runtime("onnx", nil)
	b.start()
	t.Cleanup(func() {
		b.cleanUp()
		b.stop()
		b.noGoroutines()
	})
	return b
}

type logTo struct{ t *testing.T }

func (l logTo) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// counting counts what the controller writes.
type counting struct {
	http.RoundTripper
	b *bench
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") {
		c.b.writes.Lock()
		c.b.writes.n[r.Method+" "+r.URL.Path]++
		c.b.writes.Unlock()
	}
	return c.RoundTripper.RoundTrip(r)
}

func (b *bench) start() {
	b.t.Helper()
	b.writes.n = map[string]int{}
	config := api.server.RESTConfig()
	config.WrapTransport = func(rt http.RoundTripper) http.RoundTripper { return counting{rt, b} }
	b.control = New(b.cfg, b.platform, b.table)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func(c *Controller, config *rest.Config) { done <- c.Run(ctx, config) }(b.control, config)
	b.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				b.t.Errorf("the controller ended with %v", err)
			}
		case <-time.After(patience):
			b.t.Error("the controller didn't end")
		}
	})
}

func (b *bench) restart() {
	b.stop()
	b.start()
}

func (b *bench) totalWrites() int {
	b.writes.Lock()
	defer b.writes.Unlock()
	n := 0
	for _, c := range b.writes.n {
		n += c
	}
	return n
}

// cleanUp deletes all services, so that the next test's controller finds none.
func (b *bench) cleanUp() {
	var list v1beta1.InferenceServiceList
	if err := b.List(context.Background(), &list); err != nil {
		b.t.Error(err)
		return
	}
	for i := range list.Items {
		if err := b.Delete(context.Background(), &list.Items[i]); client.IgnoreNotFound(err) != nil {
			b.t.Error(err)
		}
	}
	b.eventually("all services gone", func() string {
		var list v1beta1.InferenceServiceList
		if err := b.List(context.Background(), &list); err != nil {
			return err.Error()
		}
		if len(list.Items) > 0 {
			return fmt.Sprintf("%d left", len(list.Items))
		}
		return ""
	})
}

// noGoroutines fails where the controller left something running. The API server lives in this
// process, so that goleak would see its goroutines.
func (b *bench) noGoroutines() {
	b.eventually("no goroutine of the controller", func() string {
		buf := make([]byte, 4<<20)
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			for _, part := range []string{"internal/control.(*Controller)", "internal/state.(*Feed", "sigs.k8s.io/controller-runtime/pkg/manager", "sigs.k8s.io/controller-runtime/pkg/internal", "client-go/tools/record"} {
				if strings.Contains(g, part) {
					return g
				}
			}
		}
		return ""
	})
}

// namespace makes one that no other test uses.
func (b *bench) namespace() string {
	b.t.Helper()
	ns := &corev1.Namespace{}
	ns.Name = fmt.Sprintf("t%d", namespaces.Add(1))
	if err := b.Create(b.t.Context(), ns); err != nil {
		b.t.Fatal(err)
	}
	return ns.Name
}

// runtime makes a runtime in the bench's namespace that serves the format of its name.
func (b *bench) runtime(name string, change func(*v1alpha1.ServingRuntime)) *v1alpha1.ServingRuntime {
	b.t.Helper()
	yes := true
	r := &v1alpha1.ServingRuntime{}
	r.Namespace, r.Name = b.ns, name
	r.Spec.SupportedModelFormats = []v1alpha1.SupportedModelFormat{{Name: name, AutoSelect: &yes}}
	r.Spec.ProtocolVersions = []v1alpha1.Protocol{"v1", "v2", "grpc-v2"}
	r.Spec.Containers = []corev1.Container{{Name: "kserve-container", Image: "example.com/" + name + ":1", Args: []string{"--name={{.Name}}"}}}
	if change != nil {
		change(r)
	}
	if err := b.Create(b.t.Context(), r); err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bench) service(name string, change ...func(*v1beta1.InferenceService)) *v1beta1.InferenceService {
	b.t.Helper()
	is := newService(b.ns, name, change...)
	if err := b.Create(b.t.Context(), is); err != nil {
		b.t.Fatal(err)
	}
	return is
}

func newService(ns, name string, change ...func(*v1beta1.InferenceService)) *v1beta1.InferenceService {
	uri := "file:///models/one"
	is := &v1beta1.InferenceService{}
	is.Namespace, is.Name = ns, name
	is.Spec.Predictor.Model = &v1beta1.ModelSpec{ModelFormat: v1beta1.ModelFormat{Name: "onnx"}}
	is.Spec.Predictor.Model.StorageURI = &uri
	for _, f := range change {
		f(is)
	}
	return is
}

func withModel(uri string) func(*v1beta1.InferenceService) {
	return func(is *v1beta1.InferenceService) { is.Spec.Predictor.Model.StorageURI = &uri }
}

func withFormat(name string) func(*v1beta1.InferenceService) {
	return func(is *v1beta1.InferenceService) { is.Spec.Predictor.Model.ModelFormat.Name = name }
}

func (b *bench) key(name string) spec.ServiceKey {
	return spec.ServiceKey{Namespace: b.ns, Name: name}
}

// edit changes a service as a person would.
func (b *bench) edit(name string, change func(*v1beta1.InferenceService)) *v1beta1.InferenceService {
	b.t.Helper()
	is := b.get(name)
	before := is.DeepCopy()
	change(is)
	if err := b.Patch(b.t.Context(), is, client.MergeFrom(before)); err != nil {
		b.t.Fatal(err)
	}
	return is
}

func (b *bench) get(name string) *v1beta1.InferenceService {
	b.t.Helper()
	is := &v1beta1.InferenceService{}
	if err := b.Get(b.t.Context(), client.ObjectKey{Namespace: b.ns, Name: name}, is); err != nil {
		b.t.Fatal(err)
	}
	return is
}

// eventually polls until missing returns ""; it says what was missing last where time is up.
func (b *bench) eventually(what string, missing func() string) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		why := missing()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: not within %v: %s", what, patience, why)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// until waits for a service to look as ok wants it.
func (b *bench) until(name, what string, ok func(*v1beta1.InferenceService) bool) *v1beta1.InferenceService {
	b.t.Helper()
	var is *v1beta1.InferenceService
	b.eventually(name+" "+what, func() string {
		is = b.get(name)
		if ok(is) {
			return ""
		}
		return fmt.Sprintf("generation %d, status %+v", is.Generation, describe(is))
	})
	return is
}

func describe(is *v1beta1.InferenceService) string {
	var s strings.Builder
	fmt.Fprintf(&s, "observed %d", is.Status.ObservedGeneration)
	for _, c := range is.Status.Conditions {
		fmt.Fprintf(&s, "; %s=%s %s %q", c.Type, c.Status, c.Reason, c.Message)
	}
	fmt.Fprintf(&s, "; components %+v; model %+v", is.Status.Components, is.Status.ModelStatus)
	return s.String()
}

func isReady(is *v1beta1.InferenceService) bool {
	return is.Status.ObservedGeneration == is.Generation && conditionOf(is.Status.Conditions, v1beta1.ConditionReady).Status == corev1.ConditionTrue
}

func (b *bench) ready(name string) *v1beta1.InferenceService {
	b.t.Helper()
	return b.until(name, "ready", isReady)
}

// serving returns the revision that the gateway would send a request for name to, "" for none.
func (b *bench) serving(key spec.ServiceKey) string {
	m, ok := b.table.Load().Named(key, "/")
	if !ok || m.Backend == nil || m.Backend.NotReady != "" {
		return ""
	}
	return m.Backend.Targets[0].Revision
}

func (b *bench) revisions(name string) []string {
	b.t.Helper()
	var list smv1alpha1.RevisionList
	if err := b.List(b.t.Context(), &list, client.InNamespace(b.ns), client.MatchingLabels{labelService: name}); err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	slices.Sort(out)
	return out
}

func (b *bench) wanted(key spec.ServiceKey) []string {
	var out []string
	for _, a := range b.platform.Wanted(key) {
		out = append(out, fmt.Sprintf("%s×%d", a.Workload.Revision.Name, a.Replicas))
	}
	return out
}

func (b *bench) assignment(key spec.ServiceKey, revision string) (platform.Assignment, bool) {
	for _, a := range b.platform.Wanted(key) {
		if a.Workload.Revision.Name == revision {
			return a, true
		}
	}
	return platform.Assignment{}, false
}

// set changes every replica of a revision.
func (b *bench) set(key spec.ServiceKey, revision string, change func(*spec.Replica)) {
	b.t.Helper()
	o, err := b.platform.Observe(b.t.Context(), key)
	if err != nil {
		b.t.Fatal(err)
	}
	n := 0
	for _, r := range o.Replicas {
		if r.Revision.Name == revision && b.platform.Set(key, r.ID, change) {
			n++
		}
	}
	if n == 0 {
		b.t.Fatalf("revision %s has no replica among %+v", revision, o.Replicas)
	}
}

func becomeReady(r *spec.Replica) {
	r.Phase, r.Failure = spec.Ready, nil
	r.Timings.ReadyAt = time.Now()
}

func (b *bench) failModel(uri string, failure *spec.Failure) {
	f := func(w spec.Workload) *spec.Failure {
		if len(w.Models) > 0 && w.Models[0].URI == uri {
			return failure
		}
		return nil
	}
	b.fails.Store(&f)
}

func (b *bench) events(name string) []corev1.Event {
	b.t.Helper()
	var list corev1.EventList
	if err := b.List(b.t.Context(), &list, client.InNamespace(b.ns)); err != nil {
		b.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name != name })
}
