package local

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/plan/replica"
	"stationmaster.dev/stationmaster/internal/probe"
	"stationmaster.dev/stationmaster/internal/spec"
)

// instance is one replica: the machine that decides, and the processes that it has.
// Everything but the fields under mu belongs to the goroutine of run.
type instance struct {
	p       *Platform
	id, dir string
	w       *spec.Workload // as it runs; never changed
	created time.Time
	inbox   chan func() replica.Event // bounded; senders wait or see done
	done    chan struct{}             // closed when run has ended
	ending  chan struct{}             // closed by drain
	endOnce sync.Once

	m       *replica.Machine
	ports   map[int]int // container port to host port
	procs   []*process  // by container; nil while it has none
	ready   *preparation
	jobs    sync.WaitGroup
	written string // the record as it was last written

	mu       sync.Mutex
	snapshot spec.Replica
	leaders  []int // the processes that it consists of, each the leader of its session; nil if some aren't known

	volumes sync.Mutex // held while a volume's files are written
}

// preparation is what a replica needs before its first process starts.
type preparation struct {
	runs    []runnable // by container
	models  map[string]string
	digests map[string]string
	volumes map[string]string
	release []func()
}

func (p *Platform) create(w spec.Workload) (*instance, error) {
	w.Containers = slices.Clone(w.Containers)
	if s := &w.Containers[0]; s.Readiness == nil && len(s.Ports) > 0 {
		// KServe gives a server without a probe a TCP one on its first port.
		s.Readiness = &spec.Probe{Action: spec.Action{TCP: &spec.TCPAction{Port: s.Ports[0].Number}}, Period: 10 * time.Second, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 3}
	}
	now := p.cfg.Now()
	r := p.instance("", &w, replica.New(&w, p.cfg.Timing, now))
	for {
		r.id = w.Revision.Name + "-" + strings.ToLower(rand.Text()[:5])
		r.dir = filepath.Join(p.dir, r.id)
		err := os.Mkdir(r.dir, 0o700)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	r.publish()
	return r, nil
}

func (p *Platform) instance(id string, w *spec.Workload, m *replica.Machine) *instance {
	return &instance{
		p: p, id: id, dir: filepath.Join(p.dir, id), w: w, m: m, created: m.Created,
		inbox: make(chan func() replica.Event, 16+len(m.Containers)), done: make(chan struct{}), ending: make(chan struct{}),
		ports: map[int]int{}, procs: make([]*process, len(m.Containers)),
	}
}

func (r *instance) drain() { r.endOnce.Do(func() { close(r.ending) }) }

func (r *instance) isDraining() bool {
	select {
	case <-r.ending:
		return true
	default:
		return false
	}
}

func (r *instance) observed() spec.Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snapshot
}

func (r *instance) has(container string) bool {
	return slices.ContainsFunc(slices.Concat(r.w.Init, r.w.Containers), func(c spec.Container) bool { return c.Name == container })
}

// post hands what happened to run.
func (r *instance) post(f func() replica.Event) {
	select {
	case r.inbox <- f:
	case <-r.done:
	}
}

// run lives the replica's life. It ends when the replica was removed, or is abandoned with
// its processes running when ctx ends.
func (r *instance) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		close(r.done)
		for _, p := range r.procs {
			if p != nil {
				p.pidfd.Close()
			}
		}
		r.jobs.Wait()
		if r.ready != nil {
			for _, release := range r.ready.release {
				release()
			}
		}
	}()
	pulls, endPulls := context.WithCancel(ctx)
	defer endPulls()
	for _, p := range r.procs {
		if p != nil {
			r.follow(p)
		}
	}
	if r.m.Prepared && r.ready == nil {
		// Adopted: hold the models again, and know how to restart.
		r.jobs.Go(func() {
			ready, f := r.prepare(pulls)
			if f != nil {
				r.p.log.Warn("cannot prepare an adopted replica for its restarts", "replica", r.id, "err", f.Message)
			}
			r.post(func() replica.Event { r.accept(ready); return replica.Tick{} })
		})
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	ending := r.ending
	for {
		var ev replica.Event = replica.Tick{}
		select {
		case f := <-r.inbox:
			ev = f()
		case <-timer.C:
		case <-ending:
			ending = nil
			endPulls()
			ev = replica.Drain{}
		case <-ctx.Done():
			return
		}
		for queue := []replica.Event{ev}; len(queue) > 0; queue = queue[1:] {
			for _, a := range r.m.Handle(queue[0], r.p.cfg.Now()) {
				if answer := r.do(pulls, a); answer != nil {
					queue = append(queue, answer)
				}
			}
		}
		if r.m.Removed {
			return
		}
		r.publish()
		timer.Stop()
		if wake := r.m.Wake(); !wake.IsZero() {
			timer.Reset(max(wake.Sub(r.p.cfg.Now()), 0))
		}
	}
}

