// Command operator measures `stationmaster operator` against the API server of a real cluster:
// many InferenceServices created, changed and deleted, and then nothing at all. It writes JSON.
//
// The services ask for a node that isn't there, so that their pods stay pending and the machine
// is left to the API server, Kubernetes' own controllers and the operator.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"stationmaster.dev/stationmaster/test/cluster"
)

var (
	services    = schema.GroupVersionResource{Group: "serving.kserve.io", Version: "v1beta1", Resource: "inferenceservices"}
	revisions   = schema.GroupVersionResource{Group: "stationmaster.dev", Version: "v1alpha1", Resource: "revisions"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	k8sServices = schema.GroupVersionResource{Version: "v1", Resource: "services"}
)

const (
	namespace = "bench"
	patience  = 10 * time.Minute
)

// profiles is the flag of that name.
var profiles string

// phase is what one kind of change cost. Calls are those of the operator, watches that it opened
// included.
type phase struct {
	Seconds         float64 `json:"seconds_to_all_reconciled"`
	CPUSeconds      float64 `json:"operator_cpu_seconds"`
	Calls           float64 `json:"api_calls"`
	CallsPerService float64 `json:"api_calls_per_service"`
	// Cluster is what each program of the cluster used meanwhile, in CPU seconds.
	Cluster map[string]float64 `json:"cluster_cpu_seconds"`
}

// result is what one run found.
type result struct {
	Services int     `json:"services"`
	Create   phase   `json:"create"`
	Update   phase   `json:"update"`
	Delete   phase   `json:"delete"`
	PeakMiB  float64 `json:"operator_peak_mib"`
	// RestMillicores is the operator's use with all services there and nothing to do.
	RestMillicores float64 `json:"at_rest_millicores"`
	RestCalls      float64 `json:"at_rest_api_calls_per_minute"`
}

func main() {
	log.SetFlags(0)
	binary := flag.String("binary", "bin/stationmaster", "the binary to measure")
	n := flag.Int("services", 1000, "how many services")
	rest := flag.Duration("rest", time.Minute, "how long to watch the operator at rest")
	out := flag.String("out", "bench/results/operator.json", "where to write the result")
	flag.StringVar(&profiles, "profiles", "", "a directory for CPU profiles of operator and API server, ten seconds of each phase; empty means none")
	flag.Parse()
	dir, err := os.MkdirTemp("", "sm-bench-")
	check(err)
	defer func() { _ = os.RemoveAll(dir) }()
	c, err := cluster.Start(context.Background(), cluster.Config{Dir: dir, Nodes: 1})
	check(err)
	defer func() { check(c.Stop()) }()
	r := measure(c, *binary, *n, *rest)
	raw, err := json.MarshalIndent(r, "", "  ")
	check(err)
	check(os.MkdirAll(filepath.Dir(*out), 0o755))
	check(os.WriteFile(*out, append(raw, '\n'), 0o644))
	fmt.Printf("%s\n", raw)
}

func measure(c *cluster.Cluster, binary string, n int, rest time.Duration) result {
	install(c, binary)
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	check(err)
	config.QPS = -1
	api, err := dynamic.NewForConfig(config)
	check(err)
	_, err = api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(context.Background(),
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}}, metav1.CreateOptions{})
	check(err)
	seen, err := watch(config)
	check(err)
	defer seen.stop()
	op := start(binary, c)
	defer op.stop()

	r := result{Services: n}
	r.Create = op.phase("create", n, func() {
		each(n, func(i int) error {
			_, err := api.Resource(services).Namespace(namespace).Create(context.Background(), service(i, "one"), metav1.CreateOptions{})
			return err
		})
		until("each service has its status, its Deployment and its Service", func() string {
			return lacks(n, seen.told(), seen.count(deployments), seen.count(k8sServices))
		})
	})
	op.settle()
	before, began := op.usage(), time.Now()
	time.Sleep(rest)
	took := time.Since(began)
	after := op.usage()
	r.RestMillicores = (after.cpu - before.cpu) / took.Seconds() * 1000
	r.RestCalls = (after.calls - before.calls) / took.Minutes()
	log.Printf("at rest: %.1f millicores, %.1f calls a minute", r.RestMillicores, r.RestCalls)

	r.Update = op.phase("update", n, func() {
		each(n, func(i int) error {
			patch := []byte(`{"spec":{"predictor":{"model":{"env":[{"name":"WHICH","value":"two"}]}}}}`)
			_, err := api.Resource(services).Namespace(namespace).Patch(context.Background(), name(i), "application/merge-patch+json", patch, metav1.PatchOptions{})
			return err
		})
		until("each service has a second revision, told in its status, and a Deployment and a pod of it alone", func() string {
			return lacks(2*n, seen.count(revisions)) + lacks(n, seen.told(), seen.count(deployments), seen.second(), seen.count(pods))
		})
	})
	op.settle()
	r.Delete = op.phase("delete", n, func() {
		each(n, func(i int) error {
			return api.Resource(services).Namespace(namespace).Delete(context.Background(), name(i), metav1.DeleteOptions{})
		})
		until("nothing is left", func() string {
			return lacks(0, seen.count(services), seen.count(revisions), seen.count(deployments), seen.count(k8sServices), seen.count(pods))
		})
	})
	r.PeakMiB = op.peakMiB()
	return r
}

