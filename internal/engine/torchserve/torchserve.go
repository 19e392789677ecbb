// Package torchserve is the adapter of TorchServe, and of servers that speak V1 and tell nothing else
// of themselves.
package torchserve

import (
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Adapter is TorchServe. Its ports stand in a file of the model. Its metrics
// (docs/metrics.md of pytorch/serve: counters of requests and of time spent) have nothing that has a
// name for all engines.
var Adapter = adapter.Adapter{
	Name: "torchserve",
	Known: adapter.Marks{
		Commands: []string{"torchserve"},
		Images:   []string{"torchserve"}, Runtimes: []string{"torchserve"},
	},
	Start:     adapter.Start{Model: "--model-store"},
	Protocols: []spec.Protocol{spec.V1, spec.V2, spec.GRPCV2},
	Ready:     "/ping",
	Page:      adapter.Page{Path: "/metrics", Port: 8082, Needs: "set metrics_mode=prometheus in its config.properties"},
}

// V1 is any server that speaks V1, such as those of KServe's Python SDK (kserve.md 1.6).
var V1 = adapter.Adapter{
	Name:      "v1",
	Start:     adapter.Start{Model: "--model_dir", Name: "--model_name", Port: "--http_port", GRPCPort: "--grpc_port"},
	Protocols: []spec.Protocol{spec.V1},
	Ready:     "/",
	Page:      adapter.Page{Path: "/metrics"},
}
