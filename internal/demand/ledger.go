package demand

import (
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/spec"
)

// forgotten is how long a gateway's counters are known after it last spoke of them: it may be
// asked again after its reports broke off, and goes on counting where it was.
const forgotten = 10 * time.Minute

// Ledger adds up what gateways count of revisions' answers. What it says of a revision never goes
// down while the revision is reported: a gateway that is new, restarts or ends takes nothing away.
// The zero Ledger is empty and ready for use; its methods are safe for concurrent use.
type Ledger struct {
	mu      sync.Mutex
	sources map[string]*account
	totals  map[spec.RevisionKey]*total
}

// account is what one gateway said last.
type account struct {
	at   time.Time
	last map[spec.RevisionKey]Answers
}

type total struct {
	at time.Time
	evidence.Counts
}

// Report takes what a gateway says, under a name that tells it from others, as of now.
//
// What a gateway that wasn't heard before has counted already isn't added: nobody knows when. What
// it counts from then on is.
func (l *Ledger) Report(gateway string, r *Report) { l.report(gateway, r, time.Now()) }

func (l *Ledger) report(gateway string, r *Report, now time.Time) {
	if r.Early {
		return // it has no answers
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(now)
	s, known := l.sources[gateway]
	if !known {
		if l.sources == nil {
			l.sources, l.totals = map[string]*account{}, map[spec.RevisionKey]*total{}
		}
		s = &account{last: map[spec.RevisionKey]Answers{}}
		l.sources[gateway] = s
	}
	s.at = now
	for i := range r.Answers {
		a := &r.Answers[i]
		key := spec.RevisionKey{Namespace: a.Service.Namespace, Name: a.Revision}
		t := l.totals[key]
		if t == nil {
			t = &total{}
			l.totals[key] = t
		}
		t.at = now
		last, had := s.last[key]
		switch {
		case had && last.Since == a.Since:
			t.Counts = t.Plus(a.Counts.Since(last.Counts))
		case known:
			t.Counts = t.Plus(a.Counts) // they began at zero since the last report
		}
		s.last[key] = *a
	}
}

// forget drops what nobody has spoken of for long.
func (l *Ledger) forget(now time.Time) {
	for name, s := range l.sources {
		if now.Sub(s.at) > forgotten {
			delete(l.sources, name)
		}
	}
	for key, t := range l.totals {
		if now.Sub(t.at) <= forgotten {
			continue
		}
		delete(l.totals, key)
		for _, s := range l.sources {
			delete(s.last, key)
		}
	}
}

// Gone is told that a gateway's reports ended; it may come back.
func (l *Ledger) Gone(string) {}

// Of returns what was counted of a revision's answers, from a beginning that stays the same.
func (l *Ledger) Of(key spec.RevisionKey) evidence.Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.totals[key]; t != nil {
		return t.Counts
	}
	return evidence.Counts{}
}