// lacks tells what isn't as many as it should be.
func lacks(want int, got ...int) string {
	for _, g := range got {
		if g != want {
			return fmt.Sprintf("%v instead of %d", got, want)
		}
	}
	return ""
}

func name(i int) string { return fmt.Sprintf("iris-%04d", i) }

func service(i int, which string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
		"metadata": map[string]any{"name": name(i)},
		"spec": map[string]any{"predictor": map[string]any{
			"nodeSelector": map[string]any{"no": "such"},
			"model": map[string]any{
				"modelFormat": map[string]any{"name": "onnx"}, "storageUri": "pvc://models/iris",
				"env": []any{map[string]any{"name": "WHICH", "value": which}},
			},
		}},
	}}
}

func install(c *cluster.Cluster, binary string) {
	manifest, err := exec.Command(binary, "install", "--image", "localhost:5000/none:1").Output()
	check(err)
	apply := exec.Command(binary, "kubectl", "--kubeconfig", c.Kubeconfig(), "apply", "--server-side", "-f", "-")
	apply.Stdin = bytes.NewReader(onlyKinds(manifest))
	if out, err := apply.CombinedOutput(); err != nil {
		log.Fatalf("apply: %v: %s", err, out)
	}
}

// onlyKinds keeps the kinds and the namespace of a manifest: the operator runs outside.
func onlyKinds(manifest []byte) []byte {
	var kept [][]byte
	for _, doc := range bytes.Split(manifest, []byte("\n---\n")) {
		if bytes.Contains(doc, []byte("\nkind: CustomResourceDefinition\n")) || bytes.Contains(doc, []byte("\nkind: Namespace\n")) {
			kept = append(kept, doc)
		}
	}
	return bytes.Join(kept, []byte("\n---\n"))
}

// each calls f for 0 to n-1, sixteen at a time.
func each(n int, f func(int) error) {
	var g errgroup.Group
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error { return f(i) })
	}
	check(g.Wait())
}

