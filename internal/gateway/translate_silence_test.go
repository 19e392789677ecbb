package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
)

// TestTranslatedStreamsAreKeptAlive: an engine that says nothing, before its head and between frames, leaves
// no client in doubt; what fails after a comment is told in a frame.
func TestTranslatedStreamsAreKeptAlive(t *testing.T) {
	heard := make(chan struct{})
	llmAt := engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		<-heard
		if strings.Contains(string(b), "refuse") {
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"error":"full"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-heard
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
		w.(http.Flusher).Flush()
		<-heard
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	g := start(t, func(c *gateway.Config) { c.OpenAI.Silence = 20 * time.Millisecond }, llm("llm", "/", "llm", route.Endpoint{HTTP: llmAt}))
	frame := func(text string, done bool) string {
		return fmt.Sprintf("data: {\"model_name\":\"llm\",\"text_output\":%q,\"done\":%v}\n\n", text, done)
	}
	for name, tc := range map[string]struct {
		prompt string
		waits  int
		want   string
	}{
		"a stream":             {"a", 3, frame("a", false) + frame("", true)},
		"a refusal after that": {"refuse", 1, "data: {\"error\":\"full\"}\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, r := open(t, client(t), request(t, http.MethodPost, g.url("/v2/models/llm/generate_stream"), `{"text_input":"`+tc.prompt+`"}`))
			if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Request-Id") == "" {
				t.Errorf("%d %v", resp.StatusCode, resp.Header)
			}
			var got strings.Builder
			for range tc.waits {
				for comments := 0; comments < 2; {
					if f := next(t, r); f == comment {
						comments++
					} else {
						got.WriteString(f)
					}
				}
				heard <- struct{}{}
			}
			rest, err := io.ReadAll(r)
			got.WriteString(strings.ReplaceAll(string(rest), comment, ""))
			if err != nil || got.String() != tc.want {
				t.Errorf("%q %v, want %q", got.String(), err, tc.want)
			}
		})
	}
}
