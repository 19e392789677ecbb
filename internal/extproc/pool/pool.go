// Package pool is what an endpoint picker knows of an InferencePool: the addresses to pick from, and
// how. It is pure, and knows nothing of Kubernetes: a list of addresses makes a pool, too.
package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Pool is an InferencePool at one moment. It is immutable.
type Pool struct {
	Key spec.ServiceKey
	// Picking is how endpoints are chosen (package pick reads it), Engine the name of the adapter
	// that reads the engines' metrics; empty means as is best for language models, and vLLM's.
	Picking, Engine string
	// Endpoints are those that are ready, sorted by address.
	Endpoints []Endpoint
	// Known is whether there is such a pool. Problem says, in words for a client, why there is no
	// endpoint; empty where there is one.
	Known   bool
	Problem string
}

// Endpoint is one port of a ready pod.
type Endpoint struct {
	// Replica tells it from others, also when another pod has its address later.
	Replica string
	// Address is "ip:port".
	Address string
}

// DefaultEngine is the adapter of those that don't say: the protocol of InferencePools has vLLM's
// metrics.
const DefaultEngine = "vllm"

// Equal reports whether two pools are the same.
func (p *Pool) Equal(q *Pool) bool {
	return p.Key == q.Key && p.Picking == q.Picking && p.Engine == q.Engine && p.Known == q.Known && p.Problem == q.Problem &&
		slices.Equal(p.Endpoints, q.Endpoints)
}

// Line is the pool as a line of a routing table, for those who look at engines' metrics.
func (p *Pool) Line() route.Service {
	t := route.Target{Picking: p.Picking, Engine: p.Engine}
	if t.Engine == "" {
		t.Engine = DefaultEngine
	}
	for _, e := range p.Endpoints {
		t.Endpoints = append(t.Endpoints, route.Endpoint{Replica: e.Replica, HTTP: e.Address, Metrics: "http://" + e.Address + "/metrics"})
	}
	return route.Service{
		Key: p.Key, Entry: spec.Predictor,
		Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{t}, NotReady: p.Problem}},
	}
}

// Static makes a pool of addresses ("ip:port", with commas between them). It is named after its
// first. Errors are errdef.ErrInvalid.
func Static(addresses string) (*Pool, error) {
	p := &Pool{Known: true}
	for a := range strings.SplitSeq(addresses, ",") {
		at, err := netip.ParseAddrPort(strings.TrimSpace(a))
		if err != nil || at.Port() == 0 {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%.100q is no ip:port: proxies take no names here", a))
		}
		if slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.Address == at.String() }) {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s is there twice", at))
		}
		p.Endpoints = append(p.Endpoints, Endpoint{Replica: at.String(), Address: at.String()})
	}
	p.Key = spec.ServiceKey{Namespace: "static", Name: p.Endpoints[0].Address}
	slices.SortFunc(p.Endpoints, func(a, b Endpoint) int { return strings.Compare(a.Address, b.Address) })
	return p, nil
}
