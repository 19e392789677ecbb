// Package memory is a platform that runs nothing: replicas are values that become ready at
// once, or fail as told. Tests of what stands above a platform use it.
package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Config shapes the replicas. Its zero value makes every replica ready at once.
type Config struct {
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Fails returns the failure of a workload's replicas; nil, or a nil failure, means ready.
	Fails func(w spec.Workload) *spec.Failure
	// Address returns where a workload's replicas listen; nil means nowhere.
	Address func(w spec.Workload) (http, grpc string)
}

// Platform is an in-memory platform. It is safe for concurrent use.
type Platform struct {
	cfg      Config
	feed     platform.Feed
	mu       sync.Mutex
	created  int
	services map[spec.ServiceKey]*service
}

type service struct {
	want     []platform.Assignment
	replicas []spec.Replica
}

var _ platform.Platform = (*Platform)(nil)

// New returns an empty platform.
func New(cfg Config) *Platform {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Platform{cfg: cfg, services: map[spec.ServiceKey]*service{}}
}

// Apply implements platform.Platform; it has converged when it returns.
func (p *Platform) Apply(_ context.Context, key spec.ServiceKey, want []platform.Assignment) error {
	for _, a := range want {
		if len(a.Workload.Containers) == 0 || a.Replicas < 0 {
			return errdef.New(errdef.ErrInvalid, "revision "+a.Workload.Revision.String()+" has no container or a negative number of replicas")
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.services[key]
	if s == nil {
		s = &service{}
	}
	var next []spec.Replica
	changed := false
	for _, a := range want {
		kept := 0
		for _, r := range s.replicas {
			if r.Revision == a.Workload.Revision && r.Hash == a.Workload.Hash && kept < a.Replicas {
				next = append(next, r)
				kept++
			}
		}
		for ; kept < a.Replicas; kept++ {
			next = append(next, p.create(a.Workload))
			changed = true
		}
	}
	changed = changed || len(next) != len(s.replicas)
	s.want, s.replicas = slices.Clone(want), next
	slices.SortFunc(s.replicas, func(a, b spec.Replica) int { return cmp.Compare(a.ID, b.ID) })
	p.services[key] = s
	if len(want) == 0 {
		delete(p.services, key)
	}
	if changed {
		p.feed.Notify(key)
	}
	return nil
}

func (p *Platform) create(w spec.Workload) spec.Replica {
	p.created++
	now := p.cfg.Now()
	r := spec.Replica{
		ID: fmt.Sprintf("%s-%05d", w.Revision.Name, p.created), Revision: w.Revision, Hash: w.Hash,
		Phase: spec.Ready, Created: now, Timings: spec.Timings{ReadyAt: now},
	}
	if p.cfg.Address != nil {
		r.HTTP, r.GRPC = p.cfg.Address(w)
	}
	if p.cfg.Fails != nil {
		if f := p.cfg.Fails(w); f != nil {
			r.Phase, r.Failure, r.Timings = spec.Failed, f, spec.Timings{}
		}
	}
	return r
}

// Set changes one replica of a service, as a test wants it to look, and tells the readers of
// Changes. It reports whether there is such a replica.
func (p *Platform) Set(key spec.ServiceKey, id string, change func(*spec.Replica)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.services[key]
	if s == nil {
		return false
	}
	for i := range s.replicas {
		if s.replicas[i].ID == id {
			change(&s.replicas[i])
			p.feed.Notify(key)
			return true
		}
	}
	return false
}

// Wanted returns what Apply was last told of a service.
func (p *Platform) Wanted(key spec.ServiceKey) []platform.Assignment {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.services[key]; s != nil {
		return slices.Clone(s.want)
	}
	return nil
}

// Observe implements platform.Platform.
func (p *Platform) Observe(_ context.Context, key spec.ServiceKey) (spec.Observed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.services[key]; s != nil {
		return spec.Observed{Replicas: slices.Clone(s.replicas)}, nil
	}
	return spec.Observed{}, nil
}

// Changes implements platform.Platform.
func (p *Platform) Changes(ctx context.Context) <-chan spec.ServiceKey { return p.feed.Subscribe(ctx) }

// Services implements platform.Platform.
func (p *Platform) Services(context.Context) ([]spec.ServiceKey, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Keys(p.services), func(a, b spec.ServiceKey) int { return cmp.Compare(a.String(), b.String()) }), nil
}
