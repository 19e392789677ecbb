package kubeapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/kubeapi"
)

var isvcs = schema.GroupVersionResource{Group: "serving.kserve.io", Version: "v1beta1", Resource: "inferenceservices"}

// picky defaults minReplicas to 1 and refuses services named "refused" and models without a
// format.
type picky struct{}

func (picky) Admit(_ context.Context, req kubeapi.AdmissionRequest) (*unstructured.Unstructured, []string, error) {
	o := req.Object
	if req.Phase == kubeapi.Mutating {
		if _, found, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "predictor", "minReplicas"); found {
			return nil, nil, nil
		}
		return o, nil, unstructured.SetNestedField(o.Object, int64(1), "spec", "predictor", "minReplicas")
	}
	if o.GetName() == "refused" {
		return nil, nil, fmt.Errorf("%w: no such name here", errdef.ErrDenied)
	}
	if _, found, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "predictor", "model", "modelFormat"); !found {
		return nil, []string{"a warning"}, kubeapi.FieldErrors(field.ErrorList{
			field.Required(field.NewPath("spec", "predictor", "model", "modelFormat"), "name the format"),
		})
	}
	return nil, nil, nil
}

func isvc(namespace, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{"predictor": map[string]any{
			"model": map[string]any{"modelFormat": map[string]any{"name": "onnx"}},
		}},
	}}
}

// start runs a server of its own for the test and stops it at the test's end.
func start(t *testing.T, cfg kubeapi.Config) *kubeapi.Server {
	t.Helper()
	crds, err := readCRDs("")
	if err != nil {
		t.Fatal(err)
	}
	cfg.CRDs, cfg.Listen = crds, "127.0.0.1:0"
	if cfg.DataDir == "" {
		cfg.DataDir = t.TempDir()
	}
	s, err := kubeapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the server ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the server did not end within a minute")
		}
	})
	select {
	case <-s.Ready():
	case err := <-done:
		done <- nil
		t.Fatalf("the server did not start: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the server was not ready within a minute")
	}
	return s
}

