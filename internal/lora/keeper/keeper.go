package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// Config is what a keeper needs. Table and Known are required.
type Config struct {
	// Table says which replicas there are, and which of them speak the OpenAI API.
	Table *state.Topic[route.Table]
	// Known is where it publishes what it learns.
	Known *state.Topic[lora.Known]
	// Wanted are the adapters to load. Nil means that somebody else has them loaded, and this keeper
	// only asks; while nothing is published nothing is unloaded either.
	Wanted *state.Topic[lora.Wanted]
	// Fetch returns the path by which an engine finds an adapter's bytes, which stay there until
	// release. It is needed with Wanted, and may be called by several goroutines.
	Fetch func(ctx context.Context, namespace, uri string) (path string, release func(), err error)
	// Ours reports whether an adapter that an engine has from somewhere was loaded by a keeper, maybe
	// one before this; nil leaves those alone that this one didn't load.
	Ours func(root string) bool
	// Every is how often engines are asked, about; 0 means 10 s. One that has no list of models is
	// asked ever more seldom, up to 32 times that.
	Every  time.Duration
	Logger *slog.Logger
}

const (
	defaultEvery = 10 * time.Second
	// mostMisses bounds how often the time until the next question doubles.
	mostMisses = 5
)

// Keeper keeps the adapters of all replicas. Make it with New and drive it with Run.
type Keeper struct {
	cfg    Config
	client *http.Client

	mu    sync.Mutex
	known lora.Known
}

