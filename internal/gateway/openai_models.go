package gateway

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// card is a model as the OpenAI API lists it. What stands beside the API's own members is of the
// revision with the greatest share of the traffic; clients of the API pass over it.
type card struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// Root and Parent are set for a LoRA adapter: the name of the model that it adapts.
	Root   string `json:"root,omitempty"`
	Parent string `json:"parent,omitempty"`
	origin
	// Revisions are all that answer, each of which can be asked for as ID.
	Revisions []revisionCard `json:"revisions,omitempty"`
}

// origin says what answers under a model's name.
type origin struct {
	Revision      string `json:"revision,omitempty"`
	Digest        string `json:"digest,omitempty"`
	Format        string `json:"format,omitempty"`
	ContextLength int    `json:"context_length,omitempty"`
	// State is ready, asleep (the first request starts it) or unavailable.
	State string `json:"state"`
}

// revisionCard is one revision of a model.
type revisionCard struct {
	ID string `json:"id"`
	origin
	Tag string `json:"tag,omitempty"`
	// Traffic is its share in percent.
	Traffic int `json:"traffic"`
}

// allModels is the scope of all models, with what is known of them.
func (x *exchange) allModels() scope {
	s := scope{table: x.view.table}
	if t := x.g.cfg.ContextLengths; t != nil {
		if known := t.Load(); known != nil {
			s.lengths = *known
		}
	}
	return s
}

// contextLength is how many tokens a revision takes: as its engine says, else as its command line does.
func (s scope) contextLength(service *route.Service, t *route.Target) int {
	return cmp.Or(s.lengths[spec.RevisionKey{Namespace: service.Key.Namespace, Name: t.Revision}], t.ContextLength)
}

func (s scope) card(id string, service *route.Service) card {
	c := s.cardOf(id, service, s.table.BackendOf(service, spec.Predictor))
	if service.Graph != nil {
		if ready, _ := readiness(s.table, service); ready {
			c.State = "ready"
		}
	}
	return c
}

func (s scope) cardOf(id string, service *route.Service, b *route.Backend) card {
	c := card{ID: id, Object: "model", OwnedBy: service.Key.Namespace, origin: origin{State: stateOf(b, nil)}}
	if !service.Created.IsZero() {
		c.Created = service.Created.Unix()
	}
	most := -1
	bare := id
	if name := openai.ParseName(id); name.Revision != "" && !slices.Contains(service.BareNames, id) {
		bare = id[:len(id)-len(name.Revision)-1]
	}
	for i := range b.Targets {
		t := &b.Targets[i]
		from := origin{t.Revision, t.Digest, t.Format, s.contextLength(service, t), stateOf(b, t)}
		if t.Weight > most {
			most, c.origin = t.Weight, from
		}
		if t.Revision != "" {
			c.Revisions = append(c.Revisions, revisionCard{bare + "@" + t.Revision, from, t.Tag, t.Weight})
		}
	}
	return c
}

// stateOf says whether a target of a backend answers now.
func stateOf(b *route.Backend, t *route.Target) string {
	switch {
	case t != nil && len(t.Endpoints) > 0:
		return "ready"
	case b.Cold:
		return "asleep"
	}
	return "unavailable"
}

func (s scope) cards() []card {
	models := s.models()
	out := make([]card, 0, len(models))
	for _, m := range models {
		out = append(out, s.card(m.name, m.service))
	}
	if s.service != nil {
		return out
	}
	for _, service := range s.table.Services() {
		id := service.Key.String()
		if !service.Open() || slices.ContainsFunc(models, func(m modelState) bool { return m.service == service }) {
			continue
		}
		// Its own name leads to another: it has the one with its namespace.
		if m, _, err := find(s.table, nil, "/", id); err == nil && m.Service == service {
			out = append(out, s.card(id, service))
		}
	}
	return out
}

// find looks a model up by any of its names on the bare address.
func find(table *route.Table, a *adapters, path, model string) (route.Match, *asked, error) {
	ask := &asked{bare: true, model: model}
	m := route.Match{Path: path}
	err := ask.find(table, &m, errdef.ErrNotFound)
	err = a.find(table, &m, ask, err)
	return m, ask, err
}

