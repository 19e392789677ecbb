package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func bgContext() context.Context { return context.Background() }

func registry() prometheus.Registerer { return prometheus.NewRegistry() }

// nginxConf is proxy_pass with kept connections and nothing written to disk: buffers hold
// both bodies, so that nginx shows its best.
const nginxConf = `
worker_processes 1;
daemon off;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log crit;
events { worker_connections 256; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  keepalive_requests 1000000;
  upstream engine { server %[2]s; keepalive 16; keepalive_requests 1000000; }
  server {
    listen %[3]s;
    client_body_buffer_size 256k;
    client_max_body_size 256m;
    location / {
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header X-Request-Id $request_id;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_buffer_size 16k;
      proxy_buffers 16 16k;
      add_header X-Request-Id $request_id;
    }
  }
}
`

func spawnNginx(engine string, cpu int) (*proxy, error) {
	if _, err := exec.LookPath("nginx"); err != nil {
		if out, err := exec.Command("sh", "-c", "apt-get update -q && apt-get install -q -y nginx-light").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("nginx isn't here and can't be installed (%w): %s", err, out)
		}
	}
	dir, err := os.MkdirTemp("", "gatewaycost")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close()
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, engine, addr), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command("nginx", "-p", dir, "-c", conf)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &proxy{name: "nginx", addr: addr, stop: func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(deadline) {
			p.stop()
			return nil, errors.New("nginx didn't start to listen within 10 s")
		}
		time.Sleep(20 * time.Millisecond)
	}
	// The master does nothing; the worker is its only child.
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	if err != nil {
		p.stop()
		return nil, err
	}
	for _, f := range strings.Fields(string(children)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		p.pids = append(p.pids, pid)
		if err := pinAll(pid, cpu); err != nil {
			return nil, err
		}
	}
	if len(p.pids) == 0 {
		p.stop()
		return nil, errors.New("nginx has no worker process")
	}
	return p, nil
}
