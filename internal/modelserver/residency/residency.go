// Package residency decides which of many models are in memory: within a budget of bytes, the
// least recently used leaves first, and none that serves is freed. It is pure: it loads and frees
// nothing, knows no clock, and says what is to be done (Next) to whoever does it.
//
//	absent ──Want──► queued ──Load──► loading ──Loaded──► resident ──► leaving ──Free──► closing
//	   ▲                │Forget          │Failed             (idle: at once)                 │Freed
//	   └────────────────┴────────────────┴───────────────────────────────────────────────────┘
//
// A model that must leave while requests hold it is leaving: it takes no more of them, so that
// those who wait for its room get it when the last one is answered, however busy the model is.
package residency

import (
	"cmp"
	"slices"
)

// Op is what is to be done to a model.
type Op int

// Load: load the model, then call Loaded or Failed. Free: free it, then call Freed. Evict is a Free
// that makes room for another model.
const (
	Load Op = iota + 1
	Free
	Evict
)

// Action is one thing to do.
type Action struct {
	Op    Op
	Model string
}

type state int

const (
	queued state = iota + 1
	loading
	resident
	leaving
	closing
)

type entry struct {
	state  state
	bytes  int64
	users  int
	used   uint64 // when it was last used, in Set.clock's counts
	wanted bool   // it is to be queued again once it is gone
	drop   bool   // it is to leave once it is loaded
	evict  bool   // it leaves for another's sake
}

// Set is the models that are in memory, on the way in or on the way out. It isn't safe for
// concurrent use.
type Set struct {
	budget  int64
	taken   int64 // by what is loading, resident, leaving or closing
	clock   uint64
	models  map[string]*entry
	waiting []string // queued, the longest-waiting first
}

// New makes an empty set for a budget of bytes.
func New(budget int64) *Set {
	return &Set{budget: budget, models: map[string]*entry{}}
}

// Budget is the most bytes that models may take.
func (s *Set) Budget() int64 { return s.budget }

// Taken is how many bytes models take now, those included that are being loaded or freed. It is
// never more than the budget.
func (s *Set) Taken() int64 { return s.taken }

// Waiting is how many models wait for room.
func (s *Set) Waiting() int { return len(s.waiting) }

// Holds reports whether a model is in memory, on its way in or out, or waits for room.
func (s *Set) Holds(model string) bool { return s.models[model] != nil }

// Resident is how many models are loaded.
func (s *Set) Resident() int {
	n := 0
	for _, e := range s.models {
		if e.state == resident || e.state == leaving {
			n++
		}
	}
	return n
}

// Use counts a user of a model and reports true if it is loaded and may be used; the user must
// Release it. Otherwise it changes nothing.
func (s *Set) Use(model string) bool {
	e := s.models[model]
	if e == nil || e.state != resident {
		return false
	}
	s.touch(e)
	e.users++
	return true
}

// Release gives back what Use, or Loaded, counted.
func (s *Set) Release(model string) { s.models[model].users-- }

// Want asks for a model of that many bytes to be loaded, unless it is or is going to be. It
// reports false, and changes nothing, for one that is larger than the budget.
func (s *Set) Want(model string, bytes int64) bool {
	if bytes > s.budget {
		return false
	}
	switch e := s.models[model]; {
	case e == nil:
		s.queue(model, bytes)
	case e.state == loading:
		e.drop = false
	case e.state == leaving, e.state == closing:
		e.wanted = true
	}
	return true
}

// Forget takes back a Want that nobody waits for any more, and reports whether it could: what is
// being loaded goes on.
func (s *Set) Forget(model string) bool {
	e := s.models[model]
	switch {
	case e == nil:
		return false
	case e.state == queued:
		s.waiting = slices.DeleteFunc(s.waiting, func(m string) bool { return m == model })
		delete(s.models, model)
		return true
	}
	wanted := e.wanted
	e.wanted = false
	return wanted
}

// Drop makes a loaded model leave: at once when it is idle, else when its users have released it.
// One that is being loaded leaves after that. For others it does nothing.
func (s *Set) Drop(model string) {
	switch e := s.models[model]; {
	case e == nil:
	case e.state == loading:
		e.drop = true
	case e.state == resident:
		e.state = leaving
	}
}

// Loaded says that a Load is done, and counts users of the model, each of whom must Release it.
func (s *Set) Loaded(model string, users int) {
	e := s.models[model]
	s.touch(e)
	e.state, e.users = resident, users
	if e.drop {
		e.state, e.drop = leaving, false
	}
}

// Failed says that a Load came to nothing; the model takes no room then.
func (s *Set) Failed(model string) { s.gone(model) }

// Freed says that a Free is done.
func (s *Set) Freed(model string) { s.gone(model) }

// Next returns what is to be done now. Each action is returned once. Call it after anything
// else was called that may have made room or need.
func (s *Set) Next() []Action {
	var out []Action
	for len(s.waiting) > 0 {
		model := s.waiting[0]
		e := s.models[model]
		if s.taken+e.bytes > s.budget {
			s.makeRoom(e.bytes)
			break
		}
		s.waiting = s.waiting[1:]
		s.taken += e.bytes
		e.state = loading
		out = append(out, Action{Load, model})
	}
	for model, e := range s.models {
		if e.state == leaving && e.users == 0 {
			e.state = closing
			op := Free
			if e.evict {
				op = Evict
			}
			out = append(out, Action{op, model})
		}
	}
	slices.SortFunc(out, func(a, b Action) int { return cmp.Or(int(b.Op-a.Op), cmp.Compare(a.Model, b.Model)) })
	return out
}

// makeRoom makes models leave until that many bytes will be free: the idle ones first, and of
// each sort the least recently used.
func (s *Set) makeRoom(bytes int64) {
	free := s.budget - s.taken
	var candidates []*entry
	for _, e := range s.models {
		switch {
		case e.state == leaving, e.state == closing, e.state == loading && e.drop:
			free += e.bytes
		case e.state == resident:
			candidates = append(candidates, e)
		}
	}
	slices.SortFunc(candidates, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(min(a.users, 1), min(b.users, 1)), cmp.Compare(a.used, b.used))
	})
	for _, e := range candidates {
		if free >= bytes {
			return
		}
		e.state, e.evict = leaving, true
		free += e.bytes
	}
}

func (s *Set) queue(model string, bytes int64) {
	s.models[model] = &entry{state: queued, bytes: bytes}
	s.waiting = append(s.waiting, model)
}

func (s *Set) touch(e *entry) {
	s.clock++
	e.used = s.clock
}

func (s *Set) gone(model string) {
	e := s.models[model]
	s.taken -= e.bytes
	delete(s.models, model)
	if e.wanted {
		s.queue(model, e.bytes)
	}
}
