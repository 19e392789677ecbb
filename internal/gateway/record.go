package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"stationmaster.dev/stationmaster/internal/gateway/frame"
	"stationmaster.dev/stationmaster/internal/gateway/payloads"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// collector takes the events of logged requests. It must not block.
type collector interface {
	Emit(*payloads.Event)
}

// maxRecorded is the most that is kept of a body for its event, each way. What is longer is cut,
// and its event says so.
const maxRecorded = 4 << 20

// recorded is what is kept of a request and its answer until both are told to a collector. The
// methods of a nil one do nothing.
type recorded struct {
	to  collector
	log *spec.PayloadLog
	// event is what both events share.
	event payloads.Event
	start time.Time

	// mu guards what follows: a body may still be read when its answer has ended.
	mu              sync.Mutex
	request, answer kept
	done            bool
}

// kept is the beginning of a body, cut at maxRecorded.
type kept struct {
	b   []byte
	cut bool
}

func (k *kept) add(p []byte) {
	if room := maxRecorded - len(k.b); len(p) > room {
		p, k.cut = p[:room], true
	}
	k.b = append(k.b, p...)
}

// newRecorded begins a record for a service that has a logger; nil for any other.
func newRecorded(g *Gateway, m *route.Match, id, requestID string, start time.Time, headers func(name string) []string) *recorded {
	if m.Backend == nil || m.Backend.Log == nil {
		return nil
	}
	l := m.Backend.Log
	if id == "" {
		id = newUUID()
	}
	r := &recorded{to: g.payloads, log: l, start: start, event: payloads.Event{
		URL: l.URL, Store: l.Store, ID: id, RequestID: requestID, Service: m.Service.Key, Component: m.Component, Annotations: l.Annotations,
	}}
	for _, name := range l.Headers {
		if v := headers(name); len(v) > 0 {
			if r.event.Headers == nil {
				r.event.Headers = map[string][]string{}
			}
			r.event.Headers[http.CanonicalHeaderKey(name)] = v
		}
	}
	return r
}

// newUUID makes a random UUID (RFC 9562, version 4).
func newUUID() string {
	high, low := rand.Uint64(), rand.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", high>>32, high>>16&0xffff, high&0xfff, low>>48&0x3fff|0x8000, low&(1<<48-1))
}

func (r *recorded) keep(k *kept, p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.done {
		k.add(p)
	}
}

// tell sends the events. t is nil where no revision was chosen; cut says that the answer broke off.
func (r *recorded) tell(t *target, status int, request, answer func(*payloads.Event), cut bool) {
	r.mu.Lock()
	r.done = true
	asked, answered := r.request, r.answer
	r.mu.Unlock()
	r.event.Endpoint, r.event.Source = "default", r.event.Service.Namespace+"/"+r.event.Service.Name
	if t != nil {
		r.event.Revision = t.Revision
		if t.Tag != "" {
			r.event.Endpoint = t.Tag
		}
		if t.Revision != "" {
			r.event.Source = t.Revision
		}
	}
	if r.log.Requests {
		ev := r.event
		ev.Kind, ev.Time, ev.Data, ev.Truncated = payloads.Request, r.start, asked.b, asked.cut
		request(&ev)
		r.to.Emit(&ev)
	}
	if r.log.Responses {
		ev := r.event
		ev.Kind, ev.Time, ev.Status, ev.Data, ev.Truncated = payloads.Response, time.Now(), status, answered.b, answered.cut || cut
		answer(&ev)
		r.to.Emit(&ev)
	}
}

// flushing is how long what was recorded may take to reach its collectors when the gateway ends.
const flushing = 5 * time.Second

// tellRest sends what waits for collectors, when nothing new comes.
func (g *Gateway) tellRest(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushing)
	defer cancel()
	g.payloads.Close(ctx)
}