// answerModels answers the OpenAI API's questions about models from the table.
func (x *exchange) answerModels(call openai.Call) {
	if x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		x.refuseMethod(http.MethodGet)
		return
	}
	if x.view.table == nil {
		x.fail(errNoRoutes)
		return
	}
	s := x.allModels()
	if call.Op == openai.Models {
		x.answer(map[string]any{"object": "list", "data": append(s.cards(), x.view.adapters.cards(s)...)})
		return
	}
	m, ask, err := find(s.table, x.view.adapters, x.match.Path, call.Model)
	if err != nil {
		x.match.Service = m.Service
		x.fail(err)
		return
	}
	x.match = m
	x.answer(x.found(s, &m, ask))
}

// found is what was found by its name, as a model of the API.
func (x *exchange) found(s scope, m *route.Match, ask *asked) card {
	if m.Service.Graph != nil {
		return s.card(ask.model, m.Service)
	}
	whole := m.Backend
	if x.view.adapters.adapt(m, ask); ask.adapter != "" {
		return x.view.adapters.card(s, ask.model, ask.adapter, m.Service)
	}
	return s.cardOf(ask.model, m.Service, whole)
}

// modelV1 answers GET /v1/models/<name> on the bare address in one object that is V1's answer and OpenAI's:
// where the engine speaks the OpenAI API but not V1, where the client is one of OpenAI's, and for the names
// that only OpenAI's list has, with a namespace or a revision. It reports whether it did; found says whether
// V1's reading of the path leads to a service.
func (x *exchange) modelV1(found bool) bool {
	path := cmp.Or(x.match.Path, x.path)
	call, ok := openai.ParsePath(path, x.g.cfg.OpenAI.Root)
	if !ok || call.Op != openai.Model || call.Root != "" || x.r.Method != http.MethodGet || x.view.table == nil || len(x.r.Header[ServiceHeader]) > 0 {
		return false
	}
	if found && (x.match.Via != route.ByModel || x.match.Call.Op != route.StatusV1 || !x.ofOpenAI() && !onlyOpenAI(x.match.Backend)) {
		return false
	}
	m, ask, err := find(x.view.table, x.view.adapters, path, call.Model)
	if err != nil {
		return false
	}
	s := x.allModels()
	ready, _ := readiness(s.table, m.Service)
	c := x.found(s, &m, ask)
	switch {
	case ask.adapter != "":
		ready = c.State == "ready"
	case m.Service.Graph == nil:
		ready = ready && c.State != "unavailable"
	}
	x.answer(struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
		card
	}{call.Model, ready, c})
	return true
}

// onlyOpenAI reports whether all engines of a backend speak the OpenAI API and not V1.
func onlyOpenAI(b *route.Backend) bool {
	return b != nil && len(b.Targets) > 0 && !slices.ContainsFunc(b.Targets, func(t route.Target) bool {
		return t.OpenAI == "" || speaks(&t, spec.V1)
	})
}

// ofOpenAI reports whether the client is one of OpenAI's SDKs.
func (x *exchange) ofOpenAI() bool { return len(x.r.Header["X-Stainless-Lang"]) > 0 }

// asksOfNone reports whether a question for a model that isn't there, under /v1/models/, is one of the
// OpenAI API. V1 has the same path: where there are engines for it, the client must be one of OpenAI's own.
func (x *exchange) asksOfNone(path string) bool {
	if x.match.Service != nil || x.view == nil || x.view.table == nil {
		return false
	}
	call := route.ParsePath(path)
	if call.Protocol != spec.V1 || call.Op != route.StatusV1 && (call.Op != route.OtherOfModel || x.r.Method != http.MethodGet) {
		return false
	}
	var api, v1 bool
	for _, b := range x.view.table.Backends {
		for i := range b.Targets {
			api = api || b.Targets[i].OpenAI != ""
			v1 = v1 || speaks(&b.Targets[i], spec.V1)
		}
	}
	return api && (!v1 || x.ofOpenAI())
}

// noV1 reports whether a path that leads nowhere is of an API that V1 isn't: V1's are all below /v1/models.
func (x *exchange) noV1(path string) bool {
	before, rest, ok := strings.Cut(path, "/v1/")
	first, _, _ := strings.Cut(rest, "/")
	root := x.g.cfg.OpenAI.Root
	return x.match.Service == nil && ok && (first != "models" || root != "" && strings.HasSuffix(before, root))
}

// shortDigest is how many digits of a digest a fingerprint has.
const shortDigest = 12

// fingerprint names a revision and the beginning of its model's digest, as in
// llm-predictor-00002@4f2b1c9d0e3a.
func fingerprint(t *route.Target) string {
	_, hex, _ := strings.Cut(t.Digest, ":")
	if t.Revision == "" || hex == "" {
		return t.Revision
	}
	return t.Revision + "@" + hex[:min(len(hex), shortDigest)]
}
