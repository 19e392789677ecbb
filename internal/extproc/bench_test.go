package extproc_test

import (
	"fmt"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/extproc"
)

// BenchmarkPickedRequest is what one request costs from its head to the end of its answer, with the
// proxy's side of the streams in the same process.
func BenchmarkPickedRequest(b *testing.B) {
	for _, bc := range []struct {
		size, pieces int
	}{{1 << 10, 1}, {220 << 10, 14}} {
		b.Run(fmt.Sprintf("%dKB", bc.size>>10), func(b *testing.B) {
			var all []string
			for i := range 16 {
				all = append(all, fmt.Sprintf("10.0.0.%d:8000", i+1))
			}
			p := serve(b, extproc.Config{}, strings.Join(all, ","))
			body := chat(strings.Repeat("lorem ipsum ", bc.size/12))
			length := fmt.Sprint(len(body))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				c := p.ask(b, request{in: duplex, out: duplex, body: body, pieces: bc.pieces, headers: map[string]string{"content-length": length}})
				c.answer("200", "application/json", "", "", `{"usage":{"prompt_tokens":3,"completion_tokens":5}}`)
				c.end()
			}
		})
	}
}
