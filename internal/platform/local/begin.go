package local

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stationmaster.dev/stationmaster/internal/plan/replica"
	"stationmaster.dev/stationmaster/internal/platform/local/launch"
	"stationmaster.dev/stationmaster/internal/probe"
	"stationmaster.dev/stationmaster/internal/spec"
)

// markVar carries, in the environment of every process of ours, the platform's mark and the
// replica's id, so that what a killed control plane left behind is found.
const markVar = "STATIONMASTER_REPLICA"

// line is a container's command line, ready to run.
type line struct {
	path    string
	argv    []string
	env     []string
	cwd     string // where the process starts; a launcher goes on from there
	sys     *syscall.SysProcAttr
	engine  string
	name    string
	private bool
	record  string
}

// begin starts a container's process; the failure says why it couldn't.
func (r *instance) begin(ctx context.Context, i, incarnation int) *spec.Failure {
	c, _ := r.m.Spec(i)
	fail := func(what string, err error) *spec.Failure {
		return &spec.Failure{Reason: spec.StartFailed, Container: c.Name, ExitCode: -1, At: r.p.cfg.Now(), Message: what + ": " + err.Error()}
	}
	if r.ready == nil {
		// Adopted, and it ended before its preparation was made anew: that should be quick,
		// for the models are on disk.
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		ready, f := r.prepare(ctx)
		if f != nil {
			f.Container = c.Name
			return f
		}
		r.accept(ready)
	}
	if err := r.allocate(i); err != nil {
		return fail("allocate ports", err)
	}
	leaf := r.id + "_" + c.Name
	var place group
	if r.ready.runs[i].Engine == "" {
		var err error
		if place, err = r.p.groups.create(leaf, c.Resources.MilliCPU, c.Resources.MemoryBytes); err != nil {
			return fail("make the control group", err)
		}
	}
	l, err := r.line(ctx, i, place)
	if err != nil {
		return fail("build the command line", err)
	}
	log, err := openLog(r.logPath(c.Name))
	if err != nil {
		return fail("open the log", err)
	}
	defer log.Close()
	if place.V2 != "" {
		dir, err := os.Open(place.V2)
		if err != nil {
			return fail("enter the control group", err)
		}
		defer dir.Close()
		l.sys.UseCgroupFD, l.sys.CgroupFD = true, int(dir.Fd())
	}
	oomBefore := place.oomKills()
	p, err := spawn(l.path, l.argv, l.env, l.cwd, log, l.sys)
	if err != nil {
		return fail("start "+l.path, err)
	}
	p.GroupOOMKills = oomBefore
	p.Container, p.Incarnation, p.Group, p.Engine, p.Name = i, incarnation, place, l.engine, l.name
	r.p.mu.Lock()
	p.OOMKills = r.p.oomKills
	r.p.mu.Unlock()
	r.procs[i] = p
	r.follow(p)
	if i == len(r.w.Init) {
		file := r.ready.runs[i].Path
		if l.engine == "" {
			r.jobs.Go(func() { r.setRuntime(r.p.hashes.of(file)) })
		}
	}
	r.p.log.Info("container started", "service", r.w.Service.String(), "replica", r.id, "container", c.Name, "pid", p.PID, "incarnation", incarnation)
	return nil
}

// allocate gives the replica's ports numbers of the machine. A container that starts again
// gets others where something took its own meanwhile; its fellows, which may know them, are
// then restarted, too.
//
// A number that appears nowhere in what the container is told keeps its value if it is free,
// for the engine surely listens there.
func (r *instance) allocate(i int) error {
	own := map[int]bool{}
	for _, c := range slices.Concat(r.w.Init, r.w.Containers) {
		for _, p := range c.Ports {
			own[p.Number] = true
		}
	}
	me, _ := r.m.Spec(i)
	moved := false
	for _, c := range r.w.Containers {
		for _, port := range c.Ports {
			n := r.ports[port.Number]
			mine := c.Name == me.Name
			if n != 0 && (!mine || portFree(n)) {
				continue
			}
			preferred := 0
			if n == 0 && !r.mentions(&c, port.Number) {
				preferred = port.Number
			}
			got, err := r.p.ports.take(preferred, own)
			if err != nil {
				return err
			}
			if n != 0 {
				r.p.ports.release(map[int]int{0: n})
				moved = true
			}
			r.ports[port.Number] = got
		}
	}
	for j := range r.m.Containers {
		if moved && j != i && r.m.Containers[j].At == replica.Running {
			r.jobs.Go(func() { r.post(func() replica.Event { return replica.Restart{Container: j} }) })
		}
	}
	return nil
}

