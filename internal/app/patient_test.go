package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// away is an API server that can't be reached until a time.
type away struct {
	until time.Time
	asked int
}

var errRefused = errors.New("connection refused")

func (a *away) RoundTrip(*http.Request) (*http.Response, error) {
	a.asked++
	if time.Now().Before(a.until) {
		return nil, errRefused
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestAWatchIsBackSoonAfterAnOutage(t *testing.T) {
	for name, tc := range map[string]struct {
		method, query string
		patience      time.Duration
		wantErr       bool
		wantWait      time.Duration
	}{
		"a watch waits for the server":         {method: http.MethodGet, query: "?watch=true", patience: time.Hour, wantWait: time.Minute},
		"a watch that is given up ends":        {method: http.MethodGet, query: "?watch=true", patience: 10 * time.Second, wantErr: true, wantWait: 10 * time.Second},
		"a list fails at once":                 {method: http.MethodGet, patience: time.Hour, wantErr: true},
		"a write fails at once, and goes once": {method: http.MethodPost, query: "?watch=true", patience: time.Hour, wantErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tc.patience)
				defer cancel()
				server := &away{until: time.Now().Add(time.Minute)}
				req, err := http.NewRequestWithContext(ctx, tc.method, "http://api/apis/stationmaster.dev/v1alpha1/routes"+tc.query, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				resp, err := patient{next: server, log: slog.New(slog.DiscardHandler)}.RoundTrip(req)
				if err == nil {
					defer resp.Body.Close()
				}
				took := time.Since(began)
				if (err != nil) != tc.wantErr || took < tc.wantWait || took > tc.wantWait+2*askAgain {
					t.Errorf("after %v it answers %v; want error %t after %v", took, err, tc.wantErr, tc.wantWait)
				}
				if tc.wantWait == 0 && server.asked != 1 {
					t.Errorf("it asked %d times, want once", server.asked)
				}
			})
		})
	}
}
