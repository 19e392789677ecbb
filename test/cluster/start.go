package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

//go:embed config
var configs embed.FS

var templates = template.Must(template.ParseFS(configs, "config/*"))

// fill writes a file from the template of a name.
func fill(path, name string, values any) error {
	var out bytes.Buffer
	if err := templates.ExecuteTemplate(&out, name, values); err != nil {
		return fmt.Errorf("fill %s: %w", name, err)
	}
	return os.WriteFile(path, out.Bytes(), 0o600)
}

func (c *Cluster) pki() string { return filepath.Join(c.config.Dir, "pki") }

func (c *Cluster) start(ctx context.Context) error {
	if err := c.makeMachines(); err != nil {
		return err
	}
	ca, err := c.makePKI()
	if err != nil {
		return err
	}
	for _, m := range c.machines {
		if err := m.boot(map[string]string{
			"/etc/hosts":       "127.0.0.1 localhost\n" + m.IP + " " + m.Name + "\n",
			"/etc/resolv.conf": resolvConf,
		}); err != nil {
			return err
		}
	}
	if err := c.connect(ctx); err != nil {
		return err
	}
	api, err := c.Forward(ctx, apiAddress)
	if err != nil {
		return err
	}
	if err := c.makeKubeconfigs(ca, api); err != nil {
		return err
	}
	if err := c.serveRegistry(ctx); err != nil {
		return err
	}
	steps, stepCtx := errgroup.WithContext(ctx)
	served := make(chan struct{})
	steps.Go(func() error { return c.startControlPlane(stepCtx, served) })
	for _, m := range c.machines {
		steps.Go(func() error { return c.startNode(stepCtx, m, served) })
	}
	if err := steps.Wait(); err != nil {
		return err
	}
	return c.awaitReady(ctx)
}

