// Command wake measures what a service at zero costs: how much stationmaster adds to the engine's
// own start when bursts of requests wake it, what the same bursts cost without any wake, and what a
// request costs that is held. It writes JSON.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const body = `{"inputs":[{"name":"input","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`

// result is what one run of this program found; times in milliseconds.
type result struct {
	// OwnStart is from starting the engine by itself to its first answer, once before each burst.
	OwnStart stats `json:"engines_own_start_ms"`
	// Bursts has, by requests in a burst, the time of each request from the client's sending to
	// its answer, and the same less the median of the own starts between those bursts.
	Bursts map[string]burst `json:"bursts"`
	// Held is how many requests were held at once, on a connection each, and HeldKiB what each
	// added to the process's resident memory.
	Held    int     `json:"held"`
	HeldKiB float64 `json:"held_kib_each"`
	Failed  int     `json:"failed_requests"`
}

type stats struct {
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	N      int     `json:"n"`
}

type burst struct {
	Total stats `json:"total_ms"`
	Added stats `json:"added_ms"`
	// FirstAdded is that of the first answer of each burst.
	FirstAdded stats `json:"first_answer_added_ms"`
	// Straight is the same burst sent straight to an engine that is warm, and Warm the same through
	// the gateway to a service that is; each request opens its connection. Straight is the floor: no
	// gateway can add less than its requests take without it.
	Straight stats `json:"straight_at_a_warm_engine_ms"`
	Warm     stats `json:"through_the_gateway_to_a_warm_service_ms"`
}

func main() {
	log.SetFlags(0)
	binary := flag.String("binary", "bin/stationmaster", "the binary to measure")
	rounds := flag.Int("rounds", 10, "wakes for each size of a burst")
	held := flag.Int("held", 1000, "requests to hold at once; 0 leaves that out")
	out := flag.String("out", "bench/results/wake.json", "where to write the result")
	bursts := flag.String("bursts", "1,50,500", "the sizes of bursts")
	model := flag.String("model", "examples/iris/model", "folder of the iris model")
	flag.Parse()
	abs, err := filepath.Abs(*model)
	check(err)
	dir, err := os.MkdirTemp("", "sm-wake-")
	check(err)
	defer func() { _ = os.RemoveAll(dir) }()

	r := &result{Bursts: map[string]burst{}, Held: *held}
	up := start(*binary, dir)
	defer up.stop()
	slow := filepath.Join(dir, "slow")
	up.create("iris", map[string]any{"model": map[string]any{"modelFormat": map[string]any{"name": "onnx"}, "storageUri": "file://" + abs}})
	executable, err := filepath.Abs(*binary)
	check(err)
	up.create("slow", map[string]any{"containers": []any{map[string]any{
		"name":    "kserve-container",
		"command": []any{"sh", "-c", `if [ -e "$0" ]; then sleep 15; fi; exec "$1" runtime onnx --model_name=slow --model_dir="$2" --http_port=8080 --grpc_port=9000`, slow, executable, abs},
		"ports":   []any{map[string]any{"containerPort": 8080}},
	}}})
	// First, while the process is young: what it freed after a burst it would use again.
	if *held > 0 {
		up.awaitZero("slow")
		check(os.WriteFile(slow, nil, 0o600))
		r.HeldKiB = up.held("slow", *held)
		log.Printf("%d requests held: %.1f KiB each", *held, r.HeldKiB)
	}
	engine := warmEngine(*binary, abs)
	defer engine.stop()
	var ownStarts []float64
	for _, size := range strings.Split(*bursts, ",") {
		n, err := strconv.Atoi(size)
		check(err)
		var all, first, own, straight, warm []float64
		for range *rounds {
			up.awaitZero("iris")
			// By turns, so that what else the machine does concerns both.
			own = append(own, ownStart(*binary, abs))
			straight = append(straight, burstAt(r, engine.url, n)...)
			times := burstAt(r, up.url("iris"), n)
			all, first = append(all, times...), append(first, slices.Min(times))
			warm = append(warm, burstAt(r, up.url("iris"), n)...)
		}
		ownStarts = append(ownStarts, own...)
		base := statsOf(own, 0).Median
		b := burst{Total: statsOf(all, 0), Added: statsOf(all, base), FirstAdded: statsOf(first, base), Straight: statsOf(straight, 0), Warm: statsOf(warm, 0)}
		r.Bursts[strconv.Itoa(n)] = b
		log.Printf("bursts of %d: %+v", n, b)
	}

	r.OwnStart = statsOf(ownStarts, 0)
	log.Printf("the engine's own start: %+v", r.OwnStart)
	raw, err := json.MarshalIndent(r, "", "  ")
	check(err)
	check(os.MkdirAll(filepath.Dir(*out), 0o755))
	check(os.WriteFile(*out, append(raw, '\n'), 0o644))
	fmt.Printf("%s\n", raw)
}

// ownStart starts the engine without stationmaster and returns the time to its first answer.
func ownStart(binary, model string) float64 {
	began := time.Now()
	e := warmEngine(binary, model)
	took := ms(time.Since(began))
	e.stop()
	return took
}

// engine is one that runs without stationmaster.
type engine struct {
	cmd *exec.Cmd
	url string
}

