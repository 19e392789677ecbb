// Package tei is the adapter of Hugging Face's Text Embeddings Inference.
package tei

import "stationmaster.dev/stationmaster/internal/engine/adapter"

// Adapter is TEI. Flags: docs/source/en/cli_arguments.md of huggingface/text-embeddings-inference.
var Adapter = adapter.Adapter{
	Name: "tei",
	Known: adapter.Marks{
		Commands: []string{"text-embeddings-router"},
		Images:   []string{"text-embeddings-inference"}, Runtimes: []string{"text-embeddings-inference", "tei"},
	},
	Start: adapter.Start{
		Model: "--model-id", Host: "--hostname", Port: "--port",
		Env: map[string]string{"model": "MODEL_ID", "host": "HOSTNAME", "port": "PORT"},
	},
	// Of the OpenAI API it has /v1/embeddings (and not models, nor completions); router/src/http/server.rs.
	OpenAI: "/", Ready: "/health",
	Limits:    []adapter.Question{adapter.ToldLimit("/info", "max_input_length")},
	Page:      adapter.Page{Path: "/metrics"},
	Translate: "task=embeddings, dialect=tei",
	// Source: core/src/queue.rs and router/src/prometheus.rs. The lengths of batches are tokens of
	// prompts, since nothing is generated.
	Metrics: adapter.Metrics{
		Waiting: []adapter.Series{adapter.Named("te_queue_size")},
		Prompt:  []adapter.Series{adapter.Named("te_batch_next_tokens_sum")},
		Batch:   []adapter.Batch{{Sum: "te_batch_next_size_sum", Count: "te_batch_next_size_count"}},
	},
}
