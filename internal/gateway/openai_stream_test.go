package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
)

// chat is a streaming request.
const chat = `{"model":"llm","stream":true,"messages":[]}`

// streaming is an engine that sends pieces, each in a segment of its own, and keeps what it got.
func streaming(got *atomic.Pointer[string], pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body := string(b)
		got.Store(&body)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, p := range pieces {
			_, _ = io.WriteString(w, p)
			w.(http.Flusher).Flush()
		}
	}
}

// chunk is a frame as engines send it.
func chunk(members string) string {
	return `data: {"id":"1","model":"llm",` + members + "}\n\n"
}

// stamped is a stream as clients get it: its chunks tell the revision where the engine tells nothing.
func stamped(stream string) string {
	return strings.ReplaceAll(stream, `data: {"id"`, `data: {"system_fingerprint":"llm-00001@4f2b","id"`)
}

// series returns the values of a registry's counters, and the counts of its histograms, whose
// names have a prefix, by name and kind.
func series(tb testing.TB, r *prometheus.Registry, prefix string) map[string]float64 {
	tb.Helper()
	families, err := r.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() == "kind" {
					key += " " + l.GetValue()
				}
			}
			if h := m.GetHistogram(); h != nil {
				out[key] += float64(h.GetSampleCount())
			} else {
				out[key] += m.GetCounter().GetValue()
			}
		}
	}
	return out
}

func TestStreamsTellTheirUsageOnlyToWhoAsked(t *testing.T) {
	const (
		delta = `"choices":[{"index":0,"delta":{"content":"Grüße"}}]`
		usage = `"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}`
		done  = "data: [DONE]\n\n"
	)
	plain := []string{chunk(delta), chunk(delta), done}
	told := []string{chunk(delta + `,"usage":null`), chunk(delta), chunk(usage), done}
	asking := strings.Replace(chat, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1)
	tests := map[string]struct {
		root, model, path, body string
		pieces                  []string
		wantBody, want          string
		tokens                  map[string]float64
	}{
		"the gateway asks, and takes back": {
			root: "/", body: chat, pieces: told, wantBody: asking, want: strings.Join(plain, ""),
			tokens: map[string]float64{"stationmaster_tokens_total prompt": 5, "stationmaster_tokens_total completion": 7},
		},
		"the client asks": {
			root: "/", body: asking, pieces: told, wantBody: asking, want: strings.Join(told, ""),
			tokens: map[string]float64{"stationmaster_tokens_total prompt": 5, "stationmaster_tokens_total completion": 7},
		},
		"an engine that isn't known": {
			body: chat, pieces: plain, wantBody: chat, want: strings.Join(plain, ""),
			tokens: map[string]float64{"stationmaster_tokens_total completion": 2},
		},
		"frames cut anywhere": {
			root: "/", body: chat, pieces: strings.SplitAfter(strings.Join(told, ""), "\xc3"), wantBody: asking, want: strings.Join(plain, ""),
			tokens: map[string]float64{"stationmaster_tokens_total prompt": 5, "stationmaster_tokens_total completion": 7},
		},
		"CRLF, comments and no last line end": {
			root: "/", body: asking, pieces: []string{": hello\r\n\r\nevent: x\r\ndata: {}\r\n\r\n", "data: [DONE]"}, wantBody: asking,
			want:   ": hello\r\n\r\nevent: x\r\ndata: {}\r\n\r\ndata: [DONE]",
			tokens: map[string]float64{"stationmaster_tokens_total completion": 1},
		},
		"tool calls, several choices and vendor's members pass": {
			root: "/", body: chat, wantBody: asking,
			pieces: []string{chunk(`"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":""}}]}}],"timings":{"x":1e-7}`), done},
			want:   chunk(`"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":""}}]}}],"timings":{"x":1e-7}`) + done,
			tokens: map[string]float64{"stationmaster_tokens_total completion": 1},
		},
		"the client's name of the model in all chunks": {
			model: "served", body: chat, wantBody: strings.Replace(chat, "llm", "served", 1),
			pieces: []string{strings.ReplaceAll(chunk(delta), "llm", "served"), strings.ReplaceAll(chunk(delta), "llm", "served"), done},
			want:   strings.Join(plain, ""),
			tokens: map[string]float64{"stationmaster_tokens_total completion": 2},
		},
		"usage in the responses operation": {
			root: "/", path: "/v1/responses", body: chat, wantBody: chat,
			pieces: []string{"event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n"},
			want:   "event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n",
			tokens: map[string]float64{"stationmaster_tokens_total prompt": 3, "stationmaster_tokens_total completion": 4},
		},
		"a frame of 3 MB": {
			root: "/", body: chat, wantBody: asking,
			pieces: []string{chunk(`"choices":[{}],"x":"` + strings.Repeat("long", 750_000) + `","usage":null`), done},
			want:   chunk(`"choices":[{}],"x":"`+strings.Repeat("long", 750_000)+`"`) + done,
			tokens: map[string]float64{"stationmaster_tokens_total completion": 1},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got atomic.Pointer[string]
			registry := prometheus.NewRegistry()
			model := tc.model
			if model == "" {
				model = "llm"
			}
			path := tc.path
			if path == "" {
				path = "/openai/v1/chat/completions"
			}
			g := start(t, func(c *gateway.Config) { c.Metrics = registry },
				llm("llm", tc.root, model, route.Endpoint{HTTP: engine(t, streaming(&got, tc.pieces...))}))
			a := do(t, client(t), request(t, http.MethodPost, g.url(path), tc.body))
			if want := stamped(tc.want); a.body != want {
				t.Errorf("status %d\n got %.2000q\nwant %.2000q", a.StatusCode, a.body, want)
			}
			if b := got.Load(); b == nil || *b != tc.wantBody {
				t.Errorf("the engine got %v", b)
			}
			for name, want := range map[string]string{"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "X-Stationmaster-Revision": "llm-00001"} {
				if a.Header.Get(name) != want {
					t.Errorf("%s: %q, want %q", name, a.Header.Get(name), want)
				}
			}
			g.stop()
			if diff := cmp.Diff(tc.tokens, series(t, registry, "stationmaster_tokens_total")); diff != "" {
				t.Errorf("tokens (-want +got)\n%s", diff)
			}
			if n := series(t, registry, "stationmaster_time_to_first_token")["stationmaster_time_to_first_token_seconds"]; n != 1 {
				t.Errorf("the first token was seen %v times", n)
			}
		})
	}
}

