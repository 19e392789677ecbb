package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/config/crd"
	"stationmaster.dev/stationmaster/internal/admin"
	"stationmaster.dev/stationmaster/internal/autoscale"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/control"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/kubeapi"
	"stationmaster.dev/stationmaster/internal/limits"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/lora/keeper"
	"stationmaster.dev/stationmaster/internal/measure"
	"stationmaster.dev/stationmaster/internal/modelstore"
	"stationmaster.dev/stationmaster/internal/modelwatch"
	"stationmaster.dev/stationmaster/internal/objectstore"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/platform/local"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/state"
)

// applyWait is how long `up --apply` waits for the applied services before it says ready
// all the same.
const applyWait = 60 * time.Second

// standalone is everything that `up` runs, as it is being built.
type standalone struct {
	cfg        Config
	table      state.Topic[route.Table]
	load       state.Topic[demand.Report]
	board      demand.Board
	metrics    *prometheus.Registry
	http       *listenerSet
	gateway    *gateway.Gateway
	admin      net.Listener
	api        *kubeapi.Server
	store      *modelstore.Store
	stores     *objectstore.Stores
	watch      *modelwatch.Watch
	platform   *local.Platform
	control    *control.Controller
	autoscaler *autoscale.Loop
	meter      *measure.Meter
	sampler    *measure.Sampler
	samples    state.Topic[pick.Samples]
	lengths    state.Topic[limits.Known]
	lora       lora.Board
	adapters   *keeper.Keeper
	ledger     demand.Ledger
	token      string
	lazy       *lazyClient
	ready      atomic.Bool
}

// Standalone runs everything on one machine until ctx ends, then drains: the gateway first,
// then the controllers, the engines and the API. It blocks, and has joined all it started
// when it returns. Errors are errdef.ErrConflict for an address or data dir in use, ErrInvalid
// and ErrNotFound for what was asked; else a part's own.
func Standalone(ctx context.Context, cfg Config) error {
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return fmt.Errorf("data dir %s: %w", cfg.DataDir, err)
	}
	cfg.DataDir = dir
	objects, err := readAll(cfg.Apply)
	if err != nil {
		return err
	}
	lock, err := lockDataDir(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	s := &standalone{cfg: cfg, metrics: newRegistry()}
	if err := s.build(); err != nil {
		s.close()
		return err
	}
	defer s.close()
	return s.run(ctx, objects)
}

// build opens every listener and makes every part; it starts none but what accepts.
func (s *standalone) build() error {
	first, err := listen("--http", s.cfg.HTTP)
	if err != nil {
		return err
	}
	s.http = newListenerSet(first, s.cfg.Logger)
	s.stores = objectstore.NewStores(secretsOf(func() *rest.Config { return s.api.RESTConfig() }), ownCredentials)
	gw := gateway.Config{
		HTTP: s.http, Table: &s.table, Demand: &s.load, Adapters: &s.lora.Known, Logger: s.cfg.Logger, Metrics: s.metrics,
		MaxBody: s.cfg.MaxBodyBytes, Version: s.cfg.Version,
		Timeouts: gateway.Timeouts{Response: s.cfg.RequestTimeout},
		OpenAI:   gateway.OpenAI{Root: s.cfg.OpenAIPrefix},
		Objects:  s.stores,
		Samples:  &s.samples,

		ContextLengths: &s.lengths,
	}
	if gw.GRPC, err = listen("--grpc", s.cfg.GRPC); err != nil {
		return err
	}
	if s.cfg.TLSCert != "" {
		if gw.TLS, err = serverTLS(s.cfg.TLSCert, s.cfg.TLSKey); err != nil {
			return err
		}
		if gw.HTTPS, err = listen("--https", s.cfg.HTTPS); err != nil {
			return err
		}
		if gw.GRPCS, err = listen("--grpcs", s.cfg.GRPCS); err != nil {
			return err
		}
	}
	if s.admin, err = listen("--admin", s.cfg.Admin); err != nil {
		return err
	}
	if s.token, err = admin.WriteAccess(s.cfg.DataDir, s.admin.Addr().String()); err != nil {
		return err
	}
	if s.gateway, err = gateway.New(gw); err != nil {
		return err
	}
	crds, err := crd.Slim()
	if err != nil {
		return err
	}
	// The admission is asked only once the API answers, when s.api is set.
	s.lazy = &lazyClient{config: func() *rest.Config { return s.api.RESTConfig() }}
	s.api, err = kubeapi.New(kubeapi.Config{
		DataDir: s.cfg.DataDir, Listen: s.cfg.API, Logger: s.cfg.Logger, CRDs: crds,
		Admission: embeddedAdmission{api: s.lazy},
	})
	if err != nil {
		return err
	}
	return s.buildPlatform()
}

