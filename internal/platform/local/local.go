// Package local is the platform of one machine: a replica is a group of processes, started,
// probed, logged, limited and drained here, and adopted after a restart of the control plane.
package local

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/plan/replica"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/local/launch"
	"stationmaster.dev/stationmaster/internal/spec"
)

// ModelSource gets models onto this machine's disk.
type ModelSource interface {
	// Fetch returns the directory that holds the content of uri as the namespace sees it, its
	// digest, and a function that lets go of it. A digest that isn't empty pins the content.
	// It blocks while it pulls. An error that errdef.IsTerminal marks isn't tried again soon.
	Fetch(ctx context.Context, namespace, uri, digest string) (path, gotDigest string, release func(), err error)
}

// ObjectSource reads secrets and config maps; a missing one is an error of kind ErrNotFound.
type ObjectSource interface {
	Secret(ctx context.Context, namespace, name string) (map[string][]byte, error)
	ConfigMap(ctx context.Context, namespace, name string) (map[string][]byte, error)
}

// Config says what a platform works with.
type Config struct {
	// Dir is the data directory: replicas/ and pvc/ are made in it. Required.
	Dir string
	// Self is this executable, which launches containers; empty means os.Executable.
	Self string
	// Path are directories searched for commands before $PATH, such as a virtual
	// environment's bin; engines have them on their PATH, too.
	Path    []string
	Models  ModelSource
	Objects ObjectSource
	// Logger is required.
	Logger *slog.Logger
	// Timing holds back-offs and deadlines; its zero value is the default.
	Timing replica.Timing
	// LogBytes bounds each container's current log; the same again is kept of what was cut
	// from it. Zero means 16 MiB.
	LogBytes int64
	// KeepOnExit leaves engines running when Run ends, for the next platform to adopt.
	KeepOnExit bool
	// NoMounts rewrites paths even where mounts are permitted; NoCgroups uses no control groups.
	NoMounts, NoCgroups bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Capabilities tell what this machine permits.
type Capabilities struct {
	// Mounts: containers see their mounts at the paths as written. Otherwise those paths are
	// replaced in command, args and environment.
	Mounts bool
	// MemoryLimits and CPULimits are kept, by control groups.
	MemoryLimits, CPULimits bool
	// KillGroups: a container is ended with all its descendants, even those that left its
	// process group.
	KillGroups bool
}

// Platform runs replicas as processes. It is safe for concurrent use.
type Platform struct {
	cfg     Config
	dir     string // of the replicas
	mark    string // of our processes' environments
	log     *slog.Logger
	base    map[string]string
	ports   *ports
	answers answers
	hashes  digests
	feed    platform.Feed
	kick    chan struct{} // holds one; says that there is something to reconcile
	adopted chan struct{} // closed by Run

	groups *cgroups     // set by Run before anything starts
	caps   Capabilities // as above

	mu       sync.Mutex
	want     map[spec.ServiceKey][]platform.Assignment
	replicas map[string]*instance
	oomKills int // of the machine, a moment ago
}

var _ platform.Platform = (*Platform)(nil)

// New returns a platform that does nothing yet; Run starts it.
func New(cfg Config) (*Platform, error) {
	if cfg.Dir == "" || cfg.Logger == nil {
		return nil, errdef.New(errdef.ErrInvalid, "the local platform needs a directory and a logger")
	}
	var err error
	if cfg.Self == "" {
		if cfg.Self, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this executable: %w", err)
		}
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.LogBytes == 0 {
		cfg.LogBytes = 16 << 20
	}
	dir := filepath.Join(cfg.Dir, "replicas")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the replicas' directory: %w", err)
	}
	sum := sha256.Sum256([]byte(dir))
	return &Platform{
		cfg: cfg, dir: dir, mark: hex.EncodeToString(sum[:6]), log: cfg.Logger,
		base: baseEnviron(os.Environ(), cfg.Path), ports: newPorts(), groups: &cgroups{},
		kick: make(chan struct{}, 1), adopted: make(chan struct{}), want: map[spec.ServiceKey][]platform.Assignment{}, replicas: map[string]*instance{},
	}, nil
}

