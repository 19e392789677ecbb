package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// extensions are the protocol extensions that the gateway itself has.
var extensions = []string{"model_repository", "binary_tensor_data"}

// scope is what a server-level question is about: one service, or all.
type scope struct {
	table   *route.Table
	service *route.Service // nil means all
	// lengths are what engines told of how many tokens they take; nil has none.
	lengths map[spec.RevisionKey]int
}

// services returns those in scope.
func (s scope) services() []*route.Service {
	if s.service != nil {
		return []*route.Service{s.service}
	}
	return s.table.Services()
}

// modelState is one model of the scope.
type modelState struct {
	name    string
	service *route.Service
	ready   bool
	reason  string
}

// models returns the models in scope, by the names under which they can be asked here. On
// the bare address a name that leads elsewhere, or nowhere, isn't among them.
func (s scope) models() []modelState {
	var out []modelState
	for _, service := range s.services() {
		ready, reason := readiness(s.table, service)
		if s.service != nil {
			out = append(out, modelState{service.Key.Name, service, ready, reason})
			continue
		}
		for _, name := range service.BareNames {
			m, err := s.table.Model(name, "/")
			if err == nil && m.Service == service {
				out = append(out, modelState{name, service, ready, reason})
			}
		}
	}
	return out
}

// readiness says whether a service's models can infer: every component that a prediction
// passes has to be ready.
func readiness(table *route.Table, s *route.Service) (bool, string) {
	if s.Graph != nil {
		return graphReadiness(table, s)
	}
	for _, c := range [...]spec.Component{spec.Predictor, spec.Transformer, spec.Explainer} {
		if _, has := s.Components[c]; !has {
			continue
		}
		b := table.BackendOf(s, c)
		if b.Ready() || b.Cold {
			continue // what sleeps answers, too
		}
		reason := b.NotReady
		if reason == "" {
			reason = "no replica of the " + string(c) + " is ready"
		}
		return false, reason
	}
	return len(s.Components) > 0, "the service has no component yet"
}

// unready returns nil when all services in scope are ready, else which aren't and why.
func (s scope) unready() error {
	var words []string
	n := 0
	if s.table.Partial && s.service == nil {
		return errNoRoutes
	}
	for _, service := range s.services() {
		ready, reason := readiness(s.table, service)
		if ready {
			continue
		}
		if n++; n <= 5 {
			words = append(words, of(service.Key.String(), service.Key, reason))
		}
	}
	if n == 0 {
		return nil
	}
	text := strings.Join(words, "; ")
	if n > len(words) {
		text += fmt.Sprintf("; and %d more", n-len(words))
	}
	return errdef.New(errdef.ErrUnavailable, "not all models are ready: "+text)
}

// serveBare answers a call that is for a server as a whole from the table.
func (x *exchange) serveBare() {
	s := x.allModels()
	s.service = x.match.Service
	method := http.MethodGet
	if x.match.Call.Op == route.RepositoryIndex {
		method = http.MethodPost
	}
	if x.r.Method != method && (method != http.MethodGet || x.r.Method != http.MethodHead) {
		x.refuseMethod(method)
		return
	}
	switch x.match.Call.Op {
	case route.ServerMetadata:
		x.answer(map[string]any{"name": "stationmaster", "version": x.g.cfg.Version, "extensions": extensions})
	case route.ServerLive:
		x.answer(map[string]bool{"live": true})
	case route.ServerReady:
		if err := s.unready(); err != nil {
			x.fail(err)
			return
		}
		x.answer(map[string]bool{"ready": true})
	case route.ListV2:
		x.answer(map[string]any{"models": names(s.models())})
	case route.ListV1:
		x.answer(s.listV1(x.view.adapters))
	case route.RepositoryIndex:
		x.repositoryIndex(s)
	default:
		panic("BUG: no answer for an operation of the whole server")
	}
}

func names(models []modelState) []string {
	out := make([]string, len(models))
	for i, m := range models {
		out[i] = m.name
	}
	return out
}

// listV1 answers both the V1 protocol's list and the OpenAI API's, whose path is the same.
func (s scope) listV1(a *adapters) any {
	return map[string]any{"models": names(s.models()), "object": "list", "data": append(s.cards(), a.cards(s)...)}
}

// maxIndexRequest bounds the body of a repository index request, which holds one flag.
const maxIndexRequest = 4 << 10

type indexEntry struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Reason string `json:"reason"`
}

// index lists models as Triton's repository extension does; readyOnly leaves out the others.
func (s scope) index(readyOnly bool) []indexEntry {
	out := []indexEntry{}
	for _, m := range s.models() {
		switch {
		case m.ready:
			out = append(out, indexEntry{Name: m.name, State: "READY"})
		case !readyOnly:
			out = append(out, indexEntry{m.name, "UNAVAILABLE", m.reason})
		}
	}
	return out
}

func (x *exchange) repositoryIndex(s scope) {
	body, err := io.ReadAll(io.LimitReader(x.r.Body, maxIndexRequest))
	if err != nil {
		x.fail(bodyError(err))
		return
	}
	var ask struct {
		Ready bool `json:"ready"`
	}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &ask); err != nil {
			x.fail(errdef.New(errdef.ErrInvalid, `the body must be empty or {"ready": true}: `+err.Error()))
			return
		}
	}
	x.answer(s.index(ask.Ready))
}

// answer sends a value of the gateway's own as JSON.
func (x *exchange) answer(v any) {
	x.answerBytes(http.StatusOK, "application/json", encode(v))
}

func (x *exchange) answerBytes(status int, contentType string, body []byte) {
	x.identify()
	h := x.w.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	x.status = status
	x.started = true
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body)
}

func (x *exchange) refuseMethod(allowed string) {
	x.identify()
	x.w.Header()["Allow"] = []string{allowed}
	body := errorBody(x.speaksOpenAI(), edge{openAI: "invalid_request_error"}, fmt.Sprintf("%s takes %s, not %s", x.path, allowed, x.r.Method))
	x.answerBytes(http.StatusMethodNotAllowed, "application/json", body)
}