// warmEngine starts one and waits for its first answer.
func warmEngine(binary, model string) engine {
	port, other := freePort(), freePort()
	e := engine{
		cmd: exec.Command(binary, "runtime", "onnx", "--model_name=iris", "--model_dir="+model,
			"--http_port="+strconv.Itoa(port), "--grpc_port="+strconv.Itoa(other)),
		url: fmt.Sprintf("http://127.0.0.1:%d/v2/models/iris/infer", port),
	}
	began := time.Now()
	check(e.cmd.Start())
	for {
		if _, err := ask(http.DefaultClient, e.url); err == nil {
			http.DefaultClient.CloseIdleConnections()
			return e
		}
		if time.Since(began) > time.Minute {
			log.Fatal("the engine doesn't answer")
		}
		time.Sleep(time.Millisecond)
	}
}

func (e engine) stop() {
	check(e.cmd.Process.Signal(syscall.SIGTERM))
	_ = e.cmd.Wait()
}

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer func() { check(l.Close()) }()
	return l.Addr().(*net.TCPAddr).Port
}

func ask(c *http.Client, url string) (time.Duration, error) {
	began := time.Now()
	resp, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"data":[0]`)) {
		return 0, fmt.Errorf("%s %w: %s", resp.Status, err, answer)
	}
	return time.Since(began), nil
}

type process struct {
	cmd    *exec.Cmd
	http   string
	client dynamic.Interface
	done   chan error
}

var isvcs = schema.GroupVersionResource{Group: "serving.kserve.io", Version: "v1beta1", Resource: "inferenceservices"}

// start runs `up` on free ports and waits for its ready line.
func start(binary, dir string) *process {
	cmd := exec.Command(binary, "up", "--data-dir", filepath.Join(dir, "data"), "--log-level", "error",
		"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	check(err)
	check(cmd.Start())
	p := &process{cmd: cmd, done: make(chan error, 1)}
	lines := bufio.NewScanner(stdout)
	for p.http == "" && lines.Scan() {
		for _, f := range strings.Fields(lines.Text()) {
			if v, ok := strings.CutPrefix(f, "http="); ok {
				p.http = v
			}
		}
	}
	if p.http == "" {
		log.Fatalf("up ended without a ready line: %v", cmd.Wait())
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdout)
		p.done <- cmd.Wait()
	}()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "data", "kubeconfig"))
	check(err)
	p.client, err = dynamic.NewForConfig(config)
	check(err)
	return p
}

func (p *process) stop() {
	check(p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-p.done:
		check(err)
	case <-time.After(2 * time.Minute):
		log.Fatal("up did not end within two minutes of SIGTERM")
	}
}

func (p *process) create(name string, predictor map[string]any) {
	predictor["minReplicas"] = int64(0)
	_, err := p.client.Resource(isvcs).Namespace("default").Create(context.Background(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
		"metadata": map[string]any{"name": name, "annotations": map[string]any{"autoscaling.knative.dev/window": "6s"}},
		"spec":     map[string]any{"predictor": predictor},
	}}, metav1.CreateOptions{})
	check(err)
}

// awaitZero waits until nothing of a service runs.
func (p *process) awaitZero(name string) {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		o, err := p.client.Resource(isvcs).Namespace("default").Get(context.Background(), name, metav1.GetOptions{})
		check(err)
		if s, _, _ := unstructured.NestedString(o.Object, "status", "modelStatus", "states", "activeModelState"); s == "Standby" {
			time.Sleep(100 * time.Millisecond) // the engine's process has ended, too
			return
		}
		if time.Now().After(deadline) {
			log.Fatalf("%s doesn't go to zero", name)
		}
	}
}

func (p *process) url(name string) string {
	return "http://" + p.http + "/v2/models/" + name + "/infer"
}

// burstAt sends n requests at once, each on a connection of its own, and returns how long each took,
// in milliseconds.
func burstAt(r *result, url string, n int) []float64 {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	defer client.CloseIdleConnections()
	times := make([]float64, n)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			took, err := ask(client, url)
			if err != nil {
				mu.Lock()
				r.Failed++
				mu.Unlock()
				log.Printf("request %d of %d: %v", i+1, n, err)
			}
			times[i] = ms(took)
		})
	}
	wg.Wait()
	return times
}

// held holds n requests and returns how much resident memory each adds, in KiB. The clients only
// open a connection and send, so that their own cost is not in it: they live in this process.
func (p *process) held(name string, n int) float64 {
	before := p.residentKiB()
	request := fmt.Sprintf("POST /v2/models/%s/infer HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", name, p.http, len(body), body)
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", p.http)
		check(err)
		_, err = io.WriteString(c, request)
		check(err)
		conns[i] = c
	}
	time.Sleep(5 * time.Second) // the last ones have arrived; the engine takes 15 s
	after := p.residentKiB()
	for _, c := range conns {
		check(c.SetReadDeadline(time.Now().Add(time.Minute)))
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil || !strings.Contains(line, " 200 ") {
			log.Fatalf("a held request got %q, %v", line, err)
		}
		check(c.Close())
	}
	return float64(after-before) / float64(n)
}

func (p *process) residentKiB() int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	check(err)
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			n, err := strconv.Atoi(f[1])
			check(err)
			return n
		}
	}
	log.Fatal("no VmRSS")
	return 0
}

// statsOf sums up times, each less base.
func statsOf(times []float64, base float64) stats {
	s := slices.Sorted(slices.Values(times))
	at := func(q float64) float64 {
		i := min(int(math.Ceil(q*float64(len(s))))-1, len(s)-1)
		return math.Round((s[max(i, 0)]-base)*10) / 10
	}
	return stats{Median: at(0.5), P99: at(0.99), N: len(s)}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
