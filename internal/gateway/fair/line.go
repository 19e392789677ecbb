package fair

import "container/list"

// Line is those that wait for a turn. Flows take turns, in the order in which they came; within one
// the first to come is the first to go. The zero Line is empty.
type Line[T any] struct {
	flows map[Flow]*flow
	order list.List // of *flow, the one whose turn it is first
	n     int
}

type flow struct {
	name    Flow
	waiting list.List
	at      *list.Element
}

// Item is one that waits, or waited.
type Item[T any] struct {
	Value T
	flow  Flow
	at    *list.Element // nil while it isn't in the line
}

// Len is how many wait.
func (l *Line[T]) Len() int { return l.n }

// Waits reports whether an item is in the line.
func (i *Item[T]) Waits() bool { return i.at != nil }

// Push lets a value wait behind all of its flow.
func (l *Line[T]) Push(of Flow, v T) *Item[T] {
	i := &Item[T]{Value: v, flow: of}
	i.at = l.of(of, false).waiting.PushBack(i)
	l.n++
	return i
}

// Return puts an item that was popped back to where it was: it is the next one again. One that is
// in the line stays where it is.
func (l *Line[T]) Return(i *Item[T]) {
	if i.at != nil {
		return
	}
	i.at = l.of(i.flow, true).waiting.PushFront(i)
	l.n++
}

// of returns a flow that is in the line, at its front if first says so.
func (l *Line[T]) of(name Flow, first bool) *flow {
	f := l.flows[name]
	if f == nil {
		if l.flows == nil {
			l.flows = map[Flow]*flow{}
		}
		f = &flow{name: name}
		f.at = l.order.PushBack(f)
		l.flows[name] = f
	}
	if first {
		l.order.MoveToFront(f.at)
	}
	return f
}

// Front returns the one whose turn is next, nil where none waits.
func (l *Line[T]) Front() *Item[T] {
	if l.n == 0 {
		return nil
	}
	f, _ := l.order.Front().Value.(*flow)
	i, _ := f.waiting.Front().Value.(*Item[T])
	return i
}

// Pop takes out the one whose turn it is, nil where none waits; its flow is the last one then.
func (l *Line[T]) Pop() *Item[T] {
	i := l.Front()
	if i == nil {
		return nil
	}
	f := l.flows[i.flow]
	l.order.MoveToBack(f.at)
	l.Remove(i)
	return i
}

// Remove takes an item out, wherever it stands; one that isn't in the line changes nothing.
func (l *Line[T]) Remove(i *Item[T]) {
	if i.at == nil {
		return
	}
	f := l.flows[i.flow]
	f.waiting.Remove(i.at)
	i.at = nil
	l.n--
	if f.waiting.Len() == 0 {
		l.order.Remove(f.at)
		delete(l.flows, i.flow)
	}
}
