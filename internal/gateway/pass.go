package gateway

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
)

// passHTTP sends the request to an engine over HTTP and returns the response that is to go back, nil
// where the client has its answer. Neither is changed but for the path and the headers that concern
// connections.
func (x *exchange) passHTTP(e *route.Endpoint) *upstream.Response {
	reading := x.prefill()
	defer reading.end()
	r := x.r
	req := &x.request
	*req = upstream.Request{
		Method:        r.Method,
		Target:        x.targetPath(),
		Host:          r.Host,
		Header:        r.Header,
		Drop:          x.drops(x.target.Target),
		ContentLength: r.ContentLength,
		HeaderTimeout: x.timeout(),
		IdleTimeout:   x.g.cfg.Timeouts.Idle,
	}
	req.Set = x.readable(reading.fields(x.forwardedFields(x.fields[:0])))
	if r.ProtoAtLeast(1, 1) && len(r.Header["Expect"]) == 0 {
		req.Informer = x
	}
	if r.ProtoMajor == 1 && len(r.Header["Upgrade"]) > 0 {
		req.Upgrade = upgrade(r.Header)
	}
	if err := x.attachBody(req); err != nil {
		req.Release()
		x.fail(err)
		return nil
	}
	resp, err := x.roundTrip(req, e)
	reading.end()
	if err != nil {
		req.Release()
		x.fail(err)
		return nil
	}
	if resp.Status == http.StatusSwitchingProtocols {
		defer req.Release()
		x.switchProtocol(resp)
		return nil
	}
	if x.toldOtherwise(resp) {
		return nil
	}
	return resp
}

// targetPath is the path and query for the engine that was chosen.
func (x *exchange) targetPath() string {
	if x.toPath != nil {
		return x.toPath()
	}
	path := x.match.Path
	if name, rewrite := engineModel(&x.match, x.target.Target); rewrite {
		path = x.match.Call.Renamed(path, name)
	}
	path = x.ask.path(path, x.target)
	if x.query == "" {
		return path
	}
	return path + x.query
}

func (x *exchange) timeout() time.Duration {
	d := x.match.Service.Timeout
	if d <= 0 {
		d = x.g.cfg.Timeouts.Response
	}
	if b := x.match.Backend.Batch; b != nil && (x.match.Call.Op == route.Predict || x.match.Call.Op == route.Infer) {
		return batchLeft(b, x.start, d)
	}
	return d
}

// attachBody sets the request's body. A small one of known length is read here, before an
// engine's connection is taken, so that a slow client holds none.
func (x *exchange) attachBody(req *upstream.Request) error {
	if req.ContentLength == 0 {
		return nil
	}
	if req.ContentLength > 0 && req.ContentLength <= upstream.WholeBody {
		return x.readWhole(req)
	}
	if m, ok := x.r.Body.(*memory); ok {
		req.Pieces = m.pieces
		return nil
	}
	rc := http.NewResponseController(x.w)
	if x.r.ProtoMajor == 1 {
		// The response may begin before the body has ended.
		_ = rc.EnableFullDuplex()
	}
	limit := x.g.cfg.MaxBody
	if limit <= 0 {
		limit = -1
	}
	body := &limitedBody{r: x.r.Body, left: limit, limit: limit, rc: rc, wait: x.g.cfg.Timeouts.Body}
	req.Body, req.AbortBody = body, body.abort
	if a := x.ask; a != nil && a.sent != nil {
		req.Rewind = a.sent.again
	}
	req.Trailer = x.r.Trailer
	return nil
}

func (x *exchange) readWhole(req *upstream.Request) error {
	req.Body = x.r.Body
	if _, ok := req.Body.(*memory); ok {
		return req.Prepare()
	}
	rc := http.NewResponseController(x.w)
	_ = rc.SetReadDeadline(time.Now().Add(x.g.cfg.Timeouts.Body))
	err := req.Prepare()
	_ = rc.SetReadDeadline(time.Time{})
	return x.clientError(err)
}

