package alive_test

import (
	"io"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway/alive"
)

func TestASilentStreamGetsComments(t *testing.T) {
	const comment = ": keep-alive\n\n"
	for name, tc := range map[string]struct {
		silence time.Duration
		want    string
	}{
		"comments between frames": {time.Second, comment + comment + "data: a\n\n" + comment + "data: b\n\n"},
		"none are wanted":         {-1, "data: a\n\ndata: b\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := httptest.NewRecorder()
				s := alive.Keep(w, tc.silence)
				time.Sleep(5 * time.Second / 2)
				_, _ = io.WriteString(s, "data: a\n\n")
				time.Sleep(3 * time.Second / 2)
				_, _ = io.WriteString(s, "data: b\n\n")
				s.End()
				time.Sleep(time.Minute)
				if got := w.Body.String(); got != tc.want || !w.Flushed {
					t.Errorf("%q, want %q", got, tc.want)
				}
			})
		})
	}
}
