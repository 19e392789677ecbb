// Package vllm is the adapter of vLLM's OpenAI server.
package vllm

import "stationmaster.dev/stationmaster/internal/engine/adapter"

// Adapter is vLLM.
var Adapter = adapter.Adapter{
	Name: "vllm",
	Known: adapter.Marks{
		Commands: []string{"vllm", "vllm.entrypoints.openai.api_server"},
		Images:   []string{"vllm"}, Runtimes: []string{"vllm"},
	},
	// Source: docs/cli/serve of vllm-project/vllm; KServe's runtime kserve-vllmserver.
	Start:  adapter.Start{Model: "--model", Name: "--served-model-name", Host: "--host", Port: "--port"},
	OpenAI: "/", Ready: "/health",
	Limits: []adapter.Question{adapter.ListedLimit("/v1/models")},
	// vllm/entrypoints/pooling: classify has no form under /v1.
	Translate: "dialect=vllm",
	Tasks: []adapter.Task{
		{Flag: "--task", Value: "embed", Is: "embeddings"}, {Flag: "--task", Value: "embedding", Is: "embeddings"},
		{Flag: "--task", Value: "classify", Is: "classify"}, {Flag: "--task", Value: "score", Is: "score"},
		{Flag: "--convert", Value: "embed", Is: "embeddings"}, {Flag: "--convert", Value: "classify", Is: "classify"},
	},
	Page:    adapter.Page{Path: "/metrics"},
	Metrics: Metrics,
}

// Metrics are vLLM's, in both generations of names (operators.md 1c; vllm/v1/metrics/loggers.py, and
// vllm/engine/metrics.py for those of version 0). Counters are declared without _total there, which
// prometheus_client puts behind them.
var Metrics = adapter.Metrics{
	Running: []adapter.Series{adapter.Named("vllm:num_requests_running")},
	Waiting: []adapter.Series{adapter.Named("vllm:num_requests_waiting")},
	// One series for each engine of data parallelism.
	KV: []adapter.Series{adapter.MeanOf("vllm:kv_cache_usage_perc"), adapter.MeanOf("vllm:gpu_cache_usage_perc")},
	// In tokens. Version 0 told a rate alone.
	Hits:       []adapter.Series{adapter.Named("vllm:prefix_cache_hits_total"), adapter.Named("vllm:gpu_prefix_cache_hits_total")},
	Queries:    []adapter.Series{adapter.Named("vllm:prefix_cache_queries_total"), adapter.Named("vllm:gpu_prefix_cache_queries_total")},
	Prompt:     []adapter.Series{adapter.Named("vllm:prompt_tokens_total")},
	Generated:  []adapter.Series{adapter.Named("vllm:generation_tokens_total")},
	FirstToken: []adapter.Histogram{{Name: "vllm:time_to_first_token_seconds"}},
	PerToken:   []adapter.Histogram{{Name: "vllm:inter_token_latency_seconds"}, {Name: "vllm:time_per_output_token_seconds"}},
	// All that runs is one batch (continuous batching).
	Batch: []adapter.Batch{{Now: "vllm:num_requests_running"}},
	Adapters: &adapter.Adapters{
		Name: "vllm:lora_requests_info", Lists: []string{"running_lora_adapters", "waiting_lora_adapters"}, Max: "max_lora",
	},
	Cache: &adapter.Cache{Info: "vllm:cache_config_info", BlockSize: "block_size", Blocks: "num_gpu_blocks"},
}
