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

// nginxConf is proxy_pass with kept connections, requests' bodies in memory and nothing written to
// disk: nginx at its best.
const nginxConf = `
worker_processes 1;
worker_rlimit_nofile 20000;
daemon off;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log crit;
events { worker_connections 16384; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  keepalive_requests 1000000;
  upstream engines { %[2]s keepalive 256; keepalive_requests 1000000; }
  server {
    listen %[3]s backlog=4096;
    client_body_buffer_size 256k;
    client_max_body_size 256m;
    location / {
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header X-Request-Id $request_id;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      add_header X-Request-Id $request_id;
      %[4]s
    }
  }
}
`

// What SpawnNginx may be told of answers: that they pass as they come, or that a large one is held whole.
const (
	NginxStreams = "proxy_buffering off;"
	NginxBuffers = "proxy_buffer_size 16k; proxy_buffers 16 16k;"
)

// SpawnNginx starts an nginx with one worker on one core before engines, whose addresses have spaces
// between. answers is NginxStreams or NginxBuffers. Debian's package is installed where there is none.
func SpawnNginx(cpu int, engines, answers string) (*Process, error) {
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
	servers := ""
	for e := range strings.FieldsSeq(engines) {
		servers += "server " + e + "; "
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConf, dir, servers, addr, answers), 0o600); err != nil {
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