// accept keeps a preparation, unless there is one.
func (r *instance) accept(ready *preparation) {
	if ready == nil {
		return
	}
	if r.ready != nil {
		for _, release := range ready.release {
			release()
		}
		return
	}
	r.ready = ready
}

// do carries out an action and returns its answer if that is known at once.
func (r *instance) do(ctx context.Context, a replica.Action) replica.Event {
	i := a.Container
	switch a.Do {
	case replica.Prepare:
		r.jobs.Go(func() {
			ready, f := r.prepare(ctx)
			r.post(func() replica.Event { r.accept(ready); return replica.Prepared{Failure: f} })
		})
	case replica.Start:
		f := r.begin(ctx, i, a.Incarnation)
		if f != nil {
			r.p.log.Warn("cannot start a container", "replica", r.id, "container", f.Container, "err", f.Message)
		}
		return replica.Started{Container: i, Incarnation: a.Incarnation, Failure: f}
	case replica.PostStart, replica.PreStop:
		c, _ := r.m.Spec(i)
		hook, kind := c.PostStart, "postStart"
		timeout := 10 * time.Minute
		if a.Do == replica.PreStop {
			hook, kind, timeout = c.PreStop, "preStop", time.Until(r.m.Containers[i].Stop.Deadline)
		}
		target := r.target(i)
		// A preStop hook runs while the replica drains, so it has a context of its own.
		hookCtx := context.WithoutCancel(ctx)
		r.jobs.Go(func() {
			e := replica.Hooked{Container: i, Incarnation: a.Incarnation}
			if err := r.interruptible(hookCtx, *hook, target, timeout); err != nil {
				e.Err = err.Error()
				r.p.log.Warn("a hook failed", "replica", r.id, "container", c.Name, "hook", kind, "err", err)
			}
			r.post(func() replica.Event { return e })
		})
	case replica.Check:
		c, _ := r.m.Spec(i)
		pr := map[replica.ProbeKind]*spec.Probe{replica.StartupProbe: c.Startup, replica.ReadinessProbe: c.Readiness, replica.LivenessProbe: c.Liveness}[a.Probe]
		target := r.target(i)
		r.jobs.Go(func() {
			e := replica.Checked{Container: i, Incarnation: a.Incarnation, Probe: a.Probe}
			if err := probe.Do(ctx, pr.Action, target, pr.Timeout); err != nil {
				e.Err = err.Error()
			}
			r.post(func() replica.Event { return e })
		})
	case replica.Terminate:
		if p := r.procs[i]; p != nil {
			p.signal(unix.SIGTERM)
		}
	case replica.Kill:
		if p := r.procs[i]; p != nil {
			p.killAll()
			r.removeEngineContainer(p)
		}
	case replica.Remove:
		r.remove()
	}
	return nil
}

// interruptible runs a hook that ends early when the replica's run does.
func (r *instance) interruptible(ctx context.Context, a spec.Action, t probe.Target, timeout time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	r.jobs.Go(func() {
		select {
		case <-r.done:
			cancel()
		case <-over:
		}
	})
	return probe.Do(ctx, a, t, timeout)
}

// prepare finds commands, pulls models and makes volumes. It blocks.
func (r *instance) prepare(ctx context.Context) (_ *preparation, failed *spec.Failure) {
	out := &preparation{models: map[string]string{}, digests: map[string]string{}, volumes: map[string]string{}}
	defer func() {
		if failed != nil {
			for _, release := range out.release {
				release()
			}
		}
	}()
	for _, c := range slices.Concat(r.w.Init, r.w.Containers) {
		run, f := r.p.resolve(ctx, &c)
		if f != nil {
			return nil, f
		}
		out.runs = append(out.runs, run)
	}
	for _, v := range r.w.Volumes {
		dir, err := r.volume(ctx, &v)
		if err != nil {
			return nil, &spec.Failure{Reason: spec.StartFailed, ExitCode: -1, Message: err.Error()}
		}
		out.volumes[v.Name] = dir
	}
	for _, m := range r.w.Models {
		if r.p.cfg.Models == nil {
			return nil, &spec.Failure{Reason: spec.ModelPullFailed, ExitCode: -1, Terminal: true, Message: "no model store is configured"}
		}
		pin := m.Digest
		if pin == "" {
			pin = r.observed().Digests[m.URI] // an adopted replica goes on with what it has
		}
		path, digest, release, err := r.p.cfg.Models.Fetch(ctx, r.w.Service.Namespace, m.URI, pin)
		if err != nil {
			return nil, &spec.Failure{Reason: spec.ModelPullFailed, ExitCode: -1, Terminal: errdef.IsTerminal(err), Message: fmt.Sprintf("model %s: %v", m.URI, err)}
		}
		out.release = append(out.release, release)
		out.models[m.URI], out.digests[m.URI] = path, digest
	}
	return out, nil
}

