package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/alive"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/gateway/payloads"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// ServiceHeader names a service ("namespace/name") where neither host nor path can: an HTTP
// field, and gRPC metadata under the same name in lower case.
const ServiceHeader = "Stationmaster-Service"

// exchange is one HTTP request on its way.
type exchange struct {
	g     *Gateway
	w     http.ResponseWriter
	r     *http.Request
	view  *view
	id    string
	start time.Time
	// path and query are as they came; query keeps its question mark.
	path  string
	query string
	match route.Match
	// ask is what a request of the OpenAI API asks for, nil for any other.
	ask *asked
	// recorded is what a collector is told, nil where there is none.
	recorded *payloads.Exchange
	hold     hold
	// alive is nil but for a client that waits for a stream.
	alive *alive.Client
	// target is nil until a revision was chosen.
	target *target
	metric *targetMetrics
	began  bool
	// status is what was sent, or what stands for it in metrics.
	status int
	// request and fields are what goes to an engine over HTTP.
	request upstream.Request
	fields  [8]upstream.Field
	// started says that the response's head went out.
	started bool
	// ahead is what was read of a body of V2's generate, nil where nothing had to be.
	ahead []byte
	// way is how the request is translated for the engine, and toPath then gives the path there.
	way    way
	toPath func() string
	// otherwise is what a client is told where the engine has no such path; nil leaves that to the engine.
	otherwise error
}

// serveHTTP answers every request on the HTTP ports.
func (g *Gateway) serveHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		g.grpcOnHTTP.ServeHTTP(w, r)
		return
	}
	x := &exchange{g: g, w: w, r: r, start: time.Now(), metric: g.metrics.gateway}
	x.hold = hold{g: g, exchange: x, asker: x, start: x.start}
	defer x.finish()
	x.id = requestID(r.Header["X-Request-Id"])
	raw := r.RequestURI
	if raw == "" || raw[0] != '/' {
		raw = r.URL.RequestURI()
	}
	x.path = raw
	if i := strings.IndexByte(raw, '?'); i >= 0 {
		x.path, x.query = raw[:i], raw[i:]
	}
	x.serve()
}

// finish counts and logs the request, whatever became of it.
func (x *exchange) finish() {
	p := recover()
	if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // a recovered value is compared as net/http does
		x.g.log.LogAttrs(x.r.Context(), slog.LevelError, "request handler panicked",
			slog.String("request_id", x.id), slog.Any("err", p), slog.String("stack", string(debug.Stack())))
		if !x.started {
			x.fail(errdef.New(errdef.ErrInternal, "the gateway failed in its own work; its log tells more under this request's id"))
			p = nil
		} else {
			p = http.ErrAbortHandler
		}
	}
	x.ask.end(p != nil)
	x.alive.End(p != nil)
	x.told(p != nil)
	took := time.Since(x.start)
	x.g.metrics.counting(x.metric, x.match.Service).end(x.protocol(), x.status, took, x.began)
	x.witness(took)
	x.hold.end(x.start.Add(took))
	if x.g.log.Enabled(x.r.Context(), slog.LevelDebug) {
		x.log(took)
	}
	if p != nil {
		panic(p)
	}
}

func (x *exchange) protocol() protocol {
	switch x.match.Call.Protocol {
	case spec.V1:
		return protoV1
	case spec.V2:
		return protoV2
	}
	return protoHTTP
}

func (x *exchange) log(took time.Duration) {
	attrs := []slog.Attr{
		slog.String("request_id", x.id),
		slog.String("method", x.r.Method),
		slog.String("path", x.path),
		slog.Int("status", x.status),
		slog.Duration("took", took),
	}
	if x.match.Service != nil {
		attrs = append(attrs, slog.String("service", x.match.Service.Key.String()))
	}
	if x.target != nil {
		attrs = append(attrs, slog.String("revision", x.target.Revision))
	}
	x.g.log.LogAttrs(x.r.Context(), slog.LevelDebug, "request", attrs...)
}

// identify sets the headers that each response carries.
func (x *exchange) identify() {
	h := x.w.Header()
	h["X-Request-Id"] = []string{x.id}
	if x.target == nil {
		return
	}
	delete(h, "X-Stationmaster-Revision")
	delete(h, "X-Model-Digest")
	if x.target.revision != nil {
		h["X-Stationmaster-Revision"] = x.target.revision
	}
	if x.target.digest != nil {
		h["X-Model-Digest"] = x.target.digest
	}
}