// readAhead takes a small body into memory before a wait: net/http notices that a client over
// HTTP/1.1 went away only once it has read all of a request. A body that can't be read so is
// found out later, by whoever reads it. A client that waits for leave to send gets none yet.
func (x *exchange) readAhead() {
	if !x.readsAhead() {
		return
	}
	n := x.r.ContentLength
	rc := http.NewResponseController(x.w)
	_ = rc.SetReadDeadline(time.Now().Add(x.g.cfg.Timeouts.Body))
	b := make([]byte, n)
	read, err := io.ReadFull(x.r.Body, b)
	_ = rc.SetReadDeadline(time.Time{})
	x.r.Body = &readBody{bytes.NewReader(b[:read]), err}
}

// readBody is a body that was read, and how that ended.
type readBody struct {
	*bytes.Reader
	err error
}

func (b *readBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) && b.err != nil {
		err = b.err
	}
	return n, err
}

func (b *readBody) Close() error { return nil }

// clientError tells apart what the client's body did wrong.
func (x *exchange) clientError(err error) error {
	if err == nil {
		return nil
	}
	var body *upstream.BodyError
	if errors.As(err, &body) {
		return bodyError(body.Err)
	}
	return err
}

// roundTrip sends the request, and again where a replica can't be reached: to another one, or
// to what takes its place. Response header fields are added to the client's response.
func (x *exchange) roundTrip(req *upstream.Request, e *route.Endpoint) (*upstream.Response, error) {
	ctx := x.r.Context()
	if err := req.Prepare(); err != nil {
		return nil, x.clientError(err)
	}
	into := x.w.Header()
	for first := true; ; first = false {
		resp, err := x.view.endpoints[e].http.RoundTrip(ctx, req, into)
		x.hold.picked.answered(ctx, resp, err)
		if err == nil {
			return resp, nil
		}
		if first {
			x.upstreamFailed(err)
		}
		if ctx.Err() != nil || !req.Repeatable() {
			return nil, x.clientError(err)
		}
		t, other := x.hold.instead(ctx, attempt{err, e, first, x.infers()}, &x.match, x.view, x.find)
		if other == nil || other.HTTP == "" {
			return nil, x.clientError(err)
		}
		if !x.ask.suits(&x.match, t) || x.wayTo(t) != x.way || x.withholds(t) != x.withholds(x.target.Target) {
			return nil, x.clientError(err)
		}
		clear(into)
		x.choose(t)
		if path := x.targetPath(); path != req.Target && !req.Retarget(path, req.Set) {
			return nil, err
		}
		e = other
	}
}

func (x *exchange) upstreamFailed(err error) {
	var up *upstream.Error
	if errors.As(err, &up) {
		x.metric.upstreamError(string(up.Stage))
	}
}

// infers reports whether the request is for inference alone, so that it may be made again where
// nobody got anything of an answer.
func (x *exchange) infers() bool {
	if x.ask != nil {
		return x.ask.call.Op.Asks()
	}
	switch x.match.Call.Op {
	case route.Infer, route.Predict, route.Explain, route.Generate, route.GenerateStream:
		return true
	}
	return false
}

// unreached reports that nothing of the request left the gateway.
func unreached(err error) bool {
	var up *upstream.Error
	return errors.As(err, &up) && (up.Stage == upstream.StageDial || up.Stage == upstream.StageLimit)
}

// undialed reports that there was no connection to be had, which a wait may change.
func undialed(err error) bool {
	var up *upstream.Error
	return errors.As(err, &up) && up.Stage == upstream.StageDial
}

// Informational passes on a response that comes before the final one, such as 103 Early Hints.
// It isn't called where the client waits for leave to send its body: net/http gives that
// itself, when the body is first read, and takes no care that nothing else is written.
func (x *exchange) Informational(status int, fields http.Header) {
	h := x.w.Header()
	maps.Copy(h, fields)
	x.w.WriteHeader(status)
	clear(h)
}

