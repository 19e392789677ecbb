package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// A client that asked for a stream learns that it is waited for; what comes of the wake is told
// within the stream, for its status went out with the first comment.
func TestAStreamIsKeptAliveWhileItsServiceWakes(t *testing.T) {
	ready := llm("llm", "", "llm", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n")
	})})
	damaged := llm("llm", "", "llm")
	damaged.Components[spec.Predictor] = route.Backend{NotReady: "the model is damaged", Startup: time.Minute}
	for name, tc := range map[string]struct {
		then route.Service
		want []string
	}{
		"and is served":               {ready, []string{`"choices":[]}`, "data: [DONE]\n\n"}},
		"and is told what went wrong": {damaged, []string{`data: {"error":{`, "the model is damaged", `"type":"server_error"`}},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, func(c *gateway.Config) { c.OpenAI.Silence = 20 * time.Millisecond }, cold("llm"))
			resp, r := open(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), chat))
			if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
				t.Errorf("%d %v", resp.StatusCode, resp.Header)
			}
			for range 3 {
				if got := next(t, r); got != comment {
					t.Errorf("%q, want a comment", got)
				}
			}
			g.table.Publish(route.Compile([]route.Service{tc.then}))
			rest, err := io.ReadAll(r)
			got := strings.ReplaceAll(string(rest), comment, "")
			for _, want := range tc.want {
				if err != nil || !strings.Contains(got, want) {
					t.Errorf("%q %v, want %q", got, err, want)
				}
			}
			if frames := strings.Count(got, "data: "); (name == "and is served") != (frames == 2) {
				t.Errorf("%d frames: %q", frames, got)
			}
		})
	}
}

// Before the first comment a wake that fails has its own status, and the time to try again.
func TestAStreamWhoseWakeFailsAtOnceGetsItsStatus(t *testing.T) {
	g := start(t, func(c *gateway.Config) { c.Timeouts.Wake = 50 * time.Millisecond; c.OpenAI.Silence = time.Hour }, cold("llm"))
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), chat))
	message, kind, _, _ := apiError(t, a)
	if a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") != "4" || a.Header.Get("Retry-After-Ms") != "4000" || kind != "server_error" || !strings.Contains(message, "no replica runs") {
		t.Errorf("%d %v %s", a.StatusCode, a.Header, a.body)
	}
}