// metricsPortName is the name of a port on which a server tells its metrics and nothing else.
const metricsPortName = "metrics"

// publish makes the state known: to Observe, to the readers of Changes, and to the record
// from which a later control plane adopts.
func (r *instance) publish() {
	s := spec.Replica{
		ID: r.id, Revision: r.w.Revision, Hash: r.w.Hash, Phase: r.m.Phase(), Restarts: r.m.Restarts,
		Created: r.created, Timings: r.m.Timings,
	}
	if f := r.m.Failure; f != nil {
		if f.LogTail == nil && f.Container != "" {
			f.LogTail = logTail(r.logPath(f.Container))
		}
		told := *f
		s.Failure = &told
	}
	server := r.w.Server()
	if p, ok := server.HTTPPort(); ok && r.ports[p.Number] != 0 {
		s.HTTP = fmt.Sprintf("127.0.0.1:%d", r.ports[p.Number])
	}
	if p, ok := server.GRPCPort(); ok && r.ports[p.Number] != 0 {
		s.GRPC = fmt.Sprintf("127.0.0.1:%d", r.ports[p.Number])
	}
	for _, p := range server.Ports {
		if p.Name == metricsPortName && r.ports[p.Number] != 0 {
			s.Metrics = fmt.Sprintf("127.0.0.1:%d", r.ports[p.Number])
		}
	}
	if p, ok := r.w.ModelsPort(); ok && r.ports[p.Number] != 0 {
		s.Models = fmt.Sprintf("127.0.0.1:%d", r.ports[p.Number])
	}
	r.mu.Lock()
	s.Digests, s.RuntimeDigest = r.snapshot.Digests, r.snapshot.RuntimeDigest
	if r.ready != nil {
		s.Digests = r.ready.digests
	}
	changed := !reflect.DeepEqual(s, r.snapshot)
	r.snapshot, r.leaders = s, leaders(r.procs)
	r.mu.Unlock()
	if err := r.save(s); err != nil {
		r.p.log.Error("cannot write a replica's record; it couldn't be adopted", "replica", r.id, "err", err)
	}
	if changed {
		r.p.feed.Notify(r.w.Service)
	}
}

// setRuntime makes known what runs, once it was hashed.
func (r *instance) setRuntime(digest string) {
	r.mu.Lock()
	changed := r.snapshot.RuntimeDigest != digest
	r.snapshot.RuntimeDigest = digest
	r.mu.Unlock()
	if changed {
		r.p.feed.Notify(r.w.Service)
	}
}

// remove frees everything.
func (r *instance) remove() {
	for _, p := range r.procs {
		if p != nil {
			p.Group.remove()
		}
	}
	r.p.ports.release(r.ports)
	if err := os.RemoveAll(r.dir); err != nil {
		r.p.log.Warn("cannot remove a replica's directory", "replica", r.id, "err", err)
	}
	r.p.log.Info("replica removed", "service", r.w.Service.String(), "revision", r.w.Revision.Name, "replica", r.id)
	r.p.forget(r)
}

// record is what is kept of a replica on disk.
type record struct {
	ID            string
	Boot          string // processes of another boot are gone
	Workload      *spec.Workload
	State         replica.State
	Ports         map[int]int
	Procs         []*process
	Digests       map[string]string
	RuntimeDigest string
}

const recordFile = "record.json"

// save writes the record if anything in it changed that matters after a restart.
func (r *instance) save(s spec.Replica) error {
	state := r.m.State
	state.Containers = slices.Clone(state.Containers)
	for i := range state.Containers {
		c := &state.Containers[i]
		// Counters move with every check; after a restart they start anew.
		c.Startup, c.Readiness, c.Liveness = replica.Counter{}, replica.Counter{}, replica.Counter{}
	}
	procs := slices.Clone(r.procs)
	raw, err := json.Marshal(record{r.id, bootID(), r.w, state, r.ports, slices.DeleteFunc(procs, func(p *process) bool { return p == nil }), s.Digests, s.RuntimeDigest})
	if err != nil || string(raw) == r.written {
		return err
	}
	if err := writeAtomically(filepath.Join(r.dir, recordFile), raw); err != nil {
		return err
	}
	r.written = string(raw)
	return nil
}

func writeAtomically(path string, raw []byte) error {
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

var bootID = sync.OnceValue(func() string {
	raw, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw))
})
