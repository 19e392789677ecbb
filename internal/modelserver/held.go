package modelserver

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
)

// held counts the bytes of all large requests that are read and not answered yet, so that many
// at once are refused instead of taking all memory. It is safe for concurrent use.
type held struct {
	most int64
	wait time.Duration
	sem  *semaphore.Weighted
}

func newHeld(most int64, wait time.Duration) *held {
	return &held{most: most, wait: wait, sem: semaphore.NewWeighted(most)}
}

// share is what one request holds. Its methods are for one goroutine.
type share struct {
	held *held
	n    int64
}

// grow waits until the share may be n bytes, if it is less. When that takes too long, or ctx
// ends, it is an error, and the share stays as it was.
func (s *share) grow(ctx context.Context, n int64) error {
	if s.tryGrow(n) == nil {
		return nil
	}
	more := n - s.n
	wait, cancel := context.WithTimeout(ctx, s.held.wait)
	defer cancel()
	if err := s.held.sem.Acquire(wait, more); err != nil {
		if ctx.Err() != nil {
			return gone(ctx)
		}
		return s.held.full()
	}
	s.n = n
	return nil
}

// tryGrow is grow without waiting.
func (s *share) tryGrow(n int64) error {
	if n <= s.n {
		return nil
	}
	if !s.held.sem.TryAcquire(n - s.n) {
		return s.held.full()
	}
	s.n = n
	return nil
}

// free gives all of the share back.
func (s *share) free() {
	s.held.sem.Release(s.n)
	s.n = 0
}

func (h *held) full() error {
	return errdef.New(errdef.ErrOverloaded, brief.Sprintf("the server holds %d bytes of large requests, or nearly, and takes no more; try again later, send less at once, or raise --max_held", h.most))
}
