package gateway

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/route"
)

// witnessKept is how long what was counted of a revision stays after it left the table: requests
// that were with it then are counted when they end, those that its end made fail above all.
const witnessKept = time.Minute

// witness counts the answers of a revision that shares the traffic of its component.
type witness struct {
	key targetKey
	// since tells these counters from others of the same revision.
	since                              int64
	requests, errors, compared, differ atomic.Uint64
	latency, first                     [evidence.Buckets]atomic.Uint64
	// left is when the revision left the table, guarded by witnesses.mu; zero while it is there.
	left time.Time
}

// answered counts a request. One whose client is gone counts by the time that it waited alone.
func (w *witness) answered(failed, gone bool, took time.Duration) {
	w.latency[evidence.Bucket(took)].Add(1)
	if gone {
		return
	}
	w.requests.Add(1)
	if failed {
		w.errors.Add(1)
	}
}

// began counts a stream's first data.
func (w *witness) began(after time.Duration) {
	if w != nil {
		w.first[evidence.Bucket(after)].Add(1)
	}
}

// heard counts a comparison.
func (w *witness) heard(differs bool) {
	w.compared.Add(1)
	if differs {
		w.differ.Add(1)
	}
}

func (w *witness) counts() evidence.Counts {
	// Parts are read before wholes, so that none is the greater.
	c := evidence.Counts{Errors: w.errors.Load(), Differ: w.differ.Load()}
	c.Requests, c.Compared = w.requests.Load(), w.compared.Load()
	c.Latency, c.First = histogram(&w.latency), histogram(&w.first)
	return c
}

func histogram(counters *[evidence.Buckets]atomic.Uint64) evidence.Histogram {
	var h evidence.Histogram
	for i := range counters {
		if n := counters[i].Load(); n > 0 {
			if h == nil {
				h = evidence.Histogram{}
			}
			h[uint16(i)] = n
		}
	}
	return h
}

// witnesses are those of the revisions that share their component's traffic, or did a moment ago.
type witnesses struct {
	mu  sync.Mutex
	all map[targetKey]*witness
}

// renew makes them those of a table, and returns them.
func (ws *witnesses) renew(shared map[targetKey]bool) map[targetKey]*witness {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now := time.Now()
	for key, w := range ws.all {
		switch {
		case shared[key]:
			w.left = time.Time{}
		case w.left.IsZero():
			w.left = now
		}
	}
	out := make(map[targetKey]*witness, len(shared))
	for key := range shared {
		w := ws.all[key]
		if w == nil {
			if ws.all == nil {
				ws.all = map[targetKey]*witness{}
			}
			w = &witness{key: key, since: now.UnixNano()}
			ws.all[key] = w
		}
		out[key] = w
	}
	return out
}

// report tells what was counted, and forgets what left long ago.
func (ws *witnesses) report(now time.Time) []demand.Answers {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var out []demand.Answers
	for key, w := range ws.all {
		if !w.left.IsZero() && now.Sub(w.left) > witnessKept {
			delete(ws.all, key)
			continue
		}
		out = append(out, demand.Answers{Service: key.service, Revision: key.revision, Since: w.since, Counts: w.counts()})
	}
	return out
}

// sharing returns the revisions of a table that share their component's traffic.
func sharing(table *route.Table) map[targetKey]bool {
	var out map[targetKey]bool
	for s, b := range table.Backends {
		if len(b.Targets) < 2 {
			continue
		}
		if out == nil {
			out = map[targetKey]bool{}
		}
		for i := range b.Targets {
			out[targetKey{s.Key, b.Targets[i].Revision}] = true
		}
	}
	return out
}

// witness counts the request for its revision, unless it asks for no inference: what probes hear
// says nothing of that.
func (x *exchange) witness(took time.Duration) {
	if x.target == nil || x.target.witness == nil {
		return
	}
	switch x.match.Call.Op {
	case route.Infer, route.Predict, route.Explain, route.Generate, route.GenerateStream:
	case route.Other, route.OtherOfModel:
		if x.r.Method != http.MethodPost {
			return
		}
	default:
		return
	}
	x.target.witness.answered(x.status >= http.StatusInternalServerError, x.status == statusClientGone, took)
}

// witness does so for a call over gRPC.
func (c *call) witness(code codes.Code, took time.Duration) {
	if c.target == nil || c.target.witness == nil || c.oip != "" && c.oip != "ModelInfer" {
		return
	}
	c.target.witness.answered(serversFault(code), code == codes.Canceled, took)
}

// serversFault reports whether a code blames the server. A deadline that passed does: it was the
// answer that didn't come.
func serversFault(c codes.Code) bool {
	switch c {
	case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}
