package route

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Table is what the gateway routes by. It is immutable and safe for concurrent use; the
// zero Table and a nil one route nothing.
type Table struct {
	// Partial says that more services exist than the table has yet, so that a name it doesn't
	// know may be one's. It is set before the table is shared.
	Partial  bool
	services []*Service
	byKey    map[spec.ServiceKey]*entry
	graphs   map[spec.ServiceKey]*entry
	hosts    map[string]hostEntry
	prefixes map[string]*entry
	// depths are the numbers of segments that prefixes have, the greatest first.
	depths []int
	names  map[string][]*entry
}

// entry is a service with its backends at fixed addresses.
type entry struct {
	*Service
	predictor, transformer, explainer *Backend
	// tagged are backends of one target each.
	tagged map[tagOf]*Backend
}

type tagOf struct {
	of  *Backend
	tag string
}

type hostEntry struct {
	entry     *entry
	component spec.Component
	tag       string
}

// Compile builds a table. It keeps its own copy of the slice, not of what the services point
// to, so the caller must not change those afterwards. Where two services claim a host or a
// prefix, the older one keeps it (see older). A name on the bare address belongs to the
// oldest service that claims it; where ages don't tell, it is ambiguous and leads nowhere.
func Compile(services []Service) *Table {
	t := &Table{
		byKey:    make(map[spec.ServiceKey]*entry, len(services)),
		graphs:   map[spec.ServiceKey]*entry{},
		hosts:    make(map[string]hostEntry, 2*len(services)),
		prefixes: make(map[string]*entry, len(services)),
		names:    make(map[string][]*entry, len(services)),
	}
	t.services = make([]*Service, len(services))
	for i := range services {
		s := services[i]
		t.services[i] = &s
	}
	slices.SortFunc(t.services, older)
	depths := map[int]bool{}
	var tagHosts []func() // they come last, so that none takes another service's own host
	for _, service := range t.services {
		s := newEntry(service)
		byKey := t.byKey
		if s.Graph != nil {
			byKey = t.graphs // a service of the same name has the key
		}
		if _, taken := byKey[s.Key]; !taken {
			byKey[s.Key] = s
		}
		for _, h := range s.Hosts {
			if h.Tag == "" {
				t.claim(h, s)
			} else {
				tagHosts = append(tagHosts, func() { t.claim(h, s) })
			}
		}
		if p := strings.TrimRight(s.PathPrefix, "/"); p != "" {
			if _, taken := t.prefixes[p]; !taken {
				t.prefixes[p] = s
				depths[strings.Count(p, "/")] = true
			}
		}
		names := slices.Concat(s.BareNames, s.Adapters)
		if !s.Open() {
			names = nil
		}
		for _, n := range names {
			if n != "" && !slices.Contains(t.names[n], s) {
				t.names[n] = append(t.names[n], s)
			}
		}
	}
	for _, claim := range tagHosts {
		claim()
	}
	for d := range depths {
		t.depths = append(t.depths, d)
	}
	slices.SortFunc(t.depths, func(a, b int) int { return b - a })
	slices.SortFunc(t.services, func(a, b *Service) int { return compareKeys(a.Key, b.Key) })
	return t
}

func newEntry(s *Service) *entry {
	e := &entry{Service: s}
	for c, b := range s.Components {
		switch c {
		case spec.Predictor:
			e.predictor = &b
		case spec.Transformer:
			e.transformer = &b
		case spec.Explainer:
			e.explainer = &b
		}
	}
	for _, b := range []*Backend{e.predictor, e.transformer, e.explainer} {
		if b == nil {
			continue
		}
		for _, t := range b.Targets {
			if t.Tag == "" {
				continue
			}
			if e.tagged == nil {
				e.tagged = map[tagOf]*Backend{}
			}
			t.Weight = 100
			tagged := &Backend{Targets: []Target{t}, Startup: b.Startup, Log: b.Log, Batch: b.Batch}
			if len(t.Endpoints) == 0 {
				tagged.Cold, tagged.NotReady, tagged.NextTry = b.Cold, b.NotReady, b.NextTry
			}
			e.tagged[tagOf{b, t.Tag}] = tagged
		}
		e.pin(b)
	}
	return e
}

// claim gives a host to a service unless it has one.
func (t *Table) claim(h Host, s *entry) {
	name := normalHost(h.Name)
	if _, taken := t.hosts[name]; !taken && name != "" {
		t.hosts[name] = hostEntry{s, h.Component, h.Tag}
	}
}

