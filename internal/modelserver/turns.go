package modelserver

import (
	"context"
	"sync/atomic"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
)

// turns bounds how many requests run at once and how many wait, over all models of a server.
type turns struct {
	slots   chan struct{} // one entry for each request that runs
	queue   int
	waiting atomic.Int64
}

func newTurns(parallel, queue int) *turns {
	return &turns{slots: make(chan struct{}, parallel), queue: queue}
}

// enter waits for a slot. When as many wait already as may, or ctx ends, it is an error.
func (t *turns) enter(ctx context.Context, model string) (release func(), err error) {
	release = func() { <-t.slots }
	select {
	case t.slots <- struct{}{}:
		return release, nil
	default:
	}
	leave, err := t.wait(model)
	if err != nil {
		return nil, err
	}
	defer leave()
	select {
	case t.slots <- struct{}{}:
		return release, nil
	case <-ctx.Done():
		return nil, gone(ctx)
	}
}

// wait counts a request that waits, until leave. When as many wait already as may, it is an error.
func (t *turns) wait(model string) (leave func(), err error) {
	if n := t.waiting.Add(1); n > int64(t.queue) {
		t.waiting.Add(-1)
		return nil, errdef.New(errdef.ErrOverloaded, brief.Sprintf("model %q is busy: %d requests wait already; try again later, or add replicas", model, t.queue))
	}
	return func() { t.waiting.Add(-1) }, nil
}