// record begins to keep what a collector is to be told of the request, if there is one for it.
// Questions about a model or a server, which clients and probes ask by GET, have no payload.
func (x *exchange) record() {
	if x.match.Backend == nil || x.match.Backend.Log == nil || x.recorded != nil || len(x.r.Header["Upgrade"]) > 0 {
		return
	}
	switch x.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return
	}
	r := newRecorded(x.g, &x.match, x.r.Header.Get("Ce-Id"), x.id, x.start, x.r.Header.Values)
	x.recorded = r
	if n := x.r.ContentLength; n > 0 {
		r.request.b = make([]byte, 0, min(n, upstream.WholeBody)) // more as it comes, for an announcement costs a client nothing
	}
	x.r.Body, x.w = &recordedBody{x.r.Body, r}, &recordedAnswer{x.w, r}
}

// recordRefused is record for a request that no replica gets: what is there of its body is read
// for the record alone.
func (x *exchange) recordRefused() {
	x.record()
	if x.recorded == nil {
		return
	}
	x.readAhead() // through the record
}

// told ends the record of a request.
func (x *exchange) told(broken bool) {
	r := x.recorded
	if r == nil {
		return
	}
	asked, answered := x.r.Header, x.w.Header()
	of := func(h http.Header) func(*payloads.Event) {
		return func(ev *payloads.Event) {
			ev.ContentType, ev.ContentEncoding, ev.HeaderLength = h.Get("Content-Type"), h.Get("Content-Encoding"), h.Get(oip.HeaderLength)
		}
	}
	r.tell(x.target, x.status, of(asked), of(answered), broken)
}

// recordedBody keeps what is read of a request's body.
type recordedBody struct {
	io.ReadCloser
	r *recorded
}

func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.r.keep(&b.r.request, p[:n])
	return n, err
}

// recordedAnswer keeps what is written of an answer's body.
type recordedAnswer struct {
	http.ResponseWriter
	r *recorded
}

func (a *recordedAnswer) Write(p []byte) (int, error) {
	n, err := a.ResponseWriter.Write(p)
	a.r.keep(&a.r.answer, p[:n])
	return n, err
}

func (a *recordedAnswer) Flush() {
	if f, ok := a.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap lets http.ResponseController find what the writer below can do.
func (a *recordedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// record begins to keep what a collector is to be told of the call, if there is one for it.
// Questions about a model have no payload.
func (c *call) record() {
	if c.match.Backend == nil || c.match.Backend.Log == nil || c.recorded != nil || c.oip != "" && c.oip != "ModelInfer" {
		return
	}
	id := ""
	if v := c.md["ce-id"]; len(v) > 0 {
		id = v[0]
	}
	r := newRecorded(c.g, &c.match, id, c.id, c.start, c.md.Get)
	r.event.Method = c.method
	c.recorded = r
	if c.first != nil {
		r.request.add(c.first.Peek(maxRecorded + 1))
	}
	c.stream = &recordedStream{c.stream, r, c.first == nil}
}

// told ends the record of a call.
func (c *call) told(code codes.Code) {
	r := c.recorded
	if r == nil {
		return
	}
	kind := func(ev *payloads.Event) {
		ev.ContentType = "application/protobuf"
		if c.oip == "" {
			ev.ContentType = "application/grpc+proto"
		}
	}
	r.tell(c.target, int(code), kind, kind, false)
}

// recordedStream keeps the messages of a call: the one of each side of a unary call as it is, those
// of any other one after the other, each behind its length as on the wire (gRPC over HTTP/2,
// "Length-Prefixed-Message").
type recordedStream struct {
	grpc.ServerStream
	r      *recorded
	framed bool
}

func (s *recordedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.keep(&s.r.request, m)
	}
	return err
}

func (s *recordedStream) SendMsg(m any) error {
	s.keep(&s.r.answer, m) // before its buffers are given away
	return s.ServerStream.SendMsg(m)
}

func (s *recordedStream) keep(k *kept, m any) {
	var message []byte
	size := 0
	switch m := m.(type) {
	case *frame.Frame:
		message, size = m.Peek(maxRecorded+1), m.Len()
	case proto.Message:
		var err error
		if message, err = proto.Marshal(m); err != nil {
			return // it can't be sent either
		}
		size = len(message)
	}
	if s.framed {
		prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(min(size, 1<<32-1)))
		message = bytes.Join([][]byte{prefix, message}, nil)
	}
	s.r.keep(k, message)
}
