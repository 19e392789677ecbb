package gateway

import (
	"net/http"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// card is a model as the OpenAI API lists it. Revision and Digest are of the revision with the
// greatest share of the traffic; clients of the API pass over them.
type card struct {
	ID       string `json:"id"`
	Object   string `json:"object"`
	Created  int64  `json:"created"`
	OwnedBy  string `json:"owned_by"`
	Revision string `json:"revision,omitempty"`
	Digest   string `json:"digest,omitempty"`
}

func (s scope) card(id string, service *route.Service) card {
	c := card{ID: id, Object: "model", OwnedBy: service.Key.Namespace}
	if !service.Created.IsZero() {
		c.Created = service.Created.Unix()
	}
	c.Revision, c.Digest = leading(s.table.BackendOf(service, spec.Predictor))
	return c
}

// leading names the revision with the greatest share.
func leading(b *route.Backend) (revision, digest string) {
	most := -1
	for i := range b.Targets {
		if t := &b.Targets[i]; t.Weight > most {
			most, revision, digest = t.Weight, t.Revision, t.Digest
		}
	}
	return revision, digest
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
	s := scope{table: x.view.table}
	if call.Op == openai.Models {
		x.answer(map[string]any{"object": "list", "data": s.cards()})
		return
	}
	a := &asked{bare: true, model: call.Model}
	err := a.find(s.table, &x.match, errdef.ErrNotFound)
	if err != nil {
		x.fail(err)
		return
	}
	c := s.card(call.Model, x.match.Service)
	c.Revision, c.Digest = leading(x.match.Backend)
	x.answer(c)
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
	s := scope{table: x.view.table}
	ready, _ := readiness(s.table, x.match.Service)
	x.answer(struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
		card
	}{call.Model, ready, s.card(call.Model, x.match.Service)})
	return true
}