// ofDefault says that a namespace's credentials are in the secrets that its service account default
// lists.
func ofDefault(namespace string) objectstore.Source {
	return objectstore.Source{Namespace: namespace, ServiceAccount: "default"}
}

func (s *standalone) buildPlatform() error {
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this executable: %w", err)
	}
	web, sources := httpOf(s.stores, ofDefault), bucketSources(s.stores, ofDefault)
	if err := addImages(sources, web, ownRegistryKeys(os.Getenv)); err != nil {
		return err
	}
	s.store, err = modelstore.Open(modelstore.Config{
		Dir: filepath.Join(s.cfg.DataDir, "models"), PVCDir: filepath.Join(s.cfg.DataDir, "pvc"), Base: cwd, Logger: s.cfg.Logger,
		HTTP: web, Sources: sources,
	})
	if err != nil {
		return fmt.Errorf("open model store: %w", err)
	}
	s.platform, err = local.New(local.Config{
		Dir: s.cfg.DataDir, Self: self, Path: s.cfg.Path, Models: models{s.store},
		Objects: &objects{api: s.lazy}, Logger: s.cfg.Logger,
	})
	if err != nil {
		return fmt.Errorf("open local platform: %w", err)
	}
	port := s.http.Addr().(*net.TCPAddr).Port
	s.watch = modelwatch.New(s.cfg.Logger)
	s.control = control.New(control.Config{
		Models: s.watch,
		Domain: s.cfg.Domain, HTTP: s.gateway.Addrs().HTTP, GRPC: s.gateway.Addrs().GRPC,
		ComponentAddress: newAddresses(port).of, OneMachine: true, Scaling: &s.board, Evidence: &s.ledger, Adapters: &s.lora, Logger: s.cfg.Logger,
		ModelAt: func(namespace, uri string) string {
			return modelAt(cwd, filepath.Join(s.cfg.DataDir, "pvc"), namespace, uri)
		},
	}, s.platform, &s.table)
	s.autoscaler = autoscale.New(&s.board, s.cfg.Logger)
	s.metrics.MustRegister(scalingMetrics{board: &s.board})
	s.adapters = adaptersHere(&s.lora, &s.table, s.store, filepath.Join(s.cfg.DataDir, "models"), s.cfg.Logger)
	s.meter = measure.New(&s.board, s.platform, s.cfg.Logger)
	s.sampler = measure.NewSampler(&s.table, s.cfg.Logger)
	s.metrics.MustRegister(s.sampler)
	return nil
}

// close lets go of what build opened; parts that ran have closed theirs already.
func (s *standalone) close() {
	if s.http != nil {
		_ = s.http.Close()
	}
	if s.admin != nil {
		_ = s.admin.Close()
	}
	if s.stores != nil {
		s.stores.Close()
	}
	if s.store != nil {
		if err := s.store.Close(); err != nil {
			s.cfg.Logger.Warn("close model store", "err", err)
		}
	}
}

// run starts the parts in order and stops them in the reverse one. Everything that runs is in
// this table:
//
//	api       serves objects                         reads: the data dir
//	platform  keeps engines running                  reads: assignments
//	control   objects → assignments, status, table   reads: api, platform
//	addresses opens component addresses              reads: table
//	gateway   answers requests                       reads: table
//	autoscale load → replicas                        reads: load, board
//	measure   metrics to scale on                    reads: board, platform
//	models    what replicas say of trained models    reads: control
//	sample    what engines tell of themselves        reads: table
//	limits    how many tokens engines take           reads: table
//	adapters  engines load LoRA adapters             reads: table, lora
//	admin     health and metrics                     reads: all
func (s *standalone) run(ctx context.Context, objects []*unstructuredObject) error {
	// Parts outlive ctx: they are stopped one after another below.
	base := context.WithoutCancel(ctx)
	back := newGroup(base, s.cfg.Logger)
	front := newGroup(back.ctx, s.cfg.Logger)
	defer back.stop()
	defer front.stop()

	back.run("api", s.api.Run)
	front.run("admin", func(ctx context.Context) error {
		return admin.Serve(ctx, s.admin, admin.Config{Metrics: s.metrics, Ready: s.readiness, Token: s.token, Logs: s.logs, Engines: s.sampler.Pages()})
	})
	select {
	case <-s.api.Ready():
	case <-back.ctx.Done():
		return back.err()
	case <-ctx.Done():
		return nil
	}
	config := s.api.RESTConfig()
	c, err := s.client(config)
	if err != nil {
		return err
	}
	if err := applyCatalogue(ctx, c); err != nil {
		return err
	}
	before, err := readyBefore(ctx, c)
	if err != nil {
		return err
	}
	engines := newGroup(back.ctx, s.cfg.Logger)
	controllers := newGroup(back.ctx, s.cfg.Logger)
	stop := func() {
		// Requests end before engines do. The controllers end before them too: what they would
		// write of the engines' going is no news of the services.
		front.stop()
		controllers.stop()
		engines.stop()
	}
	engines.run("platform", s.platform.Run)
	if !await(ctx, s.platform.Adopted(), engines, back) {
		stop()
		return cmp.Or(engines.err(), back.err())
	}
	controllers.run("control", func(ctx context.Context) error { return s.control.Run(ctx, config) })
	// Nothing is answered before the table has all that served before; until then clients that
	// connect wait.
	if !await(ctx, s.control.Synced(), controllers, engines, back) {
		stop()
		return cmp.Or(controllers.err(), engines.err(), back.err())
	}
	front.run("addresses", func(ctx context.Context) error { return s.http.follow(ctx, &s.table) })
	front.run("gateway", s.gateway.Run)
	controllers.run("autoscale", s.autoscaler.Run)
	controllers.run("measure", s.meter.Run)
	controllers.run("models", s.watch.Run)
	controllers.run("sample", s.sampler.Run)
	controllers.run("limits", limits.New(&s.table, &s.lengths, s.cfg.Logger).Run)
	controllers.run("samples", func(ctx context.Context) error { return tellPicks(ctx, s.sampler, &s.samples) })
	controllers.run("adapters", s.adapters.Run)
	controllers.run("load", func(ctx context.Context) error { return followLoad(ctx, &s.load, reporters{s.autoscaler, &s.ledger}) })

	err = s.serve(ctx, c, objects, before, back, engines, controllers, front)
	stop()
	return err
}

