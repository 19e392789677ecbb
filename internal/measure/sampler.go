package measure

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

const (
	// SamplePeriod is how long after one look at an engine's page the next begins, give or take a
	// fifth. Looking costs engines time in which they don't compute.
	SamplePeriod = 5 * time.Second
	// longest is the longest pause after looks that failed.
	longest = time.Minute
	// samplePatience is how long an engine has to answer.
	samplePatience = 2 * time.Second
	// beat is how often it is seen who is to be looked at, and what was found is published.
	beat = 500 * time.Millisecond
	// soon is within what time after it came a replica is looked at; where many come at once each of them
	// makes it spread longer, up to SamplePeriod.
	soon  = time.Second
	apart = 4 * time.Millisecond
	// abreast is how many pages are read at once: enough for thousands of replicas in SamplePeriod, also
	// where some don't answer.
	abreast = 32
)

// ReplicaKey names one replica of a revision.
type ReplicaKey struct {
	Service  spec.ServiceKey
	Revision string
	Replica  string
}

// Sample is what is known of one replica's engine. It is immutable.
type Sample struct {
	ReplicaKey
	// Engine is the name of its adapter.
	Engine string
	// Address is the replica's for HTTP ("host:port"); empty where it has none.
	Address string
	// At is the time of the last look that succeeded, Reading what it found, and Before what the one
	// before did; zero and nil where there was none.
	At              time.Time
	Reading, Before *adapter.Reading
	// Problem says why the last look failed; empty means that it didn't.
	Problem string
}

// Value returns a value that isn't a histogram, and whether it is known.
func (s *Sample) Value(n adapter.Name) (float64, bool) {
	if s.Reading == nil {
		return 0, false
	}
	return s.Reading.Value(n, s.Before)
}

// Samples are what is known of all engines at one moment. It is immutable.
type Samples struct {
	all       []*Sample
	byAddress map[string]*Sample
}

// All returns the samples, sorted by their keys. They must not be changed.
func (s *Samples) All() []*Sample { return s.all }

// At returns the sample of the replica at an address ("host:port") for HTTP, nil where there is none.
func (s *Samples) At(address string) *Sample { return s.byAddress[address] }

// Sampler looks at the pages of all engines of a routing table, seldom, and keeps what they told last.
// Make it with NewSampler and drive it with Run.
type Sampler struct {
	table   *state.Topic[route.Table]
	samples state.Topic[Samples]
	client  client
	log     *slog.Logger
	// look reads a page; tests have another.
	look func(ctx context.Context, page string, a *adapter.Adapter) (*adapter.Reading, error)
}

// NewSampler makes a sampler of what a routing table leads to. It starts nothing. Without a log
// nothing is logged.
func NewSampler(table *state.Topic[route.Table], log *slog.Logger) *Sampler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Sampler{table: table, client: newClient(), log: log}
	s.look = s.client.read
	s.samples.Publish(&Samples{})
	return s
}

// Samples returns what is known now. It is one atomic read.
func (s *Sampler) Samples() *Samples { return s.samples.Load() }

// Watch returns what is known now, and a channel that is closed when there is something newer.
func (s *Sampler) Watch() (*Samples, <-chan struct{}) { return s.samples.Watch() }

// watched is a replica that is looked at.
type watched struct {
	sample  Sample
	adapter *adapter.Adapter
	page    string
	// security is how a page with https is reached.
	security enginetls.Security
	address  string
	next     time.Time
	busy     bool
	pause    time.Duration
	// told is the problem that was logged last, empty since an answer.
	told string
}

// found is what came of a look.
type found struct {
	of      *watched
	at      time.Time
	reading *adapter.Reading
	err     error
}

// Run looks until ctx ends; it has joined all it started when it returns.
func (s *Sampler) Run(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	var looks sync.WaitGroup
	defer looks.Wait()
	results := make(chan found)
	every := time.NewTicker(beat)
	defer every.Stop()
	all := map[ReplicaKey]*watched{}
	var seen *route.Table
	// line are those that are due and wait for one of the free places.
	var line []*watched
	free := abreast
	start := func() {
		for ; free > 0 && len(line) > 0; line = line[1:] {
			w := line[0]
			if all[w.sample.ReplicaKey] != w {
				continue // it is gone meanwhile
			}
			free--
			w.busy = true
			looks.Go(func() {
				f := s.lookAt(ctx, w)
				select {
				case results <- f:
				case <-ctx.Done():
				}
			})
		}
	}
	changed := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-results:
			free++
			if all[f.of.sample.ReplicaKey] == f.of {
				s.took(f)
				changed = true
			}
			start()
			continue
		case <-every.C:
		}
		now := time.Now()
		if t := s.table.Load(); t != nil && t != seen {
			seen = t
			changed = follow(all, t, now) || changed
		}
		line = due(all, now)
		start()
		if changed {
			s.samples.Publish(published(all))
			changed = false
		}
	}
}

