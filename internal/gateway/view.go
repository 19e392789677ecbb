package gateway

import (
	"sync/atomic"

	"stationmaster.dev/stationmaster/internal/gateway/grpcpool"
	"stationmaster.dev/stationmaster/internal/gateway/meter"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/gateway/wait"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// view is a table with what the gateway keeps for each of its parts, ready for the hot path.
// It is immutable but for counters.
type view struct {
	table     *route.Table
	targets   map[*route.Target]*target
	endpoints map[*route.Endpoint]*endpoint
	// grpcPlaces are the places for gRPC that the table has.
	grpcPlaces map[grpcpool.Place]bool
	graphs     map[*route.Service]*graphView
	// adapters are the LoRA adapters of the replicas; nil where nothing is known of any.
	adapters *adapters
	// batches says that the requests of some component are put together.
	batches bool
	// load is what picks for copies of requests ask.
	load func(*route.Endpoint) int64
}

// target is what each response of a revision needs.
type target struct {
	*route.Target
	service spec.ServiceKey
	// revision and digest are header values, shared by all responses and never changed.
	revision []string
	digest   []string
	// stamp is what answers of language models tell of what made them.
	stamp openai.Stamp
	// settings are what is declared of translations, undeclared what is wrong with them.
	settings   translate.Settings
	undeclared error
	metrics    *targetMetrics
	load       *meter.Load
	// queue is of the requests that wait for a free place at one of the endpoints.
	queue *wait.Queue
	// group picks among the endpoints, whose replicas are in their order.
	group    *pick.Group
	replicas []*pick.Replica
	// answers is nil while the revision has its component's traffic alone.
	answers *meter.Answers
}

type endpoint struct {
	// http is nil where the engine has no HTTP port.
	http *upstream.Host
	// calls counts gRPC calls under way.
	calls *atomic.Int64
	// places are nil where the engine takes any number of requests.
	places *wait.Places
}

// placesKey tells the places of a replica from those of others.
type placesKey struct {
	targetKey
	replica string
}

// view returns the view of the latest table.
func (g *Gateway) view() *view {
	table := g.cfg.Table.Load()
	known := g.knownAdapters()
	if v := g.current.Load(); v != nil && v.table == table && v.known() == known {
		return v
	}
	g.building.Lock()
	defer g.building.Unlock()
	table, known = g.cfg.Table.Load(), g.knownAdapters()
	if v := g.current.Load(); v != nil && v.table == table && v.known() == known {
		return v
	}
	v := g.newView(table, known)
	g.current.Store(v)
	return v
}

// known is what the view has of the replicas' adapters.
func (v *view) known() *lora.Known {
	if v.adapters == nil {
		return nil
	}
	return v.adapters.known
}

func (g *Gateway) newView(table *route.Table, known *lora.Known) *view {
	var last view // about as large
	if l := g.current.Load(); l != nil {
		last = *l
	}
	v := &view{
		table:      table,
		targets:    make(map[*route.Target]*target, len(last.targets)),
		endpoints:  make(map[*route.Endpoint]*endpoint, len(last.endpoints)),
		grpcPlaces: make(map[grpcpool.Place]bool, len(last.grpcPlaces)),
	}
	v.load = func(e *route.Endpoint) int64 {
		n := v.endpoints[e].calls.Load()
		if h := v.endpoints[e].http; h != nil {
			n += h.InFlight()
		}
		return n
	}
	httpPlaces := make(map[upstream.Place]bool, len(last.endpoints))
	live := make(map[targetKey]bool, len(last.targets))
	kept := map[placesKey]*wait.Places{}
	groups := make(map[targetKey]*pick.Group, len(last.targets))
	queues := make(map[targetKey]*wait.Queue, len(last.targets))
	seen := g.answers.Renew(sharing(table))
	for s, b := range table.Backends {
		v.batches = v.batches || b.Batch != nil
		live[targetKey{Service: s.Key}] = true // what reached none of its revisions
		for i := range b.Targets {
			t := &b.Targets[i]
			key := targetKey{Service: s.Key, Revision: t.Revision}
			live[key] = true
			vt := &target{Target: t, service: s.Key, metrics: g.metrics.of(key), load: g.loads.Of(key), queue: g.queueOf(key, queues), answers: seen[key]}
			if t.Revision != "" {
				vt.revision = []string{t.Revision}
			}
			vt.group, vt.replicas = g.groupOf(key, t, groups)
			vt.stamp = openai.NewStamp(fingerprint(t))
			vt.settings, vt.undeclared = translate.ParseSettings(t.Translate)
			if t.Digest != "" {
				vt.digest = []string{t.Digest}
			}
			v.targets[t] = vt
			for j := range t.Endpoints {
				e := &t.Endpoints[j]
				ve := &endpoint{calls: g.dialer.Calls(grpcPlace(e))}
				if e.HTTP != "" {
					at := upstream.Place{Addr: e.HTTP, Security: e.Security}
					ve.http = g.pool.At(at)
					httpPlaces[at] = true
				}
				if t.Limit > 0 {
					ve.places = g.placesOf(placesKey{key, e.Replica}, t.Limit, kept)
				}
				v.grpcPlaces[grpcPlace(e)] = true
				v.endpoints[e] = ve
			}
		}
	}
	v.graphs = g.viewGraphs(table, live)
	g.pool.Prune(func(at upstream.Place) bool { return httpPlaces[at] })
	g.dialer.Prune(v.hasGRPC)
	g.metrics.prune(func(key targetKey) bool { return live[key] })
	g.payloads.Prune(func(key spec.ServiceKey) bool { _, known := table.Named(key, "/"); return known })
	g.loads.Prune(func(key targetKey) bool { return live[key] })
	g.models.prune(func(key targetKey) bool { return live[key] })
	g.places, g.groups, g.queues = kept, groups, queues
	v.learn(known)
	return v
}

// placesOf returns a replica's places, with what is occupied of them by an earlier view. The
// caller holds building.
func (g *Gateway) placesOf(key placesKey, limit int, kept map[placesKey]*wait.Places) *wait.Places {
	p := kept[key]
	if p == nil {
		if p = g.places[key]; p == nil || p.Limit() != limit {
			p = wait.NewPlaces(limit)
		}
		kept[key] = p
	}
	return p
}

// queueOf returns a revision's queue, with those that wait in it since an earlier view. The caller
// holds building.
func (g *Gateway) queueOf(key targetKey, kept map[targetKey]*wait.Queue) *wait.Queue {
	q := kept[key]
	if q == nil {
		if q = g.queues[key]; q == nil {
			q = new(wait.Queue)
		}
		kept[key] = q
	}
	return q
}

// wakes returns the load of the revision that a request for a cold backend counts for: the one
// with the greatest share.
func (v *view) wakes(b *route.Backend) *meter.Load {
	var most *route.Target
	for i := range b.Targets {
		if t := &b.Targets[i]; most == nil || t.Weight > most.Weight {
			most = t
		}
	}
	if most == nil {
		return nil
	}
	return v.targets[most].load
}

func (v *view) hasGRPC(at grpcpool.Place) bool { return v.grpcPlaces[at] }

// grpcPlace is where an endpoint takes gRPC calls.
func grpcPlace(e *route.Endpoint) grpcpool.Place {
	return grpcpool.Place{Addr: e.GRPC, Security: e.Security}
}
