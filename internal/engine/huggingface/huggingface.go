// Package huggingface is the adapter of KServe's Hugging Face server, which serves generative models
// with vLLM and others with transformers.
package huggingface

import (
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/engine/vllm"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Adapter is KServe's Hugging Face server (kserve.md 1.6).
var Adapter = adapter.Adapter{
	Name: "huggingface",
	Known: adapter.Marks{
		Commands: []string{"huggingfaceserver"},
		Images:   []string{"huggingfaceserver"}, Runtimes: []string{"huggingfaceserver"},
	},
	Start:     adapter.Start{Model: "--model_dir", Name: "--model_name", Port: "--http_port", GRPCPort: "--grpc_port"},
	Protocols: []spec.Protocol{spec.V1, spec.V2},
	OpenAI:    "/openai", Ready: "/v2/health/ready",
	Limits:  []adapter.Question{adapter.ListedLimit("/openai/v1/models")},
	Page:    adapter.Page{Path: "/metrics"},
	Metrics: vllm.Metrics,
}