// follow has those looked at that a table leads to, and no others.
func follow(all map[ReplicaKey]*watched, t *route.Table, now time.Time) (changed bool) {
	kept := map[ReplicaKey]bool{}
	var fresh []*watched
	for e := range endpoints(t) {
		a := engine.ByName(e.engine)
		if a == nil || !a.Metrics.Any() {
			continue
		}
		kept[e.ReplicaKey] = true
		if w := all[e.ReplicaKey]; w != nil && w.page == e.page && w.security == e.security && w.address == e.address && w.adapter == a {
			continue
		}
		w := &watched{
			sample: Sample{ReplicaKey: e.ReplicaKey, Engine: a.Name, Address: e.address}, adapter: a, page: e.page, security: e.security, address: e.address,
		}
		all[e.ReplicaKey], fresh, changed = w, append(fresh, w), true
	}
	within := min(max(soon, time.Duration(len(fresh))*apart), SamplePeriod)
	for _, w := range fresh {
		w.next = now.Add(rand.N(within)) //nolint:gosec // spreads load, guards nothing
	}
	for key := range all {
		if !kept[key] {
			delete(all, key)
			changed = true
		}
	}
	return changed
}

// endpoint is one with a page of metrics.
type endpoint struct {
	ReplicaKey
	page, address, engine string
	security              enginetls.Security
}

// endpoints yields each replica of a table that has a page of metrics once.
func endpoints(t *route.Table) func(yield func(endpoint) bool) {
	return func(yield func(endpoint) bool) {
		told := map[ReplicaKey]bool{}
		for service, b := range t.Backends {
			for i := range b.Targets {
				target := &b.Targets[i]
				for _, e := range target.Endpoints {
					key := ReplicaKey{Service: service.Key, Revision: target.Revision, Replica: e.Replica}
					if e.Metrics == "" || told[key] {
						continue
					}
					told[key] = true
					if !yield(endpoint{key, e.Metrics, e.HTTP, target.Engine, e.Security}) {
						return
					}
				}
			}
		}
	}
}

// due are those to be looked at now, those that have waited longest first.
func due(all map[ReplicaKey]*watched, now time.Time) []*watched {
	var out []*watched
	for _, w := range all {
		if !w.busy && !w.next.After(now) {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b *watched) int { return a.next.Compare(b.next) })
	return out
}

func (s *Sampler) lookAt(ctx context.Context, w *watched) found {
	ctx, cancel := context.WithTimeout(ctx, samplePatience)
	defer cancel()
	look := s.look
	if w.security.On() {
		look = s.client.over(w.security).read
	}
	reading, err := look(ctx, w.page, w.adapter)
	return found{w, time.Now(), reading, err}
}

// took writes down what came of a look, and says when the next is.
func (s *Sampler) took(f found) {
	w := f.of
	w.busy = false
	problem := ""
	if f.err != nil {
		problem = f.err.Error()
		w.pause = min(max(2*w.pause, SamplePeriod), longest)
	} else {
		w.pause, w.told = SamplePeriod, ""
		w.sample.At, w.sample.Reading, w.sample.Before = f.at, f.reading, w.sample.Reading
	}
	// Once is what a replica does that ends; twice in a row is an engine that doesn't tell.
	if problem != "" && w.sample.Problem != "" && problem != w.told {
		w.told = problem
		s.log.Warn("an engine doesn't tell its metrics", "service", w.sample.Service.String(), "replica", w.sample.Replica, "engine", w.sample.Engine, "why", problem)
	}
	w.sample.Problem = problem
	spread := 0.8 + rand.Float64()*2/5 //nolint:gosec // spreads load, guards nothing
	w.next = f.at.Add(time.Duration(float64(w.pause) * spread))
}

func published(all map[ReplicaKey]*watched) *Samples {
	out := &Samples{all: make([]*Sample, 0, len(all)), byAddress: make(map[string]*Sample, len(all))}
	for _, w := range all {
		sample := w.sample
		out.all = append(out.all, &sample)
		if w.address != "" {
			out.byAddress[w.address] = &sample
		}
	}
	slices.SortFunc(out.all, func(a, b *Sample) int {
		return cmp.Or(cmp.Compare(a.Service.Namespace, b.Service.Namespace), cmp.Compare(a.Service.Name, b.Service.Name),
			cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Replica, b.Replica))
	})
	return out
}
