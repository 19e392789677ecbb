package app

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"stationmaster.dev/stationmaster/internal/demand"
)

const (
	// adminPort names the port of a gateway's pod at which its reports are.
	adminPort = "admin"
	// reportsAgain is the pause before a gateway whose reports broke off is asked again.
	reportsAgain = time.Second
	// reportsSilent is how long a gateway may say nothing before it is asked anew.
	reportsSilent = 5 * time.Second
	// maxReport bounds one report: some 200 bytes for each of 100,000 revisions.
	maxReport = 20 << 20
)

// receiver takes what gateways report.
type receiver interface {
	Report(gateway string, r *demand.Report)
	Gone(gateway string)
}

// gateways follows the reports of a cluster's gateways.
type gateways struct {
	namespace, app string
	to             receiver
	log            *slog.Logger
	client         *http.Client

	mu      sync.Mutex
	running map[string]following
	parts   sync.WaitGroup
}

// following is one gateway's reader.
type following struct {
	url    string
	cancel context.CancelFunc
}

func newGateways(namespace, app string, to receiver, log *slog.Logger) *gateways {
	return &gateways{
		namespace: namespace, app: app, to: to, log: log, running: map[string]following{},
		client: &http.Client{Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext, ResponseHeaderTimeout: reportsSilent,
		}},
	}
}

// run watches the gateways' pods and reads each one's reports until ctx ends.
func (g *gateways) run(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client for the gateways' pods: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(g.namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "app=" + g.app }))
	pods := factory.Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { g.look(ctx, o) },
		UpdateFunc: func(_, o any) { g.look(ctx, o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if pod, ok := o.(*corev1.Pod); ok {
				g.set(ctx, pod.Name, "")
			}
		},
	}); err != nil {
		return fmt.Errorf("watch the gateways' pods: %w", err)
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	g.parts.Wait()
	g.client.CloseIdleConnections()
	return nil
}

func (g *gateways) look(ctx context.Context, o any) {
	if pod, ok := o.(*corev1.Pod); ok {
		g.set(ctx, pod.Name, reportsOf(pod))
	}
}

// reportsOf returns where a running gateway's reports are; empty where it doesn't run.
func reportsOf(pod *corev1.Pod) string {
	if pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" {
		return ""
	}
	for i := range pod.Spec.Containers {
		for _, p := range pod.Spec.Containers[i].Ports {
			if p.Name == adminPort {
				return "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(p.ContainerPort))) + "/demand"
			}
		}
	}
	return ""
}

// set begins, changes or ends the reading of one gateway's reports.
func (g *gateways) set(ctx context.Context, name, url string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old, had := g.running[name]
	if had && old.url == url {
		return
	}
	if had {
		old.cancel()
		delete(g.running, name)
	}
	if url == "" || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	g.running[name] = following{url, cancel}
	g.parts.Go(func() { g.follow(ctx, name, url) })
}

// follow reads a gateway's reports until ctx ends, and asks again when they break off.
func (g *gateways) follow(ctx context.Context, name, url string) {
	defer g.to.Gone(name)
	for told := false; ; {
		got, err := g.read(ctx, name, url)
		if ctx.Err() != nil {
			return
		}
		g.to.Gone(name)
		if told = told && !got; !told {
			g.log.WarnContext(ctx, "a gateway's reports broke off; asking it again", "gateway", name, "err", err)
			told = true
		}
		select {
		case <-time.After(reportsAgain):
		case <-ctx.Done():
			return
		}
	}
}

// read hands on a gateway's reports as they come, and says whether any did.
func (g *gateways) read(ctx context.Context, name, url string) (got bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false, err
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	silence := time.AfterFunc(reportsSilent, cancel)
	defer silence.Stop()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxReport)
	for lines.Scan() {
		silence.Reset(reportsSilent)
		r := new(demand.Report)
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			return got, fmt.Errorf("read a report: %w", err)
		}
		got = true
		g.to.Report(name, r)
	}
	if err := lines.Err(); err != nil {
		return got, err
	}
	return got, io.EOF
}
