package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/batch"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// inBatch is a request over HTTP in a batch. One of v1 and v2 is set.
type inBatch struct {
	member
	g     *Gateway
	v1    *batch.V1
	v2    *batch.V2
	batch *spec.Batching
	owner metricsOwner
	// common is what the requests of the batch have in common.
	common commonRequest
	answer chan batchAnswer // has room for the one that comes
}

// commonRequest is a request without its body and what may differ within a batch.
type commonRequest struct {
	path, query, uri, host, remote string
	url                            *url.URL
	header                         http.Header
	tls                            *tls.ConnectionState
}

// batchAnswer is a member's part of what came back.
type batchAnswer struct {
	// alone says that the request has to go by itself.
	alone  bool
	id     string
	target *target
	status int
	header http.Header
	body   []byte
}

// serveBatched puts a request into a batch if its component has a batcher and the request is of a
// kind that can be put together. It reports true where that answered the request.
func (x *exchange) serveBatched() bool {
	if x.r.Method != http.MethodPost || !x.g.view().batches {
		return false
	}
	m, _, err := x.find()
	if !x.g.batchable(m, err) {
		return false
	}
	v1 := m.Call.Protocol == spec.V1 && m.Call.Op == route.Predict
	v2 := m.Call.Protocol == spec.V2 && m.Call.Op == route.Infer
	if !v1 && !v2 || x.r.ContentLength <= 0 || x.r.ContentLength > maxBatched || len(x.r.Trailer) > 0 ||
		len(x.r.Header["Content-Encoding"]) > 0 || len(x.r.Header["Upgrade"]) > 0 {
		return false
	}
	x.record()
	body, err := x.readBody()
	if err != nil {
		x.fail(err)
		return true
	}
	x.r.Body = io.NopCloser(bytes.NewReader(body))
	w := &inBatch{
		g: x.g, batch: m.Backend.Batch, owner: metricsOwner{m.Service.Key, m.Component}, answer: make(chan batchAnswer, 1),
		common: commonRequest{
			path: x.path, query: x.query, uri: x.r.RequestURI, host: x.r.Host, remote: x.r.RemoteAddr, url: x.r.URL, tls: x.r.TLS,
			header: batchHeader(x.r.Header),
		},
	}
	var rows int
	var key string
	if v1 {
		w.v1, err = batch.ReadV1(body)
	} else {
		w.v2, err = readV2(x.r.Header, body)
	}
	switch {
	case err != nil:
		return false // by itself it gets the engine's own verdict
	case v1:
		rows, key = w.v1.Rows(), w.v1.Key()
	default:
		rows, key = w.v2.Rows(), w.v2.Key()
	}
	if rows >= w.batch.MaxSize && !v1 || !x.g.join(w.common.key(m)+key, w, rows, len(body), m, x.view) {
		return false
	}
	late, stop := batchTimer(w.batch, x.start)
	defer stop()
	select {
	case a := <-w.answer:
		if a.alone {
			return false
		}
		x.answerBatched(a)
	case <-late:
		w.gone.Store(true)
		x.fail(errBatchLate(m))
	case <-x.r.Context().Done():
		w.gone.Store(true)
		x.fail(context.Cause(x.r.Context()))
	}
	return true
}

func readV2(head http.Header, body []byte) (*batch.V2, error) {
	b, err := convert.NewBody(head, body)
	if err != nil {
		return nil, err
	}
	r, err := oip.DecodeRequest(b.Bytes, b.JSONLen)
	if err != nil {
		return nil, err
	}
	return batch.NewV2(r)
}

// own are fields that each request has for itself. Requests that differ in any other don't go
// together, for an engine may heed it.
var own = map[string]bool{
	"Content-Length": true, oip.HeaderLength: true, "User-Agent": true, "Accept-Encoding": true, "Connection": true, "Keep-Alive": true,
	"Te": true, "Expect": true, "Date": true, "Via": true, "Referer": true, "X-Request-Id": true, "Traceparent": true, "Tracestate": true, "B3": true,
	"Ce-Id": true, "Ce-Time": true, "Forwarded": true, "X-Real-Ip": true,
}

