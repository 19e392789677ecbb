// Package cluster is a real Kubernetes cluster in namespaces of its own, for tests.
//
// [Start] brings up etcd, the control plane, one or two nodes with containerd and, if asked,
// CoreDNS, each as processes in private mount, network and PID namespaces. Nothing on the host
// changes, nothing inside can reach out of the machine, and everything ends with the process
// that started it, however that one ends.
//
// The calling process stays where it is, with its own network: it reaches the API server
// through a port on loopback (the kubeconfig names it), and pods, services and node ports with
// [Cluster.DialContext]. Programs that should see the cluster's network as theirs run by
// [Cluster.Command]. Images come from [BuildImage], by way of a registry that each node sees as
// localhost:5000.
//
// It needs root, cgroup v1, and what tools/cluster/prepare makes.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// The addresses inside. Each cluster has its own network, so they never clash.
const (
	controlIP    = "10.88.0.2"
	gatewayIP    = "10.88.0.1"
	secondIP     = "10.88.0.3"
	clusterCIDR  = "10.245.0.0/16"
	serviceCIDR  = "10.97.0.0/16"
	apiServiceIP = "10.97.0.1"
	apiAddress   = controlIP + ":6443"
	etcdURL      = "http://127.0.0.1:2379"
)

// BinEnv is the environment variable that names the directory of the cluster's binaries, as
// tools/cluster/prepare prints it.
const BinEnv = "STATIONMASTER_CLUSTER"

// Config says which cluster to start.
type Config struct {
	// Bin is the directory of the cluster's binaries. Empty means $STATIONMASTER_CLUSTER.
	Bin string
	// Dir is an existing directory for state and logs, absolute, on a file system that overlayfs
	// can write to. It belongs to one cluster, and the caller removes it when it is stopped.
	Dir string
	// Nodes is 1 or 2; zero means 1. The control plane runs on the first, node1.
	Nodes int
	// DNS asks for CoreDNS as the cluster's DNS.
	DNS bool
}

// Cluster is a running cluster. Its methods may be called from several goroutines, but for
// Stop, StopAPIServer and StartAPIServer.
type Cluster struct {
	config   Config
	machines []*machine
	registry *registry
	apiArgs  []string

	mu       sync.Mutex
	closers  []func() error
	serving  errgroup.Group
	stopOnce sync.Once
	stopErr  error
}

// Start starts a cluster and returns when its nodes are ready and pods can be made. With an
// error nothing is left but the logs in Dir/logs, whose last lines the error quotes.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if config.Bin == "" {
		config.Bin = os.Getenv(BinEnv)
	}
	if config.Bin == "" {
		return nil, fmt.Errorf("no cluster binaries: run tools/cluster/prepare and set %s to what it prints", BinEnv)
	}
	config.Nodes = max(config.Nodes, 1)
	if config.Nodes > 2 {
		return nil, fmt.Errorf("a cluster has 1 or 2 nodes, not %d", config.Nodes)
	}
	if !filepath.IsAbs(config.Dir) {
		return nil, fmt.Errorf("the cluster's directory %q isn't absolute", config.Dir)
	}
	if os.Getuid() != 0 {
		return nil, errors.New("a cluster needs root, for its namespaces")
	}
	c := &Cluster{config: config, registry: newRegistry()}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start the cluster: %w", err), c.Stop())
	}
	return c, nil
}

// Dir returns where the cluster's files are; its logs are in Dir()/logs, one a process.
func (c *Cluster) Dir() string { return c.config.Dir }

// Logs returns the directory of the logs, <machine>-<program>.log each.
func (c *Cluster) Logs() string { return filepath.Join(c.config.Dir, "logs") }

// Kubeconfig returns the path of an administrator's kubeconfig that works on the host, through a
// port on loopback.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.config.Dir, "kubeconfig") }

// KubeconfigInside returns the path of one that works in the cluster's network; [Cluster.Command]
// sets it as KUBECONFIG.
func (c *Cluster) KubeconfigInside() string { return filepath.Join(c.config.Dir, "kubeconfig-inside") }

// NodeIP returns the address of a node, counted from 1: node ports are open there.
func (c *Cluster) NodeIP(node int) string { return c.machines[node-1].IP }

// Network returns the path of the first node's network namespace, for nsenter --net.
func (c *Cluster) Network() string { return c.machines[0].network.path }

