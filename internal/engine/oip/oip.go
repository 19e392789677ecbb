// Package oip is the adapter of our own model server, and of servers that speak the Open Inference
// Protocol and tell nothing else of themselves.
package oip

import (
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Ours is `stationmaster runtime onnx`. Metrics: internal/modelserver/metrics.go.
var Ours = adapter.Adapter{
	Name: "stationmaster",
	Known: adapter.Marks{
		Commands: []string{"stationmaster"},
		Images:   []string{"stationmaster/stationmaster"}, Runtimes: []string{"stationmaster-onnx"},
	},
	Start: adapter.Start{
		Model: "--model_dir", Name: "--model_name", Host: "--host", Port: "--http_port", GRPCPort: "--grpc_port",
	},
	Protocols: []spec.Protocol{spec.V1, spec.V2, spec.GRPCV2},
	Ready:     "/v2/health/ready",
	Page:      adapter.Page{Path: "/metrics"},
	Metrics: adapter.Metrics{
		Running: []adapter.Series{adapter.Named("stationmaster_runtime_requests_in_flight")},
		Waiting: []adapter.Series{adapter.Named("stationmaster_runtime_requests_waiting")},
		Batch:   []adapter.Batch{{Sum: "stationmaster_runtime_batch_size_sum", Count: "stationmaster_runtime_batch_size_count"}},
	},
}

// V2 is any server that speaks the Open Inference Protocol.
var V2 = adapter.Adapter{
	Name:      "v2",
	Protocols: []spec.Protocol{spec.V2, spec.GRPCV2},
	Ready:     "/v2/health/ready",
	Page:      adapter.Page{Path: "/metrics"},
}
