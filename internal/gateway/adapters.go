package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// adapters are the LoRA adapters of a view's replicas. It is immutable; nil has none.
type adapters struct {
	known *lora.Known
	// with has, for a backend, what of it has an adapter.
	with map[withAdapter]*route.Backend
	// reported are the services whose engines told of an adapter, by its name.
	reported map[string][]*route.Service
	// own are the services whose engines told of any.
	own map[*route.Service]bool
}

type withAdapter struct {
	of      *route.Backend
	adapter string
}

func (g *Gateway) knownAdapters() *lora.Known {
	if g.cfg.Adapters == nil {
		return nil
	}
	return g.cfg.Adapters.Load()
}

// watchAdapters returns what is known, and a channel that is closed when that changes.
func (g *Gateway) watchAdapters() (*lora.Known, <-chan struct{}) {
	if g.cfg.Adapters == nil {
		return nil, nil
	}
	return g.cfg.Adapters.Watch()
}

// learn takes in what is known of the replicas' adapters; the view has all else already.
func (v *view) learn(known *lora.Known) {
	if known == nil {
		return
	}
	a := &adapters{known: known, with: map[withAdapter]*route.Backend{}, reported: map[string][]*route.Service{}, own: map[*route.Service]bool{}}
	v.adapters = a
	if v.table == nil {
		return
	}
	for _, b := range v.table.Backends {
		for _, name := range adapterNames(b, *known) {
			a.with[withAdapter{b, name}] = v.part(b, name)
		}
	}
	for _, s := range v.table.Services() {
		if s.Graph != nil {
			continue
		}
		b := v.table.BackendOf(s, spec.Predictor)
		for _, name := range adapterNames(b, *known) {
			a.reported[name] = append(a.reported[name], s)
			a.own[s] = true
		}
	}
}

// adapterNames are the names of the adapters that some endpoint of a backend has, in order.
func adapterNames(b *route.Backend, known lora.Known) []string {
	var names []string
	for i := range b.Targets {
		for _, e := range b.Targets[i].Endpoints {
			for _, a := range known[e.HTTP].Adapters {
				names = append(names, a.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// part makes a backend of what of b has an adapter, with its place in the view.
func (v *view) part(b *route.Backend, adapter string) *route.Backend {
	out := *b
	out.Targets = make([]route.Target, 0, len(b.Targets))
	for i := range b.Targets {
		whole := &b.Targets[i]
		has := func(e route.Endpoint) bool { _, ok := (*v.adapters.known)[e.HTTP].Adapter(adapter); return ok }
		if !slices.ContainsFunc(whole.Endpoints, has) {
			continue
		}
		out.Targets = append(out.Targets, *whole)
		t := &out.Targets[len(out.Targets)-1]
		t.Endpoints = make([]route.Endpoint, 0, len(whole.Endpoints))
		vt := *v.targets[whole]
		vt.Target, vt.replicas = t, nil
		for j := range whole.Endpoints {
			if e := &whole.Endpoints[j]; has(*e) {
				t.Endpoints = append(t.Endpoints, *e)
				v.endpoints[&t.Endpoints[len(t.Endpoints)-1]] = v.endpoints[e]
				vt.replicas = append(vt.replicas, v.targets[whole].replicas[j])
			}
		}
		v.targets[t] = &vt
	}
	return &out
}

// compareAges orders by age, those without one last.
func compareAges(a, b time.Time) int {
	return cmp.Or(cmp.Compare(unknownAge(a), unknownAge(b)), a.Compare(b))
}

func unknownAge(t time.Time) int {
	if t.IsZero() {
		return 1
	}
	return 0
}

// adapt leads a request that names an adapter to the replicas that have it. A listed one that no
// ready replica has is waited for, since it is about to be loaded.
func (a *adapters) adapt(m *route.Match, ask *asked) {
	if ask == nil || ask.model == "" || m.Service == nil || m.Backend == nil {
		return
	}
	ask.adapter = ""
	if !a.any(m.Service) {
		return
	}
	r, ok := a.read(m.Service, ask.model)
	if !ok {
		return
	}
	var with *route.Backend
	if a != nil {
		with = a.with[withAdapter{m.Backend, r.adapter}]
	}
	listed := slices.Contains(m.Service.Adapters, r.adapter)
	if listed || with != nil {
		ask.adapter = r.adapter
	}
	switch {
	case with != nil:
		m.Backend = with
	case listed && a != nil && m.Backend.Ready() && speaksOpenAI(m.Backend):
		m.Backend = &route.Backend{Returning: true, Startup: m.Backend.Startup, NotReady: fmt.Sprintf("no replica has loaded the adapter %s yet", r.adapter)}
	}
}

// speaksOpenAI reports whether engines of a backend are asked for adapters.
func speaksOpenAI(b *route.Backend) bool {
	return slices.ContainsFunc(b.Targets, func(t route.Target) bool { return t.OpenAI != "" && len(t.Endpoints) > 0 })
}

// cards are the adapters of the services in scope, as models of the API. On the bare address one that
// another's name hides is listed with its namespace before.
func (a *adapters) cards(s scope) []card {
	var out []card
	for _, service := range s.services() {
		for _, name := range a.of(s.table, service) {
			if s.service != nil {
				out = append(out, a.card(s, name, name, service))
				continue
			}
			for _, id := range [...]string{name, service.Key.Namespace + "/" + name} {
				if a.leads(s.table, id, name, service) {
					out = append(out, a.card(s, id, name, service))
					break
				}
			}
		}
	}
	return out
}

// of are the names of a service's adapters: those that it lists, and those that its engines told of and
// that are no model of the table.
func (a *adapters) of(table *route.Table, service *route.Service) []string {
	if a == nil || !a.own[service] {
		return service.Adapters
	}
	names := slices.Clone(service.Adapters)
	for _, name := range adapterNames(table.BackendOf(service, spec.Predictor), *a.known) {
		if name != service.Key.Name && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// leads reports whether a name on the bare address is that of an adapter of a service.
func (a *adapters) leads(table *route.Table, id, adapter string, service *route.Service) bool {
	m, ask, err := find(table, a, "/", id)
	if err != nil || m.Service != service {
		return false
	}
	a.adapt(&m, ask)
	return ask.adapter == adapter
}

// card is an adapter as a model of the API. Its parent is the service's own model, by the name under
// which that is asked for, and id the name by which the adapter is.
func (a *adapters) card(s scope, id, name string, service *route.Service) card {
	c := s.card(service.Key.Name, service)
	c.ID, c.Parent, c.Root = id, service.Key.Name, service.Key.Name
	c.Revisions, c.Digest, c.Format = nil, "", "" // those are the parent's
	if c.State == "ready" && (a == nil || a.with[withAdapter{s.table.BackendOf(service, spec.Predictor), name}] == nil) {
		c.State = "unavailable"
	}
	return c
}
