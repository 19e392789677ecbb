package local_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/plan/replica"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/local"
	"stationmaster.dev/stationmaster/internal/platform/platformtest"
	"stationmaster.dev/stationmaster/internal/spec"
)

const patience = 20 * time.Second

var iris = spec.ServiceKey{Namespace: "default", Name: "iris"}

// models is a store with directories of its own.
type models map[string]string

func (m models) Fetch(_ context.Context, _, uri, _ string) (path, digest string, release func(), err error) {
	dir, ok := m[uri]
	if !ok {
		return "", "", nil, errdef.New(errdef.ErrNotFound, "no such model")
	}
	return dir, "sha256:" + filepath.Base(dir), func() {}, nil
}

// objects are secrets and config maps by "kind/namespace/name".
type objects map[string]map[string][]byte

func (o objects) get(kind, namespace, name string) (map[string][]byte, error) {
	v, ok := o[kind+"/"+namespace+"/"+name]
	if !ok {
		return nil, errdef.New(errdef.ErrNotFound, "not there")
	}
	return v, nil
}

func (o objects) Secret(_ context.Context, ns, n string) (map[string][]byte, error) {
	return o.get("secret", ns, n)
}

func (o objects) ConfigMap(_ context.Context, ns, n string) (map[string][]byte, error) {
	return o.get("configMap", ns, n)
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// bench is a running platform.
type bench struct {
	*local.Platform
	t    *testing.T
	stop func() error
}

func start(t *testing.T, change func(*local.Config)) *bench {
	t.Helper()
	cfg := local.Config{
		Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
		Timing: replica.Timing{FirstBackoff: 50 * time.Millisecond, Recheck: 100 * time.Millisecond},
	}
	if change != nil {
		change(&cfg)
	}
	p, err := local.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	b := &bench{Platform: p, t: t}
	stopped := false
	b.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return b
}

func server(args ...string) spec.Container {
	return spec.Container{
		Name: "kserve-container", Command: []string{"stationmaster"}, Args: append([]string{"engine", "-http=8080"}, args...),
		Ports: []spec.Port{{Number: 8080, Scheme: spec.HTTP}},
	}
}

func workload(c ...spec.Container) spec.Workload {
	return spec.Workload{
		Service: iris, Revision: spec.RevisionKey{Namespace: "default", Name: "iris-1"}, Component: spec.Predictor,
		Containers: c, Hash: "h", GracePeriod: 5 * time.Second,
	}
}

func (b *bench) apply(w spec.Workload, n int) {
	b.t.Helper()
	if err := b.Apply(b.t.Context(), w.Service, []platform.Assignment{{Workload: w, Replicas: n}}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) until(what string, ok func(spec.Replica) bool) spec.Replica {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		o, err := b.Observe(b.t.Context(), iris)
		if err != nil {
			b.t.Fatal(err)
		}
		if len(o.Replicas) == 1 && ok(o.Replicas[0]) {
			return o.Replicas[0]
		}
		if time.Now().After(deadline) {
			for _, r := range o.Replicas {
				b.t.Logf("%s %s restarts %d %+v", r.ID, r.Phase, r.Restarts, r.Failure)
				if log, err := b.Logs(context.Background(), iris, local.LogOptions{Replica: r.ID}); err == nil {
					raw, _ := io.ReadAll(log)
					log.Close()
					b.t.Logf("log:\n%s", raw)
				}
			}
			b.t.Fatalf("no replica that is %s within %v", what, patience)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func ready(r spec.Replica) bool { return r.Phase == spec.Ready }

func (b *bench) get(r spec.Replica, path string) string {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+r.HTTP+path, http.NoBody)
	if err != nil {
		b.t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return string(raw)
}

func (b *bench) pid(r spec.Replica) int {
	b.t.Helper()
	n, err := strconv.Atoi(b.get(r, "/pid"))
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

func gone(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(raw), ") Z ")
}

func TestLocalIsAPlatform(t *testing.T) {
	platformtest.Run(t, func(t *testing.T) platformtest.Fixture {
		return platformtest.Fixture{
			Platform: start(t, nil).Platform,
			Serve:    func() []spec.Container { return []spec.Container{server()} },
			Fail:     func() []spec.Container { return []spec.Container{server("-exit-after=10ms", "-code=3")} },
		}
	})
}

func TestAReplicaSeesItsModelWhereTheManifestSays(t *testing.T) {
	for name, noMounts := range map[string]bool{"in a mount namespace": false, "by rewritten paths": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "model.txt"), []byte("weights"), 0o600); err != nil {
				t.Fatal(err)
			}
			b := start(t, func(c *local.Config) { c.Models, c.NoMounts = models{"file:///m": dir}, noMounts })
			w := workload(server("-read=/mnt/models/model.txt", "-grpc", "9000"))
			w.Containers[0].Ports = append(w.Containers[0].Ports, spec.Port{Number: 9000, Scheme: spec.H2C})
			w.Containers[0].Env = []spec.EnvVar{{Name: "MODEL", Value: "/mnt/models/model.txt"}}
			w.Models = []spec.Model{{URI: "file:///m", MountPath: "/mnt/models"}}
			b.apply(w, 1)
			r := b.until("ready", ready)
			if !noMounts && !b.Capabilities().Mounts {
				t.Skip("this machine permits no mounts")
			}
			if got := b.get(r, "/"); got != "weights" {
				t.Errorf("the engine reads %q, want the model", got)
			}
			want := "/mnt/models/model.txt"
			if noMounts {
				want = filepath.Join(dir, "model.txt")
			}
			if got := b.get(r, "/env?name=MODEL"); got != want {
				t.Errorf("MODEL is %q, want %q", got, want)
			}
			if got := b.get(r, "/write?path=/mnt/models/x"); got == "" {
				t.Error("the engine could write into the model")
			}
			if r.Digests["file:///m"] == "" || r.GRPC == "" || r.GRPC == r.HTTP {
				t.Errorf("replica %+v lacks a digest or its gRPC address", r)
			}
			b.until("hashed", func(r spec.Replica) bool { return strings.HasPrefix(r.RuntimeDigest, "sha256:") })
		})
	}
}

