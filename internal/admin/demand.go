package admin

import (
	"context"
	"encoding/json"
	"net/http"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/state"
)

// load streams a gateway's reports as lines of JSON, the latest one first, until the client or
// the server ends. A client that reads slowly misses some and never delays the gateway.
func load(serving context.Context, reports *state.Topic[demand.Report]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		out := json.NewEncoder(w)
		flush := http.NewResponseController(w).Flush
		if flush() != nil {
			return
		}
		for {
			report, changed := reports.Watch()
			if report != nil && (out.Encode(report) != nil || flush() != nil) {
				return // the client is gone
			}
			select {
			case <-changed:
			case <-r.Context().Done():
				return
			case <-serving.Done():
				return
			}
		}
	}
}
