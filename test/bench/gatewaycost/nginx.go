package main

import (
	"context"

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