// reply copies an engine's response to the client.
func (x *exchange) reply(resp *upstream.Response) {
	h := x.w.Header()
	x.identify()
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // keeps net/http from guessing one
	}
	if len(resp.Announced) > 0 {
		h["Trailer"] = append(h["Trailer"], resp.Announced...)
	}
	if busy(resp.Status) && x.speaksOpenAI() {
		backOff(h)
	}
	body, done := x.plainAnswer(resp)
	defer done()
	x.status = resp.Status
	var piece []byte
	var err error
	if resp.ContentLength >= 0 || body.Ready() {
		// An engine that dies here can still be answered for.
		if piece, err = body.Next(); err != nil && !errors.Is(err, io.EOF) {
			x.closeResponse(resp)
			x.upstreamFailed(err)
			x.fail(err)
			return
		}
	}
	x.started = true
	held := !x.letGo(resp)
	x.w.WriteHeader(resp.Status)
	flusher, _ := x.w.(http.Flusher)
	if piece == nil && err == nil && flusher != nil {
		flusher.Flush()
	}
	for err == nil {
		if len(piece) > 0 {
			if _, werr := x.w.Write(piece); werr != nil {
				resp.Lend()
				x.closeResponse(resp)
				x.status = statusClientGone
				panic(http.ErrAbortHandler)
			}
			if flusher != nil && !body.Ready() && !body.Ended() && (resp.ContentLength < 0 || len(piece) < trickle) {
				flusher.Flush()
			}
		}
		held = held && !x.letGo(resp)
		piece, err = body.Next()
	}
	if !errors.Is(err, io.EOF) {
		x.closeResponse(resp)
		if x.r.Context().Err() != nil {
			x.status = statusClientGone
		} else {
			x.upstreamFailed(err)
			x.status = http.StatusBadGateway
			if x.ask.broke(err) {
				return
			}
		}
		panic(http.ErrAbortHandler)
	}
	if len(resp.Trailer) > 0 {
		x.trailers(resp, flusher)
	}
	x.closeResponse(resp)
	if held {
		x.forget() // by now the engine has all of it, or the connection was cut
	}
}

// letGo forgets the request once the engine has all of it, for an answer may take minutes. It reports
// false while the engine hasn't.
func (x *exchange) letGo(resp *upstream.Response) bool {
	if !resp.Sent() {
		return false
	}
	x.forget()
	return true
}

// forget gives up what was kept of a request to send it again or to choose by.
func (x *exchange) forget() {
	x.request.Release()
	x.hold.picked.forget()
	if x.ask != nil && x.ask.relay != nil {
		spareBody(x.ask.read)
		x.ask.read, x.ask.sent, x.ask.rest, x.r.Body = nil, nil, nil, http.NoBody
	}
	if x.ahead != nil {
		x.ahead, x.r.Body = nil, http.NoBody
	}
}

// trickle is the size of a piece below which a counted response counts as a slow one, whose
// pieces are passed on at once.
const trickle = 4 << 10

func (x *exchange) trailers(resp *upstream.Response, flusher http.Flusher) {
	h := x.w.Header()
	if flusher != nil {
		flusher.Flush() // a response with trailers must be chunked
	}
	for name, values := range resp.Trailer {
		announced := false
		for _, a := range resp.Announced {
			announced = announced || a == name
		}
		if !announced {
			name = http.TrailerPrefix + name
		}
		h[name] = values
	}
}

// closeResponse ends the exchange with the engine. A body that broke off while the response
// went out can't be answered for any more: the engine has judged it already.
func (x *exchange) closeResponse(resp *upstream.Response) { _ = resp.Close() }

