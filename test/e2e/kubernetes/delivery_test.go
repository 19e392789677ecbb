package kubernetes

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/modelstore"
	"stationmaster.dev/stationmaster/test/cluster"
)

// serveModels serves the iris model over HTTP on a node's address until the test ends, and
// returns the URL above it.
func serveModels(t *testing.T) string { return serveFolder(t, filepath.Dir(irisModel)) }

// serveFolder serves a folder's files in that way.
func serveFolder(t *testing.T, folder string) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	server := shared.Command(ctx, "python3", "-u", "-m", "http.server", "--bind", shared.NodeIP(1), "--directory", folder, "0")
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		server.Wait()
	})
	// It says "Serving HTTP on 10.88.0.2 port 41234 (…)".
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(line)
	for i, w := range words[:len(words)-1] {
		if w == "port" {
			return "http://" + shared.NodeIP(1) + ":" + words[i+1]
		}
	}
	t.Fatalf("the model server says %q", line)
	return ""
}

// claim makes a volume of a node's directory that holds the iris model, and a claim on it.
func claim(t *testing.T, namespace string) {
	t.Helper()
	dir := filepath.Join(shared.Dir(), "volume-"+namespace)
	model, err := os.ReadFile(irisModel)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "iris"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "iris", "model.onnx"), model, 0o644); err != nil {
		t.Fatal(err)
	}
	spec := corev1.PersistentVolumeSpec{
		Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: dir},
		},
		ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: "models"},
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: spec}
	none := ""
	on := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "models"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &none, VolumeName: namespace, AccessModes: spec.AccessModes,
			Resources: corev1.VolumeResourceRequirements{Requests: spec.Capacity},
		},
	}
	for _, o := range []client.Object{volume, on} {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), volume); err != nil {
			t.Error(err)
		}
	})
}

// carImage holds the iris model as a modelcar: with a shell, which the other one lacks.
const carImage = "localhost:5000/iris-car:1"

// publishCar makes carImage with Debian's static busybox.
func publishCar(t *testing.T) {
	t.Helper()
	shell := busybox(t)
	image := cluster.Image{Name: carImage, User: "1234:1234", Files: []cluster.File{{Path: "models/model.onnx", From: irisModel, Mode: 0o644}}}
	for _, applet := range []string{"sh", "ln", "sleep", "test"} {
		image.Files = append(image.Files, cluster.File{Path: "bin/" + applet, From: shell})
	}
	tar := filepath.Join(shared.Dir(), "iris-car.tar")
	if err := cluster.BuildImage(tar, image); err != nil {
		t.Fatal(err)
	}
	if err := shared.Publish(tar); err != nil {
		t.Fatal(err)
	}
}

// busybox returns where the program is, from Debian's package, which is kept between runs.
func busybox(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("STATIONMASTER_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache", "stationmaster")
	}
	program := filepath.Join(cache, "busybox-static", "bin", "busybox")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(cache, "busybox-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	get := exec.CommandContext(t.Context(), "sh", "-c",
		`{ apt-get -qq download busybox-static || { apt-get -qq update && apt-get -qq download busybox-static; }; } && mkdir x && dpkg-deb -x busybox-static_*.deb x`)
	get.Dir = dir
	if out, err := get.CombinedOutput(); err != nil {
		t.Fatalf("get Debian's busybox-static: %v: %s", err, out)
	}
	if err := os.Rename(filepath.Join(dir, "x"), filepath.Join(cache, "busybox-static")); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return program
}

// testDelivery brings the same bytes to the engine in each way there is.
func (s *installation) testDelivery(t *testing.T) {
	text, err := os.ReadFile(irisModel)
	if err != nil {
		t.Fatal(err)
	}
	tree := modelstore.TreeDigest([]modelstore.Entry{{Path: "model.onnx", Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(text)), Size: int64(len(text))}})
	publishCar(t)
	for name, tc := range map[string]struct {
		uri string
		// digest is what the answer and the revision name; empty where the cluster doesn't tell.
		digest string
		claim  bool
		// car says that the model's image runs in the pod.
		car bool
	}{
		"an init container downloads it": {uri: s.models + "/model.onnx", digest: tree},
		"an image volume holds it":       {uri: "oci://" + irisImage},
		"a modelcar holds it":            {uri: "oci+modelcar://" + carImage, car: true},
		"a claim holds it":               {uri: "pvc://models/iris", claim: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t, restricted)
			if tc.claim {
				claim(t, ns)
			}
			service := iris(t, ns, tc.uri)
			began := time.Now()
			s.start(t, service)
			t.Logf("from apply to an answer %.1f s", time.Since(began).Seconds())
			header, err := infer{url: "http://" + s.address + "/serving/" + ns + "/iris/v2/models/iris"}.rest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if tc.car {
				s.checkCar(t, ns)
			}
			if tc.digest == "" {
				return
			}
			if got := header.Get("X-Model-Digest"); got != tc.digest {
				t.Errorf("the answer names the digest %q, want %q", got, tc.digest)
			}
			eventually(t, "the revision names the digest", func() error {
				if got := s.kubectl(t, nil, "-n", ns, "get", "revision", "iris-predictor-00001", "-o", "jsonpath={.status.models[0].digest}"); got != tc.digest {
					return fmt.Errorf("it names %q", got)
				}
				return nil
			})
		})
	}
}

