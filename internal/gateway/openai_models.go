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
	out := make([]card, len(models))
	for i, m := range models {
		out[i] = s.card(m.name, m.service)
	}
	return out
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
	a := &asked{bare: true, model: call.Model}
	err := a.find(s.table, &x.match, errdef.ErrNotFound)
	err = x.view.adapters.find(s.table, &x.match, a, err)
	if err != nil {
		x.fail(err)
		return
	}
	if x.match.Service.Graph != nil {
		x.answer(s.card(call.Model, x.match.Service))
		return
	}
	if x.view.adapters.adapt(&x.match, a); a.adapter != "" {
		x.answer(x.view.adapters.card(s, call.Model, a.adapter, x.match.Service))
		return
	}
	x.answer(s.cardOf(call.Model, x.match.Service, x.match.Backend))
}

// modelV1 answers GET /v1/models/<name> on the bare address where the engine speaks the OpenAI
// API but not V1: in one object that is V1's answer and OpenAI's. It reports whether it did.
func (x *exchange) modelV1(call openai.Call) bool {
	if call.Op != openai.Model || x.r.Method != http.MethodGet || x.match.Via != route.ByModel || x.match.Call.Op != route.StatusV1 {
		return false
	}
	for i := range x.match.Backend.Targets {
		t := x.view.targets[&x.match.Backend.Targets[i]]
		if t.OpenAI == "" || t.speaks(spec.V1) {
			return false
		}
	}
	if len(x.match.Backend.Targets) == 0 {
		return false
	}
	s := x.allModels()
	ready, _ := readiness(s.table, x.match.Service)
	c := s.card(call.Model, x.match.Service)
	if slices.Contains(x.match.Service.Adapters, call.Model) {
		c = x.view.adapters.card(s, call.Model, call.Model, x.match.Service)
		ready = c.State == "ready"
	}
	x.answer(struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
		card
	}{call.Model, ready, c})
	return true
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
