package alive_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway/alive"
)

func TestAClientHearsThatItIsWaitedFor(t *testing.T) {
	const comment = ": keep-alive\n\n"
	for name, tc := range map[string]struct {
		waits   time.Duration
		v2      bool
		answer  func(w http.ResponseWriter)
		aborted bool
		want    string
		begun   bool
	}{
		"answered before the silence": {waits: time.Second / 2},
		"a stream": {waits: 5 * time.Second / 2, begun: true, want: comment + comment + "data: a\n\n", answer: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			_, _ = io.WriteString(w, "data: a\n\n")
		}},
		"an error in its place": {waits: 3 * time.Second / 2, begun: true, want: comment + "event: error\ndata: {\"error\":\"busy\"}\n\n", answer: func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "{\"error\":\"busy\"}\n")
		}},
		"an error for a client of V2": {waits: 3 * time.Second / 2, v2: true, begun: true, want: comment + "data: {\"error\":\"busy\"}\n\n", answer: func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":"busy"}`)
		}},
		"something else in its place": {
			waits: 3 * time.Second / 2, begun: true, want: comment + "event: error\ndata: {\"error\":\"the engine answered with something else than a stream\"}\n\n",
			answer: func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") },
		},
		"an aborted answer": {waits: 3 * time.Second / 2, begun: true, aborted: true, want: comment, answer: func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"error":"half`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := httptest.NewRecorder()
				c := alive.Watch(w, "id-1", tc.v2, time.Second)
				time.Sleep(tc.waits)
				if first, begun := c.GoesOn(); !first || begun != tc.begun {
					t.Fatalf("first %v, begun %v", first, begun)
				}
				if first, _ := c.GoesOn(); first {
					t.Error("twice the first")
				}
				time.Sleep(time.Minute) // silence after that is the engine's
				if tc.answer != nil {
					tc.answer(c)
				}
				c.End(tc.aborted)
				if got := w.Body.String(); got != tc.want {
					t.Errorf("the client heard %q, want %q", got, tc.want)
				}
				if h := w.Header(); tc.begun != (h.Get("X-Request-Id") == "id-1" && h.Get("Content-Type") == "text/event-stream" && w.Flushed) {
					t.Errorf("the head is %v", h)
				}
			})
		})
	}
	(*alive.Client)(nil).End(false)
}
