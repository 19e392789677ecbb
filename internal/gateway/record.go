package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"stationmaster.dev/stationmaster/internal/gateway/frame"
	"stationmaster.dev/stationmaster/internal/gateway/payloads"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// newRecorded begins a record of a request, of which about is known, for a service that has a logger.
func newRecorded(g *Gateway, m *route.Match, about payloads.Event, headers func(name string) []string) *payloads.Exchange {
	if about.ID == "" {
		about.ID = newUUID()
	}
	about.Service, about.Component = m.Service.Key, m.Component
	return payloads.NewExchange(g.payloads, m.Backend.Log, about, headers)
}

// newUUID makes a random UUID (RFC 9562, version 4).
func newUUID() string {
	high, low := rand.Uint64(), rand.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", high>>32, high>>16&0xffff, high&0xfff, low>>48&0x3fff|0x8000, low&(1<<48-1))
}

// endOf is how a request of a target ended; nil stands for none that was chosen.
func endOf(t *target, status int, request, answer func(*payloads.Event)) payloads.End {
	e := payloads.End{At: time.Now(), Status: status, Request: request, Answer: answer}
	if t != nil {
		e.Revision, e.Tag = t.Revision, t.Tag
	}
	return e
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
	r := newRecorded(x.g, &x.match, payloads.Event{ID: x.r.Header.Get("Ce-Id"), RequestID: x.id, Time: x.start}, x.r.Header.Values)
	x.recorded = r
	if n := x.r.ContentLength; n > 0 {
		r.Expect(int(min(n, upstream.WholeBody))) // more as it comes, for an announcement costs a client nothing
	}
	x.r.Body, x.w = r.Body(x.r.Body), r.Writer(x.w)
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
	e := endOf(x.target, x.status, of(asked), of(answered))
	e.Cut = broken
	r.Tell(e)
}

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
	r := newRecorded(c.g, &c.match, payloads.Event{ID: id, RequestID: c.id, Method: c.method, Time: c.start}, c.md.Get)
	c.recorded = r
	if c.first != nil {
		r.Asked(c.first.Peek(payloads.MaxKept + 1))
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
	r.Tell(endOf(c.target, int(code), kind, kind))
}

// recordedStream keeps the messages of a call: the one of each side of a unary call as it is, those
// of any other one after the other, each behind its length as on the wire (gRPC over HTTP/2,
// "Length-Prefixed-Message").
type recordedStream struct {
	grpc.ServerStream
	r      *payloads.Exchange
	framed bool
}

func (s *recordedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.keep(s.r.Asked, m)
	}
	return err
}

func (s *recordedStream) SendMsg(m any) error {
	s.keep(s.r.Answered, m) // before its buffers are given away
	return s.ServerStream.SendMsg(m)
}

func (s *recordedStream) keep(as func([]byte), m any) {
	var message []byte
	size := 0
	switch m := m.(type) {
	case *frame.Frame:
		message, size = m.Peek(payloads.MaxKept+1), m.Len()
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
	as(message)
}