// Adopted is closed once Run has taken over what a platform before it left. Until then Observe
// says nothing of those replicas. It stays open where Run fails before.
func (p *Platform) Adopted() <-chan struct{} { return p.adopted }

// upkeep is how often logs are bounded and the machine's counters looked at.
const upkeep = 10 * time.Second

// Run adopts what a previous platform left in the directory and then does what Apply asks
// for, until ctx ends. Then it drains every replica, each within its grace period, and
// returns when the last process is gone, or, with KeepOnExit, leaves them running. A second
// platform on the same directory gets an error of kind ErrConflict. Run may be called once.
func (p *Platform) Run(ctx context.Context) error {
	lock, err := os.OpenFile(filepath.Join(p.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the replicas' directory: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errdef.New(errdef.ErrConflict, "another stationmaster runs engines in "+p.dir+"; stop it or choose another data directory")
	}
	p.detect(ctx)
	p.maintain()
	p.log.Info("local platform", "mounts", p.caps.Mounts, "memory_limits", p.caps.MemoryLimits, "cpu_limits", p.caps.CPULimits, "kill_groups", p.caps.KillGroups)

	work, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	var wg sync.WaitGroup
	start := func(r *instance) { wg.Go(func() { r.run(work) }) }
	for _, r := range p.adopt() {
		start(r)
	}
	close(p.adopted)
	tick := time.NewTicker(upkeep)
	defer tick.Stop()
	p.poke()
	for done := false; !done; {
		select {
		case <-p.kick:
			p.reconcile(start)
		case <-tick.C:
			p.maintain()
		case <-ctx.Done():
			done = true
		}
	}
	if p.cfg.KeepOnExit {
		abandon()
		wg.Wait()
		return nil
	}
	for _, r := range p.all() {
		r.drain()
	}
	wg.Wait()
	p.groups.remove()
	return nil
}

func (p *Platform) poke() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// detect finds out what is permitted.
func (p *Platform) detect(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cfg.NoCgroups {
		p.groups = detectCgroups("stationmaster-" + p.mark)
	}
	p.caps.MemoryLimits, p.caps.CPULimits = p.groups.limits()
	p.caps.KillGroups = p.groups.v2 != ""
	if p.cfg.NoMounts {
		return
	}
	scratch := filepath.Join(p.dir, "check")
	if os.MkdirAll(scratch, 0o700) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	proc, err := spawn(p.cfg.Self, []string{p.cfg.Self, launch.Command, launch.Check, scratch}, flat(p.base), p.dir, nil, p.private(&syscall.SysProcAttr{Setsid: true}))
	if err != nil {
		p.log.Info("mounts aren't permitted here; paths are rewritten", "err", err)
		return
	}
	defer proc.pidfd.Close()
	stop := context.AfterFunc(ctx, proc.killAll)
	defer stop()
	if proc.wait() {
		end := proc.reap()
		p.caps.Mounts = end.Known && end.Status.Exited() && end.Status.ExitStatus() == 0
	}
}

// private gives a process a mount namespace of its own, through a user namespace where this
// process isn't root.
func (p *Platform) private(a *syscall.SysProcAttr) *syscall.SysProcAttr {
	a.Cloneflags |= syscall.CLONE_NEWNS
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN} // in that namespace; the launcher gives it up
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	}
	return a
}

// Capabilities returns what Run found permitted; zero before it looked.
func (p *Platform) Capabilities() Capabilities {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.caps
}

// Apply implements platform.Platform. Before Run it only takes note.
func (p *Platform) Apply(ctx context.Context, key spec.ServiceKey, want []platform.Assignment) error {
	for _, a := range want {
		if len(a.Workload.Containers) == 0 || a.Replicas < 0 || a.Workload.Service != key || a.Workload.Revision.Name == "" {
			return errdef.New(errdef.ErrInvalid, fmt.Sprintf("assignment of revision %s to %s: it needs a container, a name, that service, and no negative number of replicas", a.Workload.Revision, key))
		}
		for _, c := range slices.Concat(a.Workload.Init, a.Workload.Containers) {
			if !filepath.IsLocal(c.Name) || filepath.Base(c.Name) != c.Name {
				return errdef.New(errdef.ErrInvalid, fmt.Sprintf("container name %q is no plain name", c.Name))
			}
		}
	}
	var running []*instance
	p.mu.Lock()
	p.want[key] = slices.Clone(want)
	for _, r := range p.replicas {
		if r.w.Service == key && !r.isDraining() {
			running = append(running, r)
		}
	}
	p.mu.Unlock()
	p.poke()
	for _, r := range running {
		r.refresh(ctx)
	}
	return nil
}

