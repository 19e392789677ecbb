package modelserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/modelserver/residency"
	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// Many says how a server serves many models: those of a list, each loaded when a request names
// it, within a budget of memory that the least recently used ones leave for others.
type Many struct {
	// List is a file in the form of KServe's models.json. It is read again when it changes.
	List string
	// Fetch brings what a URI names to a directory, which stays until release is called. A
	// digest that it returned before asks for the same bytes again.
	Fetch func(ctx context.Context, uri, digest string) (path, gotDigest string, release func(), err error)
	// Budget is how many bytes models may take. Each counts with the memory that the list says,
	// or the size of its files where that is more. 0 means 1 GiB.
	Budget int64
	// Wait is how long a request waits for its model to be loaded; 0 means 30 s.
	Wait time.Duration
}

const (
	defaultBudget   = 1 << 30
	defaultLoadWait = 30 * time.Second
	// listEvery is how often the list is looked at. A request for a name that isn't in it looks, too.
	listEvery = time.Second
	// A model that can't be loaded is tried again for a request after a time that doubles.
	firstRetry, lastRetry = time.Second, time.Minute
)

// The reasons of models that aren't in memory.
const (
	notAsked     = "not in memory; the first request loads it"
	evicted      = "freed to make room for other models; the next request loads it"
	unloadedNow  = "unloaded; the next request loads it"
	waitsForRoom = "waits for memory"
)

// fleet is many models, of which some are in memory.
type fleet struct {
	*turns
	many   Many
	open   func(context.Context, string) (Session, error)
	log    *slog.Logger
	opens  chan struct{} // one entry for each model that is being opened
	jobs   sync.WaitGroup
	ctx    context.Context //nolint:containedctx // loads outlive the requests that began them, and end with the fleet
	cancel context.CancelFunc

	reading sync.Mutex // held while the list is read

	mu     sync.Mutex
	set    *residency.Set
	models map[string]*listed // by name
	keys   map[string]*listed // by key, those included that left the list and are in memory yet
	next   int
	todo   []*listed // models whose bytes nobody began to fetch
	busy   int       // how many fetch such ones
	read   []byte    // the list as it was read last; nil before
	seen   fs.FileInfo

	loads, failures, evictions, unloads atomic.Int64
	loadTimes                           prometheus.Histogram
}

// listed is a model of the list. Its fields belong to the fleet's mutex, but for the model's own.
type listed struct {
	as modellist.Model
	*model
	key string // for the set: unlike the name it is never used again
	// release lets go of the bytes on disk; nil before they were fetched. size is what they take.
	release func()
	digest  string
	size    int64
	attempt *attempt   // the load under way; nil for none
	gone    bool       // it left the list
	getting sync.Mutex // held while its bytes are fetched
	// fetching says that its bytes are being fetched though nobody asked for the model yet.
	fetching bool
	// next takes the model's place once its bytes are there; nil for none.
	next *listed
	// failed is why the last load failed, and retry when the next may be tried.
	failed error
	cause  modellist.Reason
	why    string
	retry  time.Time
	pause  time.Duration
}

// bytes is what the model counts with.
func (l *listed) bytes() int64 { return max(l.as.Memory, l.size) }

// attempt is one load of a model, for which any number of requests wait. When it succeeds, each
// is counted as a user of the model.
type attempt struct {
	done    chan struct{}
	err     error
	waiters int
	asked   bool // the set was asked for room
}

func newFleet(cfg *Config, t *turns, log *slog.Logger) *fleet {
	f := &fleet{
		turns: t, many: *cfg.Many, open: cfg.Open, log: log, opens: make(chan struct{}, cfg.Parallel),
		models: map[string]*listed{}, keys: map[string]*listed{},
		loadTimes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: ns + "_model_load_duration_seconds", Help: "Time to open a model, once its bytes are on disk and it has room.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}),
	}
	if f.many.Budget == 0 {
		f.many.Budget = defaultBudget
	}
	if f.many.Wait == 0 {
		f.many.Wait = defaultLoadWait
	}
	f.set = residency.New(f.many.Budget)
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// run reads the list, and then keeps to it.
func (f *fleet) run(ctx context.Context) error {
	if err := f.refresh(ctx); err != nil {
		return err
	}
	f.log.InfoContext(ctx, "serving many models", "models", len(f.names()), "memory", f.many.Budget)
	tick := time.NewTicker(listEvery)
	defer tick.Stop()
	told := ""
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		err := f.refresh(ctx)
		f.again()
		if err != nil && err.Error() != told {
			f.log.WarnContext(ctx, "the list of models can't be read; the last one stays", "err", err)
		}
		told = ""
		if err != nil {
			told = err.Error()
		}
	}
}

