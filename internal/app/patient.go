package app

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"
)

// patient is the way to an API server on which watches wait until it answers. Left to
// themselves they ask less and less often, in the end once a minute: a gateway would go by an
// old table for that long after the server is back, and by then the engines in it may be gone.
// Other requests fail as they would.
type patient struct {
	next http.RoundTripper
	log  *slog.Logger
}

// askAgain is the least time between two attempts of one watch; up to as much again is added, so
// that not all ask at once.
const askAgain = 500 * time.Millisecond

// RoundTrip implements http.RoundTripper.
func (p patient) RoundTrip(req *http.Request) (*http.Response, error) {
	watch := req.Method == http.MethodGet && req.URL.Query().Get("watch") != ""
	for first := true; ; first = false {
		resp, err := p.next.RoundTrip(req)
		if err == nil || !watch || req.Context().Err() != nil {
			return resp, err
		}
		if first {
			p.log.WarnContext(req.Context(), "the API server doesn't answer; what was known last counts until it does", "path", req.URL.Path, "err", err)
		}
		select {
		case <-time.After(askAgain + rand.N(askAgain)):
		case <-req.Context().Done():
			return nil, err
		}
	}
}
