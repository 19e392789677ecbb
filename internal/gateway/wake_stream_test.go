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

// So does the client of any other stream of events, over HTTP/1.1 and HTTP/2, whatever the size of
// its body; one that would take another answer, too, gets nothing before that.
func TestOtherStreamsAreKeptAliveWhileTheirServiceWakes(t *testing.T) {
	large := `{"text_input":"` + strings.Repeat("x", 100<<10) + `"}`
	read := engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != large && string(body) != `{}` {
			t.Errorf("the engine got %d bytes, %v", len(body), err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"text_output\":\"a\"}\n\ndata: {\"text_output\":\"b\"}\n\n")
	})
	plain := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "{\"error\":\"no such input\"}\n")
	})
	odd := engine(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	damaged := service("iris")
	damaged.Components[spec.Predictor] = route.Backend{NotReady: "the model is damaged"}
	const frames = "data: {\"text_output\":\"a\"}\n\ndata: {\"text_output\":\"b\"}\n\n"
	for name, tc := range map[string]struct {
		path, accept, body string
		h2                 bool
		then               route.Service
		want               string // the stream, comments apart
	}{
		"V2's generate_stream":                   {path: "/v2/models/iris/generate_stream", body: "{}", then: service("iris", route.Endpoint{HTTP: read}), want: frames},
		"V2's generate_stream over HTTP/2":       {path: "/v2/models/iris/generate_stream", body: "{}", h2: true, then: service("iris", route.Endpoint{HTTP: read}), want: frames},
		"one with a large body":                  {path: "/v2/models/iris/generate_stream", body: large, then: service("iris", route.Endpoint{HTTP: read}), want: frames},
		"one with a large body over HTTP/2":      {path: "/v2/models/iris/generate_stream", body: large, h2: true, then: service("iris", route.Endpoint{HTTP: read}), want: frames},
		"one that accepts events":                {path: "/serving/default/iris/chat", accept: "text/event-stream; charset=utf-8", body: "{}", then: service("iris", route.Endpoint{HTTP: read}), want: frames},
		"V2's whose wake fails":                  {path: "/v2/models/iris/generate_stream", body: "{}", then: damaged, want: "data: {\"error\":\"the predictor of default/iris can't answer now: the model is damaged\"}\n\n"},
		"one that accepts events, a failed wake": {path: "/serving/default/iris/chat", accept: "text/event-stream", body: "{}", then: damaged, want: "event: error\ndata: {\"error\":\"the predictor of default/iris can't answer now: the model is damaged\"}\n\n"},
		"V2's that the engine refuses":           {path: "/v2/models/iris/generate_stream", body: "{}", then: service("iris", route.Endpoint{HTTP: plain}), want: "data: {\"error\":\"no such input\"}\n\n"},
		"V2's that the engine answers oddly":     {path: "/v2/models/iris/generate_stream", body: "{}", then: service("iris", route.Endpoint{HTTP: odd}), want: "data: {\"error\":\"the engine answered with something else than a stream\"}\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, func(c *gateway.Config) { c.OpenAI.Silence = 20 * time.Millisecond }, cold("iris"))
			r := request(t, http.MethodPost, g.url(tc.path), tc.body)
			if tc.accept != "" {
				r.Header.Set("Accept", tc.accept)
			}
			c := client(t)
			if tc.h2 {
				c = h2cClient(t)
			}
			resp, body := open(t, c, r)
			if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("X-Request-Id") == "" {
				t.Errorf("%d %v", resp.StatusCode, resp.Header)
			}
			for range 3 {
				if got := next(t, body); got != comment {
					t.Errorf("%q, want a comment", got)
				}
			}
			g.table.Publish(route.Compile([]route.Service{tc.then}))
			rest, err := io.ReadAll(body)
			if got := strings.ReplaceAll(string(rest), comment, ""); err != nil || got != tc.want {
				t.Errorf("%q %v, want %q", got, err, tc.want)
			}
		})
	}
	for name, accept := range map[string]string{"either": "application/json, text/event-stream", "anything": "*/*", "nothing said": ""} {
		t.Run(name, func(t *testing.T) {
			g := start(t, func(c *gateway.Config) {
				c.OpenAI.Silence, c.Timeouts.Wake = 10*time.Millisecond, 200*time.Millisecond
			}, cold("iris"))
			r := request(t, http.MethodPost, g.url("/serving/default/iris/chat"), "{}")
			if accept != "" {
				r.Header.Set("Accept", accept)
			}
			if a := do(t, client(t), r); a.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%d %v %s", a.StatusCode, a.Header, a.body)
			}
		})
	}
}
