// Package proc starts what benches compare as processes of their own, so that each one's CPU and
// memory can be told, and reads both from the kernel.
package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one that runs, or an address before which there is none.
type Process struct {
	Name string
	// Addr is what it printed when it was ready: the address on which it listens, or several with
	// spaces between.
	Addr string
	// PIDs are those of the processes that do the work.
	PIDs []int
	// Stop ends it and waits for that. It is nil where nothing runs.
	Stop func()
}

// Spawn starts a command on one core and waits for the line that it prints when it is ready. It has
// to end with its standard input. Go programs get one processor.
func Spawn(name string, cpu int, argv ...string) (*Process, error) {
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec,noctx // a bench's own; Stop ends it
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{Name: name, PIDs: []int{cmd.Process.Pid}, Stop: func() { _ = stdin.Close(); _ = cmd.Wait() }}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		p.Stop()
		return nil, fmt.Errorf("%s didn't start: %w", name, err)
	}
	p.Addr = strings.TrimSpace(line)
	return p, PinAll(cmd.Process.Pid, cpu)
}

// Serve runs a role: it prints its addresses, n of them, and serves until its standard input ends.
func Serve(h http.Handler, n int) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	addrs := make([]string, n)
	ended := make(chan error, n)
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is there at once
		if err != nil {
			return err
		}
		addrs[i] = l.Addr().String()
		go func() { ended <- s.Serve(l) }()
	}
	fmt.Println(strings.Join(addrs, " "))
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); _ = s.Close() }()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Pin puts a thread on one core (0 means the caller); what it starts inherits that.
func Pin(tid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(tid, &set)
}

// PinAll puts all threads of a process on one core, where there are several.
func PinAll(pid, cpu int) error {
	if runtime.NumCPU() < 2 {
		return nil
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := Pin(tid, cpu); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// CPU is what the processes used, read by their CPU clocks (nanoseconds, all threads).
func (p *Process) CPU() time.Duration {
	var sum time.Duration
	for _, pid := range p.PIDs {
		var ts unix.Timespec
		// The kernel's number for a process's CPU clock: see clock_getcpuclockid(3).
		if unix.ClockGettime(int32(^pid<<3|2), &ts) == nil { //nolint:gosec // PIDs are small
			sum += time.Duration(ts.Nano())
		}
	}
	return sum
}

// Ticks is what the processes used in user and in kernel mode, in the kernel's ticks.
func (p *Process) Ticks() (sum [2]float64) {
	for _, pid := range p.PIDs {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		// The fields behind the name, which may hold spaces: utime and stime are 14 and 15
		// of all (proc_pid_stat(5)), and the name is the second.
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		for i := range sum {
			if v, err := strconv.ParseFloat(f[11+i], 64); err == nil {
				sum[i] += v
			}
		}
	}
	return sum
}

// RSS is the memory that the processes have resident, in bytes.
func (p *Process) RSS() int {
	pages := 0
	for _, pid := range p.PIDs {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			continue
		}
		if f := strings.Fields(string(b)); len(f) > 1 {
			if v, err := strconv.Atoi(f[1]); err == nil {
				pages += v
			}
		}
	}
	return pages * os.Getpagesize()
}

// Load is the machine's load average over a minute.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}
