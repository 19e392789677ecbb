// Package measure reads the metrics on which revisions scale: from a Prometheus server, from the
// engines' own pages, and from what the platform says their processes use. It writes them down
// for the autoscaler and decides nothing. And it looks at the pages of all engines, so that what
// they tell comes out under one set of names.
package measure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

const (
	// Period is how long after one reading the next begins, give or take a tenth, so that many
	// control planes don't ask one server at the same moments.
	Period = 5 * time.Second
	// patience is how long all sources of a revision have to answer.
	patience = 4 * time.Second
	// together is how many revisions are read at once.
	together = 16
)

// User tells what the replicas of a service use, by their IDs. Replicas of which nothing is known
// are left out.
type User interface {
	Use(ctx context.Context, service spec.ServiceKey) (map[string]spec.Use, error)
}

// Meter measures. Make it with New and drive it with Run.
type Meter struct {
	board  *demand.Board
	user   User
	client client
	log    *slog.Logger

	mu     sync.Mutex
	memory map[spec.RevisionKey]*memory
}

// memory is what is kept of a revision between readings: of each source, what each replica told.
type memory struct {
	sources []demand.Source
	series  []map[string]*series
}

// New makes a meter for what is on the board. Without a user no use of resources is known; without
// a log nothing is logged. It starts nothing.
func New(board *demand.Board, user User, log *slog.Logger) *Meter {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Meter{board: board, user: user, client: newClient(), log: log, memory: map[spec.RevisionKey]*memory{}}
}

// Run measures each Period until ctx ends; it has joined all it started when it returns.
func (m *Meter) Run(ctx context.Context) error {
	defer m.client.CloseIdleConnections()
	for {
		m.round(ctx)
		spread := 0.9 + rand.Float64()/5 //nolint:gosec // spreads load, guards nothing
		select {
		case <-time.After(time.Duration(float64(Period) * spread)):
		case <-ctx.Done():
			return nil
		}
	}
}

// round measures every revision on the board once and forgets those that left it.
func (m *Meter) round(ctx context.Context) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, together)
	kept := map[spec.RevisionKey]bool{}
	for service, subjects := range m.board.Subjects.All() {
		for i := range subjects {
			s := &subjects[i]
			if s.Metrics == nil {
				continue
			}
			key := spec.RevisionKey{Namespace: service.Namespace, Name: s.Revision}
			kept[key] = true
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				m.revision(ctx, service, key, s.Metrics)
			})
		}
	}
	wg.Wait()
	if ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.memory {
		if !kept[key] {
			delete(m.memory, key)
			m.board.Measured.Delete(key)
		}
	}
}

// revision measures one revision and writes down what came of it.
func (m *Meter) revision(ctx context.Context, service spec.ServiceKey, key spec.RevisionKey, of *demand.Metrics) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	mem := m.remembered(key, of)
	out := demand.Measured{Values: make([]scale.Measurement, len(of.Sources))}
	var problems []string
	for i := range of.Sources {
		value, err := m.source(ctx, service, of, i, mem.series[i])
		out.Values[i] = value
		if err != nil {
			problems = append(problems, of.HPA.Metrics[i].Name+": "+err.Error())
		}
	}
	if ctx.Err() == context.Canceled {
		return
	}
	out.Problem, out.At = strings.Join(problems, "; "), time.Now()
	if last, _ := m.board.Measured.Load(key); last.Problem != out.Problem {
		if out.Problem != "" {
			m.log.Warn("a metric isn't known", "service", service.String(), "revision", key.Name, "why", out.Problem)
		} else {
			m.log.Info("all metrics are known again", "service", service.String(), "revision", key.Name)
		}
	}
	m.board.Measured.Store(key, out)
}

// remembered returns a revision's memory, empty if it is to be measured otherwise than before. It
// is used by one goroutine at a time, for rounds don't overlap.
func (m *Meter) remembered(key spec.RevisionKey, of *demand.Metrics) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	mem := m.memory[key]
	if mem == nil || !reflect.DeepEqual(mem.sources, of.Sources) {
		mem = &memory{sources: of.Sources, series: make([]map[string]*series, len(of.Sources))}
		for i := range mem.series {
			mem.series[i] = map[string]*series{}
		}
		m.memory[key] = mem
	}
	return mem
}

