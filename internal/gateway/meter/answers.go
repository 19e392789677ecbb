package meter

import (
	"sync"
	"sync/atomic"
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/evidence"
)

// answersKept is how long what was counted of a revision stays after it left the table: requests
// that were with it then are counted when they end, those that its end made fail above all.
const answersKept = time.Minute

// Answers counts those of a revision that shares the traffic of its component. It is safe for
// concurrent use.
type Answers struct {
	key Key
	// since tells these counters from others of the same revision.
	since                              int64
	requests, errors, compared, differ atomic.Uint64
	latency, first                     [evidence.Buckets]atomic.Uint64
	// left is when the revision left the table, guarded by AllAnswers.mu; zero while it is there.
	left time.Time
}

// Answered counts a request. One whose client is gone counts by the time that it waited alone.
func (a *Answers) Answered(failed, gone bool, took time.Duration) {
	a.latency[evidence.Bucket(took)].Add(1)
	if gone {
		return
	}
	a.requests.Add(1)
	if failed {
		a.errors.Add(1)
	}
}

// Began counts a stream's first data.
func (a *Answers) Began(after time.Duration) {
	if a != nil {
		a.first[evidence.Bucket(after)].Add(1)
	}
}

// Heard counts a comparison.
func (a *Answers) Heard(differs bool) {
	a.compared.Add(1)
	if differs {
		a.differ.Add(1)
	}
}

func (a *Answers) counts() evidence.Counts {
	// Parts are read before wholes, so that none is the greater.
	c := evidence.Counts{Errors: a.errors.Load(), Differ: a.differ.Load()}
	c.Requests, c.Compared = a.requests.Load(), a.compared.Load()
	c.Latency, c.First = histogram(&a.latency), histogram(&a.first)
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

// AllAnswers are those of the revisions that share their component's traffic, or did a moment ago. The
// zero AllAnswers are none; they are safe for concurrent use.
type AllAnswers struct {
	mu  sync.Mutex
	all map[Key]*Answers
}

// Renew makes them those of a table, and returns them.
func (as *AllAnswers) Renew(shared map[Key]bool) map[Key]*Answers {
	as.mu.Lock()
	defer as.mu.Unlock()
	now := time.Now()
	for key, w := range as.all {
		switch {
		case shared[key]:
			w.left = time.Time{}
		case w.left.IsZero():
			w.left = now
		}
	}
	out := make(map[Key]*Answers, len(shared))
	for key := range shared {
		w := as.all[key]
		if w == nil {
			if as.all == nil {
				as.all = map[Key]*Answers{}
			}
			w = &Answers{key: key, since: now.UnixNano()}
			as.all[key] = w
		}
		out[key] = w
	}
	return out
}

// Report tells what was counted, and forgets what left long ago.
func (as *AllAnswers) Report(now time.Time) []demand.Answers {
	as.mu.Lock()
	defer as.mu.Unlock()
	var out []demand.Answers
	for key, w := range as.all {
		if !w.left.IsZero() && now.Sub(w.left) > answersKept {
			delete(as.all, key)
			continue
		}
		out = append(out, demand.Answers{Service: key.Service, Revision: key.Revision, Since: w.since, Counts: w.counts()})
	}
	return out
}
