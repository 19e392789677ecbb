package proc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// SpawnNginx starts an nginx with one worker on one core. What conf makes of a folder of its own and
// the address to listen on is its configuration, which must have it stay in the foreground.
// Debian's package is installed where there is none.
func SpawnNginx(cpu int, conf func(dir, listen string) string) (*Process, error) {
	if _, err := exec.LookPath("nginx"); err != nil {
		if out, err := exec.Command("sh", "-c", "apt-get update -q && apt-get install -q -y nginx-light").CombinedOutput(); err != nil { //nolint:noctx // it ends
			return nil, fmt.Errorf("nginx isn't here and can't be installed (%w): %s", err, out)
		}
	}
	dir, err := os.MkdirTemp("", "bench-nginx")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is there at once
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close()
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf(dir, addr)), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command("nginx", "-p", dir, "-c", file) //nolint:gosec,noctx // a bench's own; Stop ends it
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{Name: "nginx", Addr: addr, Stop: func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if c, err := net.Dial("tcp", addr); err == nil { //nolint:noctx // it is there at once
			_ = c.Close()
			break
		}
		if time.Now().After(deadline) {
			p.Stop()
			return nil, errors.New("nginx didn't start to listen within 10 s")
		}
		time.Sleep(20 * time.Millisecond)
	}
	// The master does nothing; the worker is its only child.
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	if err != nil {
		p.Stop()
		return nil, err
	}
	for f := range strings.FieldsSeq(string(children)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		p.PIDs = append(p.PIDs, pid)
		if err := PinAll(pid, cpu); err != nil {
			return nil, err
		}
	}
	if len(p.PIDs) == 0 {
		p.Stop()
		return nil, errors.New("nginx has no worker process")
	}
	return p, nil
}

// NginxVersion is what nginx says of itself.
func NginxVersion() string {
	version, _ := exec.Command("nginx", "-v").CombinedOutput() //nolint:noctx // it ends
	return strings.TrimSpace(string(version))
}