func (x *exchange) switchProtocol(resp *upstream.Response) {
	x.identify()
	x.status = resp.Status
	x.started = true
	err := x.g.tunnels.Join(x.w, resp.Upgrade)
	x.closeResponse(resp)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// upgrade returns the protocol that a client wants to change to, or nothing. HTTP/2 isn't
// passed on: clients offer it to whoever answers first, which is the gateway, and an engine
// that took the offer would be reached past it from then on.
func upgrade(h http.Header) string {
	asked := false
	for _, v := range h["Connection"] {
		for token := range strings.SplitSeq(v, ",") {
			asked = asked || strings.EqualFold(textproto.TrimString(token), "upgrade")
		}
	}
	if !asked || len(h["Upgrade"]) != 1 || strings.Contains(h["Upgrade"][0], ",") {
		return ""
	}
	protocol := textproto.TrimString(h["Upgrade"][0])
	if strings.HasPrefix(strings.ToLower(protocol), "h2") || strings.HasPrefix(strings.ToUpper(protocol), "TLS/") {
		return ""
	}
	return protocol
}

// dropped reports the client's fields that engines must not believe.
func (g *Gateway) dropped(name string) bool {
	switch name {
	case ServiceHeader, PrefillerHeader, graphDepth, "X-Stationmaster-Revision", "X-Model-Digest":
		return true
	case "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port",
		"X-Forwarded-Server", "X-Forwarded-Prefix", "X-Real-Ip":
		return !g.cfg.TrustForwarded
	}
	return false
}

// drops is which of the client's fields an engine doesn't get: the chosen one, or one that gets a copy.
func (x *exchange) drops(t *route.Target) func(name string) bool {
	if x.withholds(t) {
		return x.g.dropPrivate
	}
	return x.g.drop
}

// withholds reports whether the client's credentials are kept from an engine. Of one that speaks the
// OpenAI API all paths of it are meant, also those that don't name a model.
func (x *exchange) withholds(t *route.Target) bool {
	api := x.ask != nil || t.OpenAI != "" && strings.Contains(x.match.Path, "/v1/") && !strings.Contains(x.match.Path, "/v1/models/")
	return withheld(t, api)
}

// withheld reports whether clients' credentials are kept from an engine; api says that the client
// speaks the OpenAI API.
func withheld(t *route.Target, api bool) bool {
	return t.Credentials == route.CredentialsWithheld || api && t.Credentials == route.CredentialsByProtocol
}

// private reports the fields by which clients prove themselves.
func private(name string) bool {
	switch name {
	case "Authorization", "Cookie", "X-Api-Key", "Api-Key":
		return true
	}
	return false
}

// forwardedFields says to the engine who asks, by which name, and for which service.
func (x *exchange) forwardedFields(f []upstream.Field) []upstream.Field {
	r := x.r
	peer := r.RemoteAddr
	if i := strings.LastIndexByte(peer, ':'); i > 0 {
		peer = strings.TrimSuffix(strings.TrimPrefix(peer[:i], "["), "]")
	}
	host, proto := r.Host, "http"
	if r.TLS != nil {
		proto = "https"
	}
	if x.g.cfg.TrustForwarded {
		if prior := r.Header["X-Forwarded-For"]; len(prior) > 0 {
			peer = strings.Join(prior, ", ") + ", " + peer
		}
		if v := r.Header.Get("X-Forwarded-Host"); v != "" {
			host = v
		}
		if v := r.Header.Get("X-Forwarded-Proto"); v != "" {
			proto = v
		}
	}
	return append(f,
		upstream.Field{Name: "X-Request-Id", Value: x.id},
		upstream.Field{Name: "X-Forwarded-For", Value: peer},
		upstream.Field{Name: "X-Forwarded-Host", Value: host},
		upstream.Field{Name: "X-Forwarded-Proto", Value: proto},
		// As KServe's HTTPRoutes set them.
		upstream.Field{Name: "Kserve-Isvc-Name", Value: x.match.Service.Key.Name},
		upstream.Field{Name: "Kserve-Isvc-Namespace", Value: x.match.Service.Key.Namespace},
	)
}