// New makes a keeper; it starts nothing.
func New(cfg Config) *Keeper {
	if cfg.Every == 0 {
		cfg.Every = defaultEvery
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Keeper{cfg: cfg, client: newClient(enginetls.Security{}), known: lora.Known{}}
}

// place is where an engine speaks the OpenAI API.
type place struct {
	address, root string
	service       spec.ServiceKey
	security      enginetls.Security
}

// Run keeps adapters until ctx ends, and returns nil; it has joined all it started then.
func (k *Keeper) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer k.client.CloseIdleConnections()
	defer workers.Wait()
	defer cancel()
	running := map[place]context.CancelFunc{}
	for {
		table, changed := k.cfg.Table.Watch()
		there := places(table)
		for p, stop := range running {
			if !there[p] {
				stop()
				delete(running, p)
				k.forget(p.address)
			}
		}
		for p := range there {
			if running[p] == nil {
				own, stop := context.WithCancel(ctx)
				running[p] = stop
				workers.Go(func() { k.keep(own, p) })
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// places are those of the ready replicas of predictors.
func places(t *route.Table) map[place]bool {
	out := map[place]bool{}
	if t == nil {
		return out
	}
	for _, s := range t.Services() {
		if s.Graph != nil {
			continue
		}
		for _, target := range t.BackendOf(s, spec.Predictor).Targets {
			if target.OpenAI == "" {
				continue
			}
			for _, e := range target.Endpoints {
				if e.HTTP != "" {
					out[place{e.HTTP, strings.TrimSuffix(target.OpenAI, "/"), s.Key, e.Security}] = true
				}
			}
		}
	}
	return out
}

// replica is one keeper's work on one replica.
type replica struct {
	*Keeper
	place
	engine engine
	// held are the adapters whose bytes were fetched, by name.
	held map[string]*holding
	// stale are the releases of what is needed until it is unloaded.
	stale []func()
	// said is what was last logged as wrong with an adapter, by name.
	said map[string]string
}

// holding is an adapter's bytes, in place for an engine.
type holding struct {
	want    lora.Want
	path    string
	release func()
}

// keep asks one replica, and has it load what it lacks, until ctx ends.
func (k *Keeper) keep(ctx context.Context, p place) {
	r := &replica{Keeper: k, place: p, held: map[string]*holding{}, engine: engine{client: k.client, base: p.security.Scheme() + "://" + p.address, root: p.root}, said: map[string]string{}}
	if p.security.On() {
		r.engine.client = newClient(p.security)
		defer r.engine.client.CloseIdleConnections()
	}
	defer func() {
		for _, h := range r.held {
			h.release()
		}
		r.releaseStale()
	}()
	misses := 0
	for {
		var told <-chan struct{}
		var wanted *lora.Wanted
		if k.cfg.Wanted != nil {
			wanted, told = k.cfg.Wanted.Watch()
		}
		misses++
		if err := r.sync(ctx, wanted); !errors.Is(err, errNoList) {
			misses = 0
		}
		every := k.cfg.Every << min(misses, mostMisses)
		timer := time.NewTimer(every/2 + rand.N(every)) //nolint:gosec // only spreads the load
		select {
		case <-told:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// sync brings one replica to what is wanted, as far as it can, and tells what it has. It returns what kept
// it from knowing that.
func (r *replica) sync(ctx context.Context, wanted *lora.Wanted) error {
	have, err := r.engine.list(ctx)
	if err != nil {
		r.cfg.Logger.DebugContext(ctx, "ask an engine for its adapters", "service", r.service, "address", r.address, "err", err)
		return err // what was known of it stays so
	}
	if wanted == nil {
		r.tell(ctx, lora.Replica{Service: r.service, Adapters: have})
		return nil
	}
	wants := map[string]lora.Want{}
	for _, w := range (*wanted)[r.service] {
		wants[w.Name] = w
	}
	out := lora.Replica{Service: r.service, Problems: map[string]string{}}
	load, drop := r.plan(ctx, have, wants, out.Problems)
	// Nobody is sent to an adapter that is about to go.
	for _, a := range have {
		if !drop[a.Name] {
			out.Adapters = append(out.Adapters, a)
		}
	}
	r.tell(ctx, out)
	defer r.releaseStale()
	maps.DeleteFunc(r.said, func(name, _ string) bool { _, wanted := wants[name]; return !wanted && !drop[name] })
	if len(load) == 0 && len(drop) == 0 {
		return nil
	}
	r.change(ctx, load, drop, wants, out.Problems)
	if have, err = r.engine.list(ctx); err != nil {
		return err
	}
	out.Adapters = have
	r.tell(ctx, out)
	return nil
}

// warn logs what keeps an adapter from being loaded or unloaded, once until that changes.
func (r *replica) warn(ctx context.Context, what, name string, err error) {
	level := slog.LevelWarn
	if said := what + ": " + err.Error(); r.said[name] == said {
		level = slog.LevelDebug
	} else {
		r.said[name] = said
	}
	r.cfg.Logger.Log(ctx, level, what, "service", r.service, "adapter", name, "address", r.address, "err", err)
}

func (r *replica) releaseStale() {
	for _, release := range r.stale {
		release()
	}
	r.stale = nil
}

// plan says what to load and what to unload: what is wanted and not there, or there from elsewhere;
// and what is there, was wanted or loaded by a keeper, and isn't wanted now.
func (r *replica) plan(ctx context.Context, have []lora.Adapter, wants map[string]lora.Want, problems map[string]string) (load []*holding, drop map[string]bool) {
	there := map[string]lora.Adapter{}
	for _, a := range have {
		there[a.Name] = a
	}
	drop = map[string]bool{}
	for name, h := range r.held {
		if _, ok := wants[name]; !ok {
			if _, ok := there[name]; ok {
				drop[name] = true
			}
			r.stale = append(r.stale, h.release)
			delete(r.held, name)
		}
	}
	for _, a := range have {
		if _, ok := wants[a.Name]; !ok && r.cfg.Ours != nil && r.cfg.Ours(a.Root) {
			drop[a.Name] = true
		}
	}
	for name, w := range wants {
		h, err := r.hold(ctx, w)
		if err != nil {
			problems[name] = err.Error()
			continue
		}
		a, ok := there[name]
		switch {
		case !ok:
			load = append(load, h)
		case a.Root != "" && a.Root != h.path:
			drop[name] = true
			load = append(load, h)
		}
	}
	return load, drop
}

// hold has an adapter's bytes in place.
func (r *replica) hold(ctx context.Context, w lora.Want) (*holding, error) {
	if h := r.held[w.Name]; h != nil && h.want == w {
		return h, nil
	}
	path, release, err := r.cfg.Fetch(ctx, r.service.Namespace, w.URI)
	if err != nil {
		return nil, fmt.Errorf("fetch it: %w", err)
	}
	if old := r.held[w.Name]; old != nil {
		r.stale = append(r.stale, old.release)
	}
	h := &holding{want: w, path: path, release: release}
	r.held[w.Name] = h
	return h, nil
}

// change unloads, then loads.
func (r *replica) change(ctx context.Context, load []*holding, drop map[string]bool, wants map[string]lora.Want, problems map[string]string) {
	for name := range drop {
		if err := r.engine.unload(ctx, name); err != nil && errdef.KindOf(err) != errdef.ErrInvalid {
			r.warn(ctx, "unload an adapter", name, err)
			if _, again := wants[name]; again {
				problems[name] = err.Error()
			}
		}
	}
	for _, h := range load {
		name := h.want.Name
		if err := r.engine.load(ctx, name, h.path); err != nil {
			problems[name] = err.Error()
			r.warn(ctx, "load an adapter", name, err)
			continue
		}
		delete(r.said, name)
		r.cfg.Logger.InfoContext(ctx, "an engine loaded an adapter", "service", r.service, "adapter", name, "address", r.address)
	}
}

// tell publishes what is known of a replica, unless it is that already or the replica is gone.
func (r *replica) tell(ctx context.Context, now lora.Replica) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(now.Problems) == 0 {
		now.Problems = nil
	}
	if old, ok := r.known[r.address]; ctx.Err() != nil || ok && reflect.DeepEqual(old, now) {
		return
	}
	now.Problems = maps.Clone(now.Problems)
	next := maps.Clone(r.known)
	next[r.address] = now
	r.publish(next)
}

// forget drops a replica that is gone.
func (k *Keeper) forget(address string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.known[address]; ok {
		next := maps.Clone(k.known)
		delete(next, address)
		k.publish(next)
	}
}

func (k *Keeper) publish(next lora.Known) {
	k.known = next
	k.cfg.Known.Publish(&next)
}