// source measures one source. An error says why nothing, or not all, is known; it is nil where
// there is nobody to ask.
func (m *Meter) source(ctx context.Context, service spec.ServiceKey, of *demand.Metrics, i int, kept map[string]*series) (scale.Measurement, error) {
	s := of.Sources[i]
	if s.Prometheus != nil {
		v, err := m.client.query(ctx, *s.Prometheus)
		return scale.Measurement{Value: v, Known: err == nil}, err
	}
	for id := range kept {
		if !hasReplica(of.Replicas, id) {
			delete(kept, id)
		}
	}
	if len(of.Replicas) == 0 {
		return scale.Measurement{}, nil
	}
	if s.Engine != nil {
		return m.engines(ctx, of, *s.Engine, kept)
	}
	return m.use(ctx, service, of.Replicas, *s.Resource, kept)
}

func hasReplica(replicas []demand.Replica, id string) bool {
	for _, r := range replicas {
		if r.ID == id {
			return true
		}
	}
	return false
}

// engines sums up what the replicas tell.
func (m *Meter) engines(ctx context.Context, all *demand.Metrics, of demand.EngineMetric, kept map[string]*series) (scale.Measurement, error) {
	read, err := m.client.over(all.Security).reader(of.Query, all.Engine)
	if err != nil {
		return scale.Measurement{}, err
	}
	values := make([]float64, len(all.Replicas))
	errs := make([]error, len(all.Replicas))
	var wg sync.WaitGroup
	slots := make(chan struct{}, together)
	for i, r := range all.Replicas {
		s := kept[r.ID]
		if s == nil {
			s = &series{}
			kept[r.ID] = s
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			values[i], errs[i] = read(ctx, r.Metrics, s)
		})
	}
	wg.Wait()
	sum := total{replicas: len(all.Replicas)}
	now := time.Now()
	for i, r := range all.Replicas {
		if errors.Is(errs[i], errSoon) {
			sum.miss(nil)
			continue
		}
		if errs[i] != nil {
			sum.miss(errs[i])
			continue
		}
		s := kept[r.ID]
		s.add(now, values[i])
		if v, ok := s.over(of.Over); ok {
			sum.add(v)
		} else {
			sum.miss(nil)
		}
	}
	return sum.measurement()
}

// use sums up what the replicas use, or says how much of what they asked for that is.
func (m *Meter) use(ctx context.Context, service spec.ServiceKey, replicas []demand.Replica, of demand.ResourceUse, kept map[string]*series) (scale.Measurement, error) {
	if m.user == nil {
		return scale.Measurement{}, fmt.Errorf("what pods use isn't measured here; set the annotation %s to hpa or keda", scale.ClassAnnotation)
	}
	if of.Percent && of.Request <= 0 {
		return scale.Measurement{}, errors.New("its containers ask for nothing in resources.requests, so there is nothing to take a percentage of")
	}
	used, err := m.user.Use(ctx, service)
	if err != nil {
		return scale.Measurement{}, err
	}
	sum := total{replicas: len(replicas)}
	now := time.Now()
	for _, r := range replicas {
		u, ok := used[r.ID]
		switch {
		case !ok:
			sum.miss(errors.New("what it uses isn't known"))
		case of.Memory:
			sum.add(float64(u.Memory))
		default:
			s := kept[r.ID]
			if s == nil {
				s = &series{}
				kept[r.ID] = s
			}
			s.add(now, u.CPU.Seconds())
			if v, ok := s.over(demand.OverRate); ok {
				sum.add(v)
			} else {
				sum.miss(nil)
			}
		}
	}
	out, err := sum.measurement()
	if of.Percent && sum.answered > 0 {
		out.Value *= 100 / (of.Request * float64(sum.answered))
	}
	return out, err
}

// total sums up over replicas. One that is missing without an error will answer soon.
type total struct {
	replicas, answered int
	sum                float64
	err                error
	failed             int
}

func (t *total) add(v float64) { t.answered++; t.sum += v }

func (t *total) miss(err error) {
	if err == nil {
		return
	}
	if t.failed++; t.err == nil {
		t.err = err
	}
}

func (t *total) measurement() (scale.Measurement, error) {
	out := scale.Measurement{Value: t.sum, Known: t.answered > 0, Partial: t.answered < t.replicas}
	if math.IsInf(t.sum, 0) || math.IsNaN(t.sum) {
		return scale.Measurement{}, fmt.Errorf("the replicas tell %v", t.sum)
	}
	if t.err != nil {
		return out, fmt.Errorf("%d of %d replicas don't tell it: %w", t.failed, t.replicas, t.err)
	}
	return out, nil
}