func TestAPortForMetricsIsTold(t *testing.T) {
	b := start(t, nil)
	w := workload(server())
	w.Containers[0].Ports = append(w.Containers[0].Ports, spec.Port{Name: "metrics", Number: 8002, Scheme: spec.HTTP})
	w.Containers[0].Env = []spec.EnvVar{{Name: "METRICS_PORT", Value: "8002"}}
	b.apply(w, 1)
	r := b.until("ready", ready)
	if r.Metrics == "" || r.Metrics == r.HTTP || strings.HasSuffix(r.Metrics, ":8002") {
		t.Errorf("metrics at %q, HTTP at %q; want a port of its own that was allocated", r.Metrics, r.HTTP)
	}
}

func TestAMountBelowNoDirectoryOfTheMachine(t *testing.T) {
	b := start(t, nil)
	w := workload(server("-read=/opt-of-the-test/deep/down/key"))
	w.Volumes = []spec.Volume{{Name: "v", Kind: spec.VolumeClaim, Source: "claim"}}
	w.Containers[0].Mounts = []spec.Mount{{Volume: "v", Path: "/opt-of-the-test/deep/down"}}
	b.apply(w, 1)
	r := b.until("ready", ready)
	if !b.Capabilities().Mounts {
		t.Skip("this machine permits no mounts")
	}
	if got := b.get(r, "/write?path=/opt-of-the-test/deep/down/key"); got != "" {
		t.Fatalf("writing into the claim: %s", got)
	}
	if got := b.get(r, "/"); got != "x" {
		t.Errorf("read %q back", got)
	}
	if _, err := os.Stat("/opt-of-the-test"); err == nil {
		t.Error("the mount point shows on the machine")
	}
}