// fail answers with an error, unless the client is gone or has part of a response; then the
// connection is cut, so that the client sees that the response isn't whole.
func (x *exchange) fail(err error) {
	// A client that ended its body early may still wait for the answer, though net/http takes
	// it for gone.
	var cut *brokenBodyError
	broken := errors.As(err, &cut)
	if !broken && (errors.Is(err, context.Canceled) || (x.r.Context().Err() != nil && !errors.Is(err, errdef.ErrTimeout))) {
		x.status = statusClientGone
		panic(http.ErrAbortHandler)
	}
	if x.started {
		panic(http.ErrAbortHandler)
	}
	clear(x.w.Header())
	x.identify()
	x.started = true
	if broken && x.r.ProtoMajor == 1 {
		// Where the body ends isn't known, so nothing behind it may be read as a request.
		x.w.Header()["Connection"] = []string{"close"}
	}
	x.status = writeError(x.w, x.speaksOpenAI(), err)
}

// speaksOpenAI reports whether the client expects errors in the OpenAI API's shape.
func (x *exchange) speaksOpenAI() bool {
	path := x.path
	if x.match.Path != "" {
		path = x.match.Path
	}
	return x.ask != nil || openAIPath(path, x.g.cfg.OpenAI.Root) || x.asksOfNone(path) || x.noV1(path)
}

// bodyError says what is wrong with a client's body.
func bodyError(err error) error {
	switch {
	case errors.Is(err, errdef.ErrTooLarge), errors.Is(err, errdef.ErrInvalid):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &slowClientError{err}
	}
	return &brokenBodyError{err}
}

// brokenBodyError is a body that ended early or whose framing is wrong.
type brokenBodyError struct{ err error }

func (e *brokenBodyError) Error() string {
	if errors.Is(e.err, io.ErrUnexpectedEOF) || errors.Is(e.err, io.EOF) {
		return "the request body ended before its announced length: send all of it"
	}
	return "the request body can't be read: " + e.err.Error()
}

func (e *brokenBodyError) Unwrap() []error { return []error{errdef.ErrInvalid, e.err} }

// slowClientError is a body that stopped coming.
type slowClientError struct{ err error }

func (e *slowClientError) Error() string { return "the rest of the request body didn't come in time" }

func (e *slowClientError) Unwrap() error { return errdef.ErrInvalid }

func (x *exchange) serve() {
	if x.r.Method == http.MethodConnect {
		x.fail(errdef.New(errdef.ErrUnsupported, "CONNECT isn't served here: send the request itself"))
		return
	}
	if len(x.path)+len(x.query)+size(x.r.Header) > maxHead {
		x.fail(errHead)
		return
	}
	if max := x.g.cfg.MaxBody; max > 0 && x.r.ContentLength > max {
		x.fail(tooLarge(max))
		return
	}
	if x.serveOpenAI() || x.serveBatched() {
		return
	}
	x.readGenerate()
	t, e, err := x.hold.pick(x.r.Context(), x.find)
	if err != nil {
		x.recordRefused()
		x.fail(err)
		return
	}
	if t == nil {
		if s := x.match.Service; s != nil && s.Graph != nil {
			x.serveGraph(s)
			return
		}
		x.serveBare()
		return
	}
	x.choose(t)
	x.began = true
	x.metric.begin()
	x.dress()
	x.record()
	m := x.mirror()
	x.forward(e)
	if m != nil {
		m.send()
	}
}

// find looks the request up in the latest table.
func (x *exchange) find() (*route.Match, *view, error) {
	x.view = x.g.view()
	var err error
	if key := x.r.Header[ServiceHeader]; len(key) == 1 {
		x.match, err = byKey(x.view.table, key[0], x.path)
	} else {
		x.match, err = x.view.table.Match(x.r.Host, x.path)
	}
	err = x.ask.find(x.view.table, &x.match, err)
	err = x.view.adapters.find(x.view.table, &x.match, x.ask, err)
	x.view.table.Steer(&x.match, x.r.Header.Get)
	x.view.adapters.adapt(&x.match, x.ask)
	return &x.match, x.view, err
}

// choose takes a revision for the request.
func (x *exchange) choose(t *route.Target) {
	x.target = x.view.targets[t]
	x.hold.chosen(x.target)
	if x.began {
		x.metric.inflight.Dec()
		x.target.metrics.begin()
	}
	x.metric = x.target.metrics
}

// forward passes the request on and the answer back. An answer may take minutes, so that what is called
// meanwhile is called from here: what it took to ask is off the stack by then.
func (x *exchange) forward(e *route.Endpoint) {
	if resp := x.reach(e); resp != nil {
		x.reply(resp)
	}
}

