package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/admin"
	"stationmaster.dev/stationmaster/internal/autoscale"
	"stationmaster.dev/stationmaster/internal/control"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/follow"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/limits"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/lora/keeper"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/measure"
	"stationmaster.dev/stationmaster/internal/modelwatch"
	"stationmaster.dev/stationmaster/internal/objectstore"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/platform/kube"
	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// OperatorConfig is what `operator` was asked for.
type OperatorConfig struct {
	// Kubeconfig is a file; empty means the pod's own account, else kubectl's usual places.
	Kubeconfig string
	// Namespace is where operator and gateway run.
	Namespace string
	// Gateway is the name of the gateway's Service there; pods that carry it as their label
	// "app" may reach engines.
	Gateway string
	// Operator is the label "app" of the operators' own pods, which may reach engines too.
	Operator string
	// Image is the image of this binary, for pulling models and for the built-in runtime.
	Image string
	// OCIDelivery is how models of oci:// reach pods: image-volume, modelcar or fetch; empty means
	// image-volume.
	OCIDelivery string
	// Domain is the last part of service hosts; HTTPPort and GRPCPort are the gateway's as
	// clients from outside reach it, and stand in URLs.
	Domain             string
	HTTPPort, GRPCPort int
	// DirectGateway ("namespace/name") is the Gateway (Gateway API) for HTTPRoutes that lead past our
	// own, and DirectFrom the namespace of the pods that it is made of; empty means the Gateway's.
	DirectGateway, DirectFrom string
	// Watch restricts the operator to some namespaces; empty means all.
	Watch []string
	// LeaderElect lets one of several operators work.
	LeaderElect bool
	Admin       string
	// Webhook is the address where the API server asks about manifests; empty means it doesn't.
	Webhook string
	Out     io.Writer
	Logger  *slog.Logger
}

// direct returns the Gateway past our own, and the pods that it is made of; neither without one.
func (cfg *OperatorConfig) direct() (types.NamespacedName, []kube.PodSelector, error) {
	if cfg.DirectGateway == "" {
		return types.NamespacedName{}, nil, nil
	}
	namespace, name, ok := strings.Cut(cfg.DirectGateway, "/")
	if !ok || namespace == "" || name == "" {
		return types.NamespacedName{}, nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("--direct-gateway %q: want namespace/name of a Gateway", cfg.DirectGateway))
	}
	from := []kube.PodSelector{{Namespace: cmp.Or(cfg.DirectFrom, namespace)}}
	return types.NamespacedName{Namespace: namespace, Name: name}, from, nil
}

// gatewayLag is how much later than the operator a gateway may hear of a new route. Usually that
// is a few milliseconds; one that lost its watches has them back after a second or two.
const gatewayLag = 5 * time.Second

