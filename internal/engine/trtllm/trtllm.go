// Package trtllm is the adapter of TensorRT-LLM's own server, trtllm-serve.
package trtllm

import "stationmaster.dev/stationmaster/internal/engine/adapter"

// Adapter is trtllm-serve. The model is its first argument, without a flag. Its /metrics has JSON of
// the last iterations; the page in Prometheus' format is another (tensorrt_llm/serve/openai_server.py
// of NVIDIA/TensorRT-LLM).
var Adapter = adapter.Adapter{
	Name: "trtllm",
	Known: adapter.Marks{
		Commands: []string{"trtllm-serve"},
		Images:   []string{"tensorrt-llm", "tensorrt_llm"}, Runtimes: []string{"trtllm", "tensorrt-llm"},
	},
	Start:  adapter.Start{Host: "--host", Port: "--port"},
	OpenAI: "/", Ready: "/health",
	Page: adapter.Page{
		Path:  "/prometheus/metrics",
		Needs: "set return_perf_metrics and enable_iter_perf_stats to true in the file of its --extra_llm_api_options",
	},
	// operators.md 1c; tensorrt_llm/metrics/collector.py.
	Metrics: adapter.Metrics{
		Running:    []adapter.Series{adapter.Named("trtllm_num_requests_running"), adapter.Named("trtllm_num_active_requests")},
		Waiting:    []adapter.Series{adapter.Named("trtllm_num_requests_waiting"), adapter.Named("trtllm_server_queue_length")},
		KV:         []adapter.Series{adapter.MeanOf("trtllm_kv_cache_utilization")},
		Hits:       []adapter.Series{adapter.Named("trtllm_prompt_cached_tokens_total")},
		Queries:    []adapter.Series{adapter.Named("trtllm_prompt_tokens_total")},
		Prompt:     []adapter.Series{adapter.Named("trtllm_prompt_tokens_total")},
		Generated:  []adapter.Series{adapter.Named("trtllm_generation_tokens_total")},
		FirstToken: []adapter.Histogram{{Name: "trtllm_time_to_first_token_seconds"}},
		PerToken:   []adapter.Histogram{{Name: "trtllm_time_per_output_token_seconds"}},
		Batch:      []adapter.Batch{{Now: "trtllm_num_requests_running"}, {Now: "trtllm_num_active_requests"}},
		Cache: &adapter.Cache{
			SizeSeries: adapter.MeanOf("trtllm_kv_cache_tokens_per_block"), NumSeries: adapter.Named("trtllm_kv_cache_max_blocks"),
		},
	},
}
