package gateway_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
)

// flusher is a writer that compresses.
type flusher interface {
	io.WriteCloser
	Flush() error
}

func compress(coding string, w io.Writer) flusher {
	switch coding {
	case "gzip":
		return gzip.NewWriter(w)
	case "deflate":
		return zlib.NewWriter(w)
	case "zstd":
		z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
		return z
	}
	panic("BUG: no such coding")
}

// stale are fields, and their like in trailers, that are true of an engine's bytes alone.
var stale = []string{"Content-Encoding", "Content-Md5", "Content-Digest", "Repr-Digest", "Digest", "Etag", "Accept-Ranges"}

// setStale has an engine say all that of its answer.
func setStale(h http.Header) {
	for _, name := range stale[1:] {
		h.Set(name, `"of the engine's own bytes"`)
	}
	h.Set("Keep-Alive", "timeout=5")
}

// checkFresh fails where an answer has something of that.
func checkFresh(tb testing.TB, a answer) {
	tb.Helper()
	for _, name := range append(stale, "Keep-Alive") {
		if v := a.Header.Get(name); v != "" {
			tb.Errorf("%s: %s is stale", name, v)
		}
		if v := a.Trailer.Get(name); v != "" {
			tb.Errorf("trailer %s: %s is stale", name, v)
		}
	}
}

// clients are HTTP clients over both versions.
func clients(tb testing.TB) map[string]*http.Client {
	return map[string]*http.Client{"HTTP/1.1": client(tb), "HTTP/2": h2cClient(tb)}
}

func TestAnEngineThatCompressesIsRead(t *testing.T) {
	const one = `{"choices":[],"model":"served","usage":{"prompt_tokens":3,"completion_tokens":4}}`
	read := map[string]float64{"stationmaster_tokens_total prompt": 3, "stationmaster_tokens_total completion": 4}
	stream := []string{chunk(`"choices":[{"index":0}]`), chunk(`"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}`), "data: [DONE]\n\n"}
	for version, c := range clients(t) {
		for _, coding := range []string{"gzip", "deflate", "zstd"} {
			for name, tc := range map[string]struct {
				body, kind, want string
				status           int
				pieces           []string
				tokens           map[string]float64
			}{
				"a stream":         {chat, "text/event-stream", stamped(stream[0] + stream[2]), 200, stream, read},
				"one piece":        {`{"model":"llm"}`, "application/json", `{"system_fingerprint":"llm-00001@4f2b",` + strings.Replace(one, "served", "llm", 1)[1:], 200, []string{one}, read},
				"an error":         {`{"model":"llm"}`, "application/json", `{"error":{}}`, 400, []string{`{"error":{}}`}, map[string]float64{}},
				"no JSON":          {`{"model":"llm"}`, "text/plain", "text", 200, []string{"text"}, map[string]float64{}},
				"nothing, by name": {`{"model":"llm"}`, "text/plain", "", 200, nil, map[string]float64{}},
			} {
				t.Run(version+" "+coding+" "+name, func(t *testing.T) {
					var asked atomic.Pointer[string]
					registry := prometheus.NewRegistry()
					s := llm("llm", "/", "served", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						accept := r.Header.Get("Accept-Encoding")
						asked.Store(&accept)
						w.Header().Set("Content-Type", tc.kind)
						w.Header().Set("Content-Encoding", coding)
						setStale(w.Header())
						w.WriteHeader(tc.status)
						if tc.pieces == nil {
							return
						}
						z := compress(coding, w)
						for _, p := range tc.pieces {
							_, _ = io.WriteString(z, strings.Replace(p, `"model":"llm"`, `"model":"served"`, 1))
							_ = z.Flush()
							w.(http.Flusher).Flush()
						}
						_ = z.Close()
					})})
					g := start(t, func(c *gateway.Config) { c.Metrics = registry }, s)
					r := request(t, http.MethodPost, g.url("/v1/chat/completions"), tc.body)
					r.Header.Set("Accept-Encoding", "gzip, br")
					a := do(t, c, r)
					if a.StatusCode != tc.status || a.body != tc.want {
						t.Errorf("status %d\n got %q\nwant %q", a.StatusCode, a.body, tc.want)
					}
					checkFresh(t, a)
					if v := asked.Load(); v == nil || *v != "identity" {
						t.Errorf("the engine was asked for %v", v)
					}
					g.stop()
					if diff := cmp.Diff(tc.tokens, series(t, registry, "stationmaster_tokens_total")); diff != "" {
						t.Errorf("tokens (-want +got)\n%s", diff)
					}
				})
			}
		}
	}
}

// TestFramesOfACompressedStreamComeOneByOne has an engine that sends a frame only once the client has
// the one before.
func TestFramesOfACompressedStreamComeOneByOne(t *testing.T) {
	seen := make(chan struct{})
	g := start(t, nil, llm("llm", "/", "llm", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		for range 5 {
			_, _ = io.WriteString(z, "data: {}\n\n")
			_ = z.Flush()
			w.(http.Flusher).Flush()
			<-seen
		}
		_ = z.Close()
	})}))
	_, r := open(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), chat))
	for range 5 {
		if got := next(t, r); got != "data: {}\n\n" {
			t.Errorf("%q", got)
		}
		seen <- struct{}{}
	}
	if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
		t.Errorf("%q %v", rest, err)
	}
}

