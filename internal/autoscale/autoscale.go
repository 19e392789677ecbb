// Package autoscale is the loop that turns load into replicas: it takes what gateways report,
// asks a scaler of each revision for its decision every two seconds, and at once when a request
// waits where nothing runs, and writes the decisions down for the reconciler.
package autoscale

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

// silence is how long a gateway may say nothing before the requests that it held count no more.
const silence = 5 * time.Second

// Loop decides for all revisions on a board. Make it with New; its methods are safe for
// concurrent use.
type Loop struct {
	board *demand.Board
	log   *slog.Logger

	mu      sync.Mutex
	scalers map[spec.RevisionKey]*scaler
	sources map[string]*source
}

// scaler is a revision's, with the settings that it was made of: one of the two.
type scaler struct {
	*scale.Scaler
	cfg scale.Config

	hpa     *scale.HPA
	metrics scale.HPAConfig
	activity
}

// source is one gateway.
type source struct {
	second uint64
	any    bool
	at     time.Time
	held   map[spec.RevisionKey]int
}

// New makes a loop over a board. It starts nothing.
func New(board *demand.Board, log *slog.Logger) *Loop {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Loop{board: board, log: log, scalers: map[spec.RevisionKey]*scaler{}, sources: map[string]*source{}}
}

// Run decides every scale.Tick until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	tick := time.NewTicker(scale.Tick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.tick(time.Now())
		case <-ctx.Done():
			return nil
		}
	}
}

// Report takes what a gateway says, under a name that tells it from others, as of now. Services
// with requests that wait where nothing was asked for are decided on before it returns.
func (l *Loop) Report(gateway string, r *demand.Report) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[gateway]
	if s == nil {
		s = &source{}
		l.sources[gateway] = s
	}
	whole := !s.any || r.Second != s.second
	s.second, s.any, s.at = r.Second, true, now
	s.held = nil
	var cold map[spec.ServiceKey]bool
	for i := range r.Samples {
		sample := &r.Samples[i]
		key := spec.RevisionKey{Namespace: sample.Service.Namespace, Name: sample.Revision}
		if sample.Held > 0 {
			if s.held == nil {
				s.held = map[spec.RevisionKey]int{}
			}
			s.held[key] = sample.Held
		}
		sc := l.scalers[key]
		wakes := sample.Held > 0 && l.asleep(sample.Service, sample.Revision)
		if sc != nil {
			sc.note(now, sample)
		}
		if sc != nil && sc.Scaler != nil && whole {
			wakes = sc.Record(now, scale.Sample{Concurrency: sample.Concurrency, RPS: sample.RPS}) || wakes
		}
		if wakes {
			if cold == nil {
				cold = map[spec.ServiceKey]bool{}
			}
			cold[sample.Service] = true
		}
	}
	for key := range cold {
		subjects, _ := l.board.Subjects.Load(key)
		l.decide(now, key, subjects)
	}
}

// asleep reports whether nothing is wanted of a revision that scales; its last replica may still
// be about to end.
func (l *Loop) asleep(key spec.ServiceKey, revision string) bool {
	subjects, _ := l.board.Subjects.Load(key)
	for i := range subjects {
		if subjects[i].Revision == revision {
			if want, ok := l.board.Wants.Load(spec.RevisionKey{Namespace: key.Namespace, Name: revision}); ok {
				return want.Replicas == 0
			}
			return subjects[i].Asked == 0
		}
	}
	return false
}

// Gone forgets a gateway that has ended, and what it held.
func (l *Loop) Gone(gateway string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sources, gateway)
}

// tick decides for every revision on the board and forgets those that left it.
func (l *Loop) tick(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, s := range l.sources {
		if now.Sub(s.at) > silence {
			delete(l.sources, name)
		}
	}
	all := l.board.Subjects.All()
	kept := make(map[spec.RevisionKey]bool, len(l.scalers))
	for key, subjects := range all {
		l.decide(now, key, subjects)
		for i := range subjects {
			kept[spec.RevisionKey{Namespace: key.Namespace, Name: subjects[i].Revision}] = true
		}
	}
	for key := range l.scalers {
		if !kept[key] {
			delete(l.scalers, key)
			l.board.Wants.Delete(key)
		}
	}
}

// decide asks the scalers of one service and writes down what they say.
func (l *Loop) decide(now time.Time, service spec.ServiceKey, subjects []demand.Subject) {
	changed := false
	for i := range subjects {
		s := &subjects[i]
		key := spec.RevisionKey{Namespace: service.Namespace, Name: s.Revision}
		o := scale.Observed{Ready: s.Ready, Asked: s.Asked, Held: l.held(key), Initialized: s.RolledOut}
		last, decided := l.board.Wants.Load(key)
		if decided {
			// The reconciler may not have come round since; a decision stands until the next.
			o.Asked = last.Replicas
		}
		d, missing, err := l.decision(now, key, s, o)
		if err != nil {
			l.log.Warn("a revision isn't scaled", "service", service.String(), "revision", s.Revision, "err", err)
			continue
		}
		n := d.Replicas
		if s.Pinned || !s.RolledOut {
			n = max(n, 1)
		}
		if decided && last.Replicas == n && last.Missing == missing {
			continue
		}
		l.board.Wants.Store(key, demand.Want{Replicas: n, Why: d.String(), Missing: missing, At: now})
		changed = true
		if n != s.Asked && (!decided || n != last.Replicas) {
			l.log.Info("scale", "service", service.String(), "revision", s.Revision, "from", s.Asked, "to", n, "why", d.String())
		}
	}
	if changed {
		l.board.Changed.Notify(service)
	}
}

// decision asks a revision's scaler; missing says why a metric isn't known.
func (l *Loop) decision(now time.Time, key spec.RevisionKey, s *demand.Subject, o scale.Observed) (d scale.Decision, missing string, err error) {
	if s.Metrics != nil {
		return l.byMetrics(now, key, s, o)
	}
	sc, err := l.scaler(now, key, s.Config, o)
	if err != nil {
		return d, "", err
	}
	return sc.Decide(now, o), "", nil
}

// scaler returns a revision's scaler with these settings.
func (l *Loop) scaler(now time.Time, key spec.RevisionKey, cfg scale.Config, o scale.Observed) (*scaler, error) {
	sc := l.scalers[key]
	switch {
	case sc == nil || sc.Scaler == nil:
		made, err := scale.New(cfg, now, o)
		if err != nil {
			return nil, err
		}
		sc = &scaler{Scaler: made, cfg: cfg}
		l.scalers[key] = sc
	case sc.cfg != cfg:
		if err := sc.Update(cfg); err != nil {
			return nil, err
		}
		sc.cfg = cfg
	}
	return sc, nil
}

// held sums up what the gateways hold for a revision.
func (l *Loop) held(key spec.RevisionKey) int {
	n := 0
	for _, s := range l.sources {
		n += s.held[key]
	}
	return n
}