// await reports whether ready was closed before ctx or a group ended.
func await(ctx context.Context, ready <-chan struct{}, groups ...*group) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, g := range groups {
		defer context.AfterFunc(g.ctx, cancel)()
	}
	select {
	case <-ready:
		return true
	case <-ctx.Done():
		return false
	}
}

// serve applies what was asked, says ready, and waits for the end. Before are the services that
// were ready in an earlier run.
func (s *standalone) serve(ctx context.Context, c client.Client, objects []*unstructuredObject, before []client.ObjectKey, groups ...*group) error {
	restarted := time.Now()
	if err := applyAll(ctx, c, objects, s.cfg.Out); err != nil {
		return err
	}
	s.waitReady(ctx, c, objects)
	s.waitRouted(ctx, c, without(before, objects), restarted.Add(restartWait))
	if ctx.Err() == nil {
		s.ready.Store(true)
		s.sayReady()
	}
	ended := make(chan *group, len(groups))
	stop := make([]func() bool, len(groups))
	for i, g := range groups {
		stop[i] = context.AfterFunc(g.ctx, func() { ended <- g })
	}
	defer func() {
		for _, f := range stop {
			f()
		}
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(s.cfg.Out, "stopping: draining requests, then engines")
		return nil
	case g := <-ended:
		return g.err()
	}
}

func (s *standalone) sayReady() {
	a := s.gateway.Addrs()
	line := fmt.Sprintf("ready http=%s grpc=%s api=https://%s admin=%s kubeconfig=%s", a.HTTP, a.GRPC, s.api.Addr(), s.admin.Addr(), s.api.KubeconfigPath())
	if a.HTTPS != "" {
		line += fmt.Sprintf(" https=%s grpcs=%s", a.HTTPS, a.GRPCS)
	}
	fmt.Fprintln(s.cfg.Out, line)
}

func (s *standalone) logs(ctx context.Context, q admin.LogQuery) (io.ReadCloser, error) {
	return s.platform.Logs(ctx, q.Service, local.LogOptions{
		Component: q.Component, Container: q.Container, Replica: q.Replica, Tail: q.Tail, Previous: q.Previous, Follow: q.Follow,
	})
}

func (s *standalone) readiness() error {
	if !s.ready.Load() {
		return errors.New("starting")
	}
	return nil
}

func (s *standalone) client(config *rest.Config) (client.Client, error) {
	sch, err := control.Scheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: sch})
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	return c, nil
}

// readAll reads every manifest before anything starts, so that a mistake is said at once.
func readAll(paths []string) ([]*unstructuredObject, error) {
	var out []*unstructuredObject
	for _, p := range paths {
		objects, err := readManifests(p)
		if err != nil {
			return nil, err
		}
		out = append(out, objects...)
	}
	return out, nil
}

// applyCatalogue makes the shipped runtimes what this binary ships; a runtime whose content is
// already that is left alone, so that a restart writes nothing.
func applyCatalogue(ctx context.Context, c client.Client) error {
	runtimes, err := catalogue.Runtimes()
	if err != nil {
		return err
	}
	// The store syncs each write to disk; together they share the syncs.
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, r := range runtimes {
		group.Go(func() error {
			if err := ensureRuntime(ctx, c, r); err != nil {
				return fmt.Errorf("apply shipped runtime %s: %w", r.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}
