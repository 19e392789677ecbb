package modelserver

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// model is a model of the server, through loading, serving, unloading and loading again:
//
//	UNAVAILABLE ──load──► LOADING ──► READY ──unload──► UNLOADING ──► UNAVAILABLE
//	                         │          └─────load again, or fail to──► READY
//	                         └──failed──► UNAVAILABLE (with the reason)
type model struct {
	name, dir string
	open      func(ctx context.Context, path string) (Session, error)
	*turns

	// changing is held while the model is loaded or unloaded, one at a time.
	changing sync.Mutex
	// use is held for reading while the session runs, and for writing to swap it.
	use     sync.RWMutex
	session Session

	status atomic.Pointer[snapshot]

	loadTime atomic.Int64 // of the last load, in nanoseconds
}

// snapshot is what may be asked of the model without waiting for it.
type snapshot struct {
	state    string
	reason   string
	metadata *oip.ModelMetadata // nil before the first load
	version  string             // empty when the model's files have none
}

func newModel(name, dir string, open func(context.Context, string) (Session, error), t *turns) *model {
	m := &model{name: name, dir: dir, open: open, turns: t}
	m.status.Store(&snapshot{state: oip.StateUnavailable, reason: "not loaded yet"})
	return m
}

func (m *model) ready() bool { return m.status.Load().state == oip.StateReady }

func (m *model) set(state, reason string) {
	s := *m.status.Load()
	s.state, s.reason = state, reason
	m.status.Store(&s)
}

// load finds and opens the model. It blocks until that is done. One that is loaded already goes
// on serving until the new one takes its place, and after an error; without one the model is
// then unavailable.
func (m *model) load(ctx context.Context) (err error) {
	m.changing.Lock()
	defer m.changing.Unlock()
	serving := m.session != nil // written only while changing is held
	if !serving {
		m.set(oip.StateLoading, "")
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("open: %w: panic: %v\n%s", errdef.ErrInternal, p, debug.Stack())
		}
		if err != nil && !serving {
			m.set(oip.StateUnavailable, told(err))
		}
	}()
	path, version, err := Find(m.dir)
	if err != nil {
		return err
	}
	start := time.Now()
	session, err := m.open(ctx, path)
	if err != nil {
		return fmt.Errorf("load %s: %w", path, err)
	}
	m.loadTime.Store(int64(time.Since(start)))
	old := m.swap(session)
	md := &oip.ModelMetadata{
		Name: m.name, Platform: platformOf(session.Backend()),
		Inputs: known(session.Inputs()), Outputs: known(session.Outputs()),
		Properties: map[string]string{"backend": session.Backend()},
	}
	if version != "" {
		md.Versions = []string{version}
	}
	m.status.Store(&snapshot{state: oip.StateReady, metadata: md, version: version})
	if err := closeSession(old); err != nil {
		return fmt.Errorf("free the model from before: %w", err)
	}
	return nil
}

// platformOf names the format and what executes it, without the latter's version.
func platformOf(backend string) string {
	name, _, _ := strings.Cut(backend, " ")
	return "onnx_" + name
}

// known gives tensors of unknown rank a shape that metadata can show.
func known(in []oip.TensorMetadata) []oip.TensorMetadata {
	out := slices.Clone(in)
	for i := range out {
		if out[i].Shape == nil {
			out[i].Shape = []int64{-1}
		}
	}
	return out
}

// maxMessage bounds what a client is told of an error, in bytes, so that it fits in a header.
const maxMessage = 1024

// told is what a client is told of an error: a stack, say, stays here.
func told(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return brief.Cut(strings.ToValidUTF8(line, "\ufffd"), maxMessage)
}

// swap waits for the requests that run and puts s in place of the session, which it returns.
func (m *model) swap(s Session) Session {
	m.use.Lock()
	defer m.use.Unlock()
	old := m.session
	m.session = s
	return old
}

func closeSession(s Session) error {
	if s == nil {
		return nil
	}
	return s.Close()
}

// unload lets the requests that run finish, and frees the model; the reason is what the index
// says from then on.
func (m *model) unload(reason string) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	m.set(oip.StateUnloading, "")
	err := closeSession(m.swap(nil))
	m.set(oip.StateUnavailable, reason)
	return err
}

// unloaded is the reason of a model that is away at a client's wish.
const unloaded = "unloaded at a client's wish; POST /v2/repository/models/<name>/load brings it back"

// away reports whether the model was unloaded at a client's wish.
func (m *model) away() bool {
	s := m.status.Load()
	return s.state == oip.StateUnloading || s.state == oip.StateUnavailable && s.reason == unloaded
}

// check says whether name and version, empty for any, are those of the model. A model without
// versions takes 1, which clients send that always send one.
func (m *model) check(name, version string) error {
	if name != m.name {
		return errdef.New(errdef.ErrNotFound, brief.Sprintf("model %q is not found; this server has %q", name, m.name))
	}
	served := m.status.Load().version
	switch {
	case version == "" || version == served || served == "" && version == "1":
		return nil
	case served == "":
		return errdef.New(errdef.ErrNotFound, brief.Sprintf("model %q has no version %q: it has no versions; leave the version out", name, version))
	}
	return errdef.New(errdef.ErrNotFound, brief.Sprintf("model %q has no version %q; it has %q", name, version, served))
}

