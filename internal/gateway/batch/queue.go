// Package batch puts single requests together: which of them go as one, how they become one, and
// how its answer becomes theirs. It is pure: whoever sends them has the clock.
package batch

import "time"

// Limits bound a group.
type Limits struct {
	// MaxRows and MaxBytes are the most in a group of several items; 1 or more. One item alone may
	// have more.
	MaxRows, MaxBytes int
	// MaxWait is how long a group waits to fill.
	MaxWait time.Duration
}

// Group is items that go together.
type Group[T any] struct {
	Key   string
	Items []T // in the order in which they came, one at least
	Rows  int
	Bytes int
	// Due is when the group goes, full or not.
	Due time.Time
}

// Queue collects items into groups, at most one that is open for each key. The zero Queue is
// empty. It isn't safe for concurrent use.
type Queue[T any] struct {
	open  map[string]*Group[T]
	bytes int
}

// Add puts an item of so many rows and bytes into the open group of its key, or into a new one
// where there is none or the item doesn't fit. It returns the groups that are full, oldest first;
// they are open no longer. opened is the group that the item began, nil if it joined one.
func (q *Queue[T]) Add(key string, item T, rows, bytes int, l Limits, now time.Time) (full []*Group[T], opened *Group[T]) {
	g := q.open[key]
	if g != nil && (g.Rows+rows > l.MaxRows || g.Bytes+bytes > l.MaxBytes) {
		q.Take(g)
		full = append(full, g)
		g = nil
	}
	if g == nil {
		g = &Group[T]{Key: key, Due: now.Add(l.MaxWait)}
		if q.open == nil {
			q.open = map[string]*Group[T]{}
		}
		q.open[key], opened = g, g
	}
	g.Items = append(g.Items, item)
	g.Rows, g.Bytes = g.Rows+rows, g.Bytes+bytes
	q.bytes += bytes
	if g.Rows >= l.MaxRows || g.Bytes >= l.MaxBytes {
		q.Take(g)
		full = append(full, g)
	}
	return full, opened
}

// Take closes a group, so that no item joins it any more. It reports false for one that was closed
// before.
func (q *Queue[T]) Take(g *Group[T]) bool {
	if q.open[g.Key] != g {
		return false
	}
	delete(q.open, g.Key)
	q.bytes -= g.Bytes
	return true
}

// Bytes is how many bytes the open groups have.
func (q *Queue[T]) Bytes() int { return q.bytes }

// Items ranges over the items of the open groups.
func (q *Queue[T]) Items(yield func(T) bool) {
	for _, g := range q.open {
		for _, item := range g.Items {
			if !yield(item) {
				return
			}
		}
	}
}
