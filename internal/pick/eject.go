package pick

import "time"

// Outcome is how a request ended at a replica, as far as that says something of the replica.
type Outcome uint8

// The outcomes.
const (
	// Unknown says nothing: the client went away, or the request was at fault.
	Unknown Outcome = iota
	// Answered: the first byte came, and it was no failure.
	Answered
	// Failed: an error of the server's before the first byte of an answer, or no answer in time.
	Failed
	// Unreached: no connection, or one that ended before an answer.
	Unreached
)

const (
	// tolerated is how many requests in a row may fail until a replica is ejected. Engines answer
	// some bad requests with 500, too.
	tolerated = 5
	// firstEjection is how long a replica is out, the first time; each time in a row doubles it.
	firstEjection = time.Second
	maxEjection   = 30 * time.Second
)

// health is whether a replica gets requests. Once it is ejected it waits, then one request tries it:
//
//	in ──failures──► out ──time──► due ──a request──► tried ──answer──► in
//	                  ▲                                  │
//	                  └───────for twice as long──────────┘
type health struct {
	failures, ejections int
	// why it is out; In while it isn't.
	why   Health
	tried bool
	// until is when the replica may be tried.
	until time.Time
}

// due reports whether a request may try the replica.
func (h *health) due(now time.Time) bool { return h.why != In && !h.tried && !now.Before(h.until) }

// note takes what came of a request. probe says that it was the one that tried the replica.
func (h *health) note(o Outcome, probe bool, now time.Time, rnd uint64) {
	if probe {
		h.tried = false
	}
	switch {
	case o == Unknown:
	case o == Answered:
		if h.why == In || probe {
			*h = health{}
		}
	case h.why != In && !probe: // of before, or because there was no better
	case o == Unreached:
		h.eject(Unreachable, now, rnd)
	default:
		if h.failures++; h.failures >= tolerated || probe {
			h.eject(Failing, now, rnd)
		}
	}
}

// eject takes the replica out, for a time that differs by up to a fifth so that replicas that failed
// together aren't all tried at once.
func (h *health) eject(why Health, now time.Time, rnd uint64) {
	d := min(firstEjection<<min(h.ejections, 10), maxEjection)
	d += time.Duration(rnd>>48) * (d / 5) >> 16
	h.ejections++
	h.why, h.until = why, now.Add(d)
}
