package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/test/cluster"
)

const (
	ownImage  = "localhost:5000/stationmaster:1"
	irisImage = "localhost:5000/iris:1"
	system    = "stationmaster-system"
	operator  = "stationmaster-operator"
	gateway   = "stationmaster-gateway"
)

// installation is Stationmaster on the shared cluster, as its own manifest brings it there.
type installation struct {
	binary   string
	manifest []byte
	// address is the cluster IP of the gateway's Service.
	address string
	// models is the URL below which the iris model's file is served over HTTP.
	models string
}

// install builds the image, installs by the shipped manifest, and takes it all away when the
// test ends. The other tests of the cluster would be disturbed: it is for serial tests.
func install(t *testing.T) *installation {
	t.Helper()
	s := build(t)
	s.bring(t)
	return s
}

// build makes the binary and its images, and installs nothing.
func build(t *testing.T) *installation {
	t.Helper()
	s := &installation{binary: filepath.Join(t.TempDir(), "stationmaster")}
	s.publish(t)
	return s
}

// bring installs what was built, and takes it away when the test ends.
func (s *installation) bring(t *testing.T) {
	t.Helper()
	began := time.Now()
	out, err := exec.CommandContext(t.Context(), s.binary, "install", "--image", ownImage, "--direct-gateway", "infra/public").Output()
	if err != nil {
		t.Fatal(err)
	}
	s.manifest = out
	t.Cleanup(func() { s.uninstall(t) })
	t.Cleanup(func() { s.tell(t) })
	s.kubectl(t, s.manifest, "apply", "--server-side", "-f", "-")
	s.kubectl(t, nil, "-n", system, "rollout", "status", "deployment", "--timeout=90s")
	t.Logf("installed in %.1f s", time.Since(began).Seconds())
	var service corev1.Service
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: system, Name: gateway}, &service); err != nil {
		t.Fatal(err)
	}
	if s.address = service.Spec.ClusterIP; s.models == "" {
		s.models = serveModels(t)
	}
	// The operator may still bring the runtimes that ship.
	eventually(t, "the shipped runtimes are there", func() error {
		return api.Get(t.Context(), client.ObjectKey{Name: "stationmaster-onnx"}, clusterServingRuntime())
	})
}

func clusterServingRuntime() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("serving.kserve.io/v1alpha1")
	u.SetKind("ClusterServingRuntime")
	return u
}

// publish builds our own image, which is also the built-in runtime's, and the image of the
// iris model.
func (s *installation) publish(t *testing.T) {
	t.Helper()
	began := time.Now()
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-tags=scratch", "-ldflags=-s -w", "-o", s.binary, "./cmd/stationmaster")
	build.Dir = filepath.Join("..", "..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build stationmaster: %v: %s", err, out)
	}
	for _, image := range []cluster.Image{
		{Name: ownImage, Entrypoint: []string{"/stationmaster"}, User: "65532:65532", Files: []cluster.File{{Path: "stationmaster", From: s.binary}}},
		{Name: irisImage, Files: []cluster.File{{Path: "models/model.onnx", From: irisModel, Mode: 0o644}}},
	} {
		tar := filepath.Join(shared.Dir(), strings.NewReplacer("/", "-", ":", "-").Replace(image.Name)+".tar")
		if err := cluster.BuildImage(tar, image); err != nil {
			t.Fatal(err)
		}
		if err := shared.Publish(tar); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("images made in %.1f s", time.Since(began).Seconds())
}

// uninstall takes away all but the kinds, and waits for the pods to be gone.
func (s *installation) uninstall(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	delete := exec.CommandContext(ctx, s.binary, "kubectl", "--kubeconfig", shared.Kubeconfig(), "delete", "--wait=true", "--timeout=90s", "-f", "-")
	out, err := exec.CommandContext(ctx, s.binary, "install", "--image", ownImage, "--crds=false").Output()
	if err != nil {
		t.Error(err)
		return
	}
	delete.Stdin = bytes.NewReader(out)
	if out, err := delete.CombinedOutput(); err != nil {
		t.Errorf("uninstall: %v: %s", err, out)
	}
}

// tell prints what there is and what it logged, where the test failed.
func (s *installation) tell(t *testing.T) {
	if !t.Failed() {
		return
	}
	ctx := context.WithoutCancel(t.Context())
	for _, args := range [][]string{
		{"get", "pods,isvc,revisions,routes", "-A", "-o", "wide"},
		{"-n", system, "logs", "-l", "app=" + operator, "--prefix", "--tail=60"},
		{"-n", system, "logs", "-l", "app=" + operator, "--prefix", "--tail=20", "--previous"},
		{"-n", system, "logs", "-l", "app=" + gateway, "--prefix", "--tail=40"},
	} {
		if out, err := s.try(ctx, nil, args...); out != "" {
			t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// kubectl runs the kubectl in the binary and returns what it printed.
func (s *installation) kubectl(t *testing.T, stdin []byte, args ...string) string {
	t.Helper()
	out, err := s.try(t.Context(), stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *installation) try(ctx context.Context, stdin []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.binary, append([]string{"kubectl", "--kubeconfig", shared.Kubeconfig()}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, failed.Stderr)
	}
	return string(out), err
}

// testInstalled looks at what the manifest brought: rolled out at the first try, in a namespace
// that enforces the restricted profile.
func (s *installation) testInstalled(t *testing.T) {
	var ns corev1.Namespace
	if err := api.Get(t.Context(), client.ObjectKey{Name: system}, &ns); err != nil {
		t.Fatal(err)
	}
	if got := ns.Labels["pod-security.kubernetes.io/enforce"]; got != "restricted" {
		t.Errorf("its namespace enforces %q, want restricted", got)
	}
	for _, name := range []string{operator, gateway} {
		var d appsv1.Deployment
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: system, Name: name}, &d); err != nil {
			t.Fatal(err)
		}
		if d.Status.ReadyReplicas != 2 {
			t.Errorf("%s has %d ready replicas, want 2", name, d.Status.ReadyReplicas)
		}
		pods, err := ready(t.Context(), system, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods {
			for _, c := range pod.Status.ContainerStatuses {
				if c.RestartCount != 0 {
					t.Errorf("%s of %s was restarted %d times: %+v", c.Name, pod.Name, c.RestartCount, c.LastTerminationState.Terminated)
				}
			}
		}
	}
}
