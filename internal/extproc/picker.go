package extproc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/extproc/pool"
	"stationmaster.dev/stationmaster/internal/pick"
)

// view is a pool with what is known of its endpoints. It is immutable but for counters.
type view struct {
	pool     *pool.Pool
	replicas []*pick.Replica
	// at is the index of an endpoint by its address.
	at map[string]int
}

// picker picks among the endpoints of one pool.
type picker struct {
	cfg   *Config
	group *pick.Group
	// building is held while a view is made.
	building sync.Mutex
	current  atomic.Pointer[view]
	// adapters are the names of LoRA adapters that engines told of so far: any other model is taken
	// for the pool's own.
	adapters atomic.Pointer[map[string]bool]
}

func newPicker(cfg *Config) *picker {
	p := &picker{cfg: cfg, group: pick.NewGroup(pick.ForLanguage())}
	p.adapters.Store(&map[string]bool{})
	return p
}

// view returns the view of the latest pool, nil before the first.
func (p *picker) view() *view {
	latest := p.cfg.Pool.Load()
	if v := p.current.Load(); v != nil && v.pool == latest || latest == nil {
		return v
	}
	p.building.Lock()
	defer p.building.Unlock()
	latest = p.cfg.Pool.Load()
	v := p.current.Load()
	if v != nil && v.pool == latest {
		return v
	}
	if v == nil || v.pool.Picking != latest.Picking {
		p.group.SetPolicy(p.policy(latest.Picking))
	}
	v = &view{pool: latest, at: make(map[string]int, len(latest.Endpoints))}
	v.replicas = p.group.Keep(len(latest.Endpoints), func(i int) pick.Name {
		e := &latest.Endpoints[i]
		return pick.Name{ID: e.Replica, Address: e.Address}
	})
	for i := range latest.Endpoints {
		v.at[latest.Endpoints[i].Address] = i
	}
	p.current.Store(v)
	return v
}

// policy reads how to pick; what can't be read is logged, and the default takes its place.
func (p *picker) policy(text string) pick.Policy {
	if text == "" {
		text = p.cfg.Picking
	}
	policy, err := pick.Parse(text, true)
	if err != nil {
		p.cfg.Logger.Warn("how to pick can't be read; the default is used", "picking", text, "err", err)
		policy = pick.ForLanguage()
	}
	return policy
}

// learn takes what engines tell of themselves until ctx ends.
func (p *picker) learn(ctx context.Context) {
	for {
		samples, changed := p.cfg.Samples.Watch()
		if v := p.view(); samples != nil && v != nil {
			p.told(v, *samples)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// maxAdapters bounds how many names of adapters are remembered.
const maxAdapters = 4096

func (p *picker) told(v *view, samples pick.Samples) {
	known := *p.adapters.Load()
	for i := range v.pool.Endpoints {
		s, ok := samples[v.pool.Endpoints[i].Address]
		if !ok {
			continue
		}
		p.group.Told(v.replicas[i], s)
		for _, name := range s.Adapters {
			if known[name] || len(known) >= maxAdapters {
				continue
			}
			more := make(map[string]bool, len(known)+1)
			for k := range known {
				more[k] = true
			}
			more[name] = true
			known = more
			p.adapters.Store(&known)
		}
	}
}

// place is where a request is.
type place struct {
	view   *view
	charge pick.Charge
	// at is the index of the endpoint that the request counts at.
	at int
	// to is what the proxy is told: addresses, the best first.
	to string
}

// pick picks an endpoint, and if it is to, another one for a proxy that can't reach it. among are the addresses
// that may be picked; where hinted is false, all may. Errors are errdef.ErrUnavailable and
// errdef.ErrOverloaded, in words for a client.
func (p *picker) pick(ask *pick.Ask, among []string, hinted bool, now time.Time) (place, error) {
	v := p.view()
	switch {
	case v == nil:
		return place{}, errdef.New(errdef.ErrUnavailable, "the endpoint picker is starting: it doesn't know its pool yet")
	case len(v.pool.Endpoints) == 0:
		return place{}, errdef.New(errdef.ErrUnavailable, fmt.Sprintf("pool %s has no endpoint: %s", v.pool.Key, v.pool.Problem))
	}
	of, index, err := p.eligible(v, among, hinted)
	if err != nil {
		return place{}, err
	}
	rnd := rand.Uint64() //nolint:gosec // spreads load, guards nothing
	i, charge := p.group.Pick(of, ask, -1, rnd, now)
	if i < 0 {
		return place{}, errdef.New(errdef.ErrUnavailable, fmt.Sprintf("pool %s has no endpoint that answers", v.pool.Key))
	}
	real := func(i int) int {
		if index == nil {
			return i
		}
		return index[i]
	}
	out := place{view: v, charge: charge, at: real(i), to: v.pool.Endpoints[real(i)].Address}
	if p.cfg.Fallback && len(of) > 1 {
		if j := p.group.Other(of, ask, i, rnd, now); j >= 0 {
			out.to = strings.Join([]string{out.to, v.pool.Endpoints[real(j)].Address}, ",")
		}
	}
	return out, nil
}

// eligible returns the replicas that may be picked, and where each is in the view; no index means
// that they are all, in its order.
func (p *picker) eligible(v *view, among []string, hinted bool) ([]*pick.Replica, []int, error) {
	if !hinted && p.cfg.Limit == 0 {
		return v.replicas, nil, nil
	}
	var index []int
	if hinted {
		for _, a := range among {
			if i, ok := v.at[a]; ok {
				index = append(index, i)
			}
		}
		slices.Sort(index)
		index = slices.Compact(index) // what is named twice is no second endpoint
		if len(index) == 0 {
			return nil, nil, errdef.New(errdef.ErrUnavailable, fmt.Sprintf(
				"none of the %d endpoints that the proxy allows is a ready one of pool %s", len(among), v.pool.Key))
		}
	} else {
		index = make([]int, len(v.replicas))
		for i := range index {
			index[i] = i
		}
	}
	if p.cfg.Limit > 0 {
		free := index[:0]
		for _, i := range index {
			if v.replicas[i].Requests() < int64(p.cfg.Limit) {
				free = append(free, i)
			}
		}
		if index = free; len(index) == 0 {
			return nil, nil, errdef.New(errdef.ErrOverloaded, fmt.Sprintf(
				"all endpoints of pool %s have %d requests under way, which is their limit: try again later", v.pool.Key, p.cfg.Limit))
		}
	}
	of := make([]*pick.Replica, len(index))
	for i, at := range index {
		of[i] = v.replicas[at]
	}
	return of, index, nil
}

// adapter is the hash by which an adapter is picked; 0 for a model that isn't known to be one.
func (p *picker) adapter(model string) uint64 {
	if (*p.adapters.Load())[model] {
		return pick.Hash(model)
	}
	return 0
}
