package gateway

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// PrefillerHeader names to an engine's sidecar the replica ("host:port") that is to read the prompt,
// as llm-d's routers do.
const PrefillerHeader = "X-Prefiller-Host-Port"

// Results of a request whose prompt another service's replicas may read, as the metric has them.
const (
	prefillDone        = "done"        // read elsewhere
	prefillSent        = "sent"        // the engine's sidecar was told where
	prefillShort       = "short"       // too short to be worth it
	prefillUnread      = "unread"      // the gateway hasn't got the body whole, or it says itself what is to be transferred
	prefillUnavailable = "unavailable" // nobody is ready to read it
	prefillFailed      = "failed"      // nobody read it, or said where it is
)

func newPrefillMetric() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "stationmaster_prefill_total",
		Help: "Requests to a revision whose prompts another service reads, by what became of that: but for done and sent the revision's own replica read the prompt.",
	}, []string{"namespace", "service", "revision", "result"})
}

// prefill is a request's stay at the replica that reads its prompt for another. The methods of a nil
// one do nothing.
type prefill struct {
	x    *exchange
	hold hold
	// address is what the header says; empty for no header.
	address string
}

// prefill has the prompt read by another service's replica, where the request's own wants that, and
// changes the body accordingly. Whatever fails leaves the request as it was. The caller must end
// what it returns, which may be nil.
func (x *exchange) prefill() *prefill {
	a, how := x.ask, x.match.Backend.Prefill
	if how == nil || a == nil || a.relay == nil || x.toPath != nil || a.call.Op != openai.Chat && a.call.Op != openai.Completions {
		return nil
	}
	p := &prefill{x: x, hold: hold{g: x.g, exchange: x, start: time.Now()}}
	result := p.run(how)
	if x.r.Context().Err() == nil {
		k := &x.target.metrics.key
		x.g.metrics.prefills.WithLabelValues(k.Service.Namespace, k.Service.Name, k.Revision, result).Inc()
	}
	return p
}

// run does so, and says what became of it.
func (p *prefill) run(how *spec.Prefill) string {
	x := p.x
	ask := prompts.Get().(*prompt)
	p.hold.picked.prompt = ask
	ask.of(x, true)
	ask.ask.Output = 1
	switch {
	case ask.ask.Size < how.MinTokens*pick.BytesPerToken:
		return prefillShort
	case !how.Header && x.ask.sent == nil:
		return prefillUnread
	}
	t, e := p.choose(how)
	switch {
	case t == nil:
		return prefillUnavailable
	case how.Header:
		p.address = e.HTTP
		return prefillSent
	}
	body, ok := openai.Prefill(bytes.Join(x.ask.sent.pieces, nil), x.modelFor(t))
	if !ok {
		p.end()
		return prefillUnread
	}
	params := p.ask(t, e, body)
	p.end()
	if params == nil {
		return prefillFailed
	}
	x.goesOnFrom(params)
	return prefillDone
}

// choose finds a replica that is free to read the prompt. Where nothing of its service runs, it is
// started for the requests to come.
func (p *prefill) choose(how *spec.Prefill) (*route.Target, *route.Endpoint) {
	v := p.x.view
	m, found := v.table.Named(spec.ServiceKey{Namespace: p.x.match.Service.Key.Namespace, Name: how.Service}, "/")
	if !found || m.Service.Graph != nil {
		return nil, nil
	}
	m.Backend = v.table.BackendOf(m.Service, spec.Predictor)
	if a := p.x.ask; a.adapter != "" && v.adapters != nil {
		if with := v.adapters.with[withAdapter{m.Backend, a.adapter}]; with != nil {
			m.Backend = with
		}
	}
	t, e := p.hold.choose(&m, v, nil)
	if t == nil {
		if wakes := v.wakes(m.Backend); wakes != nil && m.Backend.Cold {
			p.hold.awaits(wakes, true)
		}
		return nil, nil
	}
	at := p.hold.occupy(v, t, e, nil)
	if at == nil || at.HTTP == "" {
		p.end()
		return nil, nil
	}
	p.hold.goesTo(v, t, e, at)
	p.hold.chosen(v.targets[t])
	return t, at
}

// modelFor is the name by which the replicas of t know the model, where that isn't an adapter's; it
// is empty where the request's stays.
func (x *exchange) modelFor(t *route.Target) string {
	if a := x.ask; a.adapter != "" && a.adapter != a.model {
		return a.adapter
	} else if a.dressed.model != "" || a.model != "" && a.model == x.target.ModelName {
		return t.ModelName
	}
	return ""
}

// ask has a replica read the prompt, and returns what it says of where it is; nil where it failed.
func (p *prefill) ask(t *route.Target, e *route.Endpoint, body []byte) []byte {
	x := p.x
	req := &upstream.Request{
		Method: http.MethodPost, Target: x.ask.path(x.match.Path, p.x.view.targets[t]), Host: x.r.Host,
		Header: x.prefillHeader(t), Body: bytes.NewReader(body), ContentLength: int64(len(body)),
		Set:           []upstream.Field{{Name: "X-Request-Id", Value: x.id}},
		HeaderTimeout: x.timeout(), IdleTimeout: x.g.cfg.Timeouts.Idle,
	}
	defer req.Release()
	ctx := x.r.Context()
	resp, err := x.view.endpoints[e].http.RoundTrip(ctx, req, http.Header{})
	p.hold.picked.answered(ctx, resp, err)
	if err != nil {
		return nil
	}
	defer x.closeResponse(resp)
	answer, err := readWhole(resp, maxChanged)
	if err != nil || resp.Status != http.StatusOK {
		return nil
	}
	return openai.Transferred(answer)
}

// prefillHeader is what of the client's fields concerns who only reads the prompt.
func (x *exchange) prefillHeader(t *route.Target) http.Header {
	h := maps.Clone(x.r.Header)
	h["Content-Type"], h["Accept"] = []string{"application/json"}, []string{"application/json"}
	drop := x.g.drop
	if withheld(t, true) {
		drop = x.g.dropPrivate
	}
	for name := range h {
		if drop(name) || name == "Accept-Encoding" || name == "Content-Encoding" || name == "Content-Length" {
			delete(h, name)
		}
	}
	return h
}

// goesOnFrom makes the request's body one for an engine that goes on from a prompt that was read.
func (x *exchange) goesOnFrom(params []byte) {
	body := openai.Decode(bytes.Join(x.ask.sent.pieces, nil), params)
	// Whoever keeps a copy of the request keeps the client's.
	_, _ = io.Copy(io.Discard, x.r.Body)
	x.ask.sent = inMemory(body)
	x.r.Body, x.r.ContentLength = x.ask.sent, x.ask.sent.size
}

// fields adds what the engine's sidecar has to know.
func (p *prefill) fields(f []upstream.Field) []upstream.Field {
	if p == nil || p.address == "" {
		return f
	}
	return append(f, upstream.Field{Name: PrefillerHeader, Value: p.address})
}

// end gives back what the prompt's reading took. It may be called more than once.
func (p *prefill) end() {
	if p != nil {
		p.hold.end(time.Now())
	}
}