// reach passes the request on in the way that the engine understands. It returns the response that is to
// go back, nil where the client has its answer.
func (x *exchange) reach(e *route.Endpoint) *upstream.Response {
	call := x.match.Call
	t := x.target
	if x.way = x.wayTo(t.Target); x.way.reaches(t.Target, e) && x.translate(e) {
		return nil
	}
	v2 := call.Protocol == spec.V2 && call.Op != route.Other
	if v2 {
		if err := convert.CheckLengths(x.r.Header); err != nil {
			x.fail(err)
			return nil
		}
	}
	switch {
	case v2 && len(t.Protocols) > 0 && !t.speaks(spec.V2):
		switch {
		case call.Op.Server():
			x.serveBare()
		case t.speaks(spec.GRPCV2) && e.GRPC != "":
			x.convertToGRPC(e)
		default:
			x.fail(errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
				"revision %s of %s speaks %s only, not the Open Inference Protocol (v2): use its protocol's paths%s",
				t.Revision, t.service, joinProtocols(t.Protocols), hintV1(t, x.match.Service))))
		}
	case e.HTTP == "" && v2 && e.GRPC != "":
		x.convertToGRPC(e)
	case e.HTTP == "":
		x.fail(errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
			"the engine of %s answers only over gRPC: use a gRPC client, or the paths of the Open Inference Protocol below /v2/models/%s",
			t.service, x.match.Service.Key.Name)))
	default:
		return x.passHTTP(e)
	}
	return nil
}

func (t *target) speaks(p spec.Protocol) bool {
	for _, q := range t.Protocols {
		if q == p {
			return true
		}
	}
	return false
}

func hintV1(t *target, s *route.Service) string {
	if !t.speaks(spec.V1) {
		return ""
	}
	return ", as in POST /v1/models/" + s.Key.Name + ":predict"
}

func joinProtocols(ps []spec.Protocol) string {
	words := make([]string, len(ps))
	for i, p := range ps {
		words[i] = string(p)
	}
	return strings.Join(words, " and ")
}

// engineModel returns the name that the engine knows the call's model by, and whether the
// request has to be rewritten for it.
func engineModel(m *route.Match, t *route.Target) (string, bool) {
	name := m.Call.Model
	if name == "" || t.ModelName == "" || name == t.ModelName {
		return name, false
	}
	if name == m.Service.Key.Name {
		return t.ModelName, true
	}
	for _, n := range m.Service.BareNames {
		if n == name {
			return t.ModelName, true
		}
	}
	return name, false
}

func byKey(table *route.Table, key, path string) (route.Match, error) {
	namespace, name, ok := strings.Cut(key, "/")
	if !ok {
		return route.Match{}, errdef.New(errdef.ErrInvalid, ServiceHeader+" must read namespace/name")
	}
	m, ok := table.Named(spec.ServiceKey{Namespace: namespace, Name: name}, path)
	if !ok {
		return route.Match{}, errdef.New(errdef.ErrNotFound, fmt.Sprintf(
			"no service %.100q, which %s asks for", key, ServiceHeader))
	}
	return m, nil
}

func tooLarge(limit int64) error {
	return errdef.New(errdef.ErrTooLarge, fmt.Sprintf(
		"the request body is larger than this gateway's limit of %d bytes: send less at once, or have the limit raised", limit))
}

func notReady(m *route.Match) error {
	why := m.Backend.NotReady
	if why == "" {
		why = "no replica is ready"
	}
	err := errdef.New(errdef.ErrUnavailable, of(fmt.Sprintf("the %s of %s can't answer now", m.Component, m.Service.Key), m.Service.Key, why))
	if m.Backend.Stopped {
		return notByItself(err)
	}
	return later(err, whenBack(m.Backend, time.Now()))
}

// of says what a reason is about, unless the reason does: one that names its service stands
// by itself.
func of(subject string, key spec.ServiceKey, reason string) string {
	if strings.Contains(reason, key.String()) {
		return reason
	}
	return subject + ": " + reason
}

// limitedBody cuts a body of unknown length at the gateway's limit, and bounds each wait for
// more of it.
type limitedBody struct {
	r     io.Reader
	left  int64 // negative means no limit
	limit int64
	rc    *http.ResponseController
	wait  time.Duration
	until time.Time
	// aborted ends the wait for more, now and later.
	aborted atomic.Bool
}

// abort makes a Read under way and all later ones fail. It may be called from any goroutine.
func (b *limitedBody) abort() {
	b.aborted.Store(true)
	_ = b.rc.SetReadDeadline(time.Unix(1, 0))
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if now := time.Now(); b.until.Sub(now) < b.wait/2 {
		b.until = now.Add(b.wait)
		_ = b.rc.SetReadDeadline(b.until)
		if b.aborted.Load() { // between the two; the deadline that it set is gone
			b.abort()
		}
	}
	n, err := b.r.Read(p)
	if b.left >= 0 {
		if b.left -= int64(n); b.left < 0 {
			return 0, tooLarge(b.limit)
		}
	}
	if err != nil && !b.aborted.Load() {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}
