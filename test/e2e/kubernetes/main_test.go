// Package kubernetes is the end-to-end suite on a real Kubernetes cluster. Without
// $STATIONMASTER_CLUSTER it runs nothing; `make e2e-kubernetes` sets it.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/test/cluster"
)

// What the suite shares: one cluster of two nodes, and an administrator's client of it.
var (
	shared *cluster.Cluster
	api    client.Client
)

const (
	echoImage  = "localhost:5000/echo:1"
	modelImage = "localhost:5000/model:1"
	// llmImage is the simulated LLM engine and repositoryImage a stand-in for one that keeps a
	// repository of models, under names by which engines are recognised.
	llmImage        = "localhost:5000/vllm:1"
	repositoryImage = "localhost:5000/mlserver:1"
	// patience is how long a test waits for what takes a second or two on an idle machine.
	patience = 90 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(cluster.BinEnv) == "" {
		fmt.Printf("not run: %s names no cluster binaries (make e2e-kubernetes)\n", cluster.BinEnv)
		return
	}
	code, err := runOnCluster(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runOnCluster runs the tests on a new cluster. Its logs are kept where something failed.
func runOnCluster(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "stationmaster-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() {
		if code != 0 || err != nil {
			fmt.Fprintln(os.Stderr, "the cluster's logs are kept in", filepath.Join(dir, "logs"))
			return
		}
		err = os.RemoveAll(dir)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	shared, err = cluster.Start(ctx, cluster.Config{Dir: dir, Nodes: 2, DNS: true})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, shared.Stop()) }()
	fmt.Printf("cluster ready in %.1f s\n", time.Since(began).Seconds())
	if err := publishImages(ctx, dir); err != nil {
		return 1, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", shared.Kubeconfig())
	if err != nil {
		return 1, err
	}
	config.QPS = -1
	if api, err = client.New(config, client.Options{}); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// publishImages builds the images that the tests run and puts them into the registry.
func publishImages(ctx context.Context, dir string) error {
	programs := map[string]string{"echo": "./echo", "repository": "./repository", "llmsim": "../../testkit/llmsim/serve"}
	for name, source := range programs {
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(dir, name), source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	running := func(image, name string) cluster.Image {
		return cluster.Image{
			Name: image, Entrypoint: []string{"/" + name}, User: "65532:65532",
			Files: []cluster.File{{Path: name, From: filepath.Join(dir, name)}},
		}
	}
	for file, image := range map[string]cluster.Image{
		"echo.tar":       running(echoImage, "echo"),
		"repository.tar": running(repositoryImage, "repository"),
		"llmsim.tar":     running(llmImage, "llmsim"),
		"model.tar": {
			Name: modelImage,
			Files: []cluster.File{
				{Path: "models/weights.txt", Data: []byte("the weights"), Mode: 0o644},
				{Path: "other/secret.txt", Data: []byte("not this"), Mode: 0o644},
			},
		},
	} {
		tar := filepath.Join(dir, file)
		if err := cluster.BuildImage(tar, image); err != nil {
			return err
		}
		if err := shared.Publish(tar); err != nil {
			return err
		}
	}
	return nil
}

// namespace makes a namespace for the test, with labels, and deletes it at the end.
func namespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels}}
	if err := api.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), ns); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the namespace takes pods", func() error {
		return api.Get(t.Context(), client.ObjectKey{Namespace: ns.Name, Name: "default"}, &corev1.ServiceAccount{})
	})
	return ns.Name
}

// create creates the objects of a YAML stream in a namespace.
func create(t *testing.T, namespace, manifests string) {
	t.Helper()
	for _, document := range strings.Split(manifests, "\n---\n") {
		var object unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		object.SetNamespace(namespace)
		if err := api.Create(t.Context(), &object); err != nil {
			t.Fatalf("create %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

// eventually calls check until it returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	within(t, patience, what, check)
}

// within is eventually, for what may take longer.
func within(t *testing.T, patience time.Duration, what string, check func() error) {
	t.Helper()
	every := time.NewTicker(50 * time.Millisecond)
	defer every.Stop()
	for began := time.Now(); ; <-every.C {
		err := check()
		if err == nil {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("not in %v: %s: %v", patience, what, err)
		}
	}
}

// get returns the body of what a URL answers from inside the cluster; other answers than 200 are errors.
func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := shared.HTTP().Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s answers %s: %s", url, resp.Status, body)
	}
	return string(body), nil
}

// ready returns the pods of a label in a namespace that are ready.
func ready(ctx context.Context, namespace, app string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := api.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{"app": app}); err != nil {
		return nil, err
	}
	var pods []corev1.Pod
	for _, pod := range list.Items {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				pods = append(pods, pod)
			}
		}
	}
	return pods, nil
}
