package state

import (
	"maps"
	"sync"
)

// Map holds the latest value for each key. Values are immutable, as a Topic's are. The zero Map
// is empty, ready for use and safe for concurrent use.
type Map[K comparable, V any] struct {
	mu sync.RWMutex
	m  map[K]V
}

// Load returns a key's value, and whether it has one.
func (m *Map[K, V]) Load(k K) (V, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	v, ok := m.m[k]
	return v, ok
}

// Store replaces a key's value. The caller must not change it afterwards.
func (m *Map[K, V]) Store(k K, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.m == nil {
		m.m = map[K]V{}
	}
	m.m[k] = v
}

// Delete removes a key.
func (m *Map[K, V]) Delete(k K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.m, k)
}

// All returns a copy of what the map holds now.
func (m *Map[K, V]) All() map[K]V {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return maps.Clone(m.m)
}