// Operator reconciles a cluster until ctx ends. It blocks, and has joined all it started when
// it returns.
func Operator(ctx context.Context, cfg OperatorConfig) error {
	if cfg.Image == "" {
		return errdef.New(errdef.ErrInvalid, "--image is missing: pods that pull models and the built-in runtime run this binary's own image")
	}
	images, err := oci.Parse(cfg.OCIDelivery)
	if err != nil {
		return errdef.New(errdef.ErrInvalid, "--oci-delivery: "+err.Error())
	}
	config, err := clusterConfig(cfg.Kubeconfig, cfg.Logger)
	if err != nil {
		return err
	}
	ctrllog.SetLogger(logr.FromSlogHandler(cfg.Logger.Handler()))
	ln, err := listen("--admin", cfg.Admin)
	if err != nil {
		return err
	}
	defer ln.Close()
	direct, from, err := cfg.direct()
	if err != nil {
		return err
	}
	var webhook net.Listener
	if cfg.Webhook != "" {
		if webhook, err = listen("--webhook", cfg.Webhook); err != nil {
			return err
		}
		defer webhook.Close()
	}
	var controller *control.Controller
	platform, err := kube.New(config, kube.Config{
		Revisions: func(ctx context.Context, k spec.RevisionKey) (*revisionObject, error) {
			return controller.Revision(ctx, k)
		},
		Service: func(ctx context.Context, k spec.ServiceKey) (*v1beta1.InferenceService, error) {
			return controller.Service(ctx, k)
		},
		Image:       cfg.Image,
		Images:      images,
		GatewayHost: cfg.Gateway + "." + cfg.Namespace + ".svc.cluster.local",
		GatewayPods: append([]kube.PodSelector{
			{Namespace: cfg.Namespace, Labels: map[string]string{"app": cfg.Gateway}},
			// For the metrics of engines.
			{Namespace: cfg.Namespace, Labels: map[string]string{"app": cfg.Operator}},
		}, from...),
		Namespaces: cfg.Watch,
		Logger:     cfg.Logger,
	})
	if err != nil {
		return err
	}
	var board demand.Board
	var ledger demand.Ledger
	watch := modelwatch.New(cfg.Logger)
	var adapters lora.Board
	var table state.Topic[route.Table]
	settings := control.Config{
		Models: watch,
		Domain: cfg.Domain,
		HTTP:   net.JoinHostPort(cfg.Domain, fmt.Sprint(cfg.HTTPPort)), GRPC: net.JoinHostPort(cfg.Domain, fmt.Sprint(cfg.GRPCPort)),
		ComponentAddress: func(k spec.ServiceKey, c spec.Component) string {
			return manifest.ComponentName(k.Name, c) + "." + k.Namespace
		},
		Drain:         gatewayLag,
		Scaling:       &board,
		Evidence:      &ledger,
		Adapters:      &adapters,
		Namespaces:    cfg.Watch,
		Logger:        cfg.Logger,
		GatewayHost:   cfg.Gateway + "." + cfg.Namespace + ".svc.cluster.local",
		DirectGateway: direct,
	}
	if cfg.LeaderElect {
		settings.Leader = &control.Leader{Namespace: cfg.Namespace, Lease: leaseOf(cfg.Watch)}
	}
	controller = control.New(settings, platform, &table)

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(scalingMetrics{board: &board})
	var ready atomic.Bool
	g := newGroup(context.WithoutCancel(ctx), cfg.Logger)
	defer g.stop()
	g.run("admin", func(ctx context.Context) error {
		// The controllers' own: queues, reconciles, and what was asked of the API server.
		return admin.Serve(ctx, ln, admin.Config{Metrics: prometheus.Gatherers{ctrlmetrics.Registry, metrics}, Ready: whether(&ready)})
	})
	if err := shipCatalogue(ctx, config, cfg.Logger); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if webhook != nil {
		hook, err := newWebhook(config, cfg, direct.Name != "", platform.Try, controller.Readers)
		if err != nil {
			return err
		}
		g.run("webhook", func(ctx context.Context) error { return hook.Run(ctx, webhook) })
		if !await(ctx, hook.Tried(), g) {
			return g.err()
		}
	}
	g.run("platform", platform.Run)
	if !await(ctx, platform.Synced(), g) {
		return g.err()
	}
	g.run("control", func(ctx context.Context) error { return controller.Run(ctx, config) })
	// Where another operator leads, the board stays empty and nothing is decided here.
	autoscaler := autoscale.New(&board, cfg.Logger)
	g.run("autoscale", autoscaler.Run)
	g.run("measure", measure.New(&board, nil, cfg.Logger).Run)
	g.run("models", watch.Run)
	// Where another operator leads, the table stays empty.
	g.run("adapters", adaptersOfCluster(&adapters, &table, cfg.Logger).Run)
	load := newGateways(cfg.Namespace, cfg.Gateway, reporters{autoscaler, &ledger}, cfg.Logger)
	g.run("load", func(ctx context.Context) error { return load.run(ctx, config) })
	ready.Store(true)
	fmt.Fprintf(cfg.Out, "ready admin=%s\n", ln.Addr())
	return untilEnd(ctx, g)
}

// GatewayConfig is what `gateway` was asked for.
type GatewayConfig struct {
	Kubeconfig string
	Domain     string
	// Watch restricts the gateway to the services of some namespaces; empty means all.
	Watch             []string
	HTTP, GRPC, Admin string
	HTTPS, GRPCS      string
	TLSCert, TLSKey   string
	MaxBodyBytes      int64
	RequestTimeout    time.Duration
	// OpenAIPrefix is what may stand before /v1 in the OpenAI API's paths; empty means "/openai".
	OpenAIPrefix string
	// ShutdownDelay is how long it goes on accepting after it was told to end, so that those
	// who send to it hear of it first.
	ShutdownDelay time.Duration
	// Pickers are the endpoint pickers that it is, too. Their certificate is the gateway's, if any.
	Pickers Pickers
	Version string
	Out     io.Writer
	Logger  *slog.Logger
}

