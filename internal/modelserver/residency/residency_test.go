package residency

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// world does what a set says, and knows what is in memory.
type world struct {
	*Set
	sizes  map[string]int64
	memory map[string]bool // from the start of its load to the end of its freeing
	busy   map[string]int
	begun  []Action // not done yet
}

func newWorld(budget int64, sizes map[string]int64) *world {
	return &world{Set: New(budget), sizes: sizes, memory: map[string]bool{}, busy: map[string]int{}}
}

func (w *world) next(t interface{ Fatalf(string, ...any) }) {
	for _, a := range w.Next() {
		switch {
		case a.Op == Load && w.memory[a.Model]:
			t.Fatalf("%s is loaded twice", a.Model)
		case a.Op != Load && !w.memory[a.Model]:
			t.Fatalf("%s is freed and isn't there", a.Model)
		case a.Op != Load && w.busy[a.Model] > 0:
			t.Fatalf("%s is freed while it serves", a.Model)
		}
		w.memory[a.Model] = true
		w.begun = append(w.begun, a)
	}
	var bytes int64
	for m := range w.memory {
		bytes += w.sizes[m]
	}
	if bytes > w.Budget() || bytes != w.Taken() {
		t.Fatalf("%d bytes are in memory, the set says %d, and the budget is %d", bytes, w.Taken(), w.Budget())
	}
}

// finish ends the i-th action that was begun.
func (w *world) finish(i, users int, fails bool) {
	a := w.begun[i]
	w.begun = slices.Delete(w.begun, i, i+1)
	switch {
	case a.Op == Load && fails:
		w.Failed(a.Model)
		delete(w.memory, a.Model)
	case a.Op == Load:
		w.Loaded(a.Model, users)
		w.busy[a.Model] += users
	default:
		w.Freed(a.Model)
		delete(w.memory, a.Model)
	}
}

// settle does all that is to be done, without users.
func (w *world) settle(t interface{ Fatalf(string, ...any) }) {
	for w.next(t); len(w.begun) > 0; w.next(t) {
		w.finish(0, 0, false)
	}
}

func (w *world) use(t *testing.T, model string) {
	t.Helper()
	if !w.Use(model) {
		t.Fatalf("%s isn't loaded", model)
	}
	w.busy[model]++
}

func (w *world) release(model string) {
	w.Release(model)
	w.busy[model]--
}

// TestWhateverHappensTheBudgetHolds draws what may happen in any order. world checks after each
// step that the budget holds and that nothing which serves is freed; at the end each model that
// is wanted gets its turn.
func TestWhateverHappensTheBudgetHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := map[string]int64{}
		for i := range rapid.IntRange(1, 8).Draw(t, "models") {
			sizes[fmt.Sprint("m", i)] = rapid.Int64Range(0, 12).Draw(t, "bytes")
		}
		w := newWorld(rapid.Int64Range(1, 30).Draw(t, "budget"), sizes)
		names := rapid.SampledFrom(slices.Sorted(keys(sizes)))
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			m := names.Draw(t, "model")
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1:
				if fits := w.Want(m, sizes[m]); fits != (sizes[m] <= w.Budget()) {
					t.Fatalf("%d of %d bytes: fits %v", sizes[m], w.Budget(), fits)
				}
			case 2:
				if w.Use(m) {
					w.busy[m]++
				}
			case 3:
				if w.busy[m] > 0 {
					w.release(m)
				}
			case 4, 5:
				if len(w.begun) > 0 {
					w.finish(rapid.IntRange(0, len(w.begun)-1).Draw(t, "begun"), rapid.IntRange(0, 2).Draw(t, "users"), rapid.Bool().Draw(t, "fails"))
				}
			case 6:
				w.Drop(m)
			case 7:
				w.Forget(m)
			}
			w.next(t)
		}
		for m, n := range w.busy {
			for range n {
				w.release(m)
			}
		}
		w.settle(t)
		if w.Waiting() > 0 {
			t.Fatalf("%d models wait though nothing is in their way", w.Waiting())
		}
		for m, bytes := range sizes {
			if !w.Want(m, bytes) {
				continue
			}
			w.settle(t)
			if !w.Use(m) {
				t.Fatalf("%s isn't loaded though nothing is in its way", m)
			}
			w.Release(m)
		}
	})
}

