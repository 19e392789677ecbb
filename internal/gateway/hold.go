package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/route"
)

// maxHeld bounds the requests that wait for a replica at one time; one more is refused at
// once. A held request costs a goroutine and its connection, its body isn't read yet or small.
const maxHeld = 4096

// redial is the pause between attempts to reach a replica that the table still calls ready.
const redial = 25 * time.Millisecond

// hold is the waiting of one request for a replica that is on its way back: a service's only
// replica that crashed is there again within a second, so that only what was under way in it
// is lost. All waits of a request together last at most Timeouts.Hold.
type hold struct {
	g *Gateway
	// exchange is that of a request over HTTP, nil for a call over gRPC.
	exchange *exchange
	until    time.Time // zero before the first wait
}

// wait blocks until the table isn't old any more, pause has passed (zero means no such limit)
// or ctx ends. It returns false when the request shall wait no longer: its time is up, too
// many others wait, ctx has ended, or the gateway drains.
func (h *hold) wait(ctx context.Context, old *route.Table, pause time.Duration) bool {
	if h.until.IsZero() {
		h.until = time.Now().Add(h.g.cfg.Timeouts.Hold)
		if h.exchange != nil {
			h.exchange.readAhead()
		}
	}
	now := time.Now()
	left := h.until.Sub(now)
	if left <= 0 || ctx.Err() != nil {
		return false
	}
	defer h.g.held.Add(-1)
	if h.g.held.Add(1) > maxHeld {
		return false
	}
	if pause == 0 || pause > left {
		pause = left
	}
	table, changed := h.g.cfg.Table.Watch()
	if table != old {
		return true
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-changed:
		return true
	case <-timer.C:
		return time.Now().Before(h.until)
	case <-ctx.Done():
	case <-h.g.stopping:
	}
	return false
}

// errNoRoutes is told while the gateway has no table.
var errNoRoutes = errdef.New(errdef.ErrUnavailable, "the gateway has no routes yet: try again in a moment")

// finder finds a request's service in the latest table, and sets the request's view and match.
type finder func() (*route.Match, *view, error)

// pick finds an endpoint for a request, and waits for one that is on its way back. It returns
// nil without an error for a call that is for no single service.
func (h *hold) pick(ctx context.Context, find finder) (*route.Target, *route.Endpoint, error) {
	for {
		m, v, err := find()
		switch {
		case v.table == nil:
			if !h.wait(ctx, nil, 0) {
				return nil, nil, errNoRoutes
			}
			continue
		case err != nil && v.table.Partial && errors.Is(err, errdef.ErrNotFound):
			if !h.wait(ctx, v.table, 0) {
				return nil, nil, errNoRoutes
			}
			continue
		case err != nil:
			return nil, nil, err
		case m.Backend == nil:
			return nil, nil, nil
		}
		if t, e := m.Pick(rand.Uint64(), v.load); t != nil {
			return t, e, nil
		}
		if !m.Backend.Returning || !h.wait(ctx, v.table, 0) {
			return nil, nil, notReady(*m)
		}
	}
}

// another finds an endpoint in place of one that couldn't be reached: another replica at
// once, the first time; then whatever the table has a moment later.
func (h *hold) another(ctx context.Context, not *route.Endpoint, first bool, m *route.Match, v *view, find finder) (*route.Target, *route.Endpoint) {
	if first {
		if t, e := m.PickExcept(rand.Uint64(), v.load, not); t != nil {
			return t, e
		}
	}
	if !h.wait(ctx, v.table, redial) {
		return nil, nil
	}
	t, e, err := h.pick(ctx, find)
	if err != nil {
		return nil, nil
	}
	return t, e
}