func TestAnswersInOnePieceTellTheirUsage(t *testing.T) {
	registry := prometheus.NewRegistry()
	const body = `{"object":"list","data":[{"embedding":[1.0e-3]}],"model":"served","usage":{"prompt_tokens":4,"total_tokens":4}}`
	reply := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}
	g := start(t, func(c *gateway.Config) { c.Metrics = registry },
		llm("plain", "/", "plain", route.Endpoint{HTTP: engine(t, reply)}),
		llm("llm", "/", "served", route.Endpoint{HTTP: engine(t, reply)}))
	c := client(t)
	for model, want := range map[string]string{"plain": body, "llm": strings.Replace(body, "served", "llm", 1)} {
		a := do(t, c, request(t, http.MethodPost, g.url("/v1/embeddings"), `{"model":"`+model+`"}`))
		if a.body != want || a.ContentLength != int64(len(want)) {
			t.Errorf("%s: %d bytes announced: %s", model, a.ContentLength, a.body)
		}
	}
	g.stop()
	if diff := cmp.Diff(map[string]float64{"stationmaster_tokens_total prompt": 8}, series(t, registry, "stationmaster_tokens_total")); diff != "" {
		t.Errorf("tokens (-want +got)\n%s", diff)
	}
}

// open sends a request and returns the answer as it comes.
func open(tb testing.TB, c *http.Client, r *http.Request) (*http.Response, *bufio.Reader) {
	tb.Helper()
	resp, err := c.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = resp.Body.Close() })
	return resp, bufio.NewReader(resp.Body)
}

// next reads one frame.
func next(tb testing.TB, r *bufio.Reader) string {
	tb.Helper()
	var frame strings.Builder
	for {
		line, err := r.ReadString('\n')
		frame.WriteString(line)
		if err != nil {
			tb.Fatalf("%q: %v", frame.String(), err)
		}
		if line == "\n" {
			return frame.String()
		}
	}
}

// TestFramesComeOneByOne has an engine that sends a frame only once the client has the one before.
func TestFramesComeOneByOne(t *testing.T) {
	seen := make(chan struct{})
	g := start(t, nil, llm("llm", "/", "llm", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 5 {
			fmt.Fprintf(w, "data: {\"n\":%d}\n\n", i)
			w.(http.Flusher).Flush()
			<-seen
		}
	})}))
	_, r := open(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), chat))
	for i := range 5 {
		if got, want := next(t, r), fmt.Sprintf("data: {\"n\":%d}\n\n", i); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		seen <- struct{}{}
	}
	if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
		t.Errorf("%q %v", rest, err)
	}
}

const comment = ": keep-alive\n\n"

