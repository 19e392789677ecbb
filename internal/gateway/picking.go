package gateway

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/wire/oip"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// groupOf returns what is known of a target's replicas, with what an earlier view learned of them.
// The caller holds building.
func (g *Gateway) groupOf(key targetKey, t *route.Target, kept map[targetKey]*pick.Group) (*pick.Group, []*pick.Replica) {
	group := kept[key]
	if group == nil {
		// What can't be read was refused when it was applied; a gateway goes on.
		policy, err := pick.Parse(t.Picking, t.OpenAI != "")
		if err != nil {
			policy, _ = pick.Parse("", t.OpenAI != "")
		}
		if group = g.groups[key]; group == nil {
			group = pick.NewGroup(policy)
		} else if *group.Policy() != policy {
			group.SetPolicy(policy)
		}
		kept[key] = group
	}
	return group, group.Keep(len(t.Endpoints), func(i int) pick.Name {
		e := &t.Endpoints[i]
		return pick.Name{ID: e.Replica, Address: cmp.Or(e.HTTP, e.GRPC)}
	})
}

// learn takes what engines tell of themselves until ctx ends.
func (g *Gateway) learn(ctx context.Context) error {
	for {
		samples, changed := g.cfg.Samples.Watch()
		if samples != nil {
			for _, t := range g.view().targets {
				t.told(*samples)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (t *target) told(samples pick.Samples) {
	if !t.group.Policy().Samples() {
		return
	}
	for i := range t.Endpoints {
		if s, ok := samples[t.Endpoints[i].HTTP]; ok {
			t.group.Told(t.replicas[i], s)
		}
	}
}

// picked is a request's stay at a replica, as far as picking is concerned.
type picked struct {
	view *view
	// charge is what the request counts for; the zero one while it is at no replica.
	charge pick.Charge
	// outcome and tokens are how it went, and how many tokens the answer had.
	outcome pick.Outcome
	tokens  int64
	// prompt is what was read of the request to pick by, nil while nothing was.
	prompt *prompt
	// call is that of a request over gRPC, nil for any other.
	call *call
}

// prompt is what a request is picked by. Prompts are used again.
type prompt struct {
	ask    pick.Ask
	blocks pick.Blocks
	// read and hashed say what of it is known already.
	read, hashed bool
}

var prompts = sync.Pool{New: func() any { return new(prompt) }}

// release takes the request off its replica.
func (p *picked) release(now time.Time) {
	p.charge.Release(p.outcome, p.tokens, rand.Uint64(), now)
	p.outcome, p.tokens = pick.Unknown, 0
}

func (p *picked) end(now time.Time) {
	p.release(now)
	p.forget()
}

// forget gives up what was read of the request to pick by.
func (p *picked) forget() {
	if p.prompt != nil {
		p.prompt.ask, p.prompt.read, p.prompt.hashed = pick.Ask{}, false, false
		prompts.Put(p.prompt)
		p.prompt = nil
	}
}

// choose picks a revision and one of its endpoints, but not the one that not is, and counts the
// request there.
func (h *hold) choose(m *route.Match, v *view, not *route.Endpoint) (*route.Target, *route.Endpoint) {
	h.picked.release(time.Now())
	h.picked.view = v
	t, e, placed := m.PickBy(h.g.turns.next(), not, h)
	if placed && t != nil {
		h.take(v, t, e)
	}
	return t, e
}

// Choose implements route.Chooser.
func (h *hold) Choose(t *route.Target, rnd uint32, not *route.Endpoint) *route.Endpoint {
	vt := h.picked.view.targets[t]
	i, charge := vt.group.Pick(vt.replicas, h.ask(vt.group), indexOf(t, not), uint64(rnd)<<32|uint64(rand.Uint32()), time.Now())
	if i < 0 {
		return nil
	}
	h.picked.charge = charge
	return &t.Endpoints[i]
}

// indexOf is where an endpoint is among a target's, or -1.
func indexOf(t *route.Target, e *route.Endpoint) int {
	for i := range t.Endpoints {
		if &t.Endpoints[i] == e {
			return i
		}
	}
	return -1
}

// take counts the request at an endpoint that was chosen otherwise.
func (h *hold) take(v *view, t *route.Target, e *route.Endpoint) {
	vt := v.targets[t]
	if i := indexOf(t, e); i >= 0 {
		h.picked.charge = vt.group.Take(vt.replicas[i], h.ask(vt.group), time.Now())
	}
}

// goesTo notes that the request goes to the endpoint at, for which e was chosen first.
func (h *hold) goesTo(v *view, t *route.Target, e, at *route.Endpoint) *route.Endpoint {
	if at != e {
		h.picked.release(time.Now())
		h.take(v, t, at)
	}
	return at
}

// elsewhere finds another endpoint at once, or none.
func (h *hold) elsewhere(not *route.Endpoint, m *route.Match, v *view) (*route.Target, *route.Endpoint) {
	h.vacate()
	t, e := h.choose(m, v, not)
	if t == nil {
		return nil, nil
	}
	at := h.occupy(v, t, e, not)
	if at == nil {
		h.picked.release(time.Now())
		return nil, nil
	}
	return t, h.goesTo(v, t, e, at)
}

// attempt is a request's at an endpoint, which failed.
type attempt struct {
	err error
	at  *route.Endpoint
	// first says that none was before, and infers that the request may be made twice.
	first, infers bool
}

// instead finds an endpoint for a request after an attempt: where the endpoint couldn't be reached
// as another does, and once elsewhere where it died over a request that may be made twice. It
// returns nil where the error is the answer.
func (h *hold) instead(ctx context.Context, a attempt, m *route.Match, v *view, find finder) (*route.Target, *route.Endpoint) {
	switch {
	case unreached(a.err) && (a.first || undialed(a.err)):
		return h.another(ctx, a.at, a.first, m, v, find)
	case a.first && a.infers && upstream.Died(a.err):
		return h.elsewhere(a.at, m, v)
	}
	return nil, nil
}

var emptyAsk pick.Ask

// ask returns what a group's policy has to know of the request.
func (h *hold) ask(group *pick.Group) *pick.Ask {
	policy := group.Policy()
	var session uint64
	switch {
	case !policy.Sessions():
	case h.exchange != nil:
		session = policy.SessionOf(h.exchange.r.Header.Get)
	case h.picked.call != nil:
		session = policy.SessionOf(h.picked.call.header)
	}
	reads := policy.ReadsBodies() && h.exchange != nil
	if !reads && session == 0 {
		return &emptyAsk
	}
	if h.picked.prompt == nil {
		h.picked.prompt = prompts.Get().(*prompt)
	}
	p := h.picked.prompt
	p.ask.Session = session
	if reads {
		p.of(h.exchange, policy.Hashes())
	}
	return &p.ask
}

// of reads a request's prompt.
func (p *prompt) of(x *exchange, hash bool) {
	if p.read && (p.hashed || !hash) {
		return
	}
	p.read, p.hashed = true, hash
	switch a := x.ask; {
	case a != nil && a.relay != nil && a.form == nil:
		p.ofOpenAI(x, a, hash)
	case x.ahead != nil:
		at := oip.ReadPrompt(x.ahead)
		p.ask.Size, p.ask.Output = at.To-at.From, at.MaxTokens
		if hash {
			p.blocks.Begin("")
			_, _ = p.blocks.Write(x.ahead[at.From:at.To])
			p.ask.Blocks = p.blocks.Hashes()
		}
	}
}

func (p *prompt) ofOpenAI(x *exchange, a *asked, hash bool) {
	adapter := ""
	if a.model != "" && !a.names(x.match.Service, openai.ParseName(a.model)) && !serves(x.match.Backend, a.model) {
		adapter = cmp.Or(a.adapter, a.model)
		p.ask.Adapter = pick.Hash(adapter)
	}
	p.ask.Size = 0
	a.request.Prompt(a.read, func(part []byte) { p.ask.Size += len(part) })
	if !a.whole && a.length > int64(len(a.read)) { // what isn't read is prompt, for the most part
		p.ask.Size += int(a.length) - len(a.read)
	}
	switch a.call.Op {
	case openai.Chat, openai.Completions, openai.Responses:
		p.ask.Output = a.request.MaxTokens
	default:
		p.ask.Output = 1 // nothing is generated
		return
	}
	if !hash {
		return
	}
	if salt := a.request.Salt(a.read); len(salt) > 0 {
		adapter += "\x00" + string(salt)
	}
	p.blocks.Begin(adapter)
	a.request.Prompt(a.read, func(part []byte) { _, _ = p.blocks.Write(part) })
	p.ask.Blocks = p.blocks.Hashes()
}

// readGenerate reads ahead the body of a generate request of V2 whose replica is picked by its
// prompt. What is wrong with the body is found out later.
func (x *exchange) readGenerate() {
	if x.r.Method != http.MethodPost || !strings.Contains(x.path, "/generate") || x.r.Header.Get("Content-Encoding") != "" || len(x.r.Header["Expect"]) > 0 {
		return
	}
	m, v, err := x.find()
	if err != nil || m.Backend == nil || m.Call.Op != route.Generate && m.Call.Op != route.GenerateStream || !v.readsPrompts(m.Backend) {
		return
	}
	size := int64(maxForUsage)
	if n := x.r.ContentLength; n >= 0 {
		size = min(size, n)
	} else {
		size = upstream.WholeBody
	}
	rc := http.NewResponseController(x.w)
	_ = rc.SetReadDeadline(time.Now().Add(x.g.cfg.Timeouts.Body))
	b := make([]byte, size)
	n, err := io.ReadFull(x.r.Body, b)
	_ = rc.SetReadDeadline(time.Time{})
	x.ahead = b[:n]
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && x.r.ContentLength < 0 {
		err = nil
	}
	a := &asked{rest: x.r.Body}
	if err != nil {
		a.rest = &readBody{bytes.NewReader(nil), err}
	}
	// A copy: net/http reads its own.
	x.r = x.r.WithContext(x.r.Context())
	x.r.Body = a.body(x.ahead)
}

// readsPrompts reports whether the replicas of some target of a backend are picked by prompts.
func (v *view) readsPrompts(b *route.Backend) bool {
	for i := range b.Targets {
		if t := v.targets[&b.Targets[i]]; t != nil {
			if t.group.Policy().ReadsBodies() {
				return true
			}
		}
	}
	return false
}

// answered notes what the engine's answer, or that there was none, says of its replica.
func (p *picked) answered(ctx context.Context, resp *upstream.Response, err error) {
	var up *upstream.Error
	switch {
	case ctx.Err() != nil:
		p.outcome = pick.Unknown
	case err == nil:
		p.outcome = pick.Answered
		switch resp.Status {
		case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			p.outcome = pick.Failed
		}
	case !errors.As(err, &up) || up.Stage == upstream.StageLimit:
		p.outcome = pick.Unknown
	case errors.Is(err, errdef.ErrTimeout):
		p.outcome = pick.Failed
	default:
		p.outcome = pick.Unreached
	}
}

// header is the first value of a key in a call's metadata; "" for none.
func (c *call) header(name string) string {
	if v := c.md.Get(name); len(v) > 0 {
		return v[0]
	}
	return ""
}

// ended notes what the end of a call at an engine says of its replica. ctx is the client's; unsent
// says that the call didn't get there.
func (p *picked) ended(ctx context.Context, code codes.Code, unsent bool) {
	switch {
	case ctx.Err() != nil:
		p.outcome = pick.Unknown
	case unsent && code == codes.Unavailable:
		p.outcome = pick.Unreached
	case unsent || code == codes.Canceled:
		p.outcome = pick.Unknown
	case code == codes.Unavailable, code == codes.Internal, code == codes.Unknown, code == codes.DeadlineExceeded:
		p.outcome = pick.Failed
	default:
		p.outcome = pick.Answered
	}
}
