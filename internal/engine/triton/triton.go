// Package triton is the adapter of Triton Inference Server, with the TensorRT-LLM backend or others.
package triton

import (
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Adapter is Triton.
var Adapter = adapter.Adapter{
	Name: "triton",
	Known: adapter.Marks{
		Commands: []string{"tritonserver"},
		Images:   []string{"tritonserver"}, Runtimes: []string{"triton"},
	},
	// Source: docs/user_guide/metrics.md and `tritonserver --help` of triton-inference-server/server.
	Start: adapter.Start{
		Model: "--model-store", Host: "--http-address", Port: "--http-port", GRPCPort: "--grpc-port",
	},
	Protocols: []spec.Protocol{spec.V2, spec.GRPCV2},
	Ready:     "/v2/health/ready",
	Page: adapter.Page{
		Path: "/metrics", Port: 8002, PortFlag: "--metrics-port",
		Needs: "for times to the first token start it with --metrics-config=histogram_latencies=true",
	},
	Metrics: adapter.Metrics{
		// The backend's (operators.md 1c; triton_backend/inflight_batcher_llm/src/custom_metrics_reporter
		// of NVIDIA/TensorRT-LLM). Others have no gauge of what runs: nv_inference_exec_count, which some
		// take for one, only grows.
		Running: []adapter.Series{{Names: []string{"nv_trt_llm_request_metrics"}, Label: "request_type", Value: "scheduled"}},
		Waiting: []adapter.Series{
			{Names: []string{"nv_trt_llm_request_metrics"}, Label: "request_type", Value: "waiting"},
			adapter.Named("nv_inference_pending_request_count"),
		},
		KV:        []adapter.Series{{Names: []string{"nv_trt_llm_kv_cache_block_metrics"}, Label: "kv_cache_block_type", Value: "fraction", Mean: true}},
		Prompt:    []adapter.Series{adapter.Named("nv_llm_input_token_len_sum")},
		Generated: []adapter.Series{adapter.Named("nv_llm_output_token_len_sum")},
		// Of decoupled models: the first response of a stream.
		FirstToken: []adapter.Histogram{{Name: "nv_inference_first_response_histogram_ms", Unit: 0.001}},
		// Inferences, a batch of n counted n times, and executions.
		Batch: []adapter.Batch{{Sum: "nv_inference_count", Count: "nv_inference_exec_count"}},
		Cache: &adapter.Cache{
			SizeSeries: adapter.Series{Names: []string{"nv_trt_llm_kv_cache_block_metrics"}, Label: "kv_cache_block_type", Value: "tokens_per", Mean: true},
			NumSeries:  adapter.Series{Names: []string{"nv_trt_llm_kv_cache_block_metrics"}, Label: "kv_cache_block_type", Value: "max"},
		},
	},
}