func (f *fleet) close() error {
	f.cancel()
	f.jobs.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	f.todo = nil
	for _, l := range f.keys {
		errs = append(errs, l.model.unload(unloadedNow))
		if l.release != nil {
			l.release()
		}
	}
	return errors.Join(errs...)
}

// acquire returns a model that is in memory and stays there until release, loading it if need be.
// It waits for that no longer than may be, and than ctx lasts.
func (f *fleet) acquire(ctx context.Context, name string) (l *listed, release func(), err error) {
	for {
		if l, err = f.find(name); err != nil {
			return nil, nil, err
		}
		f.mu.Lock()
		if !l.gone {
			break
		}
		f.mu.Unlock() // it left the list just now
	}
	release = func() { f.release(l) }
	if f.set.Use(l.key) {
		f.mu.Unlock()
		return l, release, nil
	}
	if err := l.mayTry(time.Now()); err != nil {
		f.mu.Unlock()
		return nil, nil, err
	}
	leave, err := f.wait(name)
	if err != nil {
		f.mu.Unlock()
		return nil, nil, err
	}
	defer leave()
	a := f.begin(l)
	a.waiters++
	f.mu.Unlock()

	patience := time.NewTimer(f.many.Wait)
	defer patience.Stop()
	select {
	case <-a.done:
	case <-patience.C:
		err = f.impatient(l)
	case <-ctx.Done():
		err = gone(ctx)
	}
	if err != nil && f.leave(l, a) {
		return nil, nil, err
	}
	if a.err != nil {
		return nil, nil, a.err
	}
	return l, release, nil
}

// leave takes a waiter off an attempt; it reports false for one that is over.
func (f *fleet) leave(l *listed, a *attempt) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.attempt != a {
		return false
	}
	a.waiters--
	if a.waiters == 0 && a.asked && f.set.Forget(l.key) {
		f.end(l, errNobody)
	}
	return true
}

var errNobody = errdef.New(errdef.ErrUnavailable, "nobody waits for the model")

func (f *fleet) impatient(l *listed) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errdef.New(errdef.ErrUnavailable, brief.Sprintf(
		"model %q isn't in memory after %v: %s (%d of %d bytes of memory are taken); try again later",
		l.name, f.many.Wait, l.status.Load().reason, f.set.Taken(), f.set.Budget()))
}

// mayTry is an error while a model that couldn't be loaded rests.
func (l *listed) mayTry(now time.Time) error {
	if l.failed == nil || l.attempt != nil || !now.Before(l.retry) {
		return nil
	}
	return l.failed
}

// release gives a model back, and with it perhaps room for another.
func (f *fleet) release(l *listed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set.Release(l.key)
	f.act()
}

// begin returns the load of a model that is under way, or begins one. It is called with the lock.
func (f *fleet) begin(l *listed) *attempt {
	if l.attempt == nil {
		l.attempt = &attempt{done: make(chan struct{})}
		f.say(l, oip.StateLoading, "fetching")
		f.jobs.Go(func() { f.bring(l) })
	}
	return l.attempt
}

// end ends a load, with an error that each who waited for it gets; nil means that it is loaded.
func (f *fleet) end(l *listed, err error) {
	a := l.attempt
	l.attempt = nil
	switch {
	case err == nil:
		l.failed, l.pause = nil, 0
	case errors.Is(err, errNobody):
		f.say(l, oip.StateUnavailable, notAsked)
	default:
		f.fail(l, err)
		err = l.failed
	}
	a.err = err
	close(a.done)
	f.settle(l)
}

// fail notes why a model can't be loaded, and lets it rest for a while.
func (f *fleet) fail(l *listed, err error) {
	f.failures.Add(1)
	l.pause = min(max(2*l.pause, firstRetry), lastRetry)
	l.retry = time.Now().Add(l.pause)
	l.failed = errdef.New(errdef.ErrUnavailable, brief.Sprintf("model %q can't be loaded: %s", l.name, told(err)))
	l.cause, l.why = modellist.NotLoaded, told(err)
	switch {
	case l.release == nil:
		l.cause = modellist.NotFetched
	case errors.Is(err, errdef.ErrTooLarge):
		l.cause = modellist.TooLarge
	}
	f.say(l, oip.StateUnavailable, l.why)
	f.log.Warn("a model can't be loaded", "model", l.name, "err", err, "again", l.pause)
}

// bring gets a model's bytes onto the disk, unless they are there, and asks for room for it.
func (f *fleet) bring(l *listed) {
	err := f.fetch(l)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err != nil:
		f.end(l, err)
	case l.attempt.waiters == 0:
		f.end(l, errNobody)
	case l.bytes() > f.set.Budget():
		f.end(l, f.tooLarge(l))
	default:
		f.say(l, oip.StateLoading, waitsForRoom)
		l.attempt.asked = true
		f.set.Want(l.key, l.bytes())
		f.act()
	}
}