// mentions reports whether a container is told a port in a way that can be replaced, or
// follows PORT because its command comes from the catalogue.
func (r *instance) mentions(c *spec.Container, port int) bool {
	probe := map[int]int{port: 1}
	changes := func(s string) bool { return swapPorts(s, probe) != s }
	words := slices.Concat(c.Command, c.Args)
	env := slices.Clone(c.Env)
	if c.Local != nil {
		for _, l := range append([]spec.LocalCommand{*c.Local}, c.Local.Alternatives...) {
			words = slices.Concat(words, l.Command, l.Args)
			env = append(env, l.Env...)
		}
	}
	return slices.ContainsFunc(words, changes) || slices.ContainsFunc(env, func(v spec.EnvVar) bool { return changes(v.Value) })
}

// line builds what is executed for a container.
func (r *instance) line(ctx context.Context, i int, place group) (*line, error) {
	c, _ := r.m.Spec(i)
	run := r.ready.runs[i]
	base := r.p.base
	if run.Engine != "" {
		base = map[string]string{}
	}
	extra := []spec.EnvVar{}
	if len(c.Ports) > 0 {
		extra = append(extra, spec.EnvVar{Name: "PORT", Value: fmt.Sprint(c.Ports[0].Number)})
	}
	env, err := r.variables(ctx, c, base, extra, c.Env, run.Env)
	if err != nil {
		return nil, err
	}
	argv := run.Argv
	if run.Engine != "" {
		argv = slices.Concat(c.Command, c.Args)
	}
	argv = slices.Clone(argv)
	for n := range argv {
		argv[n] = expand(argv[n], func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	}
	argv = argPorts(argv, r.ports, neighbours(c, r.w.Containers, r.ports))
	binds, err := r.binds(c, r.ready)
	if err != nil {
		return nil, err
	}
	l := &line{sys: &syscall.SysProcAttr{Setsid: true}, cwd: r.dir}
	if run.Engine != "" {
		l.engine, l.name, l.path = run.Engine, r.id+"-"+c.Name, run.Engine
		l.argv = containerArgv(run.Engine, l.name, c, binds, flat(env), argv)
		for k, v := range r.p.base {
			if _, set := env[k]; !set {
				env[k] = v
			}
		}
		env[markVar] = r.p.mark + "/" + r.id
		l.env = flat(env)
		return l, nil
	}
	work := filepath.Join(r.dir, "work")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, err
	}
	l.private = r.p.caps.Mounts && len(binds) > 0
	if !r.p.caps.Mounts {
		for n := range argv {
			argv[n] = swapPaths(argv[n], binds)
		}
		for k, v := range env {
			if k != "PATH" {
				env[k] = swapPaths(v, binds)
			}
		}
	}
	dir := work
	if c.WorkingDir != "" {
		wanted := c.WorkingDir
		if !r.p.caps.Mounts {
			wanted = swapPaths(wanted, binds)
		}
		mounted := slices.ContainsFunc(binds, func(b launch.Mount) bool { return b.Target == filepath.Clean(wanted) })
		if info, err := os.Stat(wanted); mounted || err == nil && info.IsDir() {
			dir = wanted // an image's own directory isn't there; the scratch directory serves
		}
	}
	if len(argv) > 0 && argv[0] == selfName {
		argv[0] = r.p.cfg.Self
	}
	env[markVar] = r.p.mark + "/" + r.id
	l.env = flat(env)
	record := launch.Record{Argv: argv, Dir: dir, Cgroups: place.procsFiles(), Scratch: filepath.Join(r.dir, "root")}
	if l.private {
		// Parents first.
		slices.SortStableFunc(binds, func(a, b launch.Mount) int { return strings.Count(a.Target, "/") - strings.Count(b.Target, "/") })
		record.Mounts = binds
		l.sys = r.p.private(l.sys)
		if err := os.MkdirAll(record.Scratch, 0o700); err != nil {
			return nil, err
		}
	}
	raw, err := record.Encode()
	if err != nil {
		return nil, err
	}
	l.record = filepath.Join(r.dir, c.Name+".launch")
	if err := writeAtomically(l.record, raw); err != nil {
		return nil, err
	}
	l.path, l.argv = r.p.cfg.Self, []string{r.p.cfg.Self, launch.Command, l.record}
	if !l.private && len(record.Cgroups) == 0 && len(argv) > 0 {
		// Nothing to do between fork and exec: save the launcher's start.
		if l.path, err = launch.Find(env["PATH"], argv[0], dir); err != nil {
			return nil, err
		}
		l.argv, l.cwd = argv, dir
	}
	return l, nil
}