// reconcile starts and drains replicas so that they become what is wanted.
func (p *Platform) reconcile(start func(*instance)) {
	p.mu.Lock()
	var fresh, surplus []*instance
	var changed []spec.ServiceKey
	for key, want := range p.want {
		var free []*instance
		for _, r := range p.replicas {
			if r.w.Service == key && !r.isDraining() {
				free = append(free, r)
			}
		}
		slices.SortFunc(free, keepFirst)
		for _, a := range want {
			n := 0
			for i, r := range free {
				if r != nil && n < a.Replicas && r.w.Revision == a.Workload.Revision && r.w.Hash == a.Workload.Hash {
					free[i] = nil
					n++
				}
			}
			for ; n < a.Replicas; n++ {
				r, err := p.create(granted(a.Workload, a.Startup))
				if err != nil {
					p.log.Error("cannot make a replica", "service", key.String(), "revision", a.Workload.Revision.Name, "err", err)
					break
				}
				p.replicas[r.id] = r
				fresh = append(fresh, r)
				changed = append(changed, key)
			}
		}
		for _, r := range free {
			if r != nil {
				surplus = append(surplus, r)
			}
		}
		if len(want) == 0 {
			delete(p.want, key)
		}
	}
	p.mu.Unlock()
	for _, r := range fresh {
		start(r)
	}
	for _, r := range surplus {
		r.drain()
	}
	for _, key := range changed {
		p.feed.Notify(key)
	}
}

// keepFirst orders replicas by how much they are worth keeping: ready ones, then those on
// their way, then failed ones; the oldest first among equals.
func keepFirst(a, b *instance) int {
	rank := func(r *instance) int {
		switch r.observed().Phase {
		case spec.Ready:
			return 0
		case spec.Failed:
			return 2
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.created.Compare(b.created), cmp.Compare(a.id, b.id))
}

func (p *Platform) all() []*instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.replicas))
}

// forget takes a removed replica off the books.
func (p *Platform) forget(r *instance) {
	p.mu.Lock()
	delete(p.replicas, r.id)
	p.mu.Unlock()
	p.feed.Notify(r.w.Service)
}

// maintain bounds logs.
func (p *Platform) maintain() {
	n := machineOOMKills()
	p.mu.Lock()
	p.oomKills = n
	p.mu.Unlock()
	for _, r := range p.all() {
		for _, c := range slices.Concat(r.w.Init, r.w.Containers) {
			if err := rotate(r.logPath(c.Name), p.cfg.LogBytes); err != nil && !errors.Is(err, os.ErrNotExist) {
				p.log.Warn("cannot bound a log", "replica", r.id, "container", c.Name, "err", err)
			}
		}
	}
}

// Observe implements platform.Platform.
func (p *Platform) Observe(_ context.Context, key spec.ServiceKey) (spec.Observed, error) {
	var o spec.Observed
	for _, r := range p.all() {
		if r.w.Service == key {
			o.Replicas = append(o.Replicas, r.observed())
		}
	}
	slices.SortFunc(o.Replicas, func(a, b spec.Replica) int { return cmp.Compare(a.ID, b.ID) })
	return o, nil
}

// Changes implements platform.Platform.
func (p *Platform) Changes(ctx context.Context) <-chan spec.ServiceKey { return p.feed.Subscribe(ctx) }

// Services implements platform.Platform.
func (p *Platform) Services(context.Context) ([]spec.ServiceKey, error) {
	keys := map[spec.ServiceKey]bool{}
	p.mu.Lock()
	for key := range p.want {
		keys[key] = true
	}
	for _, r := range p.replicas {
		keys[r.w.Service] = true
	}
	p.mu.Unlock()
	return slices.SortedFunc(maps.Keys(keys), func(a, b spec.ServiceKey) int { return cmp.Compare(a.String(), b.String()) }), nil
}
