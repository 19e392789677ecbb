package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"

	"stationmaster.dev/stationmaster/internal/gateway/compare"
	"stationmaster.dev/stationmaster/internal/gateway/meter"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
)

// Bounds of mirrored requests. What is beyond isn't mirrored, and counted.
const (
	// maxCopies are under way at once.
	maxCopies = 64
	// maxCopy is the most of a body that is kept, each way.
	maxCopy = 1 << 20
)

// MirrorHeader tells an engine that nobody reads its answer.
const MirrorHeader = "X-Stationmaster-Mirror"

// Results of a mirrored request as the metric has them, beside those of a comparison.
const (
	mirrorFailed   compare.Result = "failed"  // the mirror gave no answer
	mirrorDropped  compare.Result = "dropped" // too many copies under way, or the request wasn't read to its end
	mirrorTooLarge compare.Result = "too-large"
)

// mirrored is a request of which a copy goes to another revision, after it was answered.
type mirrored struct {
	x        *exchange
	view     *view
	target   *target
	endpoint *route.Endpoint
	request  *copiedBody
	answer   *copiedAnswer
}

// mirror begins to keep what a copy of the request needs, if there is to be one; else it returns
// nil. The request itself goes its way as if there were none.
func (x *exchange) mirror() *mirrored {
	b := x.match.Backend
	if b.Mirror.Percent <= 0 || x.r.Method != http.MethodPost || len(x.r.Header["Upgrade"]) > 0 || rand.IntN(100) >= b.Mirror.Percent {
		return nil
	}
	to := x.view.table.MirrorOf(&x.match)
	if to == nil {
		return nil
	}
	t, e := to.Pick(rand.Uint64(), x.view.load)
	if t == nil || e.HTTP == "" || t.Revision == x.target.Revision {
		return nil
	}
	if w := x.wayTo(t); w != direct && w != v2OverEither || !x.ask.suits(&x.match, t) {
		return nil // that its engine refuses what it doesn't understand says nothing of it
	}
	m := &mirrored{x: x, view: x.view, target: x.view.targets[t], endpoint: e}
	if x.r.ContentLength > maxCopy {
		m.count(mirrorTooLarge)
		return nil
	}
	m.request = &copiedBody{ReadCloser: x.r.Body, copied: copied{left: maxCopy}}
	m.answer = &copiedAnswer{ResponseWriter: x.w, copied: copied{left: maxCopy}}
	x.r.Body, x.w = m.request, m.answer
	return m
}

func (m *mirrored) count(result compare.Result) {
	k := m.target.metrics.key
	m.x.g.metrics.mirrored.WithLabelValues(k.Service.Namespace, k.Service.Name, k.Revision, string(result)).Inc()
}

// send starts the copy, unless too many are under way. The request was answered by then.
func (m *mirrored) send() {
	g := m.x.g
	switch {
	case m.request.over:
		m.count(mirrorTooLarge)
		return
	case !m.request.ended && int64(len(m.request.b)) != m.x.r.ContentLength:
		m.count(mirrorDropped)
		return
	}
	select {
	case g.copies <- struct{}{}:
	default:
		m.count(mirrorDropped)
		return
	}
	path := m.x.match.Path
	if name, rewrite := engineModel(&m.x.match, m.target.Target); rewrite {
		path = m.x.match.Call.Renamed(path, name)
	}
	path = m.x.ask.path(path, m.target)
	r := m.x.r
	req := &upstream.Request{
		Method: r.Method, Target: path + m.x.query, Host: r.Host, Header: r.Header.Clone(), Drop: m.x.drops(m.target.Target),
		Set:           append(m.x.forwardedFields(nil), upstream.Field{Name: MirrorHeader, Value: "1"}),
		HeaderTimeout: m.x.timeout(), IdleTimeout: g.cfg.Timeouts.Idle,
	}
	// Only a body that the copy fits is sent, in one piece.
	if n := len(m.request.b); n > 0 {
		req.Body, req.ContentLength = bytes.NewReader(m.request.b), int64(n)
	}
	want := compare.Answer{Status: m.x.status, Header: m.answer.ResponseWriter.Header().Clone(), Body: m.answer.b, Over: m.answer.over}
	g.relays.Go(func() {
		defer func() { <-g.copies }()
		ctx, cancel := context.WithTimeout(g.copying, req.HeaderTimeout)
		defer cancel()
		got, err := askCopy(ctx, m.view, m.endpoint, req)
		judge(m.target.answers, m.count, want, got, err, g.copying.Err() != nil)
	})
}

// judge counts how the answer to a copy compares with the one that the client got. err says that
// the copy got none, and ended that the gateway's own end is why. a may be nil.
func judge(a *meter.Answers, count func(compare.Result), want, got compare.Answer, err error, ended bool) {
	if err != nil {
		count(mirrorFailed)
		if a != nil && want.Status/100 == 2 && !ended {
			a.Heard(true)
		}
		return
	}
	count(compare.Of(want, got))
	if a == nil {
		return
	}
	if compared, differs := compare.Drift(want, got); compared {
		a.Heard(differs)
	}
}

// askCopy sends a copy over HTTP and reads the answer.
func askCopy(ctx context.Context, v *view, e *route.Endpoint, req *upstream.Request) (compare.Answer, error) {
	defer req.Release()
	header := http.Header{}
	resp, err := v.endpoints[e].http.RoundTrip(ctx, req, header)
	if err != nil {
		return compare.Answer{}, err
	}
	defer func() { _ = resp.Close() }()
	got := compare.Answer{Status: resp.Status, Header: header}
	into := copied{left: maxCopy}
	for {
		piece, err := resp.Next()
		into.add(piece)
		if errors.Is(err, io.EOF) || into.over {
			got.Body, got.Over = into.b, into.over
			return got, nil
		}
		if err != nil {
			return compare.Answer{}, err
		}
	}
}

// copied keeps bytes up to a bound.
type copied struct {
	b    []byte
	left int
	over bool
}

func (c *copied) add(p []byte) {
	if c.over || len(p) > c.left {
		c.over, c.b = true, nil
		return
	}
	c.left -= len(p)
	c.b = append(c.b, p...)
}

// copiedBody keeps what was read of a request's body.
type copiedBody struct {
	io.ReadCloser
	copied
	ended bool
}

func (b *copiedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.add(p[:n])
	b.ended = b.ended || errors.Is(err, io.EOF)
	return n, err
}

// copiedAnswer keeps what was written of an answer's body.
type copiedAnswer struct {
	http.ResponseWriter
	copied
}

func (a *copiedAnswer) Write(p []byte) (int, error) {
	n, err := a.ResponseWriter.Write(p)
	a.add(p[:n])
	return n, err
}

func (a *copiedAnswer) Flush() {
	if f, ok := a.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap lets http.ResponseController find what the writer below can do.
func (a *copiedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