func TestACompressedAnswerThatIsBrokenIsToldAsTheEnginesFault(t *testing.T) {
	for name, tc := range map[string]struct {
		kind, want string
		status     int
	}{
		"a stream":  {"text/event-stream", `"code":"stream_broken"`, 200},
		"one piece": {"application/json", "compressed body can't be read", 502},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, nil, llm("llm", "/", "llm", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", tc.kind)
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = io.WriteString(w, `{"not":"compressed"}`)
				if tc.status == 200 {
					w.(http.Flusher).Flush()
				}
			})}))
			a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), chat))
			if a.StatusCode != tc.status || !strings.Contains(a.body, tc.want) {
				t.Errorf("%d %q", a.StatusCode, a.body)
			}
		})
	}
}

// TestAnEngineThatNamesThePlainFormIsRead: some say so of an answer that isn't compressed.
func TestAnEngineThatNamesThePlainFormIsRead(t *testing.T) {
	g := start(t, nil, llm("llm", "/", "served", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "identity")
		_, _ = io.WriteString(w, `{"model":"served"}`)
	})}))
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), `{"model":"llm"}`))
	if a.body != `{"model":"llm"}` || a.Header.Get("Content-Encoding") != "" {
		t.Errorf("%q, encoding %q", a.body, a.Header.Get("Content-Encoding"))
	}
}

// TestAnswersThatCantBeReadAreCounted: they pass as they come.
func TestAnswersThatCantBeReadAreCounted(t *testing.T) {
	packed := []byte("\x0b\x02\x80{}\x03")
	long := `{"choices":[{"text":"` + strings.Repeat("long", 9<<20/4) + `"}],"usage":{"prompt_tokens":1}}`
	registry := prometheus.NewRegistry()
	g := start(t, func(c *gateway.Config) { c.Metrics = registry },
		llm("packed", "/", "served", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "br")
			w.Header().Set("Etag", `"1"`)
			_, _ = w.Write(packed)
		})}),
		llm("long", "/", "long", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Etag", `"1"`)
			_, _ = io.WriteString(w, long)
		})}))
	c := client(t)
	for model, want := range map[string][]byte{"packed": packed, "long": []byte(long)} {
		for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
			a := do(t, c, request(t, http.MethodPost, g.url(path), `{"model":"`+model+`"}`))
			if !bytes.Equal([]byte(a.body), want) || a.Header.Get("Etag") != `"1"` || (model == "packed") != (a.Header.Get("Content-Encoding") == "br") {
				t.Errorf("%s: %d bytes, %v", model, len(a.body), a.Header)
			}
		}
	}
	g.stop()
	if diff := cmp.Diff(map[string]float64{"stationmaster_usage_unread_total": 4}, series(t, registry, "stationmaster_usage_unread")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestNothingStaleSurvivesARewrite has engines that say all that can be said of their bytes.
func TestNothingStaleSurvivesARewrite(t *testing.T) {
	for version, c := range clients(t) {
		for name, tc := range map[string]struct {
			model, body, kind, answer, want string
			untouched                       bool
		}{
			"a stream":             {model: "llm", body: chat, kind: "text/event-stream", answer: chunk(`"choices":[]`), want: stamped(chunk(`"choices":[]`))},
			"a renamed answer":     {model: "served", body: `{"model":"llm"}`, kind: "application/json", answer: `{"model":"served"}`, want: `{"model":"llm"}`},
			"a stamped answer":     {model: "llm", body: `{"model":"llm"}`, kind: "application/json", answer: `{"choices":[]}`, want: `{"system_fingerprint":"llm-00001@4f2b","choices":[]}`},
			"what stays as it was": {model: "llm", body: `{"model":"llm"}`, kind: "application/json", answer: `{"data":[]}`, want: `{"data":[]}`, untouched: true},
			"another type":         {model: "llm", body: `{"model":"llm"}`, kind: "text/plain", answer: "text", want: "text", untouched: true},
		} {
			for _, counted := range []bool{true, false} {
				t.Run(version+" "+name+map[bool]string{true: ", counted", false: ", chunked with trailers"}[counted], func(t *testing.T) {
					g := start(t, nil, llm("llm", "/", tc.model, route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						h := w.Header()
						setStale(h)
						h.Set("Content-Type", tc.kind)
						if !counted {
							h.Set("Trailer", "Content-Digest")
							h.Del("Content-Digest")
							w.(http.Flusher).Flush()
						}
						_, _ = io.WriteString(w, tc.answer)
						if !counted {
							h.Set("Content-Digest", "of the engine's own bytes")
							h.Set(http.TrailerPrefix+"Etag", `"late"`)
						}
					})}))
					a := do(t, c, request(t, http.MethodPost, g.url("/v1/chat/completions"), tc.body))
					if a.StatusCode != http.StatusOK || a.body != tc.want {
						t.Errorf("status %d\n got %q\nwant %q", a.StatusCode, a.body, tc.want)
					}
					if a.ContentLength >= 0 && a.ContentLength != int64(len(tc.want)) {
						t.Errorf("%d bytes announced of %d", a.ContentLength, len(tc.want))
					}
					if !tc.untouched {
						checkFresh(t, a)
					} else if a.Header.Get("Etag") == "" {
						t.Errorf("what is true of an untouched answer is lost: %v", a.Header)
					}
				})
			}
		}
	}
}