func TestSilentStreamsAreKeptAlive(t *testing.T) {
	heard := make(chan struct{})
	wait := func(w http.ResponseWriter, frame string) {
		_, _ = io.WriteString(w, frame)
		w.(http.Flusher).Flush()
		<-heard
	}
	tests := map[string]struct {
		engine http.HandlerFunc
		want   []string // frames but comments; heard is told after the first comment behind each
		last   string
	}{
		"before the first byte": {
			engine: func(w http.ResponseWriter, r *http.Request) {
				<-heard
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: {}\n\n")
			},
			want: []string{""}, last: "data: {}\n\n",
		},
		"between frames, and not within one": {
			engine: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				wait(w, "data: {}\n\ndata: {\"a\":")
				_, _ = io.WriteString(w, "1}\n\n")
			},
			want: []string{"data: {}\n\n"}, last: "data: {\"a\":1}\n\n",
		},
		"then an error": {
			engine: func(w http.ResponseWriter, r *http.Request) {
				<-heard
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, "{\n\"error\":{\"message\":\"too long\",\"code\":\"context_length_exceeded\"}}")
			},
			want: []string{""}, last: "data: {\"error\":{\"message\":\"too long\",\"code\":\"context_length_exceeded\"}}\n\n",
		},
		"then an end": {
			engine: func(w http.ResponseWriter, r *http.Request) {
				<-heard
				panic(http.ErrAbortHandler)
			},
			want: []string{""}, last: `"type":"server_error","param":null,"code":null}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := start(t, func(c *gateway.Config) { c.OpenAI.Silence = 20 * time.Millisecond },
				llm("llm", "", "llm", route.Endpoint{HTTP: engine(t, tc.engine)}))
			resp, r := open(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), chat))
			if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") || resp.Header.Get("X-Request-Id") == "" {
				t.Errorf("%d %v", resp.StatusCode, resp.Header)
			}
			for _, want := range tc.want {
				if want != "" {
					if got := next(t, r); got != want {
						t.Errorf("%q, want %q", got, want)
					}
				}
				for range 2 {
					if got := next(t, r); got != comment {
						t.Errorf("%q, want a comment", got)
					}
				}
				heard <- struct{}{}
			}
			rest, err := io.ReadAll(r)
			got := strings.ReplaceAll(string(rest), comment, "")
			if err != nil || !strings.Contains(got, tc.last) || strings.Count(got, "\n\n") != 1 {
				t.Errorf("%q %v, want %q", got, err, tc.last)
			}
		})
	}
}

// TestOtherRequestsArentKeptAlive: what doesn't stream has to wait for its status.
func TestOtherRequestsArentKeptAlive(t *testing.T) {
	g := start(t, func(c *gateway.Config) { c.OpenAI.Silence = time.Millisecond },
		llm("llm", "", "llm", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(20 * time.Millisecond) // many times the silence
			w.WriteHeader(http.StatusTeapot)
		})}))
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), `{"model":"llm"}`))
	if a.StatusCode != http.StatusTeapot || a.body != "" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
}

// TestABrokenStreamEndsWithAnError: in the form that SDKs raise, and nothing is asked twice.
func TestABrokenStreamEndsWithAnError(t *testing.T) {
	var asked atomic.Int64
	broken := func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\ndata: {\"half\":")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	registry := prometheus.NewRegistry()
	g := start(t, func(c *gateway.Config) { c.Metrics = registry },
		llm("llm", "/", "llm", route.Endpoint{Replica: "a", HTTP: engine(t, broken)}, route.Endpoint{Replica: "b", HTTP: engine(t, broken)}))
	_, r := open(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), chat))
	if got := next(t, r); got != "data: {}\n\n" {
		t.Errorf("%q", got)
	}
	frame := next(t, r)
	body, ok := strings.CutPrefix(frame, "data: ")
	if !ok {
		t.Fatalf("%q", frame)
	}
	_, kind, _, code := apiError(t, answer{&http.Response{}, body})
	if kind != "server_error" || code != "stream_broken" {
		t.Errorf("%s", frame)
	}
	if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
		t.Errorf("%q %v", rest, err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("engines were asked %d times", n)
	}
	g.stop()
	if n := series(t, registry, "stationmaster_tokens_total")["stationmaster_tokens_total completion"]; n != 1 {
		t.Errorf("%v tokens counted", n)
	}
}

// TestAClientThatHangsUpEndsTheEnginesWork also while the gateway waits for the first byte.
func TestAClientThatHangsUpEndsTheEnginesWork(t *testing.T) {
	for _, frames := range []int{0, 3} {
		t.Run(fmt.Sprint(frames, " frames"), func(t *testing.T) {
			reached, ended := make(chan struct{}), make(chan struct{})
			registry := prometheus.NewRegistry()
			g := start(t, func(c *gateway.Config) { c.Metrics = registry }, llm("llm", "/", "llm", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if frames > 0 {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, strings.Repeat("data: {}\n\n", frames))
					w.(http.Flusher).Flush()
				}
				close(reached)
				<-r.Context().Done()
				close(ended)
			})}))
			c := client(t)
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			r := request(t, http.MethodPost, g.url("/v1/chat/completions"), chat).WithContext(ctx)
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				resp, err := c.Do(r)
				if err == nil {
					_, _ = io.CopyN(io.Discard, resp.Body, int64(frames*len("data: {}\n\n")))
					<-ctx.Done()
					_ = resp.Body.Close()
				}
			}()
			<-reached
			hangUp()
			<-answered
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatal("the engine still works")
			}
			g.stop()
			if n := series(t, registry, "stationmaster_tokens_total")["stationmaster_tokens_total completion"]; n > float64(frames) {
				t.Errorf("%v tokens counted of %d frames", n, frames)
			}
		})
	}
}