// batchHeader are the fields that a request shares with those of its batch.
func batchHeader(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		if !own[name] && !strings.HasPrefix(name, "X-B3-") && !strings.HasPrefix(name, "X-Forwarded-") {
			out[name] = values
		}
	}
	return out
}

// key is equal for requests that may share a batch as far as it is not their bodies'.
func (c *commonRequest) key(m *route.Match) string {
	var b strings.Builder
	for _, s := range []string{string(m.Call.Protocol), c.host, c.path, c.query} {
		b.WriteString(strconv.Quote(s))
	}
	for _, name := range slices.Sorted(maps.Keys(c.header)) {
		for _, v := range c.header[name] {
			b.WriteString(strconv.Quote(name))
			b.WriteString(strconv.Quote(v))
		}
	}
	return b.String()
}

// answerBatched sends a member its part.
func (x *exchange) answerBatched(a batchAnswer) {
	x.target = a.target
	if a.target != nil {
		x.metric = a.target.metrics
	}
	h := x.w.Header()
	maps.Copy(h, a.header)
	x.identify()
	h[BatchHeader] = []string{a.id}
	if h.Get("Content-Type") == "" {
		h["Content-Type"] = nil // keeps net/http from guessing one
	}
	h["Content-Length"] = []string{strconv.Itoa(len(a.body))}
	x.status, x.started = a.status, true
	x.w.WriteHeader(a.status)
	_, _ = x.w.Write(a.body)
}

// run asks for all members at once. A batch that failed for a reason that may be one member's
// alone, or whose answer isn't one row for each, is asked for member by member.
func (w *inBatch) run(ctx context.Context, id string, members []waiter) {
	ctx, cancel := batchContext(ctx, w.batch)
	defer cancel()
	all := make([]*inBatch, len(members))
	v1, v2 := make([]*batch.V1, len(members)), make([]*batch.V2, len(members))
	for i, m := range members {
		all[i] = m.(*inBatch)
		v1[i], v2[i] = all[i].v1, all[i].v2
	}
	if len(all) == 1 && w.v2 != nil {
		w.answer <- batchAnswer{alone: true} // as it came
		return
	}
	header := maps.Clone(w.common.header)
	var body []byte
	if w.v1 != nil {
		body = batch.MergeV1(v1)
	} else {
		binary := func(input string) bool {
			for i := range w.v2.Inputs {
				if w.v2.Inputs[i].Name == input {
					return w.v2.Inputs[i].Data == nil
				}
			}
			return false
		}
		var merged convert.Body
		var err error
		if merged.Bytes, merged.JSONLen, err = oip.AppendRequest(nil, batch.MergeV2(v2, id), binary); err != nil {
			w.sendAlone(all)
			return
		}
		merged.Describe(header)
		body = merged.Bytes
	}
	got, target, whole := w.ask(ctx, id, header, body)
	base := batchAnswer{id: id, target: target, status: got.status, header: got.header, body: got.body.Bytes()}
	for _, name := range []string{"Content-Length", "Trailer", "X-Request-Id"} {
		delete(base.header, name)
	}
	switch {
	case ctx.Err() != nil:
		// Those with a bound are late by themselves; the gateway's end cuts off the rest.
		base.refuse(http.StatusGatewayTimeout, "the batch that the request went in wasn't answered in time")
	case !whole && len(all) > 1, whole && mayBeOnes(got.status) && len(all) > 1:
		w.sendAlone(all)
		return
	case !whole:
		base.refuse(http.StatusBadGateway, "the engine's answer broke off")
	case got.status/100 == 2:
		parts, err := w.split(base, v1, v2)
		if err == nil {
			for i, m := range all {
				m.answer <- parts[i]
			}
			return
		}
		if len(all) > 1 {
			w.sendAlone(all)
			return
		}
	}
	for _, m := range all {
		a := base
		a.header = maps.Clone(base.header)
		m.answer <- a
	}
}

// refuse makes the answer an error of the gateway's own, in the shape of V1 and V2.
func (a *batchAnswer) refuse(status int, why string) {
	a.status, a.header = status, http.Header{"Content-Type": {"application/json"}}
	a.body = encode(struct {
		Error string `json:"error"`
	}{why})
}

