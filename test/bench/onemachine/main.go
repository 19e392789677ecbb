// Command onemachine measures `stationmaster up` as a whole process: start to ready, idle
// memory, apply to first correct answer, and a hundred services at once. It writes JSON.
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
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

var isvcs = schema.GroupVersionResource{Group: "serving.kserve.io", Version: "v1beta1", Resource: "inferenceservices"}

// result is what one run of this program found; times in milliseconds, memory in MiB.
type result struct {
	Rounds           int       `json:"rounds"`
	FirstStartMS     []float64 `json:"first_start_to_ready_ms"`
	RestartMS        []float64 `json:"restart_to_ready_ms"`
	IdleMiB          []float64 `json:"idle_resident_mib"`
	ApplyToAnswerMS  []float64 `json:"apply_to_first_correct_answer_ms"`
	Services         int       `json:"services_at_once"`
	AllReadyS        []float64 `json:"all_ready_s"`
	PerServiceMiB    []float64 `json:"control_plane_mib_per_service"`
	Medians          map[string]float64
	EngineIdleMiB    float64 `json:"engine_idle_mib"`
	AllAnswerCorrect bool    `json:"all_answer_correct"`
}

func main() {
	log.SetFlags(0)
	binary := flag.String("binary", "bin/stationmaster", "the binary to measure")
	rounds := flag.Int("rounds", 3, "rounds; medians are reported")
	services := flag.Int("services", 100, "services to apply at once")
	out := flag.String("out", "bench/results/onemachine.json", "where to write the result")
	model := flag.String("model", "examples/iris/model", "folder of the iris model")
	flag.Parse()
	abs, err := filepath.Abs(*model)
	check(err)
	r := result{Rounds: *rounds, Services: *services, AllAnswerCorrect: true}
	for i := range *rounds {
		round(&r, *binary, "file://"+abs, *services)
		log.Printf("round %d: start %.0f ms, restart %.0f ms, idle %.0f MiB, apply to answer %.0f ms, %d services %.1f s, %.2f MiB each",
			i+1, last(r.FirstStartMS), last(r.RestartMS), last(r.IdleMiB), last(r.ApplyToAnswerMS), *services, last(r.AllReadyS), last(r.PerServiceMiB))
	}
	r.Medians = map[string]float64{
		"first_start_to_ready_ms": median(r.FirstStartMS), "restart_to_ready_ms": median(r.RestartMS),
		"idle_resident_mib": median(r.IdleMiB), "apply_to_first_correct_answer_ms": median(r.ApplyToAnswerMS),
		"all_ready_s": median(r.AllReadyS), "control_plane_mib_per_service": median(r.PerServiceMiB),
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	check(err)
	check(os.MkdirAll(filepath.Dir(*out), 0o755))
	check(os.WriteFile(*out, append(raw, '\n'), 0o644))
	fmt.Printf("%s\n", raw)
}

func round(r *result, binary, model string, services int) {
	dir, err := os.MkdirTemp("", "sm-bench-")
	check(err)
	defer func() { _ = os.RemoveAll(dir) }()
	up := start(binary, dir)
	r.FirstStartMS = append(r.FirstStartMS, ms(up.ready))
	up.stop()
	up = start(binary, dir)
	defer up.stop()
	r.RestartMS = append(r.RestartMS, ms(up.ready))
	time.Sleep(5 * time.Second)
	idle := up.residentMiB()
	r.IdleMiB = append(r.IdleMiB, idle)

	client := up.client(dir)
	began := time.Now()
	create(client, "iris", model)
	up.waitAnswer("iris")
	r.ApplyToAnswerMS = append(r.ApplyToAnswerMS, ms(time.Since(began)))

	before := up.residentMiB()
	began = time.Now()
	for i := range services {
		create(client, fmt.Sprintf("iris-%03d", i), model)
	}
	waitReady(client, services+1)
	r.AllReadyS = append(r.AllReadyS, time.Since(began).Seconds())
	for i := range services {
		up.waitAnswer(fmt.Sprintf("iris-%03d", i))
	}
	time.Sleep(5 * time.Second)
	r.PerServiceMiB = append(r.PerServiceMiB, (up.residentMiB()-before)/float64(services))
	r.EngineIdleMiB = up.engineMiB()
}

type process struct {
	cmd   *exec.Cmd
	ready time.Duration
	http  string
	done  chan error
}

// start runs `up` on free ports and waits for its ready line.
func start(binary, dir string) *process {
	cmd := exec.Command(binary, "up", "--data-dir", filepath.Join(dir, "data"), "--log-level", "error",
		"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	check(err)
	began := time.Now()
	check(cmd.Start())
	p := &process{cmd: cmd, done: make(chan error, 1)}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "ready") {
			continue
		}
		p.ready = time.Since(began)
		for _, f := range strings.Fields(lines.Text()) {
			if v, ok := strings.CutPrefix(f, "http="); ok {
				p.http = v
			}
		}
		break
	}
	if p.http == "" {
		log.Fatalf("up ended without a ready line: %v", cmd.Wait())
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdout)
		p.done <- cmd.Wait()
	}()
	return p
}

