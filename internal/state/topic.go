// Package state joins rooms that must not know each other: whoever publishes the latest value
// of something never imports whoever reads it. Values are immutable; a new one replaces the
// old, and slow readers see only the last.
package state

import (
	"sync"
	"sync/atomic"
)

// Topic holds the latest value of T. The zero Topic holds nil. It is safe for concurrent use;
// Load is one atomic read and fit for a hot path.
type Topic[T any] struct {
	current atomic.Pointer[T]
	mu      sync.Mutex
	changed chan struct{}
}

// Load returns the latest value, or nil if none was published.
func (t *Topic[T]) Load() *T { return t.current.Load() }

// Publish replaces the value. The caller must not change it afterwards.
func (t *Topic[T]) Publish(v *T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current.Store(v)
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// Watch returns the latest value and a channel that is closed when it is replaced. To follow
// a topic, call Watch again after each close.
func (t *Topic[T]) Watch() (*T, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.current.Load(), t.changed
}