// Gateway serves a cluster's services until ctx ends, then drains. It blocks, and has joined
// all it started when it returns.
func Gateway(ctx context.Context, cfg GatewayConfig) error {
	config, err := clusterConfig(cfg.Kubeconfig, cfg.Logger)
	if err != nil {
		return err
	}
	ctrllog.SetLogger(logr.FromSlogHandler(cfg.Logger.Handler()))
	metrics := newRegistry()
	var table state.Topic[route.Table]
	var load state.Topic[demand.Report]
	stores := objectstore.NewStores(secretsOf(func() *rest.Config { return config }), nil)
	defer stores.Close()
	var samples state.Topic[pick.Samples]
	var adapters state.Topic[lora.Known]
	var lengths state.Topic[limits.Known]
	gw := gateway.Config{
		Table: &table, Demand: &load, Adapters: &adapters, Logger: cfg.Logger, Metrics: metrics, MaxBody: cfg.MaxBodyBytes, Version: cfg.Version,
		Timeouts: gateway.Timeouts{Response: cfg.RequestTimeout},
		OpenAI:   gateway.OpenAI{Root: cfg.OpenAIPrefix},
		Objects:  stores,
		Samples:  &samples,

		ContextLengths: &lengths,
	}
	listeners := []struct {
		flag, addr string
		ln         *net.Listener
	}{{"--http", cfg.HTTP, &gw.HTTP}, {"--grpc", cfg.GRPC, &gw.GRPC}}
	if cfg.TLSCert != "" {
		if gw.TLS, err = serverTLS(cfg.TLSCert, cfg.TLSKey); err != nil {
			return err
		}
		listeners = append(listeners, []struct {
			flag, addr string
			ln         *net.Listener
		}{{"--https", cfg.HTTPS, &gw.HTTPS}, {"--grpcs", cfg.GRPCS, &gw.GRPCS}}...)
	}
	for _, l := range listeners {
		ln, err := listen(l.flag, l.addr)
		if err != nil {
			return err
		}
		defer ln.Close()
		*l.ln = ln
	}
	side, err := listen("--admin", cfg.Admin)
	if err != nil {
		return err
	}
	defer side.Close()
	server, err := gateway.New(gw)
	if err != nil {
		return err
	}
	pods, err := kube.NewObserver(config, cfg.Watch...)
	if err != nil {
		return err
	}
	follower, err := follow.New(follow.Config{
		API: config, Domain: cfg.Domain, Namespaces: cfg.Watch, Replicas: pods, Table: &table, Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}

	cfg.Pickers.TLSCert, cfg.Pickers.TLSKey, cfg.Pickers.MaxBodyBytes = cfg.TLSCert, cfg.TLSKey, cfg.MaxBodyBytes
	pickers, err := newPickers(cfg.Pickers, func() (*rest.Config, error) { return config, nil }, metrics, cfg.Logger)
	if err != nil {
		return err
	}
	defer pickers.close()

	sampler := measure.NewSampler(&table, cfg.Logger)
	metrics.MustRegister(sampler)
	var ready atomic.Bool
	back := newGroup(context.WithoutCancel(ctx), cfg.Logger)
	front := newGroup(back.ctx, cfg.Logger)
	defer back.stop()
	defer front.stop()
	back.run("admin", func(ctx context.Context) error {
		return admin.Serve(ctx, side, admin.Config{Metrics: metrics, Ready: whether(&ready), Demand: &load, Engines: sampler.Pages()})
	})
	// They need nothing of ours on the cluster, and tell of their readiness by themselves.
	pickers.run(front, back)
	back.run("pods", pods.Run)
	if !await(ctx, pods.Synced(), back) {
		return back.err()
	}
	back.run("follow", follower.Run)
	if !await(ctx, follower.Synced(), back) {
		return back.err()
	}
	// The operator has adapters loaded; this one only asks for those that there are.
	front.run("adapters", keeper.New(keeper.Config{Table: &table, Known: &adapters, Logger: cfg.Logger}).Run)
	front.run("gateway", server.Run)
	back.run("sample", sampler.Run)
	back.run("limits", limits.New(&table, &lengths, cfg.Logger).Run)
	back.run("samples", func(ctx context.Context) error { return tellPicks(ctx, sampler, &samples) })
	ready.Store(true)
	a := server.Addrs()
	fmt.Fprintf(cfg.Out, "ready http=%s grpc=%s %sadmin=%s\n", a.HTTP, a.GRPC, pickers, side.Addr())
	if err := untilEnd(ctx, front, back); err != nil {
		return err
	}
	ready.Store(false)
	fmt.Fprintln(cfg.Out, "stopping: draining requests")
	select {
	case <-time.After(cfg.ShutdownDelay):
	case <-front.ctx.Done():
	}
	return nil
}

// untilEnd waits for ctx, which is no error, or for a group that ended by itself.
func untilEnd(ctx context.Context, groups ...*group) error {
	await(ctx, nil, groups...)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // being told to end is no error
	}
	var err error
	for _, g := range groups {
		err = cmp.Or(err, g.err())
	}
	return err
}

