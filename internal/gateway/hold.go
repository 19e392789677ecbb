package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/fair"
	"stationmaster.dev/stationmaster/internal/gateway/meter"
	"stationmaster.dev/stationmaster/internal/gateway/wait"
	"stationmaster.dev/stationmaster/internal/route"
)

// redial is the pause between attempts to reach a replica that the table still calls ready.
const redial = 25 * time.Millisecond

// reason is why a request waits.
type reason uint8

const (
	// forRoutes: the table, or this service's line of it, isn't there yet.
	forRoutes reason = iota
	// forReturn: a replica that served a moment ago is being started again.
	forReturn
	// forDial: a replica that the table calls ready can't be reached.
	forDial
	// forWake: nothing runs, because there was nothing to do.
	forWake
	// forPlace: every replica has as many requests as it may.
	forPlace
	reasons
)

// hold is a request's stay at the gateway before, between and while it is at replicas: what it
// waits for, the place that it occupies at one, and which revision's load it counts for.
type hold struct {
	g *Gateway
	// exchange is that of a request over HTTP, nil for a call over gRPC.
	exchange *exchange
	// asker is the request or call that waits; nil for what only counts.
	asker asker
	start time.Time
	// since is when the request first waited for a reason; each has a time of its own.
	since [reasons]time.Time
	// stay is the request's among those that wait, nil while it doesn't.
	stay *wait.Stay
	// load counts the request, and held those that it waits for; nil where there is none yet.
	load, held *meter.Load
	// place is what the request occupies at the endpoint of a queue's revision.
	place  *wait.Places
	placed *wait.Queue
	// picked is what the request counts for at the replica that it goes to.
	picked picked
	// ticket is the request's in line, if it waits for a place.
	ticket *wait.Ticket
	line   *wait.Queue
}

// asker is who waits.
type asker interface {
	// caller tells it from others.
	caller() fair.Flow
	// kept is how many bytes of its body are in memory while it waits.
	kept() int
	// waits makes it ready for a wait, and goesOn ends that.
	waits()
	goesOn()
}

// flow is whose turn a request takes.
func (h *hold) flow() fair.Flow {
	if h.asker == nil {
		return 0
	}
	return h.asker.caller()
}

// stay is what ends a wait.
type stay uint8

const (
	goOn stay = iota
	// tooLong: the time for that reason is up.
	tooLong
	// tooMany: the request may not wait, for too many others do.
	tooMany
	// ended: the client is gone, or the gateway drains.
	ended
)

// patience is how long a request may wait for a reason, in all.
func (h *hold) patience(why reason, s *route.Service) time.Duration {
	t := &h.g.cfg.Timeouts
	switch why {
	case forWake:
		if s.Timeout > 0 {
			return min(s.Timeout, t.Wake)
		}
		return t.Wake
	case forPlace:
		return cmp.Or(s.Timeout, t.Response)
	}
	return t.Hold
}

// wait blocks until the table isn't old any more, the request's turn has come, pause has passed
// (zero means no such limit), or the request shall wait no longer.
func (h *hold) wait(ctx context.Context, why reason, s *route.Service, old *route.Table, pause time.Duration) stay {
	now := time.Now()
	if h.since[why].IsZero() {
		h.since[why] = now
	}
	left := h.since[why].Add(h.patience(why, s)).Sub(now)
	switch {
	case ctx.Err() != nil:
		return ended
	case left <= 0:
		return tooLong
	case !h.enter(s):
		return tooMany
	}
	if pause == 0 || pause > left {
		pause = left
	}
	table, changed := h.g.cfg.Table.Watch()
	if table != old {
		return goOn
	}
	known, learned := h.g.watchAdapters()
	if h.exchange != nil && h.exchange.view != nil && h.exchange.view.known() != known {
		return goOn
	}
	var turn <-chan struct{}
	if h.ticket != nil {
		turn = h.ticket.Turn()
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-changed:
		return goOn
	case <-learned:
		return goOn
	case <-turn:
		h.ticket.Called()
		return goOn
	case <-h.stay.Out():
		return tooMany
	case <-timer.C:
		if pause == left {
			return tooLong
		}
		return goOn
	case <-ctx.Done():
	case <-h.g.stopping:
	}
	return ended
}