// older orders services by creation, those without a time last, then by key, and graphs behind
// services.
func older(a, b *Service) int {
	az, bz := a.Created.IsZero(), b.Created.IsZero()
	switch {
	case az && !bz:
		return 1
	case !az && bz:
		return -1
	}
	return cmp.Or(a.Created.Compare(b.Created), compareKeys(a.Key, b.Key), rank(a)-rank(b))
}

func rank(s *Service) int {
	if s.Graph != nil {
		return 1
	}
	return 0
}

func compareKeys(a, b spec.ServiceKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Services returns all services ordered by key. The caller must not change them.
func (t *Table) Services() []*Service {
	if t == nil {
		return nil
	}
	return t.services
}

// Via says what led a request to its service.
type Via uint8

// The ways to a service. Bare means none: the request is for the gateway as a whole.
const (
	Bare Via = iota
	ByHost
	ByPrefix
	ByModel
	ByKey
)

// Match is where a request goes.
type Match struct {
	// Service is nil when the request is for the gateway as a whole (see Match's method).
	Service   *Service
	Component spec.Component
	// Backend serves Component. It is empty, not nil, for a component that the service lacks, and
	// nil for a graph.
	Backend *Backend
	// Path is what remains after the prefix; it begins with "/" and is otherwise as it came.
	Path string
	Call Call
	Via  Via
	// place is that of the client, 0 for one that isn't told apart (see Steer).
	place uint64
}

// Match finds the service for an HTTP request by its host, else by its path, else by the
// model that the path names. path is as it came on the wire, without the query. Calls that
// are for a server as a whole (metadata, health, lists) and reach none by host or prefix give
// a Match without a Service and no error. The error is of kind ErrNotFound, or ErrConflict
// where several services claim the model's name, and its text is for the client.
func (t *Table) Match(host, path string) (Match, error) {
	if t != nil {
		if h, ok := t.hosts[normalHost(host)]; ok {
			return h.match(path), nil
		}
		if s, rest := t.prefix(path); s != nil {
			return s.match("", rest, ByPrefix), nil
		}
	}
	call := ParsePath(path)
	if call.Op.Server() {
		return Match{Path: path, Call: call}, nil
	}
	if call.Model == "" {
		return Match{Path: path, Call: call}, &noRouteError{t: t, host: host, path: path}
	}
	return t.Model(call.Model, path)
}

// Host finds the service and component that a host name (with or without a port) leads to.
func (t *Table) Host(host string) (Match, bool) {
	if t == nil {
		return Match{}, false
	}
	h, ok := t.hosts[normalHost(host)]
	if !ok {
		return Match{}, false
	}
	return h.match("/"), true
}

func (h hostEntry) match(path string) Match {
	m := h.entry.match(h.component, path, ByHost)
	if h.tag == "" {
		return m
	}
	tagged := h.entry.tagged[tagOf{m.Backend, h.tag}]
	if tagged == nil {
		tagged = &Backend{NotReady: fmt.Sprintf("the %s of service %s has no ready revision with the tag %s", m.Component, m.Service.Key, h.tag)}
	}
	m.Backend = tagged
	return m
}

// Named finds a service, else a graph, by its namespace and name for a request with a path.
func (t *Table) Named(key spec.ServiceKey, path string) (Match, bool) {
	if t == nil {
		return Match{}, false
	}
	e := t.byKey[key]
	if e == nil {
		e = t.graphs[key]
	}
	if e == nil {
		return Match{}, false
	}
	return e.match("", path, ByKey), true
}

// Model finds the service that a model's name leads to on the bare address; path is only kept
// and read. Errors are those of Match.
func (t *Table) Model(name, path string) (Match, error) {
	if t == nil {
		return Match{}, &noRouteError{model: name}
	}
	found := t.names[name]
	switch {
	case len(found) == 0:
		return Match{}, &noRouteError{t: t, model: name}
	case len(found) == 1, found[0].Created.Before(found[1].Created) && !found[0].Created.IsZero(),
		!found[0].Created.IsZero() && found[1].Created.IsZero():
		return found[0].match("", path, ByModel), nil
	}
	keys := make([]string, len(found))
	for i, s := range found {
		keys[i] = s.Key.String()
	}
	return Match{}, errdef.New(errdef.ErrConflict, fmt.Sprintf(
		"model %s is served by several services (%s): name one by its host, or by the path prefix %s",
		name, bounded(keys), cmp.Or(found[0].PathPrefix, "/serving/<namespace>/<name>")))
}

func (e *entry) match(component spec.Component, path string, via Via) Match {
	m := Match{Service: e.Service, Component: component, Path: path, Call: ParsePath(path), Via: via}
	if e.Graph != nil {
		return m
	}
	if component == "" {
		m.Component = e.Entry
		if m.Call.Op == Explain && e.explainer != nil {
			m.Component = spec.Explainer
		}
		if m.Component == "" {
			m.Component = spec.Predictor
		}
	}
	m.Backend = e.backend(m.Component)
	return m
}

// noBackend stands for components that a service lacks.
var noBackend = Backend{NotReady: "the service has no such component"}

func (e *entry) backend(c spec.Component) *Backend {
	var b *Backend
	switch c {
	case spec.Predictor:
		b = e.predictor
	case spec.Transformer:
		b = e.transformer
	case spec.Explainer:
		b = e.explainer
	}
	if b == nil {
		return &noBackend
	}
	return b
}

// Backends ranges over each component's backend, with its service, and over those of tags.
func (t *Table) Backends(yield func(*Service, *Backend) bool) {
	if t == nil {
		return
	}
	for _, s := range t.services {
		if s.Graph != nil {
			continue
		}
		e := t.byKey[s.Key]
		for _, c := range [...]spec.Component{spec.Predictor, spec.Transformer, spec.Explainer} {
			if b := e.backend(c); b != &noBackend && !yield(s, b) {
				return
			}
		}
		for _, b := range e.tagged {
			if !yield(s, b) {
				return
			}
		}
	}
}

// BackendOf returns what serves a component of one of the table's services, and an empty
// backend where the service lacks it; an empty component means the service's entry.
func (t *Table) BackendOf(s *Service, c spec.Component) *Backend {
	e := t.byKey[s.Key]
	if e == nil || s.Graph != nil {
		return &noBackend
	}
	if c == "" {
		if c = s.Entry; c == "" {
			c = spec.Predictor
		}
	}
	return e.backend(c)
}

// prefix finds the service with the longest prefix of path, and what remains of the path.
func (t *Table) prefix(path string) (*entry, string) {
	for _, depth := range t.depths {
		end := 0
		for n := 0; n < depth && end >= 0; n++ {
			if end >= len(path) || path[end] != '/' {
				end = -1
				break
			}
			next := strings.IndexByte(path[end+1:], '/')
			if next < 0 {
				if n < depth-1 {
					end = -1
					break
				}
				end = len(path)
			} else {
				end += 1 + next
			}
		}
		if end <= 0 {
			continue
		}
		if s, ok := t.prefixes[path[:end]]; ok {
			rest := path[end:]
			if rest == "" {
				rest = "/"
			}
			return s, rest
		}
	}
	return nil, ""
}

// normalHost lowers a host and cuts its port and final dot.
func normalHost(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// maxListed bounds how many names an error lists.
const maxListed = 10

func bounded(names []string) string {
	if len(names) > maxListed {
		return strings.Join(names[:maxListed], ", ") + fmt.Sprintf(" and %d more", len(names)-maxListed)
	}
	return strings.Join(names, ", ")
}

// noRouteError says that nothing leads to a model, or without one to a service. Its words are put together
// when they are read: a request that names its model on the bare address has no route at first, and
// nobody hears of that.
type noRouteError struct {
	t                 *Table
	model, host, path string
}

func (e *noRouteError) Unwrap() error { return errdef.ErrNotFound }

func (e *noRouteError) Error() string {
	if e.model != "" {
		return fmt.Sprintf("no service serves a model named %s; %s", quoted(e.model), e.t.known())
	}
	return fmt.Sprintf(
		"no route for host %s and path %s: use a service's host, the path prefix /serving/<namespace>/<name>, "+
			"/v2/models/<name>/infer and /v1/models/<name>:predict, or a path of the OpenAI API with the model in the body, "+
			"as /v1/chat/completions; %s",
		quoted(e.host), quoted(e.path), e.t.known())
}

func (t *Table) known() string {
	if t == nil || len(t.services) == 0 {
		return "no service is known yet"
	}
	keys := make([]string, 0, maxListed+1)
	for _, s := range t.services {
		keys = append(keys, s.Key.String())
	}
	return "services here: " + bounded(keys)
}

// quoted quotes a client's word and cuts it to a length fit for a message.
func quoted(s string) string {
	if len(s) > 100 {
		s = s[:100] + "…"
	}
	return fmt.Sprintf("%q", s)
}
