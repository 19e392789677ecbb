package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// reading is one way to read a model's name as that of an adapter.
type reading struct {
	adapter string
	// namespace and revision are what stands before and behind, empty for nothing.
	namespace, revision string
}

// readings are all ways, of which the first counts that leads anywhere: adapters have names with slashes and
// colons of their own.
func readings(model string) []reading {
	name := openai.ParseName(model)
	out := append(make([]reading, 0, 4), reading{adapter: model})
	if name.Namespace != "" {
		out = append(out, reading{adapter: model[len(name.Namespace)+1:], namespace: name.Namespace})
	}
	if name.Revision == "" {
		return out
	}
	whole := model[:len(model)-len(name.Revision)-1]
	out = append(out, reading{adapter: whole, revision: name.Revision})
	if name.Namespace != "" {
		out = append(out, reading{whole[len(name.Namespace)+1:], name.Namespace, name.Revision})
	}
	return out
}

// has reports whether a service lists an adapter, or engines of its own told of it.
func (a *adapters) has(s *route.Service, adapter string) bool {
	return slices.Contains(s.Adapters, adapter) || a != nil && slices.Contains(a.reported[adapter], s)
}

// any reports whether a service has any adapter.
func (a *adapters) any(s *route.Service) bool {
	return len(s.Adapters) > 0 || a != nil && a.own[s]
}

// find leads a request on the bare address to the service that has the adapter that it names, where the
// table knows nothing of the name, as err says; of several services that is the oldest. It leads any request
// to the revision that the adapter's name may tell.
func (a *adapters) find(table *route.Table, m *route.Match, ask *asked, err error) error {
	if ask == nil || ask.model == "" || err != nil && (!ask.bare || !errors.Is(err, errdef.ErrNotFound)) {
		return err
	}
	if err != nil {
		service, clash := a.serviceOf(table, ask.model)
		switch {
		case clash != nil:
			return clash
		case service == nil:
			return err
		}
		named, ok := table.Named(service.Key, m.Path)
		if !ok {
			return err
		}
		*m = named
		m.Via = route.ByModel
	}
	if m.Service == nil || m.Service.Graph != nil || !a.any(m.Service) || ask.names(m.Service, openai.ParseName(ask.model)) {
		return nil
	}
	r, ok := a.read(m.Service, ask.model)
	if !ok || r.revision == "" || table.Pin(m, r.revision) {
		return nil
	}
	return modelNotFound(errdef.New(errdef.ErrNotFound, fmt.Sprintf(
		"service %s, which has the adapter %.100q, has no revision %.100q that is ready", m.Service.Key, r.adapter, r.revision)))
}

// read finds out which adapter of a service a model's name means.
func (a *adapters) read(s *route.Service, model string) (reading, bool) {
	for _, r := range readings(model) {
		if (r.namespace == "" || r.namespace == s.Key.Namespace) && a.has(s, r.adapter) {
			return r, true
		}
	}
	return reading{}, false
}

// serviceOf returns the service that has an adapter, by any of the ways to write its name; nil for none.
// A namespace's own comes before another's whose engine gives it such a name whole: names that engines tell
// lead nobody away from where a namespace does.
func (a *adapters) serviceOf(table *route.Table, model string) (*route.Service, error) {
	all := readings(model)
	slices.SortStableFunc(all, func(a, b reading) int { return strings.Compare(b.namespace, a.namespace) })
	for _, r := range all {
		found := a.servicesWith(table, r)
		if len(found) == 0 {
			continue
		}
		slices.SortStableFunc(found, func(a, b *route.Service) int { return compareAges(a.Created, b.Created) })
		if len(found) > 1 && compareAges(found[0].Created, found[1].Created) == 0 {
			return nil, ambiguous(r.adapter, found)
		}
		return found[0], nil
	}
	return nil, nil //nolint:nilnil // none is no error
}

// servicesWith returns the services that have an adapter. Those that list it are found by the table
// itself unless a namespace is named.
func (a *adapters) servicesWith(table *route.Table, r reading) []*route.Service {
	var found []*route.Service
	if a != nil {
		found = slices.DeleteFunc(slices.Clone(a.reported[r.adapter]), func(s *route.Service) bool {
			return r.namespace != "" && s.Key.Namespace != r.namespace || !s.Open()
		})
	}
	if r.namespace == "" {
		return found
	}
	for _, s := range table.Services() {
		if s.Key.Namespace == r.namespace && s.Open() && slices.Contains(s.Adapters, r.adapter) && !slices.Contains(found, s) {
			found = append(found, s)
		}
	}
	return found
}

// ambiguous tells of an adapter of services none of which is the oldest.
func ambiguous(adapter string, found []*route.Service) error {
	keys := make([]string, len(found))
	elsewhere := false
	for i, s := range found {
		keys[i] = s.Key.String()
		elsewhere = elsewhere || s.Key.Namespace != found[0].Key.Namespace
	}
	how := "name one by its host, or by its path prefix"
	if elsewhere {
		how = "name the adapter as <namespace>/" + adapter + ", or the service by its host or its path prefix"
	}
	return errdef.New(errdef.ErrConflict, fmt.Sprintf("the adapter %.100q is served by several services (%s): %s", adapter, strings.Join(keys, ", "), how))
}
