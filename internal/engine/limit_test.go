package engine_test

import (
	"testing"

	"stationmaster.dev/stationmaster/internal/engine"
)

// TestEnginesTellHowManyTokensTheyTake reads answers as engines give them, shortened.
func TestEnginesTellHowManyTokensTheyTake(t *testing.T) {
	tests := map[string]struct {
		engine, path, answer string
		body                 string
		want                 int
	}{
		"vLLM":                       {engine: "vllm", path: "/v1/models", answer: `{"object":"list","data":[{"id":"llm","root":"/mnt/models","parent":null,"max_model_len":8192}]}`, want: 8192},
		"vLLM, by another name":      {engine: "vllm", path: "/v1/models", answer: `{"data":[{"id":"sql","parent":"base","max_model_len":1},{"id":"base","parent":null,"max_model_len":8192}]}`, want: 8192},
		"KServe's vLLM":              {engine: "huggingface", path: "/openai/v1/models", answer: `{"data":[{"id":"llm","max_model_len":4096}]}`, want: 4096},
		"KServe's, of transformers":  {engine: "huggingface", path: "/openai/v1/models", answer: `{"data":[{"id":"llm"}]}`},
		"SGLang, with an adapter":    {engine: "sglang", path: "/v1/models", answer: `{"data":[{"id":"llm","root":"llm","parent":null,"max_model_len":32768},{"id":"sql","parent":"llm","max_model_len":null}]}`, want: 32768},
		"llama.cpp, of each slot":    {engine: "llamacpp", path: "/props", answer: `{"default_generation_settings":{"id":0,"n_ctx":2048},"total_slots":4}`, want: 2048},
		"llama.cpp, where it routes": {engine: "llamacpp", path: "/props", answer: `{"default_generation_settings":{"n_ctx":0}}`},
		"llama.cpp's list":           {engine: "llamacpp", path: "/v1/models", answer: `{"models":[{}],"data":[{"id":"llm","meta":{"vocab_type":1,"n_ctx_train":131072}}]}`, want: 131072},
		"TGI":                        {engine: "tgi", path: "/info", answer: `{"model_id":"x","max_input_tokens":4095,"max_total_tokens":4096}`, want: 4096},
		"TEI":                        {engine: "tei", path: "/info", answer: `{"model_id":"x","model_type":{"embedding":{}},"max_input_length":512}`, want: 512},
		"Ollama, what it's set to":   {engine: "ollama", path: "/api/show", body: `{"model":"llm"}`, answer: `{"parameters":"stop \"<a b>\"\nnum_ctx      16384\n","model_info":{"general.architecture":"llama","llama.context_length":131072}}`, want: 16384},
		"Ollama, what it's made for": {engine: "ollama", path: "/api/show", body: `{"model":"llm"}`, answer: `{"model_info":{"general.architecture":"qwen3","qwen3.context_length":40960,"qwen3.block_count":1}}`, want: 40960},
		"no number":                  {engine: "tgi", path: "/info", answer: `{"max_total_tokens":"many"}`},
		"a negative one":             {engine: "tei", path: "/info", answer: `{"max_input_length":-1}`},
		"no JSON":                    {engine: "llamacpp", path: "/props", answer: `<html>`},
		"no list":                    {engine: "vllm", path: "/v1/models", answer: `[]`},
		"nothing shown":              {engine: "ollama", path: "/api/show", body: `{"model":"llm"}`, answer: `{}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, q := range engine.ByName(tc.engine).Limits {
				if q.Path != tc.path {
					continue
				}
				body := ""
				if q.Body != nil {
					body = string(q.Body("llm"))
				}
				if got := q.Read([]byte(tc.answer), "llm"); got != tc.want || body != tc.body {
					t.Errorf("asked with %q: %d, want %d", body, got, tc.want)
				}
				return
			}
			t.Errorf("%s isn't asked for %s", tc.engine, tc.path)
		})
	}
}