// checkCar looks at a pod with a modelcar: its image runs on beside the engine, and the revision names
// the image's digest.
func (s *installation) checkCar(t *testing.T, namespace string) {
	t.Helper()
	running := s.kubectl(t, nil, "-n", namespace, "get", "pods", "-l", "stationmaster.dev/revision=iris-predictor-00001",
		"-o", `jsonpath={.items[0].spec.shareProcessNamespace} {.items[0].status.initContainerStatuses[?(@.name=="modelcar")].started}`)
	if running != "true true" {
		t.Errorf("processes are shared, and the modelcar runs: %s", running)
	}
	eventually(t, "the revision names the image's digest", func() error {
		if got := s.kubectl(t, nil, "-n", namespace, "get", "revision", "iris-predictor-00001", "-o", "jsonpath={.status.models[0].digest}"); !strings.HasPrefix(got, "sha256:") {
			return fmt.Errorf("it names %q", got)
		}
		return nil
	})
}

// failure returns what the status of a service says of its failure.
func failure(t *testing.T, service *unstructured.Unstructured) (transition, reason, message string) {
	t.Helper()
	status, _, _ := unstructured.NestedMap(current(t, service).Object, "status", "modelStatus")
	transition, _, _ = unstructured.NestedString(status, "transitionStatus")
	reason, _, _ = unstructured.NestedString(status, "lastFailureInfo", "reason")
	message, _, _ = unstructured.NestedString(status, "lastFailureInfo", "message")
	return transition, reason, message
}

// testFailures applies what can't run, beside a service that goes on.
func (s *installation) testFailures(t *testing.T) {
	ns := namespace(t, restricted)
	s.start(t, iris(t, ns, "oci://"+irisImage))
	l := startLoad(t, 20, s.rest(ns, "iris"), s.grpc(t, ns, "iris"))
	defer l.end(t)
	t.Run("together", func(t *testing.T) {
		for name, tc := range map[string]struct {
			uri    string
			change func(predictor map[string]any)
			// reason is what modelStatus says in KServe's words, event what the event says in ours.
			reason, event string
			says          []string
		}{
			"a model that isn't there":       {uri: s.models + "/nothing.onnx", reason: "ModelLoadFailed", event: "ModelPullFailed", says: []string{s.models + "/nothing.onnx", "404"}},
			"a host that nobody knows":       {uri: "http://models.nowhere.invalid/model.onnx", reason: "ModelLoadFailed", event: "ModelPullFailed", says: []string{"models.nowhere.invalid"}},
			"a model image that isn't there": {uri: "oci://localhost:5000/nothing:1", reason: "ModelLoadFailed", event: "ModelPullFailed", says: []string{"oci://localhost:5000/nothing:1"}},
			"a modelcar without a shell":     {uri: "oci+modelcar://" + irisImage, reason: "ModelLoadFailed", event: "ModelPullFailed", says: []string{"oci+modelcar://" + irisImage, "needs a shell"}},
			"an engine that ends by itself": {uri: "oci://" + irisImage, reason: "ModelLoadFailed", event: "Exited", says: []string{"exit code 2", "-nonsense"}, change: func(predictor map[string]any) {
				modelOf(predictor)["args"] = []any{"--nonsense"}
			}},
			"an engine without enough memory": {reason: "ModelLoadFailed", event: "OOMKilled", says: []string{"memory", "64Mi"}, change: func(predictor map[string]any) {
				delete(predictor, "model")
				predictor["containers"] = []any{map[string]any{
					"name": "kserve-container", "image": echoImage, "args": []any{"eat"},
					"securityContext": map[string]any{"runAsNonRoot": true},
					"resources":       map[string]any{"requests": map[string]any{"cpu": "20m", "memory": "64Mi"}, "limits": map[string]any{"memory": "64Mi"}},
				}}
			}},
			"an engine's image that isn't there": {uri: "oci://" + irisImage, reason: "RuntimeUnhealthy", event: "StartFailed", says: []string{"localhost:5000/absent:1"}, change: func(predictor map[string]any) {
				modelOf(predictor)["image"] = "localhost:5000/absent:1"
			}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ns := namespace(t, restricted)
				service := iris(t, ns, tc.uri)
				if tc.change != nil {
					service = iris(t, ns, tc.uri, tc.change)
				}
				apply(t, service)
				t.Cleanup(func() { remove(t, service) })
				eventually(t, "the status tells the failure", func() error {
					transition, reason, message := failure(t, service)
					told := reason == tc.reason && transition == "BlockedByFailedLoad"
					for _, s := range tc.says {
						told = told && strings.Contains(message, s)
					}
					if !told {
						return fmt.Errorf("it is %s: %s: %s", transition, reason, message)
					}
					t.Logf("%s: %s", reason, message)
					return nil
				})
				happened(t, service, tc.event)
				if isReady(t, service) == nil {
					t.Error("the service says that it is ready")
				}
			})
		}
	})
}

// inferences is how many requests an engine has answered.
func inferences(ctx context.Context, podIP string) (int, error) {
	page, err := get(ctx, "http://"+podIP+":8080/metrics")
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "stationmaster_runtime_requests_total{") {
			fields := strings.Fields(line)
			count, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				return 0, err
			}
			n += int(count)
		}
	}
	return n, nil
}