// mayBeOnes reports whether a failure may be the fault of one member: what 4xx says, and 500, which
// many engines answer to what they can't read. 429 is about all of them.
func mayBeOnes(status int) bool {
	return status/100 == 4 && status != http.StatusTooManyRequests || status == http.StatusInternalServerError
}

func (w *inBatch) sendAlone(all []*inBatch) {
	w.g.metrics.batched.alone.WithLabelValues(w.owner.labels()...).Add(float64(len(all)))
	for _, m := range all {
		m.answer <- batchAnswer{alone: true}
	}
}

// split gives each member its rows of a good answer.
func (w *inBatch) split(base batchAnswer, v1 []*batch.V1, v2 []*batch.V2) ([]batchAnswer, error) {
	if len(base.header["Content-Encoding"]) > 0 {
		return nil, errdef.New(errdef.ErrInternal, "the engine packed an answer that nobody asked to be packed")
	}
	out := make([]batchAnswer, len(v1))
	if w.v1 != nil {
		bodies, err := batch.SplitV1(base.body, v1, base.id)
		for i, b := range bodies {
			out[i] = base
			out[i].header, out[i].body = maps.Clone(base.header), b
		}
		return out, err
	}
	b, err := convert.NewBody(base.header, base.body)
	if err != nil {
		return nil, err
	}
	whole, err := oip.DecodeResponse(b.Bytes, b.JSONLen)
	if err != nil {
		return nil, err
	}
	parts, err := batch.SplitV2(whole, v2)
	if err != nil {
		return nil, err
	}
	for i, p := range parts {
		var part convert.Body
		if part.Bytes, part.JSONLen, err = oip.AppendResponse(nil, p, v2[i].WantsBinary); err != nil {
			return nil, err
		}
		out[i] = base
		out[i].header, out[i].body = maps.Clone(base.header), part.Bytes
		delete(out[i].header, oip.HeaderLength)
		part.Describe(out[i].header)
	}
	return out, nil
}

// ask makes the batch's request as if a client had: it is held, balanced, converted and mirrored
// like any other. whole is false where the answer broke off.
func (w *inBatch) ask(ctx context.Context, id string, header http.Header, body []byte) (got *keptAnswer, t *target, whole bool) {
	got = &keptAnswer{header: http.Header{}}
	c := &w.common
	r := &http.Request{
		Method: http.MethodPost, URL: c.url, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header, Host: c.host,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), RemoteAddr: c.remote, RequestURI: c.uri, TLS: c.tls,
	}
	x := &exchange{g: w.g, w: got, r: r.WithContext(ctx), start: time.Now(), metric: w.g.metrics.gateway, id: id, path: c.path, query: c.query}
	x.hold = hold{g: w.g, exchange: x, asker: x, start: x.start}
	whole = x.serveMerged()
	return got, x.target, whole
}

// serveMerged answers the request for a batch. Its members are counted as requests, it isn't.
func (x *exchange) serveMerged() (whole bool) {
	defer func() {
		p := recover()
		if p != nil {
			whole = false
		}
		if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // a recovered value is compared as net/http does
			x.g.log.LogAttrs(x.r.Context(), slog.LevelError, "batch panicked",
				slog.String("request_id", x.id), slog.Any("err", p), slog.String("stack", string(debug.Stack())))
		}
		if x.began {
			x.metric.inflight.Dec()
		}
		x.hold.end(time.Now())
	}()
	t, e, err := x.hold.pick(x.r.Context(), x.find)
	if err == nil && t == nil {
		err = errdef.New(errdef.ErrUnavailable, "the service went away while the request waited in a batch: try again")
	}
	if err != nil {
		x.fail(err)
		return true
	}
	x.choose(t)
	x.began = true
	x.metric.begin()
	m := x.mirror()
	x.forward(e)
	if m != nil {
		m.send()
	}
	return true
}

// keptAnswer keeps an answer in memory.
type keptAnswer struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (a *keptAnswer) Header() http.Header { return a.header }

func (a *keptAnswer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
}

var errBatchAnswer = errors.New("the answer to a batch is larger than the gateway holds")

func (a *keptAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.body.Len()+len(p) > maxBatchAnswer {
		return 0, errBatchAnswer
	}
	return a.body.Write(p)
}
