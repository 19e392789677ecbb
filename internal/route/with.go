package route

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// With returns a table in which s takes the place of the service with its key, for a small part of
// what Compile takes. It reports false where that isn't enough: where the table hasn't got the
// service, or s answers under other names than it did, or has another age. A Table keeps what it
// was: what the new one shares with it isn't changed.
func (t *Table) With(s Service) (*Table, bool) {
	if t == nil || s.Graph != nil {
		return nil, false
	}
	old := t.byKey[s.Key]
	if old == nil || old.Graph != nil || !s.Created.Equal(old.Created) || s.PathPrefix != old.PathPrefix ||
		!slices.Equal(s.BareNames, old.BareNames) || !slices.Equal(s.Adapters, old.Adapters) || !reflect.DeepEqual(s.Hosts, old.Hosts) {
		return nil, false
	}
	at, ok := slices.BinarySearchFunc(t.services, old.Service, func(a, b *Service) int { return compareKeys(a.Key, b.Key) })
	for ok && t.services[at] != old.Service { // a graph may have the same key
		at++
		ok = at < len(t.services)
	}
	if !ok {
		return nil, false
	}
	fresh := newEntry(&s)
	next := *t
	next.services = slices.Clone(t.services)
	next.services[at] = fresh.Service
	next.byKey = maps.Clone(t.byKey)
	next.byKey[s.Key] = fresh
	next.hosts, next.prefixes, next.names = maps.Clone(t.hosts), maps.Clone(t.prefixes), maps.Clone(t.names)
	for _, host := range s.Hosts {
		name := normalHost(host.Name)
		if h := t.hosts[name]; h.entry == old {
			h.entry = fresh
			next.hosts[name] = h
		}
	}
	if p := strings.TrimRight(s.PathPrefix, "/"); t.prefixes[p] == old {
		next.prefixes[p] = fresh
	}
	for _, name := range slices.Concat(s.BareNames, s.Adapters) {
		if i := slices.Index(t.names[name], old); i >= 0 {
			next.names[name] = slices.Clone(t.names[name])
			next.names[name][i] = fresh
		}
	}
	return &next, true
}
