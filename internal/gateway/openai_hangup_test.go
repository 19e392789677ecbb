package gateway_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
)

// TestAHangUpClosesTheEnginesConnection looks at the bytes: an engine that only reads sees the end of its
// connection once the client is gone, before the first byte of an answer and within a stream, and what came
// up to then is counted.
func TestAHangUpClosesTheEnginesConnection(t *testing.T) {
	const (
		head  = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
		usage = `data: {"choices":[{}],"usage":{"prompt_tokens":5,"completion_tokens":9}}` + "\n\n"
		frame = "data: {\"choices\":[{}]}\n\n"
	)
	for version, c := range clients(t) {
		for name, tc := range map[string]struct {
			sent   string
			frames int
			tokens map[string]float64
		}{
			"before the first byte":      {tokens: map[string]float64{}},
			"within a stream":            {sent: head + frame + frame + `data: {"half":`, frames: 2, tokens: map[string]float64{"stationmaster_tokens_total completion": 2}},
			"where usage came meanwhile": {sent: head + frame + usage, frames: 2, tokens: map[string]float64{"stationmaster_tokens_total prompt": 5, "stationmaster_tokens_total completion": 9}},
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				reached, ended := make(chan struct{}), make(chan error, 1)
				addr := rawEngine(t, func(c net.Conn, in *bufio.Reader) {
					if err := readRequest(in); err != nil {
						ended <- err
						return
					}
					_, _ = io.WriteString(c, tc.sent)
					close(reached)
					_, err := in.ReadByte()
					ended <- err
				})
				registry := prometheus.NewRegistry()
				g := start(t, func(c *gateway.Config) { c.Metrics = registry }, llm("llm", "", "llm", route.Endpoint{HTTP: addr}))
				ctx, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				r := request(t, http.MethodPost, g.url("/v1/chat/completions"), chat).WithContext(ctx)
				answered := make(chan struct{})
				go func() {
					defer close(answered)
					resp, err := c.Do(r)
					if err != nil {
						return
					}
					defer resp.Body.Close()
					frames := bufio.NewReader(resp.Body)
					for range 2 * tc.frames {
						if _, err := frames.ReadString('\n'); err != nil {
							t.Errorf("a frame didn't come: %v", err)
						}
					}
					hangUp()
				}()
				<-reached
				if tc.sent == "" {
					hangUp()
				}
				if err := <-ended; err == nil {
					t.Error("the engine got something more")
				}
				<-answered
				g.stop()
				if diff := cmp.Diff(tc.tokens, series(t, registry, "stationmaster_tokens_total")); diff != "" {
					t.Errorf("tokens (-want +got)\n%s", diff)
				}
			})
		}
	}
}
