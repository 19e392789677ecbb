// Package tgi is the adapter of Hugging Face's Text Generation Inference.
package tgi

import "stationmaster.dev/stationmaster/internal/engine/adapter"

// Adapter is TGI. Flags: docs/source/reference/launcher.md of huggingface/text-generation-inference.
var Adapter = adapter.Adapter{
	Name: "tgi",
	Known: adapter.Marks{
		Commands: []string{"text-generation-launcher", "text-generation-router"},
		Images:   []string{"text-generation-inference"}, Runtimes: []string{"text-generation-inference", "tgi"},
	},
	Start: adapter.Start{
		Model: "--model-id", Host: "--hostname", Port: "--port",
		Env: map[string]string{"model": "MODEL_ID", "host": "HOSTNAME", "port": "PORT"},
	},
	OpenAI: "/", Ready: "/health",
	Limits: []adapter.Question{adapter.ToldLimit("/info", "max_total_tokens")},
	Page:   adapter.Page{Path: "/metrics"},
	// Source: docs/source/reference/metrics.md and router/src/server.rs. It tells neither the time to
	// the first token, nor how full its cache is.
	Metrics: adapter.Metrics{
		Running:   []adapter.Series{adapter.Named("tgi_batch_current_size")},
		Waiting:   []adapter.Series{adapter.Named("tgi_queue_size")},
		Prompt:    []adapter.Series{adapter.Named("tgi_request_input_length_sum")},
		Generated: []adapter.Series{adapter.Named("tgi_request_generated_tokens_sum")},
		// The mean of a request's tokens, the first with its prefill included.
		PerToken: []adapter.Histogram{{Name: "tgi_request_mean_time_per_token_duration"}},
		Batch:    []adapter.Batch{{Now: "tgi_batch_current_size"}},
	},
}
