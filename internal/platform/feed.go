package platform

import (
	"context"
	"sync"

	"stationmaster.dev/stationmaster/internal/spec"
)

// Feed tells any number of readers which services changed. It implements Platform.Changes:
// a service that changes again before a reader took it is told once. The zero Feed is ready
// for use and safe for concurrent use.
type Feed struct {
	mu      sync.Mutex
	readers map[*reader]struct{}
}

type reader struct {
	mu    sync.Mutex
	order []spec.ServiceKey
	has   map[spec.ServiceKey]bool
	wake  chan struct{}
}

// Notify tells every reader that the service changed. It never blocks.
func (f *Feed) Notify(service spec.ServiceKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.readers {
		r.add(service)
	}
}

// Subscribe returns a channel as Platform.Changes describes it. Its goroutine and channel
// end with ctx, which the caller must cancel.
func (f *Feed) Subscribe(ctx context.Context) <-chan spec.ServiceKey {
	r := &reader{has: map[spec.ServiceKey]bool{}, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	if f.readers == nil {
		f.readers = map[*reader]struct{}{}
	}
	f.readers[r] = struct{}{}
	f.mu.Unlock()
	out := make(chan spec.ServiceKey)
	go func() {
		defer close(out)
		defer func() {
			f.mu.Lock()
			delete(f.readers, r)
			f.mu.Unlock()
		}()
		for {
			select {
			case <-r.wake:
			case <-ctx.Done():
				return
			}
			for s, ok := r.take(); ok; s, ok = r.take() {
				select {
				case out <- s:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (r *reader) add(s spec.ServiceKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.has[s] {
		return
	}
	r.has[s] = true
	r.order = append(r.order, s)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reader) take() (spec.ServiceKey, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.order) == 0 {
		return spec.ServiceKey{}, false
	}
	s := r.order[0]
	r.order = r.order[1:]
	delete(r.has, s)
	return s, true
}