// checkReady is check, and an error of kind errdef.ErrUnavailable unless the model can infer.
func (m *model) checkReady(name, version string) error {
	if err := m.check(name, version); err != nil {
		return err
	}
	s := m.status.Load()
	if s.state == oip.StateReady {
		return nil
	}
	return errdef.New(errdef.ErrUnavailable, strings.TrimSuffix(fmt.Sprintf("model %q is not ready: %s: %s", name, strings.ToLower(s.state), s.reason), ": "))
}

// describe returns the metadata, which needs the model loaded.
func (m *model) describe(name, version string) (*oip.ModelMetadata, error) {
	if err := m.checkReady(name, version); err != nil {
		return nil, err
	}
	return m.status.Load().metadata, nil
}

// indexed is the model's line of the repository's index.
func (m *model) indexed() oip.IndexedModel {
	s := m.status.Load()
	return oip.IndexedModel{Name: m.name, Version: s.version, State: s.state, Reason: s.reason}
}

// infer runs the model once, after waiting for its turn.
func (m *model) infer(ctx context.Context, req *oip.InferRequest) (*oip.InferResponse, error) {
	if err := m.checkReady(req.ModelName, req.ModelVersion); err != nil {
		return nil, err
	}
	release, err := m.enter(ctx, m.name)
	if err != nil {
		return nil, err
	}
	defer release()
	m.use.RLock()
	defer m.use.RUnlock()
	if m.session == nil {
		return nil, errdef.New(errdef.ErrUnavailable, brief.Sprintf("model %q is not ready: it was unloaded", req.ModelName))
	}
	st := m.status.Load()
	inputs, err := arrange(req.Inputs, m.session.Inputs())
	if err != nil {
		return nil, err
	}
	outputs, err := choose(req.Outputs, m.session.Outputs())
	if err != nil {
		return nil, err
	}
	tensors, err := run(ctx, m.session, inputs, outputs)
	if err != nil {
		return nil, err
	}
	return &oip.InferResponse{ModelName: req.ModelName, ModelVersion: st.version, ID: req.ID, Outputs: tensors}, nil
}

// gone is the error of a request whose time is over or whose client went away.
func gone(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errdef.New(errdef.ErrTimeout, "the request's time was over before the model answered")
	}
	return fmt.Errorf("%w: the client went away: %w", errdef.ErrUnavailable, context.Cause(ctx))
}

// run keeps a panic of the session, whose input comes from outside, to the request.
func run(ctx context.Context, s Session, inputs []oip.Tensor, outputs []string) (tensors []oip.Tensor, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: the model panicked: %v\n%s", errdef.ErrInternal, p, debug.Stack())
		}
	}()
	tensors, err = s.Run(ctx, inputs, outputs)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, gone(ctx)
	case err != nil:
		return nil, fmt.Errorf("run the model: %w", err)
	case len(tensors) != len(outputs):
		return nil, fmt.Errorf("%w: the model gave %d of %d outputs", errdef.ErrInternal, len(tensors), len(outputs))
	}
	return tensors, nil
}

// arrange puts the inputs in the model's order and checks each against the graph.
func arrange(given []oip.Tensor, want []oip.TensorMetadata) ([]oip.Tensor, error) {
	out := make([]oip.Tensor, 0, len(want))
	for _, w := range want {
		i := slices.IndexFunc(given, func(t oip.Tensor) bool { return t.Name == w.Name })
		if i < 0 {
			return nil, errdef.New(errdef.ErrInvalid, brief.Sprintf("input %q is missing; the model takes %s", w.Name, describe(want)))
		}
		t := given[i]
		if t.Datatype != w.Datatype {
			return nil, errdef.New(errdef.ErrInvalid, brief.Sprintf("input %q is %s; the model takes %s", w.Name, t.Datatype, w.Datatype))
		}
		if !fits(t.Shape, w.Shape) {
			return nil, errdef.New(errdef.ErrInvalid, brief.Sprintf("input %q has the shape %v; the model takes %v", w.Name, t.Shape, w.Shape))
		}
		out = append(out, t)
	}
	if len(given) > len(want) {
		for _, t := range given {
			if !slices.ContainsFunc(want, func(w oip.TensorMetadata) bool { return w.Name == t.Name }) {
				return nil, errdef.New(errdef.ErrInvalid, brief.Sprintf("the model has no input %q; it takes %s", t.Name, describe(want)))
			}
		}
	}
	return out, nil
}

func fits(shape, want []int64) bool {
	if want == nil {
		return true
	}
	if len(shape) != len(want) {
		return false
	}
	for i, d := range want {
		if d >= 0 && d != shape[i] {
			return false
		}
	}
	return true
}

func describe(tensors []oip.TensorMetadata) string {
	parts := make([]string, 0, len(tensors))
	for _, t := range tensors {
		parts = append(parts, fmt.Sprintf("%q %s %v", t.Name, t.Datatype, t.Shape))
	}
	return strings.Join(parts, ", ")
}

// choose names the outputs to compute: those that are asked for, or all.
func choose(asked []oip.RequestedOutput, have []oip.TensorMetadata) ([]string, error) {
	names := make([]string, 0, len(have))
	for _, h := range have {
		names = append(names, h.Name)
	}
	if len(asked) == 0 {
		return names, nil
	}
	out := make([]string, 0, len(asked))
	for _, a := range asked {
		if !slices.Contains(names, a.Name) {
			return nil, errdef.New(errdef.ErrInvalid, brief.Sprintf("the model has no output %q; it has %q", a.Name, names))
		}
		out = append(out, a.Name)
	}
	return out, nil
}
