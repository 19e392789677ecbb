package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// machine is one set of mount, network and PID namespaces, as if it were a computer of its own.
// It lives as long as the connection to its first process does.
type machine struct {
	Name    string
	IP      string
	PodCIDR string
	// Dir holds its files, on the host and inside alike.
	Dir string
	// Cgroup is the path of its group below each hierarchy's root.
	Cgroup string

	logs    string
	first   *exec.Cmd
	network *network
	orders  *json.Encoder
	conn    *os.File
	// gone is closed when the first process ended.
	gone chan struct{}

	answers chan report
	// ordering is held from an order to its answer.
	ordering sync.Mutex

	mu       sync.Mutex
	programs map[string]*running
}

// running is a program that was started.
type running struct {
	program
	// ended is closed after how was written.
	ended chan struct{}
	how   string
}

// privateDirs are those that the daemons write to under names that can't be changed.
var privateDirs = []string{"/etc", "/run", "/var/lib", "/var/log"}

// boot starts the machine's first process and sets up its mounts and control groups; files are
// written inside. The caller halts what it gets, also with an error.
func (m *machine) boot(files map[string]string) error {
	for _, private := range privateDirs {
		if m.Dir == private || strings.HasPrefix(m.Dir, private+"/") {
			return fmt.Errorf("the cluster's directory %s lies in %s, which each machine has its own view of: name another", m.Dir, private)
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("connect to the machine: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "orders")
	defer theirs.Close()
	m.conn = os.NewFile(uintptr(pair[0]), "orders")
	log, err := os.Create(filepath.Join(m.logs, m.Name+"-first.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	m.first = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{firstName}, Dir: "/",
		Stdout: log, Stderr: log, ExtraFiles: []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
			Setsid:     true, // an interrupt from the terminal is for whoever started the cluster
		},
	}
	if err := m.first.Start(); err != nil {
		m.first = nil
		return fmt.Errorf("make the namespaces of %s: %w", m.Name, err)
	}
	m.orders, m.gone = json.NewEncoder(m.conn), make(chan struct{})
	m.answers, m.programs = make(chan report, 1), map[string]*running{}
	if m.network, err = openNetwork(fmt.Sprintf("/proc/%d/ns/net", m.first.Process.Pid)); err != nil {
		return err
	}
	go m.listen()
	return m.order(order{Setup: &setup{
		Hostname: m.Name, Private: privateDirs, Layers: filepath.Join(m.Dir, "layers"), Files: files, Cgroup: m.Cgroup,
	}})
}

// listen takes reports until the first process is gone, and then its exit status.
func (m *machine) listen() {
	defer close(m.gone)
	for in := json.NewDecoder(m.conn); ; {
		var r report
		if in.Decode(&r) != nil {
			break
		}
		if !r.Ended {
			m.answers <- r
			continue
		}
		m.mu.Lock()
		p := m.programs[r.Name]
		m.mu.Unlock()
		p.how = r.Error
		close(p.ended)
	}
	m.first.Wait() //nolint:errcheck // its end is what counts
}

// order gives an order that is answered, and returns its error.
func (m *machine) order(o order) error {
	m.ordering.Lock()
	defer m.ordering.Unlock()
	if err := m.orders.Encode(o); err != nil {
		return fmt.Errorf("reach the first process of %s: %w", m.Name, err)
	}
	select {
	case r := <-m.answers:
		if r.Error != "" {
			return fmt.Errorf("%s: %s", m.Name, r.Error)
		}
		return nil
	case <-m.gone:
		return fmt.Errorf("the first process of %s ended: %s", m.Name, tail(filepath.Join(m.logs, m.Name+"-first.log")))
	}
}

// start starts a program inside. Its output goes to the log <machine>-<name>.log.
func (m *machine) start(name, path string, args ...string) (*running, error) {
	p := &running{program: program{
		Name: name, Path: path, Args: args,
		Env: []string{"PATH=" + filepath.Dir(path) + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + m.Dir, "TMPDIR=/tmp"},
		Log: filepath.Join(m.logs, m.Name+"-"+name+".log"),
	}, ended: make(chan struct{})}
	if err := m.register(p); err != nil {
		return nil, err
	}
	if err := m.order(order{Start: &p.program}); err != nil {
		m.mu.Lock()
		delete(m.programs, name)
		m.mu.Unlock()
		return nil, err
	}
	return p, nil
}

// register makes a program known before it starts, for its end may come before start returns.
func (m *machine) register(p *running) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.programs[p.Name]; old != nil {
		select {
		case <-old.ended:
		default:
			return fmt.Errorf("%s of %s runs already", p.Name, m.Name)
		}
	}
	m.programs[p.Name] = p
	return nil
}

// kill kills a program and waits for its end.
func (m *machine) kill(name string) error {
	m.mu.Lock()
	p := m.programs[name]
	m.mu.Unlock()
	if p == nil {
		return fmt.Errorf("no %s runs on %s", name, m.Name)
	}
	m.ordering.Lock()
	err := m.orders.Encode(order{Kill: name})
	m.ordering.Unlock()
	if err != nil {
		return fmt.Errorf("kill %s of %s: %w", name, m.Name, err)
	}
	select {
	case <-p.ended:
		return nil
	case <-m.gone:
		return fmt.Errorf("the first process of %s ended", m.Name)
	}
}

// halt ends the machine and all that runs on it, and waits until it is gone. What the machine
// left in its directory stays there.
func (m *machine) halt() error {
	if m.conn == nil {
		return nil
	}
	if m.first == nil {
		return m.conn.Close()
	}
	// The half that it reads ends; it answers by ending itself, when all is cleaned up.
	err := unix.Shutdown(int(m.conn.Fd()), unix.SHUT_WR)
	if m.network != nil {
		select {
		case <-m.gone:
		case <-time.After(20 * time.Second):
			err = errors.Join(err, fmt.Errorf("%s doesn't come down: killed", m.Name), m.first.Process.Kill())
			<-m.gone
		}
		m.network.close()
	} else {
		err = errors.Join(err, m.first.Process.Kill())
		m.first.Wait() //nolint:errcheck // killed
	}
	m.conn.Close()
	return err
}

// wait calls check every 20 ms until it returns nil, and fails when ctx ends or the program does.
func (p *running) wait(ctx context.Context, what string, check func(context.Context) error) error {
	every := time.NewTicker(20 * time.Millisecond)
	defer every.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-every.C:
		case <-p.ended:
			return fmt.Errorf("%s ended (%s) before it was %s:\n%s", p.Name, p.how, what, tail(p.Log))
		case <-ctx.Done():
			return fmt.Errorf("%s isn't %s: %w (%w)\n%s", p.Name, what, err, context.Cause(ctx), tail(p.Log))
		}
	}
}

// tail returns the last lines of a log, indented.
func tail(path string) string {
	const most = 4 << 10
	f, err := os.Open(path)
	if err != nil {
		return "  (no log: " + err.Error() + ")"
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, size-most), io.SeekStart) //nolint:errcheck // then it reads from the end: nothing
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if len(lines) > 12 {
		lines = lines[len(lines)-12:]
	}
	return "  " + path + ":\n  " + string(bytes.Join(lines, []byte("\n  ")))
}
