// Package ollama is the adapter of Ollama.
package ollama

import "stationmaster.dev/stationmaster/internal/engine/adapter"

// Adapter is Ollama, which has no page of metrics. Its models are in a folder of its own making.
// Variables: envconfig/config.go of ollama/ollama.
var Adapter = adapter.Adapter{
	Name: "ollama",
	Known: adapter.Marks{
		Commands: []string{"ollama"},
		Images:   []string{"ollama"}, Runtimes: []string{"ollama"},
	},
	Start:  adapter.Start{Env: map[string]string{"model": "OLLAMA_MODELS", "host": "OLLAMA_HOST"}},
	OpenAI: "/", Ready: "/api/version",
	Limits: []adapter.Question{adapter.ShownLimit("/api/show")},
}