func (p *process) stop() {
	check(p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-p.done:
		check(err)
	case <-time.After(120 * time.Second):
		log.Fatal("up did not end within two minutes of SIGTERM")
	}
}

func (p *process) client(dir string) dynamic.Interface {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "data", "kubeconfig"))
	check(err)
	cfg.QPS, cfg.Burst = 1000, 1000
	c, err := dynamic.NewForConfig(cfg)
	check(err)
	return c
}

func create(c dynamic.Interface, name, model string) {
	_, err := c.Resource(isvcs).Namespace("default").Create(context.Background(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"predictor": map[string]any{"model": map[string]any{
			"modelFormat": map[string]any{"name": "onnx"}, "storageUri": model,
		}}},
	}}, metav1.CreateOptions{})
	check(err)
}

func waitReady(c dynamic.Interface, want int) {
	deadline := time.Now().Add(5 * time.Minute)
	for time.Now().Before(deadline) {
		list, err := c.Resource(isvcs).Namespace("default").List(context.Background(), metav1.ListOptions{})
		check(err)
		ready := 0
		for _, o := range list.Items {
			conds, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, cond := range conds {
				m, ok := cond.(map[string]any)
				if ok && m["type"] == "Ready" && m["status"] == "True" {
					ready++
				}
			}
		}
		if ready == want {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	log.Fatalf("not all of %d services became ready within five minutes", want)
}

var question = []byte(`{"id":"req-4711","inputs":[{"name":"INPUT","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`)

// waitAnswer asks until the service gives class 0 for a setosa.
func (p *process) waitAnswer(name string) {
	body := bytes.Replace(question, []byte("INPUT"), []byte(inputName), 1)
	deadline := time.Now().Add(time.Minute)
	var lastErr error
	for time.Now().Before(deadline) {
		if lastErr = p.ask(name, body); lastErr == nil {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	log.Fatalf("service %s gave no correct answer within a minute: %v", name, lastErr)
}

// inputName is the iris model's input (examples/iris/train.py).
const inputName = "input"

func (p *process) ask(name string, body []byte) error {
	resp, err := http.Post("http://"+p.http+"/v2/models/"+name+"/infer", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var answer struct {
		ID      string `json:"id"`
		Outputs []struct {
			Datatype string    `json:"datatype"`
			Data     []float64 `json:"data"`
		} `json:"outputs"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("%s: %s", resp.Status, raw)
	}
	for _, o := range answer.Outputs {
		if o.Datatype == "INT64" && len(o.Data) == 1 && o.Data[0] == 0 && answer.ID == "req-4711" {
			return nil
		}
	}
	return errors.New(string(raw))
}

// residentMiB is the process's own resident memory, engines apart.
func (p *process) residentMiB() float64 { return residentMiB(p.cmd.Process.Pid) }

func residentMiB(pid int) float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	check(err)
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			check(err)
			return kib / 1024
		}
	}
	log.Fatalf("no VmRSS for %d", pid)
	return 0
}

// engineMiB is the median resident memory of the built-in model servers.
func (p *process) engineMiB() float64 {
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	check(err)
	var sizes []float64
	for _, d := range dirs {
		raw, err := os.ReadFile(d)
		if err != nil || !bytes.Contains(raw, []byte("runtime\x00onnx\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(d)))
		if err == nil {
			sizes = append(sizes, residentMiB(pid))
		}
	}
	if len(sizes) == 0 {
		return 0
	}
	return median(sizes)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func last(xs []float64) float64 { return xs[len(xs)-1] }

func median(xs []float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	return s[len(s)/2]
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