// enter makes the request one of those that wait.
func (h *hold) enter(s *route.Service) bool {
	if h.stay != nil {
		return !h.stay.IsOut()
	}
	key, bytes := fair.Key{Flow: h.flow()}, 0
	if s != nil {
		key.Namespace, key.Service = s.Key.Namespace, s.Key.Name
	}
	if h.asker != nil {
		bytes = h.asker.kept()
	}
	if h.stay = h.g.crowd.Enter(key, bytes); h.stay == nil {
		return false
	}
	if h.asker != nil {
		h.asker.waits()
	}
	return true
}

// awaits counts the request among those that wait for a revision. Where that is the first that
// waits for something to be started, it is told at once.
func (h *hold) awaits(l *meter.Load, wake bool) {
	if h.held == l {
		return
	}
	h.awaitsNothing()
	h.held = l
	h.counts(l, time.Now())
	if first := l.Hold(); first && wake {
		select {
		case h.g.cold <- struct{}{}:
		default: // one is under way, and will tell of this one, too
		}
	}
}

func (h *hold) awaitsNothing() {
	if h.held != nil {
		h.held.Unhold()
		h.held = nil
	}
}

// counts moves the request into another revision's load.
func (h *hold) counts(l *meter.Load, now time.Time) {
	if h.load == l {
		return
	}
	fresh := h.load == nil
	if !fresh {
		h.load.Leave(now)
	}
	if l != nil {
		l.Enter(now, fresh)
	}
	h.load = l
}

// chosen is called when the request goes to a revision.
func (h *hold) chosen(t *target) {
	if h.load == t.load {
		return
	}
	now := h.start
	if h.load != nil || h.since != [reasons]time.Time{} {
		now = time.Now()
	}
	h.counts(t.load, now)
}

// settle ends the waiting; the request goes on, or ends.
func (h *hold) settle() {
	h.awaitsNothing()
	h.unqueue()
	if h.stay != nil {
		h.g.crowd.Leave(h.stay)
		h.stay = nil
		if h.asker != nil {
			h.asker.goesOn()
		}
	}
}

// end is called when all is over.
func (h *hold) end(now time.Time) {
	h.settle()
	h.vacate()
	h.picked.end(now)
	h.counts(nil, now)
}

// vacate gives the request's place to the next one.
func (h *hold) vacate() {
	if h.place != nil {
		h.place.Give()
		h.placed.Next()
		h.place, h.placed = nil, nil
	}
}

func (h *hold) unqueue() {
	if h.ticket != nil {
		h.line.Leave(h.ticket)
		h.ticket, h.line = nil, nil
	}
}

// occupy finds the request a place at the endpoint e of t, or at another one of t's; nil means
// that all are full.
func (h *hold) occupy(v *view, t *route.Target, e, not *route.Endpoint) *route.Endpoint {
	if t.Limit == 0 {
		return e
	}
	q := v.targets[t].queue
	if h.line != nil && h.line != q {
		h.unqueue()
	}
	if !q.May(h.ticket) {
		return nil
	}
	take := func(e *route.Endpoint) bool {
		p := v.endpoints[e].places
		if e == not || !p.Take() {
			return false
		}
		h.place, h.placed = p, q
		if h.ticket != nil {
			h.ticket.Used()
			h.unqueue()
			q.Next() // there may be more
		}
		return true
	}
	if take(e) {
		return e
	}
	for i := range t.Endpoints {
		if other := &t.Endpoints[i]; other != e && take(other) {
			return other
		}
	}
	return nil
}

