package cluster_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"stationmaster.dev/stationmaster/test/cluster"
)

// childDir tells a child of these tests to start a cluster in a directory, say so and wait.
const childDir = "STATIONMASTER_CLUSTER_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		c, err := cluster.Start(context.Background(), cluster.Config{Dir: dir})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("started", c.Kubeconfig())
		select {}
	}
	goleak.VerifyTestMain(m)
}

func needsBinaries(t *testing.T) context.Context {
	t.Helper()
	if os.Getenv(cluster.BinEnv) == "" {
		t.Skipf("%s names no cluster binaries (make e2e-kubernetes)", cluster.BinEnv)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// leftovers returns the command lines that name dir, which those of a cluster in it do.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if raw, err := os.ReadFile(line); err == nil && strings.Contains(string(raw), dir) {
			found = append(found, strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}
	return found
}

// groups returns a pattern of the control groups of the cluster in dir, as its kubelet knows them.
func groups(t *testing.T, dir string) string {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(dir, "node1", "kubelet.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(config), "\ncgroupRoot: ")
	root, _, _ := strings.Cut(rest, "\n")
	pattern := filepath.Join("/sys/fs/cgroup/*", root)
	if found, err := filepath.Glob(pattern); err != nil || len(found) == 0 {
		t.Fatalf("the cluster has no control groups %s (%v)", pattern, err)
	}
	return pattern
}

// TestAnOutageOfTheAPIServerEnds is about the cluster's first node alone, without pods.
func TestAnOutageOfTheAPIServerEnds(t *testing.T) {
	ctx := needsBinaries(t)
	dir := t.TempDir()
	c, err := cluster.Start(ctx, cluster.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			c.Stop()
		}
	}()
	pattern := groups(t, dir)
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := maps.Get(short, "kept", metav1.GetOptions{}); err == nil {
		t.Error("the API server answers while it is stopped")
	}
	if err := c.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after the outage: %v", err)
	}
	stopped = true
	if err := c.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if found, err := filepath.Glob(pattern); err != nil || len(found) > 0 {
		t.Errorf("after Stop there are the control groups %q (%v)", found, err)
	}
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("after Stop these run on: %q", left)
	}
}

// TestAClusterEndsWithTheProcessThatStartedIt kills that process, so that nothing of it can
// clean up.
func TestAClusterEndsWithTheProcessThatStartedIt(t *testing.T) {
	ctx := needsBinaries(t)
	dir := t.TempDir()
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), childDir+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	if !said.Scan() || !strings.HasPrefix(said.Text(), "started ") {
		t.Fatalf("the child says %q", said.Text())
	}
	if len(leftovers(t, dir)) == 0 {
		t.Fatal("nothing runs of the child's cluster: this test sees nothing")
	}
	pattern := groups(t, dir)
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	child.Wait()
	var left []string
	every := time.NewTicker(50 * time.Millisecond)
	defer every.Stop()
	for range 400 {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if left = append(leftovers(t, dir), dirs...); len(left) == 0 {
			return
		}
		<-every.C
	}
	t.Errorf("20 s after its process was killed there is left of the cluster: %q", left)
}

func TestWhatCantStartIsTold(t *testing.T) {
	t.Setenv(cluster.BinEnv, "")
	for what, tc := range map[string]struct {
		config cluster.Config
		want   string
	}{
		"no binaries":          {cluster.Config{Dir: "/tmp"}, "tools/cluster/prepare"},
		"three nodes":          {cluster.Config{Bin: "/bin", Dir: "/tmp", Nodes: 3}, "1 or 2 nodes"},
		"a relative directory": {cluster.Config{Bin: "/bin", Dir: "here"}, `"here"`},
	} {
		t.Run(what, func(t *testing.T) {
			if _, err := cluster.Start(t.Context(), tc.config); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Start says %v, want a mention of %q", err, tc.want)
			}
		})
	}
}

// TestNothingOfTheHostsNetworkIsReachedFromWithin asks a server on the host's loopback.
func TestNothingOfTheHostsNetworkIsReachedFromWithin(t *testing.T) {
	ctx := needsBinaries(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := cluster.Start(ctx, cluster.Config{Dir: t.TempDir(), DNS: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if conn, err := c.DialContext(ctx, "tcp", l.Addr().String()); err == nil {
		conn.Close()
		t.Error("the host's loopback is reached from the cluster")
	}
	if conn, err := c.DialContext(ctx, "tcp", "kubernetes.default.svc.cluster.local:443"); err != nil {
		t.Errorf("the API server isn't reached by the name of its Service: %v", err)
	} else {
		conn.Close()
	}
}
