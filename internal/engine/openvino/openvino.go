// Package openvino is the adapter of OpenVINO Model Server.
package openvino

import (
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Adapter is OpenVINO Model Server. Its OpenAI API is under /v3. Flags: docs/parameters.md of
// openvinotoolkit/model_server.
var Adapter = adapter.Adapter{
	Name: "openvino",
	Known: adapter.Marks{
		Commands: []string{"ovms"},
		Images:   []string{"openvino/model_server", "openvino-model-server"}, Runtimes: []string{"openvino", "ovms"},
	},
	Start: adapter.Start{
		Model: "--model_path", Name: "--model_name", Host: "--rest_bind_address", Port: "--rest_port", GRPCPort: "--port",
	},
	Protocols: []spec.Protocol{spec.V1, spec.V2, spec.GRPCV2},
	// Graphs of its own speak the OpenAI API, models of one network tensors (docs/clients_genai.md).
	OpenAI: "/v3", Ready: "/v2/health/ready",
	Translate: "models=either",
	Tasks: []adapter.Task{
		{Flag: "--task", Value: "embeddings", Is: "embeddings"}, {Flag: "--task", Value: "rerank", Is: "rerank"},
	},
	Page: adapter.Page{Path: "/metrics", Needs: "start it with --metrics_enable"},
	// Source: docs/metrics.md and src/metric_config.cpp. Graphs serve its generative models. What it
	// calls a queue's size is how many may be computed at once.
	Metrics: adapter.Metrics{
		Running: []adapter.Series{
			{Names: []string{"ovms_current_requests", "ovms_current_graphs"}},
			adapter.Named("ovms_current_requests"), adapter.Named("ovms_current_graphs"),
		},
	},
}