func (f *fleet) tooLarge(l *listed) error {
	return errdef.New(errdef.ErrTooLarge, fmt.Sprintf(
		"it takes %d bytes of memory, and all models together may take %d; raise --memory_budget or the service's memory limit", l.bytes(), f.set.Budget()))
}

// say sets what the index says of a model that isn't in memory; what is there speaks for itself,
// for requests may hold it yet while it is on its way out.
func (f *fleet) say(l *listed, state, reason string) {
	if !f.set.Holds(l.key) {
		l.set(state, reason)
	}
}

// act begins what the set says is to be done. It is called with the lock.
func (f *fleet) act() {
	for _, a := range f.set.Next() {
		l := f.keys[a.Model]
		switch a.Op {
		case residency.Load:
			f.jobs.Go(func() { f.openModel(l) })
		case residency.Free:
			f.unloads.Add(1)
			f.jobs.Go(func() { f.free(l, unloadedNow) })
		case residency.Evict:
			f.evictions.Add(1)
			f.jobs.Go(func() { f.free(l, evicted) })
		}
	}
}

// openModel loads a model that has room.
func (f *fleet) openModel(l *listed) {
	f.opens <- struct{}{}
	start := time.Now()
	err := l.model.load(f.ctx)
	took := time.Since(start)
	<-f.opens
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.set.Failed(l.key)
		f.end(l, err)
	} else {
		f.loads.Add(1)
		f.loadTimes.Observe(took.Seconds())
		f.set.Loaded(l.key, l.attempt.waiters)
		if l.gone {
			f.set.Drop(l.key)
		}
		f.end(l, nil)
	}
	f.act()
	f.settle(l)
}

// free frees a model that nobody uses.
func (f *fleet) free(l *listed, reason string) {
	err := l.model.unload(reason)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.log.Warn("freeing a model failed", "model", l.name, "err", err)
	}
	if l.attempt != nil {
		l.set(oip.StateLoading, waitsForRoom)
	}
	f.set.Freed(l.key)
	f.act()
	f.settle(l)
}

func (f *fleet) serving() error {
	f.reading.Lock()
	defer f.reading.Unlock()
	if f.read == nil {
		return errdef.New(errdef.ErrUnavailable, "the list of models isn't read yet")
	}
	return nil
}

func (f *fleet) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.models))
}

func (f *fleet) check(name, version string) error {
	l, err := f.find(name)
	if err != nil {
		return err
	}
	if l.status.Load().metadata == nil {
		return nil // its versions aren't known yet
	}
	return l.model.check(name, version)
}

// checkReady takes a model for ready that isn't in memory: a request loads it.
func (f *fleet) checkReady(name, version string) error {
	if err := f.check(name, version); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.models[name]; l != nil {
		return l.mayTry(time.Now())
	}
	return nil
}

// describe loads a model that never was.
func (f *fleet) describe(ctx context.Context, name, version string) (*oip.ModelMetadata, error) {
	l, err := f.find(name)
	if err != nil {
		return nil, err
	}
	if l.status.Load().metadata == nil {
		var release func()
		if l, release, err = f.acquire(ctx, name); err != nil {
			return nil, err
		}
		defer release()
	}
	if err := l.model.check(name, version); err != nil {
		return nil, err
	}
	return l.status.Load().metadata, nil
}

func (f *fleet) index(readyOnly bool) []oip.IndexedModel {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]oip.IndexedModel, 0, len(f.models))
	for _, name := range slices.Sorted(maps.Keys(f.models)) {
		if line := f.models[name].indexed(); !readyOnly || line.State == oip.StateReady {
			out = append(out, line)
		}
	}
	return out
}

func (f *fleet) infer(ctx context.Context, req *oip.InferRequest) (*oip.InferResponse, error) {
	l, release, err := f.acquire(ctx, req.ModelName)
	if err != nil {
		return nil, err
	}
	defer release()
	return l.model.infer(ctx, req)
}

// load brings a model into memory, and tries one again that rests after a failure.
func (f *fleet) load(ctx context.Context, name string) error {
	l, err := f.find(name)
	if err != nil {
		return err
	}
	f.mu.Lock()
	l.retry = time.Time{}
	f.mu.Unlock()
	_, release, err := f.acquire(ctx, name)
	if err != nil {
		return err
	}
	release()
	return nil
}

// unload frees a model's memory. It takes nothing away from anybody: the model stays in the list,
// and the next request loads it.
func (f *fleet) unload(_ context.Context, name string) error {
	l, err := f.find(name)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set.Drop(l.key)
	f.act()
	return nil
}