func whether(ready *atomic.Bool) func() error {
	return func() error {
		if !ready.Load() {
			return errors.New("starting, or stopping")
		}
		return nil
	}
}

// clusterConfig finds the cluster: a kubeconfig that is named, the pod's own account, or where
// kubectl looks.
func clusterConfig(kubeconfig string, log *slog.Logger) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf(
			"no cluster to work on: %v; run in a pod, set KUBECONFIG, or name a file with --kubeconfig", err))
	}
	// The server's own fairness bounds us; the client's old default of 5 a second is for people.
	config.QPS, config.Burst = 200, 400
	config.UserAgent = "stationmaster"
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return patient{next: next, log: log} })
	return config, nil
}

// shipCatalogue brings the shipped runtimes onto the cluster, once it knows the kinds that the
// operator works on.
func shipCatalogue(ctx context.Context, config *rest.Config, log *slog.Logger) error {
	sch, err := control.Scheme()
	if err != nil {
		return err
	}
	c, err := client.New(config, client.Options{Scheme: sch})
	if err != nil {
		return fmt.Errorf("make API client: %w", err)
	}
	if err := awaitKinds(ctx, c, log); err != nil {
		return err
	}
	return untilDone(ctx, func() error { return applyCatalogue(ctx, c) }, func(err error) {
		log.WarnContext(ctx, "the shipped runtimes can't be applied yet; trying until they can", "err", err)
	})
}

// untilDone calls try until it succeeds, or ctx ends, which is the error then. An API server that
// has just come back refuses much for a moment; to end would have the cluster start the operator anew,
// each time after a longer pause. told gets the first failure.
func untilDone(ctx context.Context, try func() error, told func(error)) error {
	for first := true; ; first = false {
		err := try()
		if err == nil {
			return nil
		}
		if first {
			told(err)
		}
		select {
		case <-time.After(tryAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tryAgain is how long to wait before asking a cluster again for what it doesn't give yet.
const tryAgain = 500 * time.Millisecond

// awaitKinds waits until the cluster serves the kinds that the operator works on: on a first
// installation it may start before them, or before the API server answers.
func awaitKinds(ctx context.Context, c client.Client, log *slog.Logger) error {
	for _, kind := range []client.Object{
		&v1beta1.InferenceService{}, &v1alpha1.ServingRuntime{}, &v1alpha1.ClusterServingRuntime{}, &v1alpha1.InferenceGraph{}, &smv1alpha1.Revision{}, &smv1alpha1.Route{},
	} {
		gvk, err := c.GroupVersionKindFor(kind)
		if err != nil {
			return fmt.Errorf("BUG: %w", err)
		}
		err = untilDone(ctx, func() error {
			_, err := c.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
			return err
		}, func(err error) {
			log.WarnContext(ctx, "the cluster doesn't serve a kind yet; asking until it does", "kind", gvk.Kind, "err", err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
