// Package mlserver is the adapter of Seldon's MLServer.
package mlserver

import (
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Adapter is MLServer. Variables: mlserver/settings.py of SeldonIO/MLServer. Its metrics are on a
// port of their own; on that for inference, which KServe's annotation names, there is no page.
var Adapter = adapter.Adapter{
	Name: "mlserver",
	Known: adapter.Marks{
		Commands: []string{"mlserver"},
		Images:   []string{"mlserver"}, Runtimes: []string{"mlserver"},
	},
	Start: adapter.Start{Env: map[string]string{
		"model": "MLSERVER_MODEL_URI", "name": "MLSERVER_MODEL_NAME", "host": "MLSERVER_HOST",
		"port": "MLSERVER_HTTP_PORT", "grpcport": "MLSERVER_GRPC_PORT", "metricsport": "MLSERVER_METRICS_PORT",
	}},
	Protocols: []spec.Protocol{spec.V2, spec.GRPCV2},
	Ready:     "/v2/health/ready",
	Page:      adapter.Page{Path: "/metrics", Port: 8082},
	// Source: a page of a real server (testdata/mlserver.txt). Of gRPC it doesn't tell what runs. The
	// series comes with the first request.
	Metrics: adapter.Metrics{
		Running: []adapter.Series{{Names: []string{"rest_server_requests_in_progress"}, Label: "method", Value: "POST", ZeroAtFirst: true}},
	},
}
