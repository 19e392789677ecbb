package modelserver

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// refresh reads the list if it changed.
func (f *fleet) refresh(ctx context.Context) error {
	f.reading.Lock()
	defer f.reading.Unlock()
	info, err := os.Stat(f.many.List)
	if err != nil {
		return fmt.Errorf("the list of models: %w; check --models_config", err)
	}
	if f.read != nil && os.SameFile(info, f.seen) && info.ModTime().Equal(f.seen.ModTime()) && info.Size() == f.seen.Size() {
		return nil
	}
	raw, err := os.ReadFile(f.many.List)
	if err != nil {
		return fmt.Errorf("the list of models: %w", err)
	}
	if f.read != nil && bytes.Equal(raw, f.read) {
		f.seen = info
		return nil
	}
	want, err := modellist.Parse(raw)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read, f.seen = raw, info
	came, went := f.become(want)
	f.log.InfoContext(ctx, "the list of models changed", "models", len(want), "new", came, "gone", went)
	return nil
}

// become makes the models those of a list. It is called with the lock.
func (f *fleet) become(want []modellist.Model) (came, went int) {
	names := make(map[string]bool, len(want))
	for _, w := range want {
		names[w.Name] = true
		if f.wants(w) {
			came++
		}
	}
	for name, l := range f.models {
		if !names[name] {
			delete(f.models, name)
			f.retire(l)
			went++
		}
	}
	f.prefetch()
	f.act()
	return came, went
}

// wants makes a model what the list has now, and reports whether that is news. Where there are bytes
// of the one before, it goes on until those of its successor are there.
func (f *fleet) wants(w modellist.Model) bool {
	old := f.models[w.Name]
	switch {
	case old == nil:
		f.models[w.Name] = f.list(w)
	case old.next != nil && old.next.as == w:
		return false
	case old.as == w:
		f.revoke(old)
		return false
	case old.release == nil:
		l := f.list(w)
		f.retire(old)
		f.models[w.Name] = l
	default:
		f.revoke(old)
		old.next = f.list(w)
		if w.URI == old.as.URI {
			old.next.digest = old.digest // the same bytes, and no others
		}
	}
	return true
}

// list makes a model of the list and has its bytes fetched.
func (f *fleet) list(w modellist.Model) *listed {
	f.next++
	l := &listed{as: w, model: newModel(w.Name, "", f.open, f.turns), key: fmt.Sprintf("%s#%d", w.Name, f.next)}
	l.set(oip.StateUnavailable, notAsked)
	f.keys[l.key] = l
	f.todo = append(f.todo, l)
	return l
}

// retire lets a model go that left the list: when those who use it have their answers.
func (f *fleet) retire(l *listed) {
	f.revoke(l)
	l.gone = true
	f.set.Drop(l.key)
	f.settle(l)
}

// revoke gives up what should have taken a model's place.
func (f *fleet) revoke(l *listed) {
	if next := l.next; next != nil {
		l.next = nil
		f.retire(next)
	}
}

// settle forgets a model that is gone and that nothing holds any more.
func (f *fleet) settle(l *listed) {
	if !l.gone || l.attempt != nil || l.fetching || f.set.Holds(l.key) || f.keys[l.key] == nil {
		return
	}
	delete(f.keys, l.key)
	if l.release != nil {
		l.release()
	}
}

// find returns a model of the list, which is read again for a name that isn't in it.
func (f *fleet) find(name string) (*listed, error) {
	f.mu.Lock()
	l, n := f.models[name], len(f.models)
	f.mu.Unlock()
	if l != nil {
		return l, nil
	}
	if err := f.refresh(f.ctx); err == nil {
		f.mu.Lock()
		l, n = f.models[name], len(f.models)
		f.mu.Unlock()
	}
	if l == nil {
		return nil, errdef.New(errdef.ErrNotFound, brief.Sprintf("model %q is not found among the %d models of this server", name, n))
	}
	return l, nil
}
