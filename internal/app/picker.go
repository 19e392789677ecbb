package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"stationmaster.dev/stationmaster/internal/admin"
	"stationmaster.dev/stationmaster/internal/admission/certificate"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/extproc"
	"stationmaster.dev/stationmaster/internal/extproc/pool"
	"stationmaster.dev/stationmaster/internal/extproc/watch"
	"stationmaster.dev/stationmaster/internal/measure"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// Pickers is which endpoint pickers a process is asked to be, each on an address of its own: that is
// how every proxy can tell one pool from another.
type Pickers struct {
	// Pools are InferencePools ("namespace/name=address"), Endpoints pools that are known without a
	// cluster ("ip:port,ip:port=address").
	Pools, Endpoints []string
	// Picking is how endpoints of a pool are chosen that doesn't say; empty means the default.
	Picking string
	// Limit is how many requests an endpoint may have under way; 0 means no limit.
	Limit int
	// Fallback has proxies told of a second endpoint.
	Fallback bool
	// Plaintext serves without TLS. Else TLSCert and TLSKey name PEM files, or are both empty for a
	// certificate that is made at the start: proxies don't check it.
	Plaintext       bool
	TLSCert, TLSKey string
	MaxBodyBytes    int64
}

// PickerConfig is what `endpoint-picker` was asked for.
type PickerConfig struct {
	Pickers
	Kubeconfig, Admin string
	// ShutdownDelay is how long it goes on accepting after it was told to end.
	ShutdownDelay time.Duration
	Out           io.Writer
	Logger        *slog.Logger
}

// EndpointPicker serves as endpoint picker until ctx ends, then drains. It blocks, and has joined all
// it started when it returns.
func EndpointPicker(ctx context.Context, cfg PickerConfig) error {
	if len(cfg.Pools)+len(cfg.Endpoints) == 0 {
		return errdef.New(errdef.ErrInvalid, "no pool is named: name one with --pool namespace/name=:9002, or addresses with --endpoints")
	}
	ctrllog.SetLogger(logr.FromSlogHandler(cfg.Logger.Handler()))
	metrics := newRegistry()
	p, err := newPickers(cfg.Pickers, func() (*rest.Config, error) { return clusterConfig(cfg.Kubeconfig, cfg.Logger) }, metrics, cfg.Logger)
	if err != nil {
		return err
	}
	defer p.close()
	side, err := listen("--admin", cfg.Admin)
	if err != nil {
		return err
	}
	defer side.Close()
	metrics.MustRegister(p.sampler)
	var ending atomic.Bool
	back := newGroup(context.WithoutCancel(ctx), cfg.Logger)
	front := newGroup(back.ctx, cfg.Logger)
	defer back.stop()
	defer front.stop()
	back.run("admin", func(ctx context.Context) error {
		return admin.Serve(ctx, side, admin.Config{Metrics: metrics, Engines: p.sampler.Pages(), Ready: func() error {
			if ending.Load() {
				return errors.New("stopping")
			}
			return p.ready()
		}})
	})
	p.run(front, back)
	fmt.Fprintf(cfg.Out, "ready %sadmin=%s\n", p, side.Addr())
	if err := untilEnd(ctx, front, back); err != nil {
		return err
	}
	ending.Store(true)
	fmt.Fprintln(cfg.Out, "stopping: draining requests")
	select {
	case <-time.After(cfg.ShutdownDelay):
	case <-front.ctx.Done():
	}
	return nil
}

// pickers are the endpoint pickers of a process.
type pickers struct {
	all []*onePicker
	// table has the pools as services, whose engines are looked at.
	table   state.Topic[route.Table]
	samples state.Topic[pick.Samples]
	sampler *measure.Sampler
}

// onePicker is that of one pool; watcher is nil where the pool never changes.
type onePicker struct {
	name    string
	pool    state.Topic[pool.Pool]
	ln      net.Listener
	server  *extproc.Server
	watcher *watch.Watcher
}

