package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A program that imports this package is started again by it under these names: as the first
// process of a machine's namespaces, and as a command that runs in a machine's network.
const (
	firstName   = "stationmaster-cluster-first"
	commandName = "stationmaster-cluster-command"

	// ordersFD is the first process's end of the connection that orders come on.
	ordersFD = 3
)

// init turns a process that this package started into what it was started for. It stands here,
// and not in a function for callers to call, because a test binary that forgot the call would
// run its tests again, and those would start it again.
func init() {
	switch os.Args[0] {
	case firstName:
		unix.CloseOnExec(ordersFD)
		if err := runFirst(os.NewFile(ordersFD, "orders")); err != nil {
			fmt.Fprintln(os.Stderr, "first process of a machine:", err)
			os.Exit(1)
		}
		os.Exit(0)
	case commandName:
		fmt.Fprintln(os.Stderr, runCommand(os.Args[1], os.Args[2], os.Args[3:]))
		os.Exit(127)
	}
}

// order is what a machine asks of its first process: exactly one field is set.
type order struct {
	Setup *setup   `json:",omitempty"`
	Start *program `json:",omitempty"`
	Kill  string   `json:",omitempty"`
}

// setup is what the first process makes before anything else runs.
type setup struct {
	Hostname string
	// Private are directories of the host that get a writable layer of their own, kept below Layers.
	Private []string
	Layers  string
	// Files are written after that, each with its content.
	Files map[string]string
	// Cgroup is the name of the group below each hierarchy's root; the first process removes it.
	Cgroup string
}

// program is a process of the machine. Its name is unique among those that run.
type program struct {
	Name string
	Path string
	Args []string
	Env  []string
	// Log is the file that its output is appended to.
	Log string
}

// report is what the first process tells: the answer to an order, or that a program ended.
type report struct {
	Name  string
	Ended bool   `json:",omitempty"`
	Error string `json:",omitempty"`
}

// first is the first process of a machine's namespaces, to which every other one is left.
type first struct {
	out *json.Encoder

	// mu makes a start known before its end, and guards out.
	mu    sync.Mutex
	names map[int]string
}

// runFirst does what orders say until they end, which they also do when whoever gave them
// dies. Then it kills everything in the namespaces and removes the control groups.
func runFirst(orders *os.File) error {
	f := &first{out: json.NewEncoder(orders), names: map[int]string{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go f.reap(ended)
	cgroup := ""
	defer func() {
		killRest()
		if cgroup != "" {
			removeCgroups(cgroup)
		}
	}()
	for in := json.NewDecoder(orders); ; {
		var o order
		if err := in.Decode(&o); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read an order: %w", err)
		}
		switch {
		case o.Setup != nil:
			cgroup = o.Setup.Cgroup
			f.tell(report{Error: message(prepare(*o.Setup))})
		case o.Start != nil:
			f.start(*o.Start)
		case o.Kill != "":
			f.kill(o.Kill)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (f *first) tell(r report) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.out.Encode(r) //nolint:errcheck // whoever listened is gone, which the next read tells
}

func (f *first) start(p program) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pid, err := fork(p)
	if err == nil {
		f.names[pid] = p.Name
	}
	f.out.Encode(report{Name: p.Name, Error: message(err)}) //nolint:errcheck // as in tell
}

func fork(p program) (int, error) {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(p.Path, append([]string{p.Path}, p.Args...), &syscall.ProcAttr{
		Dir: "/", Env: p.Env, Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", p.Path, err)
	}
	return pid, nil
}

func (f *first) kill(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for pid, n := range f.names {
		if n == name {
			syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may have ended just now
		}
	}
}

func (f *first) reap(ended <-chan os.Signal) {
	for range ended {
		for {
			f.mu.Lock()
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if err != nil || pid <= 0 {
				f.mu.Unlock()
				break
			}
			if name, ok := f.names[pid]; ok {
				delete(f.names, pid)
				how := fmt.Sprintf("exit status %d", status.ExitStatus())
				if status.Signaled() {
					how = status.Signal().String()
				}
				f.out.Encode(report{Name: name, Ended: true, Error: how}) //nolint:errcheck // as in tell
			}
			f.mu.Unlock()
		}
	}
}

// killRest kills all in this PID namespace but its first process, and returns when it is alone.
// The reaper takes some of the ends; what counts is that nobody is left.
func killRest() {
	for {
		if err := syscall.Kill(-1, syscall.SIGKILL); errors.Is(err, syscall.ESRCH) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// prepare makes the machine's own view of the file system, and its control groups.
func prepare(s setup) error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	// Within the machine mounts propagate, as containers that ask for it expect.
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share the mounts within the machine: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("name the machine: %w", err)
	}
	for i, dir := range s.Private {
		upper, work := fmt.Sprintf("%s/%d", s.Layers, i), fmt.Sprintf("%s/%d.work", s.Layers, i)
		for _, d := range []string{upper, work} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
		if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
			return fmt.Errorf("lay a layer over %s: %w", dir, err)
		}
	}
	for path, content := range s.Files {
		// What stands there may be a link to where this machine sees nothing.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return makeCgroups(s.Cgroup)
}

const cgroupRoot = "/sys/fs/cgroup"

// makeCgroups makes a group in each hierarchy of cgroup v1. A new cpuset is empty and takes no
// process until it is told its processors and memory.
func makeCgroups(name string) error {
	hierarchies, err := filepath.Glob(cgroupRoot + "/*/tasks")
	if err != nil {
		return err
	}
	if len(hierarchies) == 0 {
		return fmt.Errorf("no cgroup v1 hierarchy below %s: this harness runs on cgroup v1 only", cgroupRoot)
	}
	for _, tasks := range hierarchies {
		parent := filepath.Dir(tasks)
		group := filepath.Join(parent, name)
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(parent, file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(group, file), value, 0o644); err != nil {
				return fmt.Errorf("set up the cpuset: %w", err)
			}
		}
	}
	return nil
}

// removeCgroups removes the groups and those below. A group stays busy for a moment after its
// last process ended.
func removeCgroups(name string) {
	for range 100 {
		groups, err := filepath.Glob(filepath.Join(cgroupRoot, "*", name))
		if err != nil || len(groups) == 0 {
			return
		}
		for _, group := range groups {
			removeGroup(group)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func removeGroup(group string) {
	entries, err := os.ReadDir(group)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			removeGroup(filepath.Join(group, e.Name()))
		}
	}
	unix.Rmdir(group) //nolint:errcheck // busy: tried again
}

// runCommand becomes the command, in the network namespace at network and with resolv as its
// resolv.conf. It returns only if it can't.
func runCommand(network, resolv string, argv []string) error {
	runtime.LockOSThread()
	ns, err := os.Open(network)
	if err != nil {
		return err
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the machine's network: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("leave the host's mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	target, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		return err
	}
	if err := unix.Mount(resolv, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("take the cluster's DNS: %w", err)
	}
	return fmt.Errorf("run %s: %w", argv[0], syscall.Exec(argv[0], argv, os.Environ()))
}
