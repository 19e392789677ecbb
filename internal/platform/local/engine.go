package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/platform/local/launch"
	"stationmaster.dev/stationmaster/internal/spec"
)

// selfName in Command[0] stands for this very executable.
const selfName = "stationmaster"

// runnable is how a container runs on this machine: a command and arguments that are still
// as the manifest has them, or an image through a container engine.
type runnable struct {
	Path string
	Argv []string
	Env  []spec.EnvVar
	// Engine is the path of podman or docker; empty for plain processes.
	Engine string
}

// resolve finds how to run a container. The order: the catalogue's commands, or where it has
// none the manifest's own command, then the image through a container engine. A catalogue
// runtime's own command is the entry of its image (python -m sklearnserver, say), so on this
// machine it would at best start something else.
func (p *Platform) resolve(ctx context.Context, c *spec.Container) (runnable, *spec.Failure) {
	var looked []string
	install := ""
	if c.Local != nil {
		install = c.Local.Install
		for _, l := range append([]spec.LocalCommand{*c.Local}, c.Local.Alternatives...) {
			command := l.Command
			if len(command) == 0 && len(l.Args) > 0 {
				command = append(slices.Clone(c.Command), l.Args...)
			}
			if len(command) == 0 {
				continue
			}
			missing := ""
			for _, name := range append(slices.Clone(l.Requires), command[0]) {
				if _, err := p.find(name); err != nil && missing == "" {
					missing = name
				}
			}
			if missing == "" && len(l.Check) > 0 && !p.checkInstalled(ctx, l.Check) {
				missing = strings.Join(l.Check, " ")
			}
			if missing != "" {
				looked = append(looked, missing)
				continue
			}
			path, _ := p.find(command[0])
			return runnable{Path: path, Argv: command, Env: l.Env}, nil
		}
	}
	if c.Local == nil && len(c.Command) > 0 {
		path, err := p.find(c.Command[0])
		if err == nil {
			return runnable{Path: path, Argv: append(slices.Clone(c.Command), c.Args...)}, nil
		}
		looked = append(looked, c.Command[0])
	}
	if c.Image != "" {
		if engine := p.containerEngine(ctx); engine != "" {
			return runnable{Path: engine, Engine: engine}, nil
		}
	}
	return runnable{}, &spec.Failure{Reason: spec.RuntimeNotInstalled, Container: c.Name, Message: notInstalled(c, looked, install, p.base["PATH"]), ExitCode: -1, Terminal: true}
}

// notInstalled says what was looked for in vain and what a person can do.
func notInstalled(c *spec.Container, looked []string, install, path string) string {
	msg := fmt.Sprintf("container %s: found none of [%s] on PATH (%s)", c.Name, strings.Join(looked, ", "), path)
	if len(looked) == 0 {
		msg = "container " + c.Name + " names no command that could run here"
	}
	if c.Image != "" {
		msg += ", and neither podman nor docker answers to run image " + c.Image
	}
	var do []string
	switch {
	case install != "":
		do = append(do, "install it: "+install)
	case len(looked) > 0:
		do = append(do, "install it, or name its folder by --runtime-path")
	default:
		do = append(do, "give the container a command that this machine has")
	}
	if c.Image != "" {
		do = append(do, "install podman or start docker")
	}
	return msg + "; " + strings.Join(do, ", or ")
}

// find looks a command up on the engines' PATH.
func (p *Platform) find(name string) (string, error) {
	if name == selfName {
		return p.cfg.Self, nil
	}
	return launch.Find(p.base["PATH"], name, "/")
}

// checkInstalled runs a catalogue's check; its answer is kept for the recheck interval.
func (p *Platform) checkInstalled(ctx context.Context, argv []string) bool {
	return p.answers.get(strings.Join(argv, "\x00"), p.cfg.Now(), func() bool {
		path, err := p.find(argv[0])
		return err == nil && p.runs(ctx, 20*time.Second, path, argv[1:]...)
	})
}

// containerEngine returns the path of podman or docker if one answers.
func (p *Platform) containerEngine(ctx context.Context) string {
	for _, name := range []string{"podman", "docker"} {
		path, err := p.find(name)
		if err == nil && p.answers.get("engine "+name, p.cfg.Now(), func() bool { return p.runs(ctx, 5*time.Second, path, "info") }) {
			return path
		}
	}
	return ""
}

func (p *Platform) runs(ctx context.Context, timeout time.Duration, path string, args ...string) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = flat(p.base)
	cmd.Dir = p.dir
	cmd.WaitDelay = time.Second
	return cmd.Run() == nil
}

// answers remembers yes for good and no for a while.
type answers struct {
	mu  sync.Mutex
	yes map[string]bool
	no  map[string]time.Time
}

const noLasts = 20 * time.Second

func (a *answers) get(key string, now time.Time, ask func() bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.yes[key] {
		return true
	}
	if at, ok := a.no[key]; ok && now.Sub(at) < noLasts {
		return false
	}
	if a.yes == nil {
		a.yes, a.no = map[string]bool{}, map[string]time.Time{}
	}
	if ask() {
		a.yes[key] = true
		return true
	}
	a.no[key] = now
	return false
}

// containerArgv is the command line that runs an image. The environment's values travel in
// the engine's own environment, so that no process list shows them.
func containerArgv(engine, name string, c *spec.Container, binds []launch.Mount, env []string, args []string) []string {
	argv := []string{engine, "run", "--rm", "--name", name, "--network", "host", "--init"}
	for _, kv := range env {
		key, _, _ := strings.Cut(kv, "=")
		argv = append(argv, "--env", key)
	}
	for _, b := range binds {
		v := b.Source + ":" + b.Target
		if b.ReadOnly {
			v += ":ro"
		}
		argv = append(argv, "--volume", v)
	}
	if c.WorkingDir != "" {
		argv = append(argv, "--workdir", c.WorkingDir)
	}
	if c.Resources.MemoryBytes > 0 {
		argv = append(argv, "--memory", strconv.FormatInt(c.Resources.MemoryBytes, 10))
	}
	if c.Resources.MilliCPU > 0 {
		argv = append(argv, "--cpus", strconv.FormatFloat(float64(c.Resources.MilliCPU)/1000, 'f', -1, 64))
	}
	if len(c.Command) > 0 {
		argv = append(argv, "--entrypoint", args[0])
		args = args[1:]
	}
	return append(append(argv, c.Image), args...)
}

// digests hashes executables once per file version.
type digests struct {
	mu    sync.Mutex
	known map[string]string
}

// of returns "sha256:…" of the file, or "" if it can't be read. It blocks while hashing.
func (d *digests) of(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	info, err := os.Stat(real)
	if err != nil {
		return ""
	}
	key := fmt.Sprint(real, info.Size(), info.ModTime().UnixNano())
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.known[key]; ok {
		return s
	}
	f, err := os.Open(real)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	if d.known == nil {
		d.known = map[string]string{}
	}
	d.known[key] = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return d.known[key]
}

func flat(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}