// newPickers opens the listeners; close closes them. cluster is asked only where a pool is one of a
// cluster.
func newPickers(o Pickers, cluster func() (*rest.Config, error), metrics prometheus.Registerer, log *slog.Logger) (out *pickers, err error) {
	if _, err := pick.Parse(o.Picking, true); err != nil {
		return nil, fmt.Errorf("read how to pick: %w", err)
	}
	p := &pickers{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	p.sampler = measure.NewSampler(&p.table, log)
	if len(o.Pools)+len(o.Endpoints) == 0 {
		return p, nil
	}
	cfg := extproc.Config{
		Samples: &p.samples, Picking: o.Picking, Limit: o.Limit, Fallback: o.Fallback, MaxBody: o.MaxBodyBytes, Metrics: extproc.NewMetrics(), Logger: log,
	}
	if cfg.TLS, err = o.tls(time.Now()); err != nil {
		return nil, err
	}
	for _, text := range o.Endpoints {
		addresses, addr, err := at("--endpoints", text, "ip:port,ip:port=address")
		if err != nil {
			return nil, err
		}
		static, err := pool.Static(addresses)
		if err != nil {
			return nil, fmt.Errorf("read --endpoints: %w", err)
		}
		one := &onePicker{name: addresses}
		one.pool.Publish(static)
		if err := p.add(one, "--endpoints", addr, cfg); err != nil {
			return nil, err
		}
	}
	for _, text := range o.Pools {
		name, addr, err := at("--pool", text, "namespace/name=address")
		if err != nil {
			return nil, err
		}
		var key spec.ServiceKey
		var ok bool
		if key.Namespace, key.Name, ok = strings.Cut(name, "/"); !ok || key.Namespace == "" || key.Name == "" {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("--pool %q: want namespace/name of an InferencePool, then = and an address", text))
		}
		config, err := cluster()
		if err != nil {
			return nil, err
		}
		one := &onePicker{name: name}
		if one.watcher, err = watch.New(config, key, &one.pool, log); err != nil {
			return nil, err
		}
		if err := p.add(one, "--pool", addr, cfg); err != nil {
			return nil, err
		}
	}
	metrics.MustRegister(cfg.Metrics)
	return p, nil
}

// at cuts "what=address".
func at(flag, text, want string) (what, addr string, err error) {
	i := strings.LastIndexByte(text, '=')
	if i <= 0 {
		return "", "", errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s %q: want %s", flag, text, want))
	}
	return text[:i], text[i+1:], nil
}

func (p *pickers) add(one *onePicker, flag, addr string, cfg extproc.Config) (err error) {
	if one.ln, err = listen(flag, addr); err != nil {
		return err
	}
	cfg.Pool = &one.pool
	one.server = extproc.New(cfg)
	p.all = append(p.all, one)
	return nil
}

// tls is what the pickers show of themselves, nil for nothing.
func (o *Pickers) tls(now time.Time) (*tls.Config, error) {
	switch {
	case o.Plaintext:
		return nil, nil //nolint:nilnil // without TLS is no error and has no configuration
	case o.TLSCert != "":
		config, err := serverTLS(o.TLSCert, o.TLSKey)
		if err != nil {
			return nil, err
		}
		config.NextProtos = []string{"h2"}
		return config, nil
	}
	set, _, err := certificate.Renew(certificate.Set{}, []string{"stationmaster-endpoint-picker"}, now)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(set.Leaf, set.LeafKey)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}, nil
}

// run starts the parts: in front those that answer, in the back those that they know things from.
func (p *pickers) run(front, back *group) {
	if len(p.all) == 0 {
		return
	}
	changed := make(chan struct{}, 1)
	for _, one := range p.all {
		if one.watcher != nil {
			back.run("pool "+one.name, one.watcher.Run)
		}
		back.run("table of "+one.name, func(ctx context.Context) error {
			for {
				_, newer := one.pool.Watch()
				select {
				case changed <- struct{}{}:
				default:
				}
				select {
				case <-newer:
				case <-ctx.Done():
					return nil
				}
			}
		})
		front.run("endpoint picker of "+one.name, func(ctx context.Context) error { return one.server.Run(ctx, one.ln) })
	}
	back.run("pools", func(ctx context.Context) error {
		for {
			select {
			case <-changed:
				p.table.Publish(route.Compile(p.lines()))
			case <-ctx.Done():
				return nil
			}
		}
	})
	back.run("pool samples", p.sampler.Run)
	back.run("pool picks", func(ctx context.Context) error { return tellPicks(ctx, p.sampler, &p.samples) })
}

func (p *pickers) lines() []route.Service {
	var out []route.Service
	for _, one := range p.all {
		if latest := one.pool.Load(); latest != nil {
			out = append(out, latest.Line())
		}
	}
	return out
}

// ready says why a pool isn't known.
func (p *pickers) ready() error {
	for _, one := range p.all {
		switch latest := one.pool.Load(); {
		case latest == nil:
			return fmt.Errorf("pool %s isn't known yet", one.name)
		case !latest.Known:
			return fmt.Errorf("pool %s: %s", one.name, latest.Problem)
		}
	}
	return nil
}

// String names the pools with where they are picked from, each with a space behind.
func (p *pickers) String() string {
	var b strings.Builder
	for _, one := range p.all {
		fmt.Fprintf(&b, "pool=%s@%s ", one.name, one.ln.Addr())
	}
	return b.String()
}

func (p *pickers) close() {
	for _, one := range p.all {
		one.ln.Close()
	}
}
