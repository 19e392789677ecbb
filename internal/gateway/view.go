package gateway

import (
	"sync/atomic"

	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// view is a table with what the gateway keeps for each of its parts, ready for the hot path.
// It is immutable but for counters.
type view struct {
	table     *route.Table
	targets   map[*route.Target]*target
	endpoints map[*route.Endpoint]*endpoint
	// grpcAddrs are the addresses that the table has.
	grpcAddrs map[string]bool
	// load is the function that route's picks ask.
	load func(*route.Endpoint) int64
}

// target is what each response of a revision needs.
type target struct {
	*route.Target
	service spec.ServiceKey
	// revision and digest are header values, shared by all responses and never changed.
	revision []string
	digest   []string
	metrics  *targetMetrics
}

type endpoint struct {
	// http is nil where the engine has no HTTP port.
	http *upstream.Host
	// calls counts gRPC calls under way.
	calls *atomic.Int64
}

// view returns the view of the latest table.
func (g *Gateway) view() *view {
	table := g.cfg.Table.Load()
	if v := g.current.Load(); v != nil && v.table == table {
		return v
	}
	g.building.Lock()
	defer g.building.Unlock()
	table = g.cfg.Table.Load()
	if v := g.current.Load(); v != nil && v.table == table {
		return v
	}
	v := g.newView(table)
	g.current.Store(v)
	return v
}

func (g *Gateway) newView(table *route.Table) *view {
	v := &view{
		table:     table,
		targets:   map[*route.Target]*target{},
		endpoints: map[*route.Endpoint]*endpoint{},
		grpcAddrs: map[string]bool{},
	}
	v.load = func(e *route.Endpoint) int64 {
		n := v.endpoints[e].calls.Load()
		if h := v.endpoints[e].http; h != nil {
			n += h.InFlight()
		}
		return n
	}
	httpAddrs := map[string]bool{}
	live := map[targetKey]bool{}
	for s, b := range table.Backends {
		for i := range b.Targets {
			t := &b.Targets[i]
			key := targetKey{s.Key, t.Revision}
			live[key] = true
			vt := &target{Target: t, service: s.Key, metrics: g.metrics.of(key)}
			if t.Revision != "" {
				vt.revision = []string{t.Revision}
			}
			if t.Digest != "" {
				vt.digest = []string{t.Digest}
			}
			v.targets[t] = vt
			for j := range t.Endpoints {
				e := &t.Endpoints[j]
				ve := &endpoint{calls: g.dialer.Calls(e.GRPC)}
				if e.HTTP != "" {
					ve.http = g.pool.Host(e.HTTP)
					httpAddrs[e.HTTP] = true
				}
				v.grpcAddrs[e.GRPC] = true
				v.endpoints[e] = ve
			}
		}
	}
	g.pool.Prune(func(addr string) bool { return httpAddrs[addr] })
	g.dialer.Prune(v.hasGRPC)
	g.metrics.prune(func(key targetKey) bool { return live[key] })
	return v
}

func (v *view) hasGRPC(addr string) bool { return v.grpcAddrs[addr] }
