package gateway

import (
	"container/list"
	"sync"
	"sync/atomic"

	"stationmaster.dev/stationmaster/internal/spec"
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

// queue lets requests wait for a free place, the first to come first. Only the first one tries,
// or whose turn was called. Whoever gives a place back, and whoever got one out of the queue,
// calls next; whoever can't have one joins, and tries once more before it waits, for the place may
// have come between.
type queue struct {
	mu      sync.Mutex
	waiting list.List // of *ticket
}

// ticket is a request's in a queue.
type ticket struct {
	// turn holds a token when it is the request's turn to try.
	turn chan struct{}
	// called says that the request took the token and hasn't used its turn yet.
	called bool
	at     *list.Element // nil while it isn't in the queue
}

// may reports whether a request may try to have a place; t is nil for one that doesn't wait.
func (q *queue) may(t *ticket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t == nil {
		return q.waiting.Len() == 0
	}
	return t.at == nil || t.at == q.waiting.Front()
}

// join puts a request at the end.
func (q *queue) join() *ticket {
	t := &ticket{turn: make(chan struct{}, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	t.at = q.waiting.PushBack(t)
	return t
}

// again puts a request whose turn brought it nothing back to the front.
func (q *queue) again(t *ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.spend()
	if t.at == nil {
		t.at = q.waiting.PushFront(t)
	}
}

// leave takes a request out, and passes on a turn that it has and didn't use.
func (q *queue) leave(t *ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.at != nil {
		q.waiting.Remove(t.at)
		t.at = nil
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
	front := q.waiting.Front()
	if front == nil {
		return
	}
	t := q.waiting.Remove(front).(*ticket)
	t.at = nil
	t.turn <- struct{}{} // it has room: a ticket that comes into the queue has none
}

// crowd counts the requests that wait, for whatever reason. A service may have no more of them
// than there are places left for all others (A. Choudhury, E. Hahne, "Dynamic queue length
// thresholds for shared-memory packet switches", 1998): one alone may fill half of the places,
// each of many its even part, and a new one always finds some.
type crowd struct {
	most int

	mu    sync.Mutex
	total int
	of    map[spec.ServiceKey]int
}

// enter counts a request unless there are too many.
func (c *crowd) enter(key spec.ServiceKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[key] >= c.most-c.total {
		return false
	}
	if c.of == nil {
		c.of = map[spec.ServiceKey]int{}
	}
	c.of[key]++
	c.total++
	return true
}

func (c *crowd) leave(key spec.ServiceKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.of[key]--; c.of[key] == 0 {
		delete(c.of, key)
	}
}

func (c *crowd) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}