// DialContext connects from the first node: to pods, services, node ports, and with DNS to the
// names of services too. It fits http.Transport and grpc.WithContextDialer.
func (c *Cluster) DialContext(ctx context.Context, protocol, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dial := c.machines[0].network.dial
	if net.ParseIP(host) == nil {
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, protocol, _ string) (net.Conn, error) {
			return dial(ctx, protocol, controlIP+":53")
		}}
		found, err := resolver.LookupNetIP(ctx, "ip4", host+".")
		if err != nil {
			return nil, err
		}
		host = found[0].String()
	}
	return dial(ctx, protocol, net.JoinHostPort(host, port))
}

// HTTP returns a client that reaches pods and services as DialContext does, with a connection of
// its own for each request, so that each is balanced anew.
func (c *Cluster) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: c.DialContext, DisableKeepAlives: true}}
}

// Command returns a command that will run on the host's files but in the first node's network,
// with the cluster's DNS and KUBECONFIG set. It is killed when ctx ends, and when this process does.
func (c *Cluster) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path, lookErr := exec.LookPath(name)
	if lookErr != nil {
		path = name
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append([]string{commandName, c.Network(), filepath.Join(c.config.Dir, "resolv.conf"), path}, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.KubeconfigInside())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if lookErr != nil {
		cmd.Err = lookErr
	}
	return cmd
}

// Forward opens a port of the host's loopback that leads to an address as DialContext takes it,
// until the cluster stops. It returns the host's address.
func (c *Cluster) Forward(ctx context.Context, address string) (string, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("forward to %s: %w", address, err)
	}
	f := &forwarder{listener: l, dial: func(ctx context.Context) (net.Conn, error) {
		return c.DialContext(ctx, "tcp", address)
	}}
	c.serving.Go(f.serve)
	c.onStop(f.close)
	return l.Addr().String(), nil
}

// StopAPIServer kills the API server, as if its machine had lost power. What runs goes on. Until
// it is started again, connections within the cluster are refused, and those through the host's
// port are closed at once, which client-go tries again for ten seconds.
func (c *Cluster) StopAPIServer() error { return c.machines[0].kill("apiserver") }

// StartAPIServer starts the API server, and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	api, err := c.machines[0].start("apiserver", c.bin("kubernetes"), c.apiArgs...)
	if err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	return api.wait(ctx, "ready", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// Filter has each node filter packets by a script of nft's language. Between pods all go by the hook
// forward, on one node too; those of a node itself, probes for example, don't.
func (c *Cluster) Filter(ctx context.Context, script string) error {
	for _, m := range c.machines {
		if err := m.network.filter(ctx, script); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return nil
}

// LoadImage puts the images of an OCI layout tar onto each node, for pods that never pull.
func (c *Cluster) LoadImage(ctx context.Context, tar string) error {
	for _, m := range c.machines {
		cmd := exec.CommandContext(ctx, c.bin("ctr"), "-a", filepath.Join(m.Dir, "containerd.sock"), "-n", "k8s.io", "images", "import", tar)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("load %s onto %s: %w: %s", tar, m.Name, err, out)
		}
	}
	return nil
}

// Publish serves the images of an OCI layout tar from the registry that the nodes know as
// localhost:5000; their names must begin with that. The tar must stay until the cluster stops.
func (c *Cluster) Publish(tar string) error { return c.registry.publish(tar) }

// Stop ends the cluster and waits until nothing of it runs. Logs stay in Dir. Later calls
// return what the first did.
func (c *Cluster) Stop() error {
	c.stopOnce.Do(func() { c.stopErr = c.stop() })
	return c.stopErr
}

func (c *Cluster) stop() error {
	c.mu.Lock()
	closers := c.closers
	c.mu.Unlock()
	var errs []error
	for _, closer := range closers {
		errs = append(errs, closer())
	}
	errs = append(errs, c.serving.Wait())
	for _, m := range c.machines {
		errs = append(errs, m.halt())
		// Its file systems were mounted nowhere else.
		errs = append(errs, os.RemoveAll(m.Dir))
	}
	return errors.Join(errs...)
}

func (c *Cluster) onStop(closer func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closers = append(c.closers, closer)
}

func (c *Cluster) bin(name string) string { return filepath.Join(c.config.Bin, name) }