func keys(m map[string]int64) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func loaded(t *testing.T, w *world, models ...string) {
	t.Helper()
	for _, m := range models {
		if !w.Want(m, w.sizes[m]) {
			t.Fatalf("%s is larger than the budget", m)
		}
		w.settle(t)
	}
}

func TestTheLeastRecentlyUsedLeaves(t *testing.T) {
	w := newWorld(3, map[string]int64{"a": 1, "b": 1, "c": 1, "d": 2})
	loaded(t, w, "a", "b", "c")
	w.use(t, "a")
	w.release("a")
	loaded(t, w, "d")
	if !w.memory["a"] || w.memory["b"] || w.memory["c"] || !w.memory["d"] {
		t.Errorf("in memory: %v", w.memory)
	}
	if w.Resident() != 2 {
		t.Errorf("%d resident", w.Resident())
	}
}

func TestIdleModelsLeaveBeforeBusyOnes(t *testing.T) {
	w := newWorld(2, map[string]int64{"old and busy": 1, "new and idle": 1, "c": 1})
	loaded(t, w, "old and busy", "new and idle")
	w.use(t, "old and busy")
	w.use(t, "new and idle")
	w.release("new and idle")
	loaded(t, w, "c")
	if !w.memory["old and busy"] || w.memory["new and idle"] {
		t.Errorf("in memory: %v", w.memory)
	}
}

func TestABusyModelTakesNoMoreWhenItsRoomIsNeeded(t *testing.T) {
	w := newWorld(1, map[string]int64{"a": 1, "b": 1})
	loaded(t, w, "a")
	w.use(t, "a")
	w.Want("b", 1)
	w.next(t)
	if len(w.begun) != 0 {
		t.Fatalf("begun: %v", w.begun)
	}
	if w.Use("a") {
		t.Error("a took another request, though b waits for its room")
	}
	w.Want("a", 1) // whoever asked for it waits behind b
	w.release("a")
	w.next(t)
	if want := []Action{{Evict, "a"}}; !slices.Equal(w.begun, want) {
		t.Fatalf("begun %v, want %v", w.begun, want)
	}
	w.finish(0, 0, false)
	w.next(t)
	if want := []Action{{Load, "b"}}; !slices.Equal(w.begun, want) {
		t.Fatalf("begun %v, want %v", w.begun, want)
	}
	w.finish(0, 1, false) // b is loaded, and used
	w.next(t)
	w.release("b")
	w.settle(t)
	if !w.Use("a") {
		t.Error("a didn't come back")
	}
}

func TestAModelThatIsDroppedWhileItLoadsLeavesAfterwards(t *testing.T) {
	w := newWorld(1, map[string]int64{"a": 1})
	w.Want("a", 1)
	w.next(t)
	w.Drop("a")
	w.next(t)
	w.settle(t)
	if w.Taken() != 0 || len(w.memory) != 0 {
		t.Errorf("%d bytes taken by %v", w.Taken(), w.memory)
	}
}

func TestNobodyWaitsForWhatIsForgotten(t *testing.T) {
	w := newWorld(1, map[string]int64{"a": 1, "b": 1})
	loaded(t, w, "a")
	w.use(t, "a")
	w.Want("b", 1)
	w.Forget("b")
	w.release("a")
	w.settle(t)
	if !w.memory["a"] || w.memory["b"] || w.Waiting() != 0 {
		t.Errorf("in memory: %v, %d wait", w.memory, w.Waiting())
	}
}
