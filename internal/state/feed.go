package state

import (
	"context"
	"sync"
)

// Feed tells any number of readers which keys changed. A key that changes again before a reader
// took it is told once, so a slow reader costs no more than the keys there are. The zero Feed is
// ready for use and safe for concurrent use.
type Feed[K comparable] struct {
	mu      sync.Mutex
	readers map[*reader[K]]struct{}
}

type reader[K comparable] struct {
	mu    sync.Mutex
	order []K
	has   map[K]bool
	wake  chan struct{}
}

// Notify tells every reader that the key changed. It never blocks.
func (f *Feed[K]) Notify(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.readers {
		r.add(key)
	}
}

// Subscribe returns a channel that yields each key that changes from now on. Its goroutine and
// channel end with ctx, which the caller must cancel.
func (f *Feed[K]) Subscribe(ctx context.Context) <-chan K {
	r := &reader[K]{has: map[K]bool{}, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	if f.readers == nil {
		f.readers = map[*reader[K]]struct{}{}
	}
	f.readers[r] = struct{}{}
	f.mu.Unlock()
	out := make(chan K)
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
			for k, ok := r.take(); ok; k, ok = r.take() {
				select {
				case out <- k:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (r *reader[K]) add(k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.has[k] {
		return
	}
	r.has[k] = true
	r.order = append(r.order, k)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reader[K]) take() (k K, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.order) == 0 {
		return k, false
	}
	k = r.order[0]
	r.order = r.order[1:]
	delete(r.has, k)
	return k, true
}