// follow reports the process's end.
func (r *instance) follow(p *process) {
	r.jobs.Go(func() {
		if !p.wait() {
			return
		}
		p.killAll() // what the engine left behind; before its number is free again
		end := p.reap()
		r.post(func() replica.Event { return r.ended(p, end) })
	})
}

// ended takes note of a process's end.
func (r *instance) ended(p *process, end ending) replica.Event {
	c, _ := r.m.Spec(p.Container)
	killed := end.Known && end.Status.Signaled() && end.Status.Signal() == unix.SIGKILL
	oom := p.Group.oomKills() > p.GroupOOMKills
	if !oom && killed && !r.stopping(p.Container) {
		oom = machineOOMKills() > p.OOMKills && p.Group.V1Mem == "" && !r.p.groups.v2mem
	}
	f := end.failure(oom, r.p.cfg.Now())
	f.Container = c.Name
	f.LogTail = logTail(r.logPath(c.Name))
	r.explain(f, c)
	p.pidfd.Close()
	r.removeEngineContainer(p)
	p.Group.remove()
	if r.procs[p.Container] == p {
		r.procs[p.Container] = nil
	}
	r.p.log.Info("container ended", "service", r.w.Service.String(), "replica", r.id, "container", c.Name, "pid", p.PID, "code", f.ExitCode, "signal", f.Signal, "reason", string(f.Reason))
	return replica.Exited{Container: p.Container, Incarnation: p.Incarnation, Failure: f}
}

func (r *instance) stopping(i int) bool { return r.m.Containers[i].Stop != nil }

// removeEngineContainer makes sure that a container engine holds nothing of ours.
func (r *instance) removeEngineContainer(p *process) {
	if p.Engine != "" {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		r.p.runs(ctx, 10*time.Second, p.Engine, "rm", "--force", p.Name)
	}
}

// target is how a container is probed.
func (r *instance) target(i int) probe.Target {
	ports := make(map[int]int, len(r.ports))
	for k, v := range r.ports {
		ports[k] = v
	}
	c, _ := r.m.Spec(i)
	first := 0
	if len(c.Ports) > 0 {
		first = c.Ports[0].Number
	}
	t := probe.Target{Port: func(n int) int {
		if n == 0 {
			n = first
		}
		if to, ok := ports[n]; ok {
			return to
		}
		return n
	}}
	t.Exec = func(ctx context.Context, argv []string) (string, error) { return r.exec(ctx, i, argv, ports) }
	return t
}

// exec runs a command beside a container, with its mounts and environment.
func (r *instance) exec(ctx context.Context, i int, argv []string, ports map[int]int) (string, error) {
	reply := make(chan *line, 1)
	r.post(func() replica.Event {
		if p := r.procs[i]; r.ready != nil && p != nil {
			if l, err := r.line(ctx, i, p.Group); err == nil {
				reply <- l
			}
		}
		close(reply)
		return replica.Tick{}
	})
	var l *line
	select {
	case l = <-reply:
	case <-r.done:
	case <-ctx.Done():
	}
	if l == nil {
		return "", fmt.Errorf("%w: its container isn't ready for commands", probe.ErrExit)
	}
	argv = argPorts(argv, ports, nil)
	var cmd *exec.Cmd
	if l.engine != "" {
		cmd = exec.CommandContext(ctx, l.engine, append([]string{"exec", l.name}, argv...)...)
	} else {
		if !l.private {
			c, _ := r.m.Spec(i)
			if binds, err := r.binds(c, r.ready); err == nil {
				for n := range argv {
					argv[n] = swapPaths(argv[n], binds)
				}
			}
		}
		cmd = exec.CommandContext(ctx, r.p.cfg.Self, append([]string{launch.Command, l.record}, argv...)...)
	}
	cmd.Env, cmd.Dir, cmd.SysProcAttr = l.env, r.dir, l.sys
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %w", probe.ErrExit, err)
	}
	return string(out), err
}
