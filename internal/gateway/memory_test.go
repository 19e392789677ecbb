package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Bodies of all sizes reach the engine changed where they must be and else byte for byte, though their
// buffers are used again, by requests at the same time too; also where an engine answers before it has
// read the request.
func TestLargeBodiesReachTheEngineWhole(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("X-Early"), "yes") {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[]}\n\n")
		w.(http.Flusher).Flush()
		_, _ = w.Write(append(append([]byte("data: "), b...), "\n\ndata: [DONE]\n\n"...))
	})
	s := service("llm", route.Endpoint{HTTP: addr})
	target := &s.Components[spec.Predictor].Targets[0]
	target.OpenAI, target.Engine, target.ModelName = "/", "vllm", "m"
	g := start(t, func(c *gateway.Config) { c.OpenAI.MaxRead = 2 << 20 }, s)
	var all sync.WaitGroup
	for client := range 4 {
		all.Go(func() {
			for i, size := range []int{10, 3000, 60 << 10, 66 << 10, 220 << 10, 1100 << 10, 70 << 10, 64 << 10} {
				text := strings.Repeat(string(rune('a'+client)), size)
				early := i == 4 && client == 0
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url("/v1/chat/completions"),
					strings.NewReader(`{"model":"llm","stream":true,"messages":"`+text+`"}`))
				if early {
					r.Header.Set("X-Early", "yes")
				}
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if early {
					if resp.StatusCode != http.StatusTooManyRequests {
						t.Errorf("status %d", resp.StatusCode)
					}
					continue
				}
				// The engine's own name of the model became the client's again on its way back.
				want := `{"model":"llm","stream":true,"stream_options":{"include_usage":true},"messages":"` + text + `"}`
				if size > 1<<20 { // not read to its end, so that its usage isn't asked for
					want = `{"model":"llm","stream":true,"messages":"` + text + `"}`
				}
				if err != nil || !bytes.Contains(got, []byte("data: "+want+"\n\n")) {
					t.Errorf("client %d, %d bytes: %v; of %d bytes came %d", client, size, err, len(want), len(got))
				}
			}
		})
	}
	all.Wait()
}
