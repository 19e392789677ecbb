package gateway

import (
	"sync"
	"sync/atomic"

	"stationmaster.dev/stationmaster/internal/gateway/fair"
)

// places are those of an endpoint that takes no more than so many requests at once. A nil *places
// has no end of them.
type places struct {
	limit int64
	used  atomic.Int64
}

// take takes a place if one is free.
func (p *places) take() bool {
	if p == nil {
		return true
	}
	if p.used.Add(1) > p.limit {
		p.used.Add(-1)
		return false
	}
	return true
}

// queue lets requests wait for a free place; their callers take turns, and of one caller's the first
// to come is the first to go. Only the one whose turn is next tries, or whose turn was called. Whoever
// gives a place back, and whoever got one out of the queue, calls next; whoever can't have one joins,
// and tries once more before it waits, for the place may have come between.
type queue struct {
	mu   sync.Mutex
	line fair.Line[*ticket]
}

// ticket is a request's in a queue.
type ticket struct {
	// turn holds a token when it is the request's turn to try.
	turn chan struct{}
	// called says that the request took the token and hasn't used its turn yet.
	called bool
	at     *fair.Item[*ticket]
}

// may reports whether a request may try to have a place; t is nil for one that doesn't wait.
func (q *queue) may(t *ticket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t == nil {
		return q.line.Len() == 0
	}
	return !t.at.Waits() || t.at == q.line.Front()
}

// join lets a request of a flow wait.
func (q *queue) join(of fair.Flow) *ticket {
	t := &ticket{turn: make(chan struct{}, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	t.at = q.line.Push(of, t)
	return t
}

// again makes a request whose turn brought it nothing the next one.
func (q *queue) again(t *ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.spend()
	q.line.Return(t.at)
}

// leave takes a request out, and passes on a turn that it has and didn't use.
func (q *queue) leave(t *ticket) {
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

// spend ends a request's turn and reports whether it had one.
func (t *ticket) spend() bool {
	had := t.called
	t.called = false
	select {
	case <-t.turn:
		had = true
	default:
	}
	return had
}

// next gives the first request its turn.
func (q *queue) next() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pass()
}

func (q *queue) pass() {
	if i := q.line.Pop(); i != nil {
		i.Value.turn <- struct{}{} // it has room: a ticket that comes into the queue has none
	}
}

// heldUnit is how much of a body one place among those that wait is for.
const heldUnit = 32 << 10

// crowd is the requests that wait, for whatever reason, in places that are shared fairly. It is safe
// for concurrent use.
type crowd struct {
	mu  sync.Mutex
	all *fair.Crowd[*stayer]
}

// stayer is one that waits.
type stayer struct {
	place *fair.Place[*stayer]
	// out is closed when it is sent away for another one.
	out chan struct{}
}

func (s *stayer) isOut() bool {
	select {
	case <-s.out:
		return true
	default:
		return false
	}
}

// enter lets a request wait that keeps so many bytes, and sends others away for it if they have
// more than their part; nil means that it may not.
func (c *crowd) enter(key fair.Key, bytes int) *stayer {
	s := &stayer{out: make(chan struct{})}
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

func (c *crowd) leave(s *stayer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all.Leave(s.place)
}

func (c *crowd) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.Used()
}
