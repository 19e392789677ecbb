// Package wait is where requests wait: the places that endpoints have, the queue for them, and the
// crowd of all that wait, for whatever reason. Who goes first and who is sent away says package fair.
package wait

import (
	"sync"
	"sync/atomic"

	"stationmaster.dev/stationmaster/internal/gateway/fair"
)

// Places are those of an endpoint that takes no more than so many requests at once. A nil *Places
// has no end of them. They are safe for concurrent use.
type Places struct {
	limit int64
	used  atomic.Int64
}

// NewPlaces returns so many free places.
func NewPlaces(limit int) *Places { return &Places{limit: int64(limit)} }

// Limit is how many there are in all.
func (p *Places) Limit() int { return int(p.limit) }

// Give gives a place back that was taken.
func (p *Places) Give() { p.used.Add(-1) }

// Take takes a place if one is free.
func (p *Places) Take() bool {
	if p == nil {
		return true
	}
	if p.used.Add(1) > p.limit {
		p.used.Add(-1)
		return false
	}
	return true
}

// Queue lets requests wait for a free place; their callers take turns, and of one caller's the first
// to come is the first to go. Only the one whose turn is next tries, or whose turn was called. Whoever
// gives a place back, and whoever got one out of the queue, calls Next; whoever can't have one joins,
// and tries once more before it waits, for the place may have come between. The zero Queue is empty. It
// is safe for concurrent use.
type Queue struct {
	mu   sync.Mutex
	line fair.Line[*Ticket]
}

// Ticket is a request's in a queue. It is for one goroutine, which waits.
type Ticket struct {
	// turn holds a token when it is the request's turn to try.
	turn chan struct{}
	// called says that the request took the token and hasn't used its turn yet.
	called bool
	at     *fair.Item[*Ticket]
}

// May reports whether a request may try to have a place; t is nil for one that doesn't wait.
func (q *Queue) May(t *Ticket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t == nil {
		return q.line.Len() == 0
	}
	return !t.at.Waits() || t.at == q.line.Front()
}

// Join lets a request of a flow wait.
func (q *Queue) Join(of fair.Flow) *Ticket {
	t := &Ticket{turn: make(chan struct{}, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	t.at = q.line.Push(of, t)
	return t
}

// Again makes a request whose turn brought it nothing the next one.
func (q *Queue) Again(t *Ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.spend()
	q.line.Return(t.at)
}

// Leave takes a request out, and passes on a turn that it has and didn't use.
func (q *Queue) Leave(t *Ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.at.Waits() {
		q.line.Remove(t.at)
		return
	}
	if t.spend() {
		q.pass()
	}
}

// Turn holds a token when it is the request's turn to try; whoever takes it says so by Called.
func (t *Ticket) Turn() <-chan struct{} { return t.turn }

// Called says that the request took its turn, and Used that it has got what it waited for by it.
func (t *Ticket) Called() { t.called = true }

// Used is described at Called.
func (t *Ticket) Used() { t.called = false }

// spend ends a request's turn and reports whether it had one.
func (t *Ticket) spend() bool {
	had := t.called
	t.called = false
	select {
	case <-t.turn:
		had = true
	default:
	}
	return had
}

// Next gives the first request its turn.
func (q *Queue) Next() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pass()
}

func (q *Queue) pass() {
	if i := q.line.Pop(); i != nil {
		i.Value.turn <- struct{}{} // it has room: a ticket that comes into the queue has none
	}
}

// heldUnit is how much of a body one place among those that wait is for.
const heldUnit = 32 << 10

// Crowd is the requests that wait, for whatever reason, in places that are shared fairly. It is safe
// for concurrent use.
type Crowd struct {
	mu  sync.Mutex
	all *fair.Crowd[*Stay]
}

// NewCrowd returns a crowd with so many places.
func NewCrowd(places int) *Crowd { return &Crowd{all: fair.NewCrowd[*Stay](places)} }

// Stay is that of one that waits.
type Stay struct {
	place *fair.Place[*Stay]
	// out is closed when it is sent away for another one.
	out chan struct{}
}

// Out is closed when it is sent away for another one.
func (s *Stay) Out() <-chan struct{} { return s.out }

// IsOut reports whether it was sent away.
func (s *Stay) IsOut() bool {
	select {
	case <-s.out:
		return true
	default:
		return false
	}
}

// Enter lets a request wait that keeps so many bytes, and sends others away for it if they have
// more than their part; nil means that it may not.
func (c *Crowd) Enter(key fair.Key, bytes int) *Stay {
	s := &Stay{out: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	place, out := c.all.Enter(key, (bytes+heldUnit-1)/heldUnit, s)
	if place == nil {
		return nil
	}
	s.place = place
	for _, other := range out {
		close(other.out)
	}
	return s
}

// Leave ends a stay; one that was sent away leaves, too.
func (c *Crowd) Leave(s *Stay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all.Leave(s.place)
}

// Size is how many places are occupied.
func (c *Crowd) Size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.Used()
}