// queueFor puts the request in line for a place at t, and tries once more.
func (h *hold) queueFor(v *view, t *route.Target, e, not *route.Endpoint) *route.Endpoint {
	if h.ticket == nil {
		h.line = v.targets[t].queue
		h.ticket = h.line.Join(h.flow())
	} else {
		h.line.Again(h.ticket)
	}
	return h.occupy(v, t, e, not)
}

// errNoRoutes is told while the gateway has no table.
var errNoRoutes = errdef.New(errdef.ErrUnavailable, "the gateway has no routes yet: try again in a moment")

// finder finds a request's service in the latest table, and sets the request's view and match.
type finder func() (*route.Match, *view, error)

// pick finds an endpoint for a request, and waits for one that is on its way. It returns nil
// without an error for a call that is for no single service.
func (h *hold) pick(ctx context.Context, find finder) (*route.Target, *route.Endpoint, error) {
	defer h.settle()
	for {
		m, v, err := find()
		switch {
		case v.table == nil:
			if h.wait(ctx, forRoutes, nil, nil, 0) != goOn {
				return nil, nil, errNoRoutes
			}
			continue
		case err != nil && v.table.Partial && errors.Is(err, errdef.ErrNotFound):
			if h.wait(ctx, forRoutes, nil, v.table, 0) != goOn {
				return nil, nil, errNoRoutes
			}
			continue
		case err != nil:
			return nil, nil, err
		case m.Backend == nil:
			return nil, nil, nil
		}
		why := forReturn
		switch t, e := h.choose(m, v, nil); {
		case t != nil:
			if at := h.occupy(v, t, e, nil); at != nil {
				return t, h.goesTo(v, t, e, at), nil
			}
			if at := h.queueFor(v, t, e, nil); at != nil {
				return t, h.goesTo(v, t, e, at), nil
			}
			h.picked.release(time.Now())
			why = forPlace
			h.awaits(v.targets[t].load, false)
		case m.Backend.Cold:
			why = forWake
			if l := v.wakes(m.Backend); l != nil {
				h.awaits(l, true)
			}
		case !m.Backend.Returning:
			return nil, nil, notReady(m)
		}
		if s := h.wait(ctx, why, m.Service, v.table, 0); s != goOn {
			return nil, nil, h.refuse(s, why, m)
		}
	}
}

// refuse says why a request waits no longer.
func (h *hold) refuse(s stay, why reason, m *route.Match) error {
	switch {
	case s == tooMany:
		return later(errdef.New(errdef.ErrOverloaded, fmt.Sprintf(
			"too many requests wait for %s already: try again later", m.Service.Key)), whenBack(m.Backend, time.Now()))
	case s == tooLong && why == forPlace:
		return later(errdef.New(errdef.ErrOverloaded, fmt.Sprintf(
			"every replica of the %s of %s was busy for %v: try again later", m.Component, m.Service.Key, h.patience(why, m.Service))), 0)
	case s == tooLong && why == forWake:
		return later(errdef.New(errdef.ErrUnavailable, fmt.Sprintf(
			"the %s of %s had no ready replica after %v of waiting: %s", m.Component, m.Service.Key, h.patience(why, m.Service), m.Backend.NotReady)), whenBack(m.Backend, time.Now()))
	}
	return notReady(m)
}

// another finds an endpoint in place of one that couldn't be reached: another replica at
// once, the first time; then whatever the table has a moment later.
func (h *hold) another(ctx context.Context, not *route.Endpoint, first bool, m *route.Match, v *view, find finder) (*route.Target, *route.Endpoint) {
	if first {
		if t, e := h.elsewhere(not, m, v); t != nil {
			return t, e
		}
	}
	h.vacate()
	h.picked.release(time.Now())
	defer h.settle()
	if h.wait(ctx, forDial, m.Service, v.table, redial) != goOn {
		return nil, nil
	}
	t, e, err := h.pick(ctx, find)
	if err != nil {
		return nil, nil
	}
	return t, e
}