func clients(t *testing.T, cfg *rest.Config) (kubernetes.Interface, dynamic.Interface) {
	t.Helper()
	core, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return core, dyn
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func TestServerServesRealClients(t *testing.T) {
	s := start(t, kubeapi.Config{Admission: picky{}})
	core, dyn := clients(t, s.RESTConfig())
	ctx := t.Context()

	t.Run("strangers get 401 and the kubeconfig is private", func(t *testing.T) {
		cfg := rest.AnonymousClientConfig(s.RESTConfig())
		anon, _ := clients(t, cfg)
		if _, err := anon.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("without a token: %v, want 401", err)
		}
		cfg.BearerToken = "wrong"
		wrong, _ := clients(t, cfg)
		if _, err := wrong.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("with a wrong token: %v, want 401", err)
		}
		for _, file := range []string{"kubeconfig", "api/pki/admin.token", "api/pki/ca.key", "api/pki/server.key"} {
			info, err := os.Stat(filepath.Join(filepath.Dir(s.KubeconfigPath()), file))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v, want 0600", file, info.Mode().Perm())
			}
		}
		out, err := clientcmd.BuildConfigFromFlags("", s.KubeconfigPath())
		if err != nil {
			t.Fatal(err)
		}
		admin, _ := clients(t, out)
		if _, err := admin.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{}); err != nil {
			t.Errorf("the written kubeconfig can't read a namespace: %v", err)
		}
	})

	t.Run("another user is denied", func(t *testing.T) {
		cfg := s.RESTConfig()
		cfg.Impersonate = rest.ImpersonationConfig{UserName: "mallory"}
		other, _ := clients(t, cfg)
		if _, err := other.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("got %v, want 403", err)
		}
	})

	t.Run("core kinds are checked", func(t *testing.T) {
		yes := true
		for name, tc := range map[string]struct {
			create func() error
			want   func(error) bool
		}{
			"a namespace that does not exist": {func() error {
				_, err := core.CoreV1().ConfigMaps("nope").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
				if err != nil && err.Error() != `namespaces "nope" not found` {
					t.Errorf("message %q", err)
				}
				return err
			}, apierrors.IsNotFound},
			"a bad namespace name": {func() error {
				_, err := core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "A_b"}}, metav1.CreateOptions{})
				return err
			}, apierrors.IsInvalid},
			"a bad label": {func() error {
				_, err := core.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"x": "a b"}}}, metav1.CreateOptions{})
				return err
			}, apierrors.IsInvalid},
			"a secret of type TLS without a key": {func() error {
				_, err := core.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "tls"}, Type: corev1.SecretTypeTLS}, metav1.CreateOptions{})
				return err
			}, apierrors.IsInvalid},
			"a change of an immutable config map": {func() error {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "frozen"}, Data: map[string]string{"a": "b"}, Immutable: &yes}
				made, err := core.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
				if err != nil {
					return err
				}
				made.Data["a"] = "c"
				_, err = core.CoreV1().ConfigMaps("default").Update(ctx, made, metav1.UpdateOptions{})
				return err
			}, apierrors.IsInvalid},
			"deleting the default namespace": {func() error {
				return core.CoreV1().Namespaces().Delete(ctx, "default", metav1.DeleteOptions{})
			}, apierrors.IsForbidden},
		} {
			if err := tc.create(); !tc.want(err) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		made, err := core.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}, StringData: map[string]string{"a": "b"},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if string(made.Data["a"]) != "b" || made.Type != corev1.SecretTypeOpaque || made.StringData != nil {
			t.Errorf("stringData became %v of type %q", made.Data, made.Type)
		}
	})

	t.Run("events are selected by their object and expire", func(t *testing.T) {
		for _, name := range []string{"iris", "other"} {
			_, err := core.CoreV1().Events("default").Create(ctx, &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Name: name + ".1"},
				InvolvedObject: corev1.ObjectReference{Kind: "InferenceService", Name: name, Namespace: "default"},
				Reason:         "Ready",
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		got, err := core.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=iris"})
		if err != nil || len(got.Items) != 1 || got.Items[0].InvolvedObject.Name != "iris" {
			t.Errorf("selected %v (%v), want the one event of iris", got, err)
		}
		if _, err := core.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "message=x"}); !apierrors.IsBadRequest(err) {
			t.Errorf("an unknown field selector gives %v, want 400", err)
		}
	})

	t.Run("admission defaults and refuses in every verb", func(t *testing.T) {
		c := dyn.Resource(isvcs).Namespace("default")
		made, err := c.Create(ctx, isvc("default", "defaulted"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n, _, _ := unstructured.NestedInt64(made.Object, "spec", "predictor", "minReplicas"); n != 1 {
			t.Errorf("minReplicas is %d after create, want the default 1", n)
		}
		applied, err := c.Apply(ctx, "applied", isvc("default", "applied"), metav1.ApplyOptions{FieldManager: "test"})
		if err != nil {
			t.Fatal(err)
		}
		if n, _, _ := unstructured.NestedInt64(applied.Object, "spec", "predictor", "minReplicas"); n != 1 {
			t.Errorf("minReplicas is %d after apply, want the default 1", n)
		}
		bad := isvc("default", "bad")
		unstructured.RemoveNestedField(bad.Object, "spec", "predictor", "model", "modelFormat")
		_, createErr := c.Create(ctx, bad, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		_, applyErr := c.Apply(ctx, "bad", bad, metav1.ApplyOptions{FieldManager: "test"})
		_, patchErr := c.Patch(ctx, "applied", types.MergePatchType, []byte(`{"spec":{"predictor":{"model":{"modelFormat":null}}}}`), metav1.PatchOptions{})
		for verb, err := range map[string]error{"create": createErr, "apply": applyErr, "patch": patchErr} {
			var status apierrors.APIStatus
			if !apierrors.IsInvalid(err) || !errors.As(err, &status) ||
				len(status.Status().Details.Causes) != 1 || status.Status().Details.Causes[0].Field != "spec.predictor.model.modelFormat" {
				t.Errorf("%s: got %v, want 422 naming the field", verb, err)
			}
		}
		if _, err := c.Create(ctx, isvc("default", "refused"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a denied object gives %v, want 403", err)
		}
		wrong := isvc("default", "cel")
		_ = unstructured.SetNestedField(wrong.Object, int64(3), "spec", "predictor", "minReplicas")
		_ = unstructured.SetNestedField(wrong.Object, int64(2), "spec", "predictor", "maxReplicas")
		if _, err := c.Create(ctx, wrong, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "must not exceed") {
			t.Errorf("a broken CEL rule gives %v", err)
		}
	})

	t.Run("conflicts are seen by update and by apply", func(t *testing.T) {
		c := dyn.Resource(isvcs).Namespace("default")
		first, err := c.Create(ctx, isvc("default", "contended"), metav1.CreateOptions{FieldManager: "a"})
		if err != nil {
			t.Fatal(err)
		}
		second := first.DeepCopy()
		_ = unstructured.SetNestedField(second.Object, int64(2), "spec", "predictor", "minReplicas")
		if _, err := c.Update(ctx, second, metav1.UpdateOptions{FieldManager: "a"}); err != nil {
			t.Fatal(err)
		}
		first.SetLabels(map[string]string{"late": "yes"})
		if _, err := c.Update(ctx, first, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("a stale update gives %v, want 409", err)
		}
		mine := isvc("default", "contended")
		_ = unstructured.SetNestedField(mine.Object, int64(3), "spec", "predictor", "minReplicas")
		if _, err := c.Apply(ctx, "contended", mine, metav1.ApplyOptions{FieldManager: "b"}); !apierrors.IsConflict(err) {
			t.Errorf("applying another manager's field gives %v, want 409", err)
		}
		if _, err := c.Apply(ctx, "contended", mine, metav1.ApplyOptions{FieldManager: "b", Force: true}); err != nil {
			t.Errorf("a forced apply gives %v", err)
		}
	})

	t.Run("lists are paged and an informer sees all changes", func(t *testing.T) {
		if _, err := core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "many"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c := dyn.Resource(isvcs).Namespace("many")
		informers := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dyn, 0, "many", nil)
		var mu sync.Mutex
		seen, gone := map[string]bool{}, map[string]bool{}
		inf := informers.ForResource(isvcs).Informer()
		_, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { mu.Lock(); defer mu.Unlock(); seen[o.(*unstructured.Unstructured).GetName()] = true },
			DeleteFunc: func(o any) {
				mu.Lock()
				defer mu.Unlock()
				if u, ok := o.(*unstructured.Unstructured); ok {
					gone[u.GetName()] = true
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ictx, stop := context.WithCancel(ctx)
		informers.Start(ictx.Done())
		defer func() { stop(); informers.Shutdown() }()
		if _, err := c.Create(ctx, isvc("many", "s0"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the informer syncs", inf.HasSynced)
		for i := 1; i < 7; i++ {
			if _, err := c.Create(ctx, isvc("many", fmt.Sprintf("s%d", i)), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the informer has all 7", func() bool { mu.Lock(); defer mu.Unlock(); return len(seen) == 7 })
		var names []string
		opts := metav1.ListOptions{Limit: 3}
		for pages := 1; ; pages++ {
			page, err := c.List(ctx, opts)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range page.Items {
				names = append(names, o.GetName())
			}
			if opts.Continue = page.GetContinue(); opts.Continue == "" {
				if pages != 3 {
					t.Errorf("%d pages, want 3", pages)
				}
				break
			}
		}
		if got := strings.Join(names, " "); got != "s0 s1 s2 s3 s4 s5 s6" {
			t.Errorf("pages hold %q", got)
		}
		if err := core.CoreV1().Namespaces().Delete(ctx, "many", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the namespace and what it holds are gone", func() bool {
			_, err := core.CoreV1().Namespaces().Get(ctx, "many", metav1.GetOptions{})
			mu.Lock()
			defer mu.Unlock()
			return apierrors.IsNotFound(err) && len(gone) == 7
		})
	})

	t.Run("a finalizer holds its namespace, which takes nothing new", func(t *testing.T) {
		if _, err := core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "held"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		o := isvc("held", "keeper")
		o.SetFinalizers([]string{"example.test/hold"})
		c := dyn.Resource(isvcs).Namespace("held")
		if _, err := c.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := core.CoreV1().Namespaces().Delete(ctx, "held", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Create(ctx, isvc("held", "late"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			t.Errorf("creating in a terminating namespace gives %v", err)
		}
		eventually(t, "the status says what remains", func() bool {
			ns, err := core.CoreV1().Namespaces().Get(ctx, "held", metav1.GetOptions{})
			return err == nil && len(ns.Status.Conditions) == 1 && strings.Contains(ns.Status.Conditions[0].Message, "inferenceservices")
		})
		if _, err := c.Patch(ctx, "keeper", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the namespace is gone", func() bool {
			_, err := core.CoreV1().Namespaces().Get(ctx, "held", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})

	t.Run("discovery lists the kinds in both forms, and OpenAPI has our fields", func(t *testing.T) {
		disco, err := discovery.NewDiscoveryClientForConfig(s.RESTConfig())
		if err != nil {
			t.Fatal(err)
		}
		if v, err := disco.ServerVersion(); err != nil || v.Major != "1" || !strings.HasPrefix(v.GitVersion, "v1.") {
			t.Errorf("the server's version is %v (%v)", v, err)
		}
		for _, legacy := range []bool{false, true} {
			disco.UseLegacyDiscovery = legacy
			groups, _, err := disco.ServerGroupsAndResources()
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, g := range groups {
				names = append(names, g.Name)
			}
			for _, want := range []string{"", "serving.kserve.io", "apiextensions.k8s.io", "coordination.k8s.io"} {
				if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+want+" ") {
					t.Errorf("discovery (legacy %v) has %q, not %q", legacy, names, want)
				}
			}
		}
		eventually(t, "OpenAPI v3 and v2 describe minReplicas", func() bool {
			v3, err3 := disco.RESTClient().Get().AbsPath("/openapi/v3/apis/serving.kserve.io/v1beta1").DoRaw(ctx)
			v2, err2 := disco.RESTClient().Get().AbsPath("/openapi/v2").DoRaw(ctx)
			return err3 == nil && err2 == nil && strings.Contains(string(v3), "let the service sleep") && strings.Contains(string(v2), "let the service sleep")
		})
	})
}

func TestDataSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	run := func() (*exec.Cmd, string) {
		t.Helper()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), serveEnv+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("the server said nothing: %v", err)
		}
		t.Log(strings.TrimSpace(line))
		kubeconfig, err := os.ReadFile(filepath.Join(dir, "kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		return cmd, string(kubeconfig)
	}
	admin := func() dynamic.ResourceInterface {
		t.Helper()
		cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		_, dyn := clients(t, cfg)
		return dyn.Resource(isvcs).Namespace("default")
	}
	cmd, before := run()
	var last string
	for i := range 20 {
		made, err := admin().Create(t.Context(), isvc("default", fmt.Sprintf("s%02d", i)), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		last = made.GetResourceVersion()
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	_, after := run()
	list, err := admin().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 20 || list.Items[19].GetResourceVersion() != last {
		t.Errorf("%d objects after a kill, want all 20, the last at version %s", len(list.Items), last)
	}
	token := func(s string) string { _, rest, _ := strings.Cut(s, "token:"); return rest }
	if token(before) == "" || token(before) != token(after) {
		t.Error("the kubeconfig's token changed over a restart")
	}
}

func TestServerRefusesWhatItCannotServe(t *testing.T) {
	if _, err := kubeapi.New(kubeapi.Config{}); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("no data directory: %v", err)
	}
	if _, err := kubeapi.New(kubeapi.Config{DataDir: t.TempDir(), Listen: "nowhere"}); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("a bad address: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := kubeapi.New(kubeapi.Config{DataDir: t.TempDir(), Listen: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); !errors.Is(err, errdef.ErrConflict) {
		t.Errorf("a port that is taken: %v", err)
	}
	dir := t.TempDir()
	start(t, kubeapi.Config{DataDir: dir})
	second, err := kubeapi.New(kubeapi.Config{DataDir: dir, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); !errors.Is(err, errdef.ErrConflict) {
		t.Errorf("a data directory in use: %v", err)
	}
}

func TestOpenWatchesDoNotHoldUpTheEnd(t *testing.T) {
	s, err := kubeapi.New(kubeapi.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	core, _ := clients(t, s.RESTConfig())
	w, err := core.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("still serving 20 s after it was told to stop")
	}
}

func TestKubectl(t *testing.T) {
	s := start(t, kubeapi.Config{})
	manifest := filepath.Join(t.TempDir(), "iris.yaml")
	if err := os.WriteFile(manifest, []byte("apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: iris}\nspec: {predictor: {minReplicas: 1}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args, want string
		fails      bool
	}{
		{args: "create ns team", want: "namespace/team created"},
		{args: "create secret generic s --from-literal=a=b -n team", want: "secret/s created"},
		{args: "get secret,cm -n team", want: "secret/s   Opaque   1"},
		{args: "apply -f " + manifest, want: "inferenceservice.serving.kserve.io/iris created"},
		{args: "apply --server-side --dry-run=server -f " + manifest, fails: false, want: "serverside-applied (server dry run)"},
		{args: "get isvc", want: "NAME   URL   READY   AGE"},
		{args: "get all", want: "iris"},
		{args: "explain inferenceservice.spec.predictor.minReplicas", want: "let the service sleep"},
		{args: "patch isvc iris --subresource=status --type=merge -p {\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}", want: "patched"},
		{args: "wait --for=condition=Ready isvc/iris --timeout=20s", want: "condition met"},
		{args: "auth whoami", want: "stationmaster-admin"},
		{args: "auth can-i delete isvc", want: "yes"},
		{args: "get isvc missing", want: `inferenceservices.serving.kserve.io "missing" not found`, fails: true},
		{args: "nonsense", want: "unknown command", fails: true},
		{args: "delete ns team --timeout=30s", want: `namespace "team" deleted`},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], strings.Fields(tc.args)...)
		cmd.Env = append(os.Environ(), kubectlEnv+"="+s.KubeconfigPath(), "KUBECONFIG=", "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if (err != nil) != tc.fails || !strings.Contains(string(out), tc.want) {
			t.Errorf("kubectl %s: %v, printed %q, want %q", tc.args, err, out, tc.want)
		}
	}
	resp, err := http.Get("http://" + s.Addr() + "/api") //nolint:noctx // a plain HTTP client must be turned away
	if err == nil {
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP got %d, want 400", resp.StatusCode)
		}
	}
}
