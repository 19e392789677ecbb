// Package modelwatch asks the replicas of services that serve many models what they say of each,
// and tells what changed. It asks each replica every few seconds, and often while a model is on its
// way or a list has changed a moment ago.
package modelwatch

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

const (
	// often and seldom are how long after an answer a replica is asked again; hurry is how long it
	// is asked often after something about its service changed.
	often, seldom, hurry = 250 * time.Millisecond, 3 * time.Second, 10 * time.Second
	// patience is how long a replica has to answer.
	patience = 2 * time.Second
	// together is how many services are asked at once.
	together = 16
	// maxReport bounds an answer: a list has less than 1 MiB.
	maxReport = 8 << 20
)

// Watch follows what replicas say. Make it with New and drive it with Run. Its methods are safe for
// concurrent use.
type Watch struct {
	client *http.Client
	log    *slog.Logger
	feed   state.Feed[modellist.Key]
	wake   chan struct{}

	mu       sync.Mutex
	services map[spec.ServiceKey]*followed
}

// followed is a service whose replicas are asked.
type followed struct {
	replicas []string
	said     map[string]*said // by replica
	due      time.Time
	hurried  time.Time // asked often until then
}

// said is what a replica said last. It is never changed.
type said struct {
	etag    string
	silent  bool // it doesn't tell of models
	entries map[string]modellist.Entry
}

// New makes a watch that asks nobody yet. Without a log nothing is logged.
func New(log *slog.Logger) *Watch {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	dialer := net.Dialer{Timeout: patience}
	return &Watch{
		client: &http.Client{
			Transport:     &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		log: log, wake: make(chan struct{}, 1), services: map[spec.ServiceKey]*followed{},
	}
}

// Follow says which replicas of a service are asked, by "host:port"; none ends it. news says that
// what they are to serve has changed.
func (w *Watch) Follow(service spec.ServiceKey, replicas []string, news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.services[service]
	switch {
	case len(replicas) == 0:
		delete(w.services, service)
		return
	case f == nil:
		f = &followed{said: map[string]*said{}}
		w.services[service] = f
	case slices.Equal(f.replicas, replicas) && !news:
		return
	}
	f.replicas = slices.Clone(replicas)
	maps.DeleteFunc(f.said, func(at string, _ *said) bool { return !slices.Contains(replicas, at) })
	f.due, f.hurried = time.Time{}, time.Now().Add(hurry)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Of returns what the replicas of a service say of a model, one entry for each replica that tells
// of models at all. The zero Entry stands for one that says nothing of this model, or didn't answer
// yet; one that doesn't answer any more still says what it said last.
func (w *Watch) Of(service spec.ServiceKey, model string) []modellist.Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.services[service]
	if f == nil {
		return nil
	}
	var out []modellist.Entry
	for _, at := range f.replicas {
		switch s := f.said[at]; {
		case s == nil:
			out = append(out, modellist.Entry{})
		case !s.silent:
			out = append(out, s.entries[model])
		}
	}
	return out
}

// Changes yields each model of which a replica says something new, until ctx ends.
func (w *Watch) Changes(ctx context.Context) <-chan modellist.Key { return w.feed.Subscribe(ctx) }

// Run asks until ctx ends; it has joined all it started when it returns.
func (w *Watch) Run(ctx context.Context) error {
	defer w.client.CloseIdleConnections()
	for {
		timer := time.NewTimer(time.Until(w.round(ctx)))
		select {
		case <-timer.C:
		case <-w.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// round asks the services that are due, and returns when the next is.
func (w *Watch) round(ctx context.Context) time.Time {
	now := time.Now()
	due := map[spec.ServiceKey][]string{}
	w.mu.Lock()
	for key, f := range w.services {
		if !now.Before(f.due) {
			due[key] = f.replicas
		}
	}
	w.mu.Unlock()
	var wg sync.WaitGroup
	slots := make(chan struct{}, together)
	for key, replicas := range due {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			for _, at := range replicas {
				w.heard(key, at, w.ask(ctx, at, w.last(key, at)))
			}
			w.plan(key)
		})
	}
	wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	next := time.Now().Add(time.Minute)
	for _, f := range w.services {
		if f.due.Before(next) {
			next = f.due
		}
	}
	return next
}

// plan says when a service is asked next.
func (w *Watch) plan(key spec.ServiceKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.services[key]
	if f == nil {
		return
	}
	now, wait := time.Now(), seldom
	if now.Before(f.hurried) || slices.ContainsFunc(f.replicas, func(at string) bool { return f.said[at].moves() }) {
		wait = often
	}
	f.due = now.Add(wait)
}

// moves says whether a replica has a model that is on its way.
func (s *said) moves() bool {
	if s == nil {
		return true
	}
	for _, e := range s.entries {
		if e.State == modellist.Loading {
			return true
		}
	}
	return false
}

func (w *Watch) last(key spec.ServiceKey, at string) *said {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.services[key]; f != nil {
		return f.said[at]
	}
	return nil
}

// heard keeps what a replica said, nil for nothing, and tells of the models that it concerns.
func (w *Watch) heard(key spec.ServiceKey, at string, now *said) {
	if now == nil {
		return
	}
	w.mu.Lock()
	f := w.services[key]
	if f == nil || !slices.Contains(f.replicas, at) || f.said[at] == now {
		w.mu.Unlock()
		return
	}
	before := f.said[at]
	f.said[at] = now
	w.mu.Unlock()
	if before == nil {
		before = &said{}
	}
	for name, e := range now.entries {
		if before.entries[name] != e {
			w.feed.Notify(modellist.Key{Namespace: key.Namespace, Name: name})
		}
	}
	for name := range before.entries {
		if _, still := now.entries[name]; !still {
			w.feed.Notify(modellist.Key{Namespace: key.Namespace, Name: name})
		}
	}
}

// ask returns what a replica says, which may be the last again, or nil when it doesn't answer.
func (w *Watch) ask(ctx context.Context, at string, last *said) *said {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+modellist.ReportPath, http.NoBody)
	if err != nil {
		w.log.DebugContext(ctx, "a replica can't be asked for its models", "replica", at, "err", err)
		return nil
	}
	if last != nil && last.etag != "" {
		req.Header.Set("If-None-Match", last.etag)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.log.DebugContext(ctx, "a replica doesn't tell of its models", "replica", at, "err", err)
		return nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxReport))
	switch {
	case err != nil, resp.StatusCode >= http.StatusInternalServerError:
		return nil
	case resp.StatusCode == http.StatusNotModified:
		return last
	case resp.StatusCode != http.StatusOK:
		return &said{silent: true}
	}
	report, err := modellist.ParseReport(raw)
	if err != nil {
		return &said{silent: true} // another server, which has a page of its own there
	}
	now := &said{etag: resp.Header.Get("Etag"), entries: make(map[string]modellist.Entry, len(report.Models))}
	for _, e := range report.Models {
		now.entries[e.Name] = e
	}
	return now
}
