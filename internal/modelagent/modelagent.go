// Package modelagent keeps the models of an engine that has the repository API of the Open Inference
// Protocol (Triton, MLServer) to a service's list: it fetches their bytes into the engine's model
// repository, has it load and unload them, and tells how far each is. It is the command
// `stationmaster runtime agent`, which runs beside the engine.
package modelagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modellist"
)

// Config says what an agent works with. All of it is needed but Log and Class.
type Config struct {
	// List is a file in the form of KServe's models.json. It is read again when it changes.
	List string
	// Repository is the engine's model repository: a folder for each model, named by it. What the
	// agent needs for itself is in a hidden one.
	Repository string
	// Layout is how models lie in the repository.
	Layout Layout
	// Class is the MLServer implementation of models that name none themselves.
	Class string
	// Engine is the engine's "host:port" for HTTP.
	Engine string
	// Fetch brings what a URI names to a directory on the repository's disk, which stays until
	// release is called.
	Fetch func(ctx context.Context, uri string) (path string, release func(), err error)
	Log   *slog.Logger
}

const (
	// every is how often the list and the engine are looked at.
	every = time.Second
	// workers is how many models are brought at once.
	workers = 2
	// What fails is tried again after a time that doubles.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Agent is made by New and driven by Run. Its other methods are safe for concurrent use.
type Agent struct {
	cfg    Config
	log    *slog.Logger
	engine *engine
	shelf  *shelf
	nudge  chan struct{}

	mu     sync.Mutex
	read   []byte // the list as it was read last; nil before
	models map[string]*model
	busy   int
	up     bool // the engine answered when it was asked last
	caught bool // since it did, it was told of all that was on the list
}

// model is one that is on the list or in the engine. Its fields belong to the agent's mutex.
type model struct {
	want *modellist.Model // nil once it left the list
	// have is what the engine was told to load and did; nil for nothing.
	have   *modellist.Model
	lost   bool // the engine has it no more, for it was started anew
	stray  bool // an earlier agent may have left it in the repository
	busy   bool
	failed error // why want isn't have
	reason modellist.Reason
	retry  time.Time
	pause  time.Duration
}

// New checks the configuration and makes an agent, which does nothing yet. Errors are of kind
// errdef.ErrInvalid.
func New(cfg Config) (*Agent, error) {
	switch {
	case cfg.List == "" || cfg.Repository == "" || cfg.Engine == "" || cfg.Fetch == nil:
		return nil, errdef.New(errdef.ErrInvalid, "an agent needs --models_config, --repository and --engine")
	case cfg.Layout != Triton && cfg.Layout != MLServer:
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the layout %q isn't known: set --layout to %s or %s", cfg.Layout, Triton, MLServer))
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Agent{
		cfg: cfg, log: log, engine: newEngine(cfg.Engine), shelf: &shelf{root: cfg.Repository, layout: cfg.Layout, class: cfg.Class},
		nudge: make(chan struct{}, 1), models: map[string]*model{},
	}, nil
}

// Run keeps the engine to the list until ctx ends; it has joined all it started when it returns. It
// leaves models loaded: the engine ends with the replica. An error means that the repository can't
// be used.
func (a *Agent) Run(ctx context.Context) error {
	there, err := a.shelf.open()
	if err != nil {
		return err
	}
	a.mu.Lock()
	for name, have := range there {
		a.models[name] = &model{have: have, stray: have == nil}
	}
	a.mu.Unlock()
	defer a.engine.close()
	var jobs sync.WaitGroup
	defer jobs.Wait()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		a.look(ctx)
		a.work(ctx, &jobs)
		select {
		case <-tick.C:
		case <-a.nudge:
		case <-ctx.Done():
			return nil
		}
	}
}

// look reads the list and asks the engine what it has.
func (a *Agent) look(ctx context.Context) {
	raw, err := os.ReadFile(a.cfg.List)
	if err == nil {
		a.mu.Lock()
		same := a.read != nil && bytes.Equal(raw, a.read)
		a.mu.Unlock()
		if !same {
			err = a.follow(raw)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.log.WarnContext(ctx, "the list of models can't be read; the last one stays", "err", err)
	}
	ready, err := a.engine.index(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.up = err == nil
	if err != nil {
		a.log.DebugContext(ctx, "the engine doesn't answer", "err", err)
		a.caught = false
		return
	}
	there, lost := 0, 0
	for name, m := range a.models {
		if m.have != nil && !m.lost && !m.busy && !ready[name] {
			a.log.InfoContext(ctx, "the engine has a model no more", "model", name)
			m.lost, m.retry, m.pause = true, time.Time{}, 0
			lost++
		}
		if m.have != nil && !m.lost {
			there++
		}
	}
	if there == 0 && lost > 0 {
		// It may have been started anew since it was asked last; otherwise a client unloaded one.
		a.caught = false
	}
}

// note writes down what the engine has, for an agent that is started anew. It is called with the
// lock.
func (a *Agent) note() {
	have := map[string]*modellist.Model{}
	for name, m := range a.models {
		if m.have != nil {
			have[name] = m.have
		}
	}
	if err := a.shelf.note(have); err != nil {
		a.log.Warn("what the engine has can't be written down; an agent that starts anew would fetch it again", "err", err)
	}
}

// follow makes the wanted models those of a list.
func (a *Agent) follow(raw []byte) error {
	list, err := modellist.Parse(raw)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read = raw
	listed := make(map[string]bool, len(list))
	for _, w := range list {
		listed[w.Name] = true
		m := a.models[w.Name]
		if m == nil {
			m = &model{}
			a.models[w.Name] = m
		}
		if m.want == nil || *m.want != w {
			m.want, m.failed, m.retry, m.pause = &w, nil, time.Time{}, 0
		}
	}
	for name, m := range a.models {
		if !listed[name] && m.want != nil {
			m.want, m.failed, m.retry, m.pause = nil, nil, time.Time{}, 0
		}
	}
	a.log.Info("the list of models changed", "models", len(list))
	return nil
}

// work begins what there is to do.
func (a *Agent) work(ctx context.Context, jobs *sync.WaitGroup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.read == nil || !a.up {
		return
	}
	now, behind := time.Now(), false
	for _, name := range slices.Sorted(maps.Keys(a.models)) {
		m := a.models[name]
		if m.want == nil && m.have == nil && !m.stray && !m.busy {
			delete(a.models, name)
			continue
		}
		if m.want != nil && m.failed == nil && !m.settled() {
			behind = true
		}
		if m.busy || a.busy == workers || m.settled() || now.Before(m.retry) || ctx.Err() != nil {
			continue
		}
		m.busy = true
		a.busy++
		jobs.Go(func() { a.settle(ctx, name, m) })
	}
	if !behind {
		a.caught = true
	}
}

// settled says whether the engine has what the list says.
func (m *model) settled() bool {
	switch {
	case m.want == nil:
		return m.have == nil && !m.stray
	case m.have == nil || m.lost:
		return false
	}
	// What a model declares to take doesn't concern the engine.
	return m.have.URI == m.want.URI && m.have.Framework == m.want.Framework
}

// settle brings one model to what the list says, or takes it away.
func (a *Agent) settle(ctx context.Context, name string, m *model) {
	a.mu.Lock()
	want, lost := m.want, m.lost
	a.mu.Unlock()
	var reason modellist.Reason
	var err error
	switch {
	case want == nil:
		err = a.remove(ctx, name)
	case lost: // its bytes lie in the repository yet, which their source may not have any more
		reason, err = modellist.NotLoaded, a.engine.load(ctx, name)
	default:
		reason, err = a.bring(ctx, *want)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	m.busy = false
	a.busy--
	switch {
	case err != nil:
		if ctx.Err() != nil {
			return
		}
		m.pause = min(max(2*m.pause, firstRetry), lastRetry)
		m.retry = time.Now().Add(m.pause)
		if want == m.want {
			m.failed, m.reason = err, reason
		}
		if lost {
			m.have, m.lost = nil, false // next time from its source
		}
		a.log.Warn("a model isn't as the list says", "model", name, "err", err, "again", m.pause)
	case want == nil:
		m.have, m.lost, m.stray = nil, false, false
		a.note()
		a.log.Info("a model was unloaded", "model", name)
	case lost:
		m.lost, m.failed, m.pause, m.retry = false, nil, 0, time.Time{}
		a.log.Info("a model was loaded again", "model", name)
	default:
		m.have, m.stray, m.failed, m.pause, m.retry = want, false, nil, 0, time.Time{}
		a.note()
		a.log.Info("a model was loaded", "model", name, "uri", want.URI)
	}
	select {
	case a.nudge <- struct{}{}:
	default:
	}
}

// bring fetches a model's bytes, lays them out and has the engine load them. Where that fails, what
// the engine had before stays, in it and in the repository.
func (a *Agent) bring(ctx context.Context, want modellist.Model) (modellist.Reason, error) {
	dir, release, err := a.cfg.Fetch(ctx, want.URI)
	if err != nil {
		return modellist.NotFetched, err
	}
	placed, err := a.shelf.place(want.Name, dir)
	release()
	if err != nil {
		return modellist.NotLoaded, err
	}
	if err := a.engine.load(ctx, want.Name); err != nil {
		return modellist.NotLoaded, errors.Join(err, placed.undo())
	}
	if err := placed.keep(); err != nil {
		a.log.Warn("what a model was before can't be removed", "model", want.Name, "err", err)
	}
	return "", nil
}

func (a *Agent) remove(ctx context.Context, name string) error {
	if err := a.engine.unload(ctx, name); err != nil {
		return err
	}
	return a.shelf.remove(name)
}

// ready is an error while requests should go elsewhere: the engine doesn't answer, or since it does
// it wasn't told yet of all that is on the list. A model that can't be loaded keeps nobody away.
func (a *Agent) ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !a.up:
		return errdef.New(errdef.ErrUnavailable, "the engine doesn't answer")
	case !a.caught:
		return errdef.New(errdef.ErrUnavailable, "the engine is being told of its models")
	}
	return nil
}

// report says of each model of the list how far it is.
func (a *Agent) report() *modellist.Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := &modellist.Report{Models: []modellist.Entry{}}
	for _, name := range slices.Sorted(maps.Keys(a.models)) {
		m := a.models[name]
		if m.want == nil {
			continue
		}
		e := modellist.Entry{Name: name, URI: m.want.URI, State: modellist.Loading, Serves: m.have != nil && !m.lost}
		switch {
		case m.settled():
			e.State, e.Serves = modellist.Ready, false
		case m.failed != nil:
			e.State, e.Reason, e.Message = modellist.Failed, m.reason, told(m.failed)
		}
		out.Models = append(out.Models, e)
	}
	return out
}

// told is an error's text on one line.
func told(err error) string {
	return string(bytes.Join(bytes.Fields([]byte(err.Error())), []byte(" ")))
}
