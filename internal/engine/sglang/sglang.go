// Package sglang is the adapter of SGLang's server.
package sglang

import "stationmaster.dev/stationmaster/internal/engine/adapter"

// Adapter is SGLang. Flags: python/sglang/srt/server_args.py of sgl-project/sglang.
var Adapter = adapter.Adapter{
	Name: "sglang",
	Known: adapter.Marks{
		Commands: []string{"sglang", "sglang.launch_server"},
		Images:   []string{"sglang"}, Runtimes: []string{"sglang"},
	},
	Start:  adapter.Start{Model: "--model-path", Name: "--served-model-name", Host: "--host", Port: "--port"},
	OpenAI: "/", Ready: "/health",
	// python/sglang/srt/entrypoints/http_server.py, available_models.
	Limits: []adapter.Question{adapter.ListedLimit("/v1/models")},
	Page:   adapter.Page{Path: "/metrics", Needs: "start it with --enable-metrics"},
	Tasks:  []adapter.Task{{Flag: "--is-embedding", Is: "embeddings"}},
	// operators.md 1c; python/sglang/srt/metrics/collector.py, later
	// python/sglang/srt/observability/metrics_collector.py.
	Metrics: adapter.Metrics{
		Running: []adapter.Series{adapter.Named("sglang:num_running_reqs")},
		Waiting: []adapter.Series{adapter.Named("sglang:num_queue_reqs")},
		KV:      []adapter.Series{adapter.MeanOf("sglang:token_usage")},
		// Prompt tokens are counted with those of them that were cached.
		Hits:       []adapter.Series{adapter.Named("sglang:cached_tokens_total")},
		Queries:    []adapter.Series{adapter.Named("sglang:prompt_tokens_total")},
		Prompt:     []adapter.Series{adapter.Named("sglang:prompt_tokens_total")},
		Generated:  []adapter.Series{adapter.Named("sglang:generation_tokens_total")},
		FirstToken: []adapter.Histogram{{Name: "sglang:time_to_first_token_seconds"}},
		PerToken:   []adapter.Histogram{{Name: "sglang:inter_token_latency_seconds"}, {Name: "sglang:time_per_output_token_seconds"}},
		Batch:      []adapter.Batch{{Now: "sglang:num_running_reqs"}},
		Cache:      &adapter.Cache{Info: "sglang:cache_config_info", BlockSize: "page_size", Blocks: "num_pages"},
	},
}
