// Package llamacpp is the adapter of llama.cpp's server.
package llamacpp

import "stationmaster.dev/stationmaster/internal/engine/adapter"

// Adapter is llama-server. Flags: tools/server/README.md of ggml-org/llama.cpp.
var Adapter = adapter.Adapter{
	Name: "llamacpp",
	Known: adapter.Marks{
		Commands: []string{"llama-server"},
		Images:   []string{"llama.cpp"}, Runtimes: []string{"llamacpp", "llama-cpp", "llama.cpp"},
	},
	Start: adapter.Start{
		Model: "--model", Name: "--alias", Host: "--host", Port: "--port",
		Env: map[string]string{"model": "LLAMA_ARG_MODEL", "host": "LLAMA_ARG_HOST", "port": "LLAMA_ARG_PORT"},
	},
	OpenAI: "/", Ready: "/health",
	// What each slot has, and where there is no /props what the model was trained with.
	Limits: []adapter.Question{adapter.ToldLimit("/props", "default_generation_settings.n_ctx"), adapter.ListedLimit("/v1/models")},
	Page:   adapter.Page{Path: "/metrics", Needs: "start llama-server with --metrics; llama-cpp-python's server has no page of metrics"},
	Tasks: []adapter.Task{
		{Flag: "--embedding", Is: "embeddings"}, {Flag: "--embeddings", Is: "embeddings"},
		{Flag: "--rerank", Is: "rerank"}, {Flag: "--reranking", Is: "rerank"},
	},
	// Source: a page of a real server (testdata/llamacpp.txt); tools/server/server-context.cpp.
	Metrics: adapter.Metrics{
		Running: []adapter.Series{adapter.Named("llamacpp:requests_processing")},
		Waiting: []adapter.Series{adapter.Named("llamacpp:requests_deferred")},
		KV:      []adapter.Series{adapter.MeanOf("llamacpp:kv_cache_usage_ratio")},
		Gone:    "KV cache from releases of 2025's second half on",
		// Cached tokens aren't among those that are processed.
		Hits:    []adapter.Series{adapter.Named("llamacpp:prompt_tokens_cached_total")},
		Queries: []adapter.Series{{Names: []string{"llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"}}},
		Prompt: []adapter.Series{
			{Names: []string{"llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"}},
			adapter.Named("llamacpp:prompt_tokens_total"),
		},
		Generated: []adapter.Series{adapter.Named("llamacpp:tokens_predicted_total")},
		// The gauge is a mean since the start.
		Batch: []adapter.Batch{{Mean: "llamacpp:n_busy_slots_per_decode", Count: "llamacpp:n_decode_total"}},
	},
}
