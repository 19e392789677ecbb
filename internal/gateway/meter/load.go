// Package meter counts what is asked of each revision, for those who decide on its replicas, and how
// it answers, for those who decide on its share of the traffic.
package meter

import (
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Key tells a revision from all others. One without a revision stands for its service.
type Key struct {
	Service  spec.ServiceKey
	Revision string
}

// Load measures that of one revision: the area under the number of its requests over time. It is
// safe for concurrent use.
type Load struct {
	key Key

	mu    sync.Mutex
	n     int // under way, those that wait included
	held  int
	began int
	area  time.Duration // requests times time, since from
	from  time.Time
	last  time.Time
}

// advance brings the area up to now. The caller holds mu.
func (l *Load) advance(now time.Time) {
	if d := now.Sub(l.last); d > 0 {
		l.area += time.Duration(l.n) * d
		l.last = now
	}
}

// Enter counts a request from now on; fresh says that it is new to the gateway.
func (l *Load) Enter(now time.Time, fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now)
	l.n++
	if fresh {
		l.began++
	}
}

// Leave counts a request no more.
func (l *Load) Leave(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now)
	l.n--
}

// Hold counts a request as one that waits, and reports whether it is the only one.
func (l *Load) Hold() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held++
	return l.held == 1
}

// Unhold ends what Hold began.
func (l *Load) Unhold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held--
}

func (l *Load) heldNow() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// cut returns the load since the last cut, and begins anew.
func (l *Load) cut(now time.Time) demand.Sample {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now)
	s := demand.Sample{Service: l.key.Service, Revision: l.key.Revision, Held: l.held}
	if d := now.Sub(l.from); d > 0 {
		s.Concurrency = float64(l.area) / float64(d)
		s.RPS = float64(l.began) / d.Seconds()
	}
	l.area, l.began, l.from, l.last = 0, 0, now, now
	return s
}

// Loads are those of the revisions in a table. The zero Loads are none; they are safe for concurrent
// use.
type Loads struct {
	mu  sync.Mutex
	all map[Key]*Load
}

// Of returns a revision's, which is made where there is none.
func (ls *Loads) Of(key Key) *Load {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.all[key]
	if l == nil {
		if ls.all == nil {
			ls.all = map[Key]*Load{}
		}
		now := time.Now()
		l = &Load{key: key, from: now, last: now}
		ls.all[key] = l
	}
	return l
}

// Prune forgets the revisions that aren't to be kept.
func (ls *Loads) Prune(keep func(Key) bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for key := range ls.all {
		if !keep(key) {
			delete(ls.all, key)
		}
	}
}

// Report makes the report of a whole second that ends now.
func (ls *Loads) Report(now time.Time, last *demand.Report) *demand.Report {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	r := &demand.Report{Second: 1, Samples: make([]demand.Sample, 0, len(ls.all))}
	if last != nil {
		r.Second = last.Second + 1
	}
	for _, l := range ls.all {
		r.Samples = append(r.Samples, l.cut(now))
	}
	return r
}

// Early repeats the averages of the last report with what waits now.
func (ls *Loads) Early(last *demand.Report) *demand.Report {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	r := &demand.Report{Early: true, Samples: make([]demand.Sample, 0, len(ls.all))}
	averages := map[Key]demand.Sample{}
	if last != nil {
		r.Second = last.Second
		for _, s := range last.Samples {
			averages[Key{s.Service, s.Revision}] = s
		}
	}
	for key, l := range ls.all {
		s := averages[key]
		s.Service, s.Revision, s.Held = key.Service, key.Revision, l.heldNow()
		r.Samples = append(r.Samples, s)
	}
	return r
}
