package upstream

import (
	"container/list"
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// eager is how long a request waits for its turn to dial, or for a connection that another one gives
// back, before it dials all the same: nothing holds anybody up for longer. pace is how long a turn
// lasts beyond its dial while there is no answer: an engine that is faster has its connections used
// again, and one that is slower gets MaxDials more each time.
const (
	eager = 20 * time.Millisecond
	pace  = 2 * time.Millisecond
)

// turn is one of MaxDials to dial. It ends with the first exchange over the connection, or after
// pace.
type turn struct {
	host *Host
	once sync.Once
	pace *time.Timer // guarded by the host's mu
}

// end passes the turn on.
func (t *turn) end() {
	if t == nil {
		return
	}
	t.once.Do(func() {
		t.host.mu.Lock()
		defer t.host.mu.Unlock()
		t.pace.Stop()
		t.host.passTurn()
	})
}

// passTurn gives the turn to the first that waits. The caller holds mu.
func (h *Host) passTurn() {
	if !h.lead(lead{turn: true}) {
		h.dials--
	}
}

// lead is what a request that waits is given: a connection, or leave to dial, with one of the turns
// to do so or without.
type lead struct {
	conn *conn
	turn bool
}

// connect finds a connection where none is idle. At most Config.MaxDials requests have a turn to dial;
// the others wait for one, the first to come first, or for a connection that was used and is free
// again, whichever comes sooner. So hundreds of requests that come at once to an engine which answers
// fast share some dozens of connections, and one that answers slowly has its hundreds a moment later.
// Where a dial fails all go their own way.
func (h *Host) connect(ctx context.Context, deadline time.Time, repeatable bool) (*conn, error) {
	h.mu.Lock()
	if h.dials < h.cfg.MaxDials {
		h.dials++
		h.mu.Unlock()
		return h.dialInTurn(ctx, deadline)
	}
	got := make(chan lead, 1)
	at := h.waiting.PushBack(got)
	h.mu.Unlock()
	timer := time.NewTimer(eager)
	defer timer.Stop()
	var l lead
	select {
	case l = <-got:
	case <-timer.C:
		l = h.giveUp(at, got)
	case <-ctx.Done():
		l = h.giveUp(at, got)
	}
	switch {
	case l.conn != nil && ctx.Err() != nil:
		h.put(l.conn)
	case l.conn != nil:
		if h.fit(l.conn, time.Now(), deadline, repeatable) {
			return l.conn, nil
		}
	case l.turn:
		return h.dialInTurn(ctx, deadline)
	}
	return h.dial(ctx, deadline)
}

// giveUp takes a request out of those that wait, or returns what it was given meanwhile.
func (h *Host) giveUp(at *list.Element, got chan lead) lead {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case l := <-got:
		return l
	default:
		h.waiting.Remove(at)
		return lead{}
	}
}

// dialInTurn dials with a turn, and passes it on.
func (h *Host) dialInTurn(ctx context.Context, deadline time.Time) (*conn, error) {
	c, err := h.dial(ctx, deadline)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		for h.lead(lead{}) {
		}
		h.passTurn()
		return nil, err
	}
	c.dialled = &turn{host: h}
	c.dialled.pace = time.AfterFunc(pace, c.dialled.end)
	return c, nil
}

// lead gives something to the first that waits, and reports whether there is one. The caller holds
// mu.
func (h *Host) lead(l lead) bool {
	first := h.waiting.Front()
	if first == nil {
		return false
	}
	got, _ := h.waiting.Remove(first).(chan lead)
	got <- l // it has room: each gets one thing
	return true
}

// fit makes a connection that was used ready for another request, or closes it.
func (h *Host) fit(c *conn, now, deadline time.Time, repeatable bool) bool {
	idle := now.Sub(c.idleSince)
	if idle < h.cfg.IdleTimeout && c.setDeadline(deadline) == nil {
		c.peeked = !repeatable || idle > trusted
		if !c.peeked || !c.stale() {
			return true
		}
	}
	c.close()
	return false
}

func (h *Host) dial(ctx context.Context, deadline time.Time) (*conn, error) {
	if n := h.open.Add(1); n > int64(h.cfg.MaxConns) {
		h.open.Add(-1)
		return nil, &Error{Stage: StageLimit, Addr: h.addr, Err: fmt.Errorf(
			"%w: %d connections to %s are in use", errdef.ErrOverloaded, h.cfg.MaxConns, h.addr)}
	}
	dialCtx, cancel := context.WithTimeout(ctx, h.cfg.DialTimeout)
	defer cancel()
	nc, err := h.cfg.Dial(dialCtx, "tcp", h.addr)
	if err != nil {
		h.open.Add(-1)
		return nil, &Error{Stage: StageDial, Addr: h.addr, Err: err}
	}
	if h.secure != nil {
		secured := tls.Client(nc, h.secure)
		if err := secured.HandshakeContext(dialCtx); err != nil {
			h.open.Add(-1)
			_ = nc.Close()
			return nil, &Error{Stage: StageDial, Addr: h.addr, Err: fmt.Errorf("TLS with %s: %w", h.addr, err)}
		}
		nc = secured
	}
	c := newConn(h, nc)
	if err := c.setDeadline(deadline); err != nil {
		c.close()
		return nil, &Error{Stage: StageDial, Addr: h.addr, Err: err}
	}
	return c, nil
}
