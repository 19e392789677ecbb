package modelserver

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// fetchers is how many models' bytes are fetched at once before anybody asks for them; the store
// takes more, so that a request needn't wait for all of them.
const fetchers = 2

// prefetch begins to fetch what nobody fetches yet. It is called with the lock.
func (f *fleet) prefetch() {
	for len(f.todo) > 0 && f.busy < fetchers && f.ctx.Err() == nil {
		l := f.todo[0]
		f.todo = f.todo[1:]
		if l.gone || l.release != nil || l.fetching || l.attempt != nil {
			continue
		}
		l.fetching = true
		f.busy++
		f.jobs.Go(func() {
			err := f.fetch(l)
			f.mu.Lock()
			defer f.mu.Unlock()
			l.fetching = false
			f.busy--
			f.fetched(l, err)
			f.prefetch()
			f.act()
			f.settle(l)
		})
	}
}

// fetched takes note of a fetch that nobody waited for. It is called with the lock.
func (f *fleet) fetched(l *listed, err error) {
	switch {
	case l.gone || f.ctx.Err() != nil || l.attempt != nil:
		return // it is of no more use, or a request's own attempt says how it ends
	case err == nil && l.bytes() > f.set.Budget():
		f.fail(l, f.tooLarge(l))
		return
	case err != nil:
		f.fail(l, err)
		return
	}
	if l.failed != nil && l.cause == modellist.NotFetched {
		l.failed, l.pause = nil, 0
		f.say(l, oip.StateUnavailable, notAsked)
	}
	if old := f.models[l.name]; old != nil && old.next == l {
		f.models[l.name], old.next = l, nil
		f.retire(old)
		f.log.Info("a model was replaced", "model", l.name)
	}
}

// again has fetched what couldn't be, once it has rested.
func (f *fleet) again() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for _, l := range f.keys {
		if l.release == nil && l.failed != nil && !l.gone && !l.fetching && l.attempt == nil && !now.Before(l.retry) && !slices.Contains(f.todo, l) {
			f.todo = append(f.todo, l)
		}
	}
	f.prefetch()
}

// fetch brings a model's bytes to the disk, unless they are there.
func (f *fleet) fetch(l *listed) error {
	l.getting.Lock()
	defer l.getting.Unlock()
	f.mu.Lock()
	there, digest := l.release != nil, l.digest
	f.mu.Unlock()
	if there {
		return nil
	}
	dir, digest, release, err := f.many.Fetch(f.ctx, l.as.URI, digest)
	if err != nil {
		return err
	}
	size, err := sizeOf(dir)
	if err != nil {
		release()
		return fmt.Errorf("look at the model's files: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l.model.dir, l.digest, l.release, l.size = dir, digest, release, max(size, 1)
	return nil
}

// sizeOf is how many bytes the files below a directory have.
func sizeOf(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := os.Stat(path) // of what a link names
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}

// report says of each model how far it is, as the list has it now.
func (f *fleet) report() (*modellist.Report, error) {
	if err := f.serving(); err != nil {
		return nil, err
	}
	if err := f.refresh(f.ctx); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.log.Debug("the list of models can't be read", "err", err) // run tells of it
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &modellist.Report{Models: make([]modellist.Entry, 0, len(f.models))}
	for _, name := range slices.Sorted(maps.Keys(f.models)) {
		out.Models = append(out.Models, f.models[name].entry())
	}
	return out, nil
}

func (l *listed) entry() modellist.Entry {
	about := l
	if l.next != nil {
		about = l.next
	}
	e := modellist.Entry{Name: about.as.Name, URI: about.as.URI, State: modellist.Ready}
	switch {
	case about.failed != nil:
		e.State, e.Reason, e.Message = modellist.Failed, about.cause, about.why
	case about.release == nil || about != l:
		e.State = modellist.Loading
	}
	e.Serves = e.State != modellist.Ready && about != l && l.failed == nil
	return e
}
