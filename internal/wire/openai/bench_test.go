package openai_test

import (
	"encoding/json"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// A body of 220 KiB, as of a conversation about a long text, with and without line ends in it.
func BenchmarkReadRequest(b *testing.B) {
	for name, text := range map[string]string{
		"plain":     strings.Repeat("All work and no play makes a dull prompt. ", 5400),
		"escaped":   strings.Repeat("All work and no play\nmakes a \"dull\" prompt.\n ", 4800),
		"not ASCII": strings.Repeat("Nichts als Arbeit, und für größere Fragen keine Muße. ", 4000),
	} {
		body, err := json.Marshal(map[string]any{
			"model": "llm", "stream": true, "messages": []any{map[string]any{"role": "user", "content": text}},
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if r, err := openai.ReadRequest(body, true); err != nil || r.Model != "llm" {
					b.Fatal(r, err)
				}
			}
		})
	}
}
