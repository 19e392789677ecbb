package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// up is a `stationmaster up` that can be killed and started again on the same ports and data.
type up struct {
	binary, dir            string
	http, grpc, api, admin string
	cmd                    *exec.Cmd
	done                   chan error
	client                 dynamic.Interface
}

func newUp(binary, dir string) (*up, error) {
	u := &up{binary: binary, dir: dir}
	for _, addr := range []*string{&u.http, &u.grpc, &u.api, &u.admin} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		*addr = l.Addr().String()
	}
	return u, nil
}

// start returns once `up` says that it is ready.
func (u *up) start() error {
	out, err := os.OpenFile(filepath.Join(u.dir, "up.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	u.cmd = exec.Command(u.binary, "up", "--data-dir", filepath.Join(u.dir, "data"),
		"--http", u.http, "--grpc", u.grpc, "--api", u.api, "--admin", u.admin)
	u.cmd.Stderr = out
	stdout, err := u.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := u.cmd.Start(); err != nil {
		return err
	}
	u.done = make(chan error, 1)
	lines := bufio.NewScanner(stdout)
	ready := false
	for !ready && lines.Scan() {
		ready = strings.Contains(lines.Text(), "http=")
	}
	if !ready {
		return fmt.Errorf("up ended without a ready line: %w; see %s", u.cmd.Wait(), out.Name())
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdout)
		u.done <- u.cmd.Wait()
	}()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(u.dir, "data", "kubeconfig"))
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 100, 200
	u.client, err = dynamic.NewForConfig(config)
	return err
}

// kill ends it without notice.
func (u *up) kill() error {
	if err := u.cmd.Process.Kill(); err != nil {
		return err
	}
	if err := <-u.done; err == nil {
		return errors.New("up ended by itself, just before it was killed")
	}
	return nil
}

// stop ends it in order, with all engines.
func (u *up) stop() error {
	if err := u.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-u.done:
		return err
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("up did not end within two minutes of SIGTERM")
	}
}

var isvcs = schema.GroupVersionResource{Group: "serving.kserve.io", Version: "v1beta1", Resource: "inferenceservices"}

// shaped is a service in a shape of its own.
type shaped struct {
	name     string
	shape    int
	replicas [2]int64 // least and most
	canary   int64    // percent; negative for none
	load     time.Duration
	settings map[string]string
}

func (u *up) manifest(s shaped) (map[string]any, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// The engine speaks all of it by itself.
	annotations := map[string]any{"stationmaster.dev/openai-root": "/", "stationmaster.dev/translate": "off"}
	for k, v := range s.settings {
		annotations[k] = v
	}
	predictor := map[string]any{
		"minReplicas": s.replicas[0], "maxReplicas": s.replicas[1],
		"containers": []any{map[string]any{
			"name":    "kserve-container",
			"image":   "load/engine",
			"command": []any{self, "engine", "--http_port=8080", "--grpc_port=9000", "--load=" + s.load.String()},
			"env": []any{
				map[string]any{"name": dirVar, "value": u.notes()},
				map[string]any{"name": shapeVar, "value": strconv.Itoa(s.shape)},
			},
			"ports": []any{
				map[string]any{"containerPort": int64(8080), "name": "http1", "protocol": "TCP"},
				map[string]any{"containerPort": int64(9000), "name": "h2c", "protocol": "TCP"},
			},
			"readinessProbe": map[string]any{"httpGet": map[string]any{"path": "/v2/health/ready", "port": int64(8080)}, "periodSeconds": int64(1)},
		}},
	}
	if s.canary >= 0 {
		predictor["canaryTrafficPercent"] = s.canary
	}
	return map[string]any{
		"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
		"metadata": map[string]any{"name": s.name, "namespace": "default", "annotations": annotations},
		"spec":     map[string]any{"predictor": predictor},
	}, nil
}

func (u *up) notes() string { return filepath.Join(u.dir, "notes") }

// apply makes a service what s says.
func (u *up) apply(ctx context.Context, s shaped) error {
	m, err := u.manifest(s)
	if err != nil {
		return err
	}
	_, err = u.client.Resource(isvcs).Namespace("default").Apply(ctx, s.name, &unstructured.Unstructured{Object: m}, metav1.ApplyOptions{FieldManager: "load", Force: true})
	return err
}

func (u *up) delete(ctx context.Context, name string) error {
	return u.client.Resource(isvcs).Namespace("default").Delete(ctx, name, metav1.DeleteOptions{})
}

// touch patches an annotation, as a person's tool would; it only wakes the reconciler.
func (u *up) touch(ctx context.Context, name, note string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"load.test/note":%q}}}`, note)
	_, err := u.client.Resource(isvcs).Namespace("default").Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// ready reports whether a service is Ready; why says what it says of itself.
func (u *up) ready(ctx context.Context, name string) (ok bool, why string) {
	o, err := u.client.Resource(isvcs).Namespace("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err.Error()
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		m, _ := c.(map[string]any)
		if m["type"] == "Ready" {
			return m["status"] == "True", fmt.Sprintf("Ready is %v: %v %v", m["status"], m["reason"], m["message"])
		}
	}
	return false, "it has no status"
}

// rolledOut reports whether the latest revision carries all traffic.
func (u *up) rolledOut(ctx context.Context, name string) bool {
	o, err := u.client.Resource(isvcs).Namespace("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	at := func(field string) string {
		v, _, _ := unstructured.NestedString(o.Object, "status", "components", "predictor", field)
		return v
	}
	created := at("latestCreatedRevision")
	return created != "" && created == at("latestReadyRevision") && created == at("latestRolledoutRevision")
}

// engines are the pids of the engines that run.
func (u *up) engines() []int {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	mark := []byte("\x00" + dirVar + "=" + u.notes() + "\x00")
	var out []int
	for _, dir := range all {
		args, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !bytes.HasPrefix(args, []byte(self+"\x00engine\x00")) {
			continue
		}
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(append([]byte{0}, env...), mark) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// environ returns a variable of a process.
func environ(pid int, name string) string {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	for _, v := range strings.Split(string(env), "\x00") {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// size is what `up` takes of the machine.
type size struct {
	MiB        int `json:"resident_mib"`
	Goroutines int `json:"goroutines"`
	Files      int `json:"open_files"`
}

func (u *up) size() (size, error) {
	var s size
	dir := fmt.Sprintf("/proc/%d/", u.cmd.Process.Pid)
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, _ := strconv.Atoi(f[1])
			s.MiB = kib >> 10
		}
	}
	files, err := os.ReadDir(dir + "fd")
	if err != nil {
		return s, err
	}
	s.Files = len(files)
	resp, err := http.Get("http://" + u.admin + "/metrics")
	if err != nil {
		return s, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			s.Goroutines, _ = strconv.Atoi(v)
		}
	}
	return s, lines.Err()
}

// shrunk waits until `up` takes hardly more of the machine than before, and returns what that is.
func (u *up) shrunk(ctx context.Context, before size) (size, error) {
	var now size
	err := await(ctx, 3*time.Minute, "back to what up took of the machine before", func() (bool, string) {
		var err error
		if now, err = u.size(); err != nil {
			return false, err.Error()
		}
		return now.Goroutines <= before.Goroutines+50 && now.Files <= before.Files+30 && now.MiB <= before.MiB+200,
			fmt.Sprintf("%+v, before %+v", now, before)
	})
	return now, err
}
