package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"stationmaster.dev/stationmaster/internal/route"
)

// TestAnswersTellTheRevision sends answers in one piece through the gateway.
func TestAnswersTellTheRevision(t *testing.T) {
	answer := ""
	g := start(t, nil, llm("llm", "/", "llm", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(answer, "error") {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = io.WriteString(w, answer)
	})}))
	long := `{"choices":[{"text":"` + strings.Repeat("long", 9<<20/4) + `"}]}`
	c := client(t)
	for name, tc := range map[string]struct{ path, answer, want string }{
		"none":            {"/v1/completions", `{"choices":[]}`, `{"system_fingerprint":"llm-00001@4f2b","choices":[]}`},
		"null":            {"/v1/chat/completions", `{"choices":[],"system_fingerprint":null}`, `{"choices":[],"system_fingerprint":"llm-00001@4f2b"}`},
		"the engine's":    {"/v1/chat/completions", `{"choices":[],"system_fingerprint":"b\u00e9"}`, `{"choices":[],"system_fingerprint":"llm-00001@4f2b/b\u00e9"}`},
		"an empty one":    {"/v1/chat/completions", `{"system_fingerprint":"","choices":[]}`, `{"system_fingerprint":"llm-00001@4f2b","choices":[]}`},
		"ours already":    {"/v1/completions", `{"system_fingerprint":"llm-00001@4f2b/b1","choices":[]}`, `{"system_fingerprint":"llm-00001@4f2b/b1","choices":[]}`},
		"a number":        {"/v1/completions", `{"system_fingerprint":1,"choices":[]}`, `{"system_fingerprint":1,"choices":[]}`},
		"no choices":      {"/v1/embeddings", `{"data":[]}`, `{"data":[]}`},
		"no JSON":         {"/v1/completions", `choices`, `choices`},
		"an error":        {"/v1/completions", `{"error":{"message":"choices"}}`, `{"error":{"message":"choices"}}`},
		"more than 8 MiB": {"/v1/completions", long, long},
	} {
		answer = tc.answer
		a := do(t, c, request(t, http.MethodPost, g.url(tc.path), `{"model":"llm"}`))
		if a.body != tc.want {
			t.Errorf("%s: %d %.300s", name, a.StatusCode, a.body)
		}
	}
}

// TestEachChunkTellsTheRevision also where the engine has a fingerprint of its own, and the headers do.
func TestEachChunkTellsTheRevision(t *testing.T) {
	var got atomic.Pointer[string]
	own := chunk(`"choices":[{"index":0}],"system_fingerprint":"b1"`)
	g := start(t, nil, llm("llm", "/", "llm", route.Endpoint{HTTP: engine(t, streaming(&got, own, own, chunk(`"choices":[{"index":1}]`), "data: [DONE]\n\n"))}))
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), chat))
	ours := strings.Replace(own, `"b1"`, `"llm-00001@4f2b/b1"`, 1)
	if want := ours + ours + stamped(chunk(`"choices":[{"index":1}]`)) + "data: [DONE]\n\n"; a.body != want {
		t.Errorf("got %q\nwant %q", a.body, want)
	}
	if a.Header.Get("X-Stationmaster-Revision") != "llm-00001" || a.Header.Get("X-Model-Digest") != digest {
		t.Errorf("%v", a.Header)
	}
}

// TestAnEngineThatRefusesForNowSaysWhenToTryAgain by its own word, else by the gateway's.
func TestAnEngineThatRefusesForNowSaysWhenToTryAgain(t *testing.T) {
	type fields map[string]string
	for name, tc := range map[string]struct {
		status    int
		own, want fields
	}{
		"429 without a word": {429, nil, fields{"Retry-After": "1", "Retry-After-Ms": "1000"}},
		"503 without a word": {503, nil, fields{"Retry-After": "1", "Retry-After-Ms": "1000"}},
		"seconds":            {503, fields{"Retry-After": "7"}, fields{"Retry-After": "7", "Retry-After-Ms": ""}},
		"a date":             {429, fields{"Retry-After": "Mon, 30 Nov 2026 08:00:00 GMT"}, fields{"Retry-After": "Mon, 30 Nov 2026 08:00:00 GMT", "Retry-After-Ms": ""}},
		"milliseconds":       {429, fields{"Retry-After-Ms": "2500.5"}, fields{"Retry-After": "3", "Retry-After-Ms": "2500.5"}},
		"no number":          {429, fields{"Retry-After-Ms": "soon"}, fields{"Retry-After": "1", "Retry-After-Ms": "soon"}},
		"not to be retried":  {429, fields{"X-Should-Retry": "false"}, fields{"Retry-After": "1", "X-Should-Retry": "false"}},
		"another error":      {500, nil, fields{"Retry-After": "", "Retry-After-Ms": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, nil, llm("llm", "/", "llm", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
				for name, v := range tc.own {
					w.Header().Set(name, v)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, `{"error":{"message":"busy"}}`)
			})}))
			for _, body := range []string{chat, `{"model":"llm"}`} {
				a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), body))
				if a.StatusCode != tc.status || a.body != `{"error":{"message":"busy"}}` {
					t.Errorf("%d %s", a.StatusCode, a.body)
				}
				for name, want := range tc.want {
					if got := a.Header.Get(name); got != want {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
			}
		})
	}
}

// TestAnEnginesRateLimitsComeBeforeTheFirstFrame as they are, on good answers too.
func TestAnEnginesRateLimitsComeBeforeTheFirstFrame(t *testing.T) {
	limits := map[string]string{"X-Ratelimit-Remaining-Requests": "0", "X-Ratelimit-Reset-Tokens": "6m0s", "X-Ratelimit-Reset-Requests": "120ms"}
	heard := make(chan struct{})
	g := start(t, nil, llm("llm", "/", "served", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		for name, v := range limits {
			w.Header().Set(name, v)
		}
		if !strings.Contains(string(b), "stream") {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"model":"served"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-heard
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})}))
	for _, body := range []string{`{"model":"llm"}`, chat} {
		resp, r := open(t, client(t), request(t, http.MethodPost, g.url("/v1/chat/completions"), body))
		for name, want := range limits {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if body == chat {
			close(heard)
			if got := next(t, r); got != "data: [DONE]\n\n" {
				t.Errorf("%q", got)
			}
		}
	}
}