func until(what string, missing func() string) {
	deadline, tell := time.Now().Add(patience), time.Now().Add(20*time.Second)
	for {
		why := missing()
		if why == "" {
			return
		}
		if time.Now().After(tell) {
			log.Printf("waiting: %s: %s", what, why)
			tell = time.Now().Add(20 * time.Second)
		}
		if time.Now().After(deadline) {
			log.Fatalf("not within %v: %s: %s", patience, what, why)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// operator is the process under test.
type operator struct {
	cmd     *exec.Cmd
	admin   string
	cluster *cluster.Cluster
	done    chan error
}

func start(binary string, c *cluster.Cluster) *operator {
	cmd := exec.Command(binary, "operator", "--kubeconfig", c.Kubeconfig(), "--image", "localhost:5000/none:1",
		"--namespace", "stationmaster-system", "--admin", "127.0.0.1:0", "--log-level", "error")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	check(err)
	check(cmd.Start())
	op := &operator{cmd: cmd, cluster: c, done: make(chan error, 1)}
	lines := bufio.NewScanner(stdout)
	for op.admin == "" && lines.Scan() {
		if _, addr, ok := strings.Cut(lines.Text(), "admin="); ok && strings.HasPrefix(lines.Text(), "ready") {
			op.admin = strings.Fields(addr)[0]
		}
	}
	if op.admin == "" {
		log.Fatalf("operator ended without a ready line: %v", cmd.Wait())
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdout)
		op.done <- cmd.Wait()
	}()
	return op
}

func (op *operator) stop() {
	check(op.cmd.Process.Signal(syscall.SIGTERM))
	check(<-op.done)
}

// phase measures what do costs until it returns.
func (op *operator) phase(name string, n int, do func()) phase {
	others := programs(op.cluster.Dir())
	before, began := op.usage(), time.Now()
	if profiles != "" {
		go op.profile(name)
	}
	do()
	took, after := time.Since(began), op.usage()
	p := phase{Seconds: took.Seconds(), CPUSeconds: after.cpu - before.cpu, Calls: after.calls - before.calls, Cluster: programs(op.cluster.Dir())}
	for program := range p.Cluster {
		p.Cluster[program] = math.Round(10*(p.Cluster[program]-others[program])) / 10
	}
	p.CallsPerService = p.Calls / float64(n)
	log.Printf("%s: %.1f s, %.1f CPU seconds, %.1f calls a service; the cluster's CPU seconds: %v", name, p.Seconds, p.CPUSeconds, p.CallsPerService, p.Cluster)
	return p
}

// profile keeps ten seconds of what operator and API server do.
func (op *operator) profile(phase string) {
	config, err := clientcmd.BuildConfigFromFlags("", op.cluster.Kubeconfig())
	check(err)
	toServer, err := rest.HTTPClientFor(config)
	check(err)
	var g errgroup.Group
	for who, of := range map[string]struct {
		client *http.Client
		base   string
	}{"operator": {http.DefaultClient, "http://" + op.admin}, "apiserver": {toServer, config.Host}} {
		g.Go(func() error {
			resp, err := of.client.Get(of.base + "/debug/pprof/profile?seconds=10")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(profiles, phase+"-"+who+".pprof"), raw, 0o600)
		})
	}
	if err := g.Wait(); err != nil {
		log.Printf("no profile of %s: %v", phase, err)
	}
}

// settle waits until the operator makes no more calls.
func (op *operator) settle() {
	until("the operator rests", func() string {
		before := op.usage().calls
		time.Sleep(3 * time.Second)
		if n := op.usage().calls - before; n > 3 {
			return fmt.Sprint(n, " calls in three seconds")
		}
		return ""
	})
}

type usage struct{ cpu, calls float64 }

func (op *operator) usage() usage {
	resp, err := http.Get("http://" + op.admin + "/metrics")
	check(err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	check(errors.Join(err, resp.Body.Close()))
	var u usage
	for _, m := range families["rest_client_requests_total"].GetMetric() {
		u.calls += m.GetCounter().GetValue()
	}
	for _, m := range families["process_cpu_seconds_total"].GetMetric() {
		u.cpu += m.GetCounter().GetValue()
	}
	if u.cpu == 0 || u.calls == 0 {
		log.Fatal("the operator's metrics have no rest_client_requests_total or process_cpu_seconds_total")
	}
	return u
}

func (op *operator) peakMiB() float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", op.cmd.Process.Pid))
	check(err)
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			check(err)
			return kib / 1024
		}
	}
	log.Fatal("no VmHWM")
	return 0
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