func TestEnvironmentIsResolvedAndKeepsSecretsOut(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "leak")
	b := start(t, func(c *local.Config) {
		c.Objects = objects{"secret/default/s": {"token": []byte("t0p")}, "configMap/default/c": {"A": []byte("1"), "B": []byte("2")}}
	})
	c := server()
	c.Env = []spec.EnvVar{
		{Name: "FIRST", Value: "a"},
		{Name: "SECOND", Value: "$(FIRST)-$$(FIRST)-$(NOBODY)"},
		{Name: "TOKEN", From: &spec.EnvSource{Kind: "secret", Name: "s", Key: "token"}},
		{Name: "MAYBE", From: &spec.EnvSource{Kind: "secret", Name: "none", Key: "x", Optional: true}},
		{Name: "P_", From: &spec.EnvSource{Kind: "configMap", Name: "c"}},
		{Name: "NS", From: &spec.EnvSource{Kind: "field", Key: "metadata.namespace"}},
		{Name: "IP", From: &spec.EnvSource{Kind: "field", Key: "status.podIP"}},
		{Name: "CPU", From: &spec.EnvSource{Kind: "resource", Key: "limits.cpu"}},
		{Name: "LISTEN", Value: "0.0.0.0:8080"},
	}
	c.Resources.MilliCPU = 1500
	b.apply(workload(c), 1)
	r := b.until("ready", ready)
	_, port, _ := net.SplitHostPort(r.HTTP)
	for name, want := range map[string]string{
		"SECOND": "a-$(FIRST)-$(NOBODY)", "TOKEN": "t0p", "MAYBE": "", "P_A": "1", "P_B": "2", "NS": "default", "IP": "127.0.0.1",
		"CPU": "2", "LISTEN": "0.0.0.0:" + port, "PORT": port, "AWS_SECRET_ACCESS_KEY": "",
	} {
		if got := b.get(r, "/env?name="+name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestFailuresTellWhatHappened(t *testing.T) {
	for name, tc := range map[string]struct {
		w    func() spec.Workload
		want func(*spec.Failure) bool
	}{
		"exit code and log": {
			w: func() spec.Workload { return workload(server("-exit-after=1ms", "-code=42", "-say=hello")) },
			want: func(f *spec.Failure) bool {
				return f.Reason == spec.Exited && f.ExitCode == 42 && f.Signal == "" && slices.Equal(f.LogTail, []string{"engine starts hello", "engine gives up"}) &&
					f.Message == "the process exited with code 42; its last log line: engine gives up"
			},
		},
		"missing secret": {
			w: func() spec.Workload {
				c := server()
				c.Env = []spec.EnvVar{{Name: "X", From: &spec.EnvSource{Kind: "secret", Name: "s", Key: "k"}}}
				return workload(c)
			},
			want: func(f *spec.Failure) bool { return f.Reason == spec.StartFailed && strings.Contains(f.Message, "X") },
		},
		"missing model": {
			w: func() spec.Workload {
				w := workload(server())
				w.Models = []spec.Model{{URI: "file:///nowhere", MountPath: "/mnt/models"}}
				return w
			},
			want: func(f *spec.Failure) bool {
				return f.Reason == spec.ModelPullFailed && strings.Contains(f.Message, "file:///nowhere") && !f.RetryAt.IsZero()
			},
		},
		"runtime not installed": {
			w: func() spec.Workload {
				c := server()
				c.Local = &spec.LocalCommand{Command: []string{"no-such-engine"}, Install: "pip install no-such-engine"}
				c.Command = nil
				return workload(c)
			},
			want: func(f *spec.Failure) bool {
				return f.Reason == spec.RuntimeNotInstalled && f.Terminal && strings.Contains(f.Message, "pip install no-such-engine")
			},
		},
		"runtime not installed, though the command of its image exists": {
			w: func() spec.Workload {
				c := server()
				c.Command, c.Args = []string{"sh"}, []string{"-c", "exit 3"}
				c.Local = &spec.LocalCommand{Command: []string{"no-such-engine"}, Install: "pip install no-such-engine"}
				return workload(c)
			},
			want: func(f *spec.Failure) bool {
				return f.Reason == spec.RuntimeNotInstalled && f.Terminal && strings.Contains(f.Message, "install it: pip install no-such-engine")
			},
		},
		"an image alone": {
			w: func() spec.Workload {
				return workload(spec.Container{Name: "server", Image: "example.test/engine:1"})
			},
			want: func(f *spec.Failure) bool {
				return f.Reason == spec.RuntimeNotInstalled && strings.Contains(f.Message, "give the container a command that this machine has, or install podman or start docker")
			},
		},
		"a command that isn't there": {
			w: func() spec.Workload {
				return workload(spec.Container{Name: "server", Command: []string{"no-such-engine"}})
			},
			want: func(f *spec.Failure) bool {
				return f.Reason == spec.RuntimeNotInstalled && strings.HasSuffix(f.Message, "; install it, or name its folder by --runtime-path")
			},
		},
		"failing init container": {
			w: func() spec.Workload {
				w := workload(server())
				w.Init = []spec.Container{{Name: "init", Command: []string{"sh", "-c", "echo no; exit 7"}}}
				return w
			},
			want: func(f *spec.Failure) bool {
				return f.Container == "init" && f.ExitCode == 7 && slices.Equal(f.LogTail, []string{"no"})
			},
		},
		"liveness": {
			w: func() spec.Workload {
				c := server()
				c.Liveness = &spec.Probe{Action: spec.Action{Exec: []string{"sh", "-c", "echo sick; exit 1"}}, Period: time.Second, Timeout: 5 * time.Second, FailureThreshold: 1, SuccessThreshold: 1}
				c.Readiness = &spec.Probe{Action: spec.Action{TCP: &spec.TCPAction{Port: 1}}, Period: time.Second, Timeout: time.Second}
				return workload(c)
			},
			want: func(f *spec.Failure) bool {
				return f.Reason == spec.LivenessFailed && strings.Contains(f.Message, "sick")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, func(c *local.Config) { c.Models, c.Objects = models{}, objects{} })
			b.apply(tc.w(), 1)
			r := b.until("failed so", func(r spec.Replica) bool { return r.Failure != nil && tc.want(r.Failure) })
			if r.Failure.At.IsZero() {
				t.Errorf("failure %+v has no time", r.Failure)
			}
		})
	}
}

func TestAPortWrittenIntoTheProgramIsToldWithItsOwner(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, nil)
	// This very process has the port.
	b.apply(workload(server("-http="+port)), 1)
	b.until("failed for the port, which the platform's own process has", func(r spec.Replica) bool {
		return r.Failure != nil && r.Failure.Reason == spec.Exited && strings.Contains(r.Failure.Message,
			"; port "+port+" is taken by stationmaster itself: see the addresses that 'up' printed: let it listen on $PORT, or name the containerPort 8080 in its args")
	})
	// Now another service has it.
	l.Close()
	b.until("listening", func(spec.Replica) bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	other := workload(server("-http=" + port))
	other.Service.Name, other.Revision.Name = "other", "other-1"
	b.apply(other, 1)
	deadline := time.Now().Add(patience)
	for {
		o, err := b.Observe(t.Context(), other.Service)
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Replicas) == 1 && o.Replicas[0].Failure != nil && strings.Contains(o.Replicas[0].Failure.Message, "port "+port+" is taken by service default/iris (replica iris-1-") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the owner isn't told: %+v", o.Replicas)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestInstallingTheRuntimeHeals(t *testing.T) {
	bin := t.TempDir()
	b := start(t, func(c *local.Config) { c.Path = []string{bin} })
	c := spec.Container{Name: "server", Local: &spec.LocalCommand{Command: []string{"late-engine"}}}
	b.apply(workload(c), 1)
	b.until("failed", func(r spec.Replica) bool { return r.Failure != nil && r.Failure.Reason == spec.RuntimeNotInstalled })
	if err := os.WriteFile(filepath.Join(bin, "late-engine"), []byte("#!/bin/sh\nexec sleep 100\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.until("ready", ready)
}

func TestACrashIsMendedAndItsFailureClears(t *testing.T) {
	b := start(t, nil)
	b.apply(workload(server()), 1)
	before := b.until("ready", ready)
	pid := b.pid(before)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := b.until("restarted", func(r spec.Replica) bool { return ready(r) && r.Restarts == 1 })
	if r.Failure != nil || r.ID != before.ID || b.pid(r) == pid {
		t.Errorf("after the restart %+v", r)
	}
	log, err := b.Logs(t.Context(), iris, local.LogOptions{Previous: true, Tail: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if raw, _ := io.ReadAll(log); !strings.HasPrefix(string(raw), "engine starts") {
		t.Errorf("previous log %q", raw)
	}
}

func TestARunawayIsKilledForMemory(t *testing.T) {
	b := start(t, nil)
	c := server("-alloc=400")
	c.Resources.MemoryBytes = 128 << 20
	b.apply(workload(c), 1)
	b.until("begun", func(r spec.Replica) bool { return r.Phase != spec.Pending })
	if !b.Capabilities().MemoryLimits {
		t.Skip("this machine permits no memory limits")
	}
	b.until("killed for memory", func(r spec.Replica) bool { return r.Failure != nil && r.Failure.Reason == spec.OOMKilled })
}

func TestDrainKillsWhatIgnoresIt(t *testing.T) {
	b := start(t, nil)
	w := workload(server("-ignore-term"))
	w.GracePeriod = 300 * time.Millisecond
	b.apply(w, 1)
	pid := b.pid(b.until("ready", ready))
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	if !gone(pid) {
		t.Errorf("process %d lives on after Run ended", pid)
	}
}

func TestDescendantsEndWithTheirEngine(t *testing.T) {
	b := start(t, nil)
	file := filepath.Join(t.TempDir(), "pid")
	c := spec.Container{Name: "server", Command: []string{"sh", "-c", "sleep 1000 & echo $! > " + file + "; sleep 1000"}}
	b.apply(workload(c), 1)
	var child int
	b.until("ready with a child", func(r spec.Replica) bool {
		raw, _ := os.ReadFile(file)
		child, _ = strconv.Atoi(strings.TrimSpace(string(raw)))
		return ready(r) && child > 0
	})
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	// It was killed before Run ended; the kernel may take a moment.
	for deadline := time.Now().Add(patience); !gone(child); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("child %d is an orphan", child)
		}
	}
}

func TestTheNextPlatformAdoptsWhatRuns(t *testing.T) {
	dir := t.TempDir()
	first := start(t, func(c *local.Config) { c.Dir, c.KeepOnExit = dir, true })
	first.apply(workload(server()), 1)
	before := first.until("ready", ready)
	pid := first.pid(before)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := start(t, func(c *local.Config) { c.Dir = dir })
	after := second.until("ready", ready)
	if after.ID != before.ID || second.pid(after) != pid || after.HTTP != before.HTTP {
		t.Errorf("adopted %+v, want %+v in process %d", after, before, pid)
	}
	second.apply(workload(server()), 1)
	second.get(after, "/env")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := second.until("restarted", func(r spec.Replica) bool { return ready(r) && r.Restarts == 1 })
	if second.pid(r) == pid {
		t.Error("still the old process")
	}
}

func TestTwoPlatformsDontShareADirectory(t *testing.T) {
	dir := t.TempDir()
	first := start(t, func(c *local.Config) { c.Dir = dir })
	first.apply(workload(server()), 1)
	first.until("ready", ready)
	second, err := local.New(local.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); !errors.Is(err, errdef.ErrConflict) {
		t.Errorf("error %v, want a conflict", err)
	}
}

func controlPlane(dir string) int {
	p, err := local.New(local.Config{Dir: dir, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err == nil {
		err = p.Apply(context.Background(), iris, []platform.Assignment{{Workload: workload(server()), Replicas: 2}})
	}
	if err == nil {
		err = p.Run(context.Background())
	}
	fmt.Println(err)
	return 1
}

func TestAKilledControlPlaneLosesNoEngine(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "control-plane", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	running := func() int {
		found, _ := filepath.Glob(filepath.Join(dir, "replicas", "*", "record.json"))
		n := 0
		for _, f := range found {
			raw, _ := os.ReadFile(f)
			if strings.Contains(string(raw), `"WasReady":true,"Restarts"`) {
				n++
			}
		}
		return n
	}
	for running() < 2 {
		if time.Now().After(deadline) {
			cmd.Process.Kill()
			t.Fatal("the control plane's engines don't get ready")
		}
		time.Sleep(10 * time.Millisecond)
	}
	cmd.Process.Kill()
	cmd.Wait()
	b := start(t, func(c *local.Config) { c.Dir = dir })
	b.apply(workload(server()), 1)
	r := b.until("the one that is kept", ready)
	if r.Restarts != 0 {
		t.Errorf("it was restarted %d times", r.Restarts)
	}
	pid := b.pid(r)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got := b.until("restarted", func(r spec.Replica) bool { return ready(r) && r.Restarts == 1 })
	if b.pid(got) == pid {
		t.Error("the engine that was killed still answers")
	}
}

func TestAnImageRunsThroughTheContainerEngineThatAnswers(t *testing.T) {
	bin, model := t.TempDir(), t.TempDir()
	said := filepath.Join(t.TempDir(), "said")
	script := "#!/bin/sh\ncase $1 in info) exit 0;; rm) echo \"$@\" >> " + said + "; exit 0;; esac\necho \"$@\" >> " + said + "\necho $KEY >> " + said + "\nexec sleep 1000\n"
	if err := os.WriteFile(filepath.Join(bin, "podman"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b := start(t, func(c *local.Config) { c.Path, c.Models = []string{bin}, models{"file:///m": model} })
	w := workload(spec.Container{Name: "server", Image: "example/engine:1", Args: []string{"--port=8080"}, Env: []spec.EnvVar{{Name: "KEY", Value: "s3cret"}}})
	w.Models = []spec.Model{{URI: "file:///m", MountPath: "/mnt/models"}}
	b.apply(w, 1)
	r := b.until("started through podman", func(r spec.Replica) bool {
		raw, _ := os.ReadFile(said)
		return ready(r) && strings.Count(string(raw), "\n") == 2
	})
	raw, _ := os.ReadFile(said)
	line, key, _ := strings.Cut(string(raw), "\n")
	for _, want := range []string{"run --rm --name " + r.ID + "-server", "--network host", "--env KEY", model + ":/mnt/models:ro", "example/engine:1 --port=8080"} {
		if !strings.Contains(line, want) {
			t.Errorf("command line %q lacks %q", line, want)
		}
	}
	if strings.Contains(line, "s3cret") || strings.TrimSpace(key) != "s3cret" {
		t.Errorf("the value of KEY belongs in the environment only: %q, %q", line, key)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	if raw, _ := os.ReadFile(said); !strings.Contains(string(raw), "rm --force "+r.ID+"-server") {
		t.Errorf("the engine wasn't told to remove the container: %q", raw)
	}
}

func TestAPortThatIsTakenOnRestartIsReplaced(t *testing.T) {
	b := start(t, func(c *local.Config) { c.Timing.FirstBackoff = 50 * time.Millisecond })
	b.apply(workload(server("-exit-after=100ms", "-code=1")), 1)
	before := b.until("failed", func(r spec.Replica) bool { return r.HTTP != "" && r.Failure != nil })
	l, err := net.Listen("tcp", before.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b.until("on another port", func(r spec.Replica) bool { return r.HTTP != "" && r.HTTP != before.HTTP })
}

func TestLogsAreFollowed(t *testing.T) {
	b := start(t, nil)
	b.apply(workload(server("-say=first")), 1)
	b.until("ready", ready)
	log, err := b.Logs(t.Context(), iris, local.LogOptions{Follow: true, Component: spec.Predictor})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	all := make(chan string, 1)
	go func() {
		raw, _ := io.ReadAll(log)
		all <- string(raw)
	}()
	if err := b.Apply(t.Context(), iris, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-all:
		if !strings.HasPrefix(got, "engine starts first\n") {
			t.Errorf("followed %q", got)
		}
	case <-time.After(patience):
		t.Fatal("following goes on after the replica is gone")
	}
	if _, err := b.Logs(t.Context(), iris, local.LogOptions{}); !errors.Is(err, errdef.ErrNotFound) {
		t.Errorf("error %v, want not found", err)
	}
}

func TestContainersShareAVolumeAndHooksRunAroundThem(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace")
	for name, noMounts := range map[string]bool{"with mounts": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			os.Remove(trace)
			b := start(t, func(c *local.Config) { c.NoMounts = noMounts })
			shared := []spec.Mount{{Volume: "v", Path: "/shared-of-the-test"}}
			c := server("-read=/shared-of-the-test/from-init")
			c.Mounts = shared
			c.PostStart = &spec.Action{Exec: []string{"sh", "-c", "echo post >> " + trace}}
			c.PreStop = &spec.Action{Exec: []string{"sh", "-c", "echo pre; cat /shared-of-the-test/from-init >> " + trace}}
			c.Readiness = &spec.Probe{Action: spec.Action{HTTP: &spec.HTTPAction{Port: 8080, Path: "/"}}, Period: time.Second, Timeout: time.Second}
			side := server("-http=8081", "-say=localhost:8080")
			side.Name, side.Ports = "side", []spec.Port{{Number: 8081, Scheme: spec.HTTP}}
			w := workload(c, side)
			w.Volumes = []spec.Volume{{Name: "v", Kind: spec.VolumeEmptyDir}}
			w.Init = []spec.Container{{Name: "init", Command: []string{"sh", "-c", "echo made > /shared-of-the-test/from-init"}, Mounts: shared}}
			b.apply(w, 1)
			r := b.until("ready", ready)
			if got := b.get(r, "/"); got != "made\n" {
				t.Errorf("the server reads %q, want what init made", got)
			}
			_, port, _ := strings.Cut(r.HTTP, ":")
			// The sidecar has no readiness probe: it may still be on its way to its first line.
			var said []byte
			for end := time.Now().Add(10 * time.Second); len(said) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				log, err := b.Logs(t.Context(), iris, local.LogOptions{Container: "side"})
				if err != nil {
					t.Fatal(err)
				}
				if said, err = io.ReadAll(log); err != nil {
					t.Fatal(err)
				}
				log.Close()
			}
			if !strings.Contains(string(said), ":"+port) {
				t.Errorf("the sidecar was told %q, want the server's port of %s", said, r.HTTP)
			}
			if err := b.stop(); err != nil {
				t.Fatal(err)
			}
			if raw, _ := os.ReadFile(trace); string(raw) != "post\nmade\n" {
				t.Errorf("hooks left %q, want post, then what preStop read", raw)
			}
		})
	}
}