// makeMachines plans the machines and makes their directories.
func (c *Cluster) makeMachines() error {
	var random [4]byte
	rand.Read(random[:])
	addresses := []string{controlIP, secondIP}
	dirs := []string{c.Logs(), c.pki()}
	for i := range c.config.Nodes {
		name := fmt.Sprintf("node%d", i+1)
		m := &machine{
			Name: name, IP: addresses[i], PodCIDR: fmt.Sprintf("10.245.%d.0/24", i),
			Dir:    filepath.Join(c.config.Dir, name),
			Cgroup: "stationmaster-cluster-" + hex.EncodeToString(random[:]) + "-" + name,
			logs:   c.Logs(),
		}
		c.machines = append(c.machines, m)
		for _, dir := range []string{"cni", "pods", "kubelet", "containerd"} {
			dirs = append(dirs, filepath.Join(m.Dir, dir))
		}
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

const resolvConf = "nameserver " + controlIP + "\nsearch svc.cluster.local cluster.local\noptions ndots:5\n"

// connect joins the machines by a bridge on the first one.
func (c *Cluster) connect(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(c.config.Dir, "resolv.conf"), []byte(resolvConf), 0o644); err != nil {
		return err
	}
	first := c.machines[0]
	if err := first.network.configure(ctx,
		"link set lo up",
		"link add cluster0 type bridge",
		"addr add "+controlIP+"/24 dev cluster0",
		"link set cluster0 up",
		// Nobody is there: it is the way for what has no other, and ends here.
		"route add default via "+gatewayIP+" dev cluster0",
	); err != nil {
		return err
	}
	for _, m := range c.machines[1:] {
		if err := first.network.configure(ctx,
			fmt.Sprintf("link add %s type veth peer name eth0 netns %d", m.Name, m.first.Process.Pid),
			"link set "+m.Name+" master cluster0 up",
			"route add "+m.PodCIDR+" via "+m.IP,
		); err != nil {
			return err
		}
		if err := m.network.configure(ctx,
			"link set lo up",
			"addr add "+m.IP+"/24 dev eth0",
			"link set eth0 up",
			"route add default via "+controlIP,
		); err != nil {
			return err
		}
	}
	return nil
}

// makePKI writes the control plane's certificates and keys.
func (c *Cluster) makePKI() (*authority, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(c.pki(), "ca.crt"), ca.PEM, 0o644); err != nil {
		return nil, err
	}
	server, err := ca.server(
		[]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		apiServiceIP, controlIP, "127.0.0.1")
	if err != nil {
		return nil, err
	}
	toKubelets, err := ca.client("kube-apiserver", "system:masters")
	if err != nil {
		return nil, err
	}
	toExtensions, err := ca.client("front-proxy")
	if err != nil {
		return nil, err
	}
	tokens, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("make the key of service account tokens: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(tokens)
	if err != nil {
		return nil, fmt.Errorf("encode the key of service account tokens: %w", err)
	}
	return ca, errors.Join(
		server.write(c.pki(), "apiserver"),
		toKubelets.write(c.pki(), "kubelet-client"),
		toExtensions.write(c.pki(), "front-proxy"),
		os.WriteFile(filepath.Join(c.pki(), "tokens.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600),
	)
}

// makeKubeconfigs writes one for each component, and the administrator's two.
func (c *Cluster) makeKubeconfigs(ca *authority, api string) error {
	type user struct {
		path, server, name string
		groups             []string
	}
	inside := "https://" + apiAddress
	admins := []string{"system:masters"}
	users := []user{
		{c.Kubeconfig(), "https://" + api, "admin", admins},
		{c.KubeconfigInside(), inside, "admin", admins},
		{filepath.Join(c.pki(), "controller-manager.kubeconfig"), inside, "system:kube-controller-manager", nil},
		{filepath.Join(c.pki(), "scheduler.kubeconfig"), inside, "system:kube-scheduler", nil},
	}
	for _, m := range c.machines {
		users = append(users,
			user{filepath.Join(m.Dir, "kubelet.kubeconfig"), inside, "system:node:" + m.Name, []string{"system:nodes"}},
			user{filepath.Join(m.Dir, "proxy.kubeconfig"), inside, "system:kube-proxy", nil})
	}
	for _, u := range users {
		id, err := ca.client(u.name, u.groups...)
		if err != nil {
			return err
		}
		if err := fill(u.path, "kubeconfig.yaml", map[string]string{
			"Server": u.server, "User": u.name, "CA": base64.StdEncoding.EncodeToString(ca.PEM),
			"Certificate": base64.StdEncoding.EncodeToString(id.Certificate),
			"Key":         base64.StdEncoding.EncodeToString(id.Key),
		}); err != nil {
			return err
		}
	}
	return nil
}

// pauseImage holds the namespaces of each pod.
const pauseImage = registryHost + "/pause:1"

// serveRegistry serves the registry on each machine's loopback, with the pause image in it.
func (c *Cluster) serveRegistry(ctx context.Context) error {
	pause := filepath.Join(c.config.Dir, "pause.tar")
	if err := BuildImage(pause, Image{
		Name: pauseImage, Entrypoint: []string{"/pause"}, User: "65535:65535",
		Files: []File{{Path: "pause", From: c.bin("pause")}},
	}); err != nil {
		return err
	}
	if err := c.Publish(pause); err != nil {
		return err
	}
	server := &http.Server{Handler: c.registry.mux, ReadHeaderTimeout: 10 * time.Second}
	c.onStop(server.Close)
	for _, m := range c.machines {
		l, err := m.network.listen(ctx, "127.0.0.1:5000")
		if err != nil {
			return fmt.Errorf("serve the registry on %s: %w", m.Name, err)
		}
		c.serving.Go(func() error {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve the registry: %w", err)
			}
			return nil
		})
	}
	return nil
}

// startControlPlane starts what runs once in a cluster. It closes served when the API server is ready.
func (c *Cluster) startControlPlane(ctx context.Context, served chan<- struct{}) error {
	m := c.machines[0]
	etcd, err := m.start("etcd", c.bin("kubernetes"), "etcd",
		"--data-dir="+filepath.Join(m.Dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=default=http://127.0.0.1:2380")
	if err != nil {
		return err
	}
	if err := etcd.wait(ctx, "healthy", func(ctx context.Context) error { return c.get(ctx, etcdURL+"/health") }); err != nil {
		return err
	}
	pki := func(name string) string { return filepath.Join(c.pki(), name) }
	c.apiArgs = []string{
		"apiserver",
		"--etcd-servers=" + etcdURL, "--secure-port=6443", "--bind-address=0.0.0.0", "--advertise-address=" + controlIP,
		"--service-cluster-ip-range=" + serviceCIDR, "--allow-privileged=true",
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"), "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + pki("kubelet-client.crt"), "--kubelet-client-key=" + pki("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + pki("ca.crt"), "--requestheader-allowed-names=front-proxy",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pki("front-proxy.crt"), "--proxy-client-key-file=" + pki("front-proxy.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("tokens.key"), "--service-account-signing-key-file=" + pki("tokens.key"),
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	close(served)
	if _, err := m.start("controller-manager", c.bin("kubernetes"), "controller-manager",
		"--kubeconfig="+pki("controller-manager.kubeconfig"), "--service-account-private-key-file="+pki("tokens.key"),
		"--root-ca-file="+pki("ca.crt"), "--use-service-account-credentials", "--leader-elect=false",
		// The default rate makes the first rollout seconds slower.
		"--kube-api-qps=500", "--kube-api-burst=1000",
		"--bind-address=127.0.0.1", "--cert-dir="+filepath.Join(m.Dir, "controller-manager")); err != nil {
		return err
	}
	if _, err := m.start("scheduler", c.bin("kubernetes"), "scheduler",
		"--kubeconfig="+pki("scheduler.kubeconfig"), "--leader-elect=false",
		"--bind-address=127.0.0.1", "--cert-dir="+filepath.Join(m.Dir, "scheduler")); err != nil {
		return err
	}
	if !c.config.DNS {
		return nil
	}
	corefile := filepath.Join(m.Dir, "Corefile")
	if err := fill(corefile, "Corefile", map[string]string{"Kubeconfig": c.KubeconfigInside()}); err != nil {
		return err
	}
	dns, err := m.start("coredns", c.bin("coredns"), "-conf", corefile)
	if err != nil {
		return err
	}
	return dns.wait(ctx, "answering", func(ctx context.Context) error {
		conn, err := c.DialContext(ctx, "tcp", "kubernetes.default.svc.cluster.local:443")
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// startNode starts what runs on each node, the kubelet when the API server is ready.
func (c *Cluster) startNode(ctx context.Context, m *machine, served <-chan struct{}) error {
	values := map[string]string{
		"Name": m.Name, "Dir": m.Dir, "PKI": c.pki(), "Cgroup": "/" + m.Cgroup, "DNS": controlIP,
		"PodCIDR": m.PodCIDR, "ClusterCIDR": clusterCIDR, "Pause": pauseImage,
	}
	file := func(name string) string { return filepath.Join(m.Dir, name) }
	if err := errors.Join(
		fill(file("cni/10-bridge.conflist"), "bridge.conflist", values),
		fill(file("containerd.toml"), "containerd.toml", values),
		fill(file("kubelet.yaml"), "kubelet.yaml", values),
		fill(file("proxy.yaml"), "proxy.yaml", values),
	); err != nil {
		return err
	}
	containerd, err := m.start("containerd", c.bin("containerd"), "-c", file("containerd.toml"))
	if err != nil {
		return err
	}
	if err := containerd.wait(ctx, "answering", func(ctx context.Context) error {
		return exec.CommandContext(ctx, c.bin("ctr"), "-a", file("containerd.sock"), "version").Run()
	}); err != nil {
		return err
	}
	select {
	case <-served:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, err := m.start("kubelet", c.bin("kubernetes"), "kubelet", "--config="+file("kubelet.yaml"),
		"--kubeconfig="+file("kubelet.kubeconfig"), "--root-dir="+file("kubelet"), "--cert-dir="+file("kubelet-pki"),
		"--hostname-override="+m.Name, "--node-ip="+m.IP); err != nil {
		return err
	}
	_, err = m.start("proxy", c.bin("kubernetes"), "proxy", "--config="+file("proxy.yaml"))
	return err
}

// awaitReady returns when each node is ready and the first namespace takes pods.
func (c *Cluster) awaitReady(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	for _, m := range c.machines {
		m.mu.Lock()
		kubelet := m.programs["kubelet"]
		m.mu.Unlock()
		if err := kubelet.wait(ctx, "ready", func(ctx context.Context) error {
			node, err := client.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("node %s isn't ready: %v", m.Name, node.Status.Conditions)
		}); err != nil {
			return err
		}
	}
	first := c.machines[0]
	first.mu.Lock()
	controllers := first.programs["controller-manager"]
	first.mu.Unlock()
	return controllers.wait(ctx, "at work", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// client returns an administrator's client.
func (c *Cluster) client() (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1
	return kubernetes.NewForConfig(config)
}

// get asks for a URL from within and returns nil where the answer is 200.
func (c *Cluster) get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.HTTP().Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", net.JoinHostPort(req.URL.Hostname(), req.URL.Port()), resp.Status)
	}
	return nil
}
