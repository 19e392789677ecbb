package gateway

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/gateway/compare"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/gateway/frame"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// mirroredCall is an infer call of which a copy goes to another revision, after it was answered.
type mirroredCall struct {
	c        *call
	view     *view
	target   *target
	endpoint *route.Endpoint
	request  []byte
	answer   *copiedStream
}

// mirror begins to keep what a copy of the call needs, if there is to be one; else it returns nil.
// The call itself goes its way as if there were none. Only infer calls are copied, and only to
// engines that speak the protocol, over gRPC or REST.
func (c *call) mirror() *mirroredCall {
	b := c.match.Backend
	if c.oip != "ModelInfer" || c.first == nil || b.Mirror.Percent <= 0 || rand.IntN(100) >= b.Mirror.Percent {
		return nil
	}
	to := c.view.table.MirrorOf(&c.match)
	if to == nil {
		return nil
	}
	t, e := to.Pick(rand.Uint64(), c.view.load)
	if t == nil || t.Revision == c.target.Revision {
		return nil
	}
	m := &mirroredCall{c: c, view: c.view, target: c.view.targets[t], endpoint: e}
	v2 := len(t.Protocols) == 0 || m.target.speaks(spec.V2)
	if e.GRPC == "" && (e.HTTP == "" || !v2 || c.wayTo(t) != direct) {
		return nil
	}
	size := c.first.Len()
	if size > maxCopy {
		m.count(mirrorTooLarge)
		return nil
	}
	m.request = c.first.Peek(size)
	m.answer = &copiedStream{ServerStream: c.stream, copied: copied{left: maxCopy}}
	c.stream = m.answer
	return m
}

func (m *mirroredCall) count(result compare.Result) {
	k := m.target.metrics.key
	m.c.g.metrics.mirrored.WithLabelValues(k.Service.Namespace, k.Service.Name, k.Revision, string(result)).Inc()
}

// callReply is a call's answer as far as it was kept: what ended it, and its message.
func callReply(err error, c *copied) compare.Answer {
	r := compare.Answer{Status: http.StatusOK, Body: c.b, Over: c.over, Message: true}
	if code := status.Code(statusOf(err)); code != codes.OK {
		r.Status, r.Body, r.Over = codeStatus+int(code), nil, false
	}
	return r
}

// codeStatus is where codes of calls that aren't OK begin among statuses, behind those of HTTP.
const codeStatus = 1000

// send starts the copy, unless too many are under way. The call was answered by then, with an error
// or without.
func (m *mirroredCall) send(err error) {
	g := m.c.g
	select {
	case g.copies <- struct{}{}:
	default:
		m.count(mirrorDropped)
		return
	}
	want := callReply(err, &m.answer.copied)
	deadline := g.cfg.Timeouts.Response
	if d := m.c.match.Service.Timeout; d > 0 {
		deadline = d
	}
	from, _ := peer.FromContext(m.c.ctx)
	g.relays.Go(func() {
		defer func() { <-g.copies }()
		ctx, cancel := context.WithTimeout(g.copying, deadline)
		defer cancel()
		if from != nil {
			ctx = peer.NewContext(ctx, from)
		}
		got, err := m.ask(ctx)
		judge(m.target.answers, m.count, want, got, err, g.copying.Err() != nil)
	})
}

// ask sends the copy and reads the answer. An error says that there is none.
func (m *mirroredCall) ask(ctx context.Context) (compare.Answer, error) {
	c := &call{
		g: m.c.g, ctx: ctx, view: m.view, md: m.c.md.Copy(), id: m.c.id, start: m.c.start, method: m.c.method, oip: m.c.oip,
		match: m.c.match, target: m.target, metric: m.target.metrics,
	}
	c.md[strings.ToLower(MirrorHeader)] = []string{"1"}
	if m.endpoint.GRPC == "" {
		return m.askREST(ctx, c)
	}
	cs, end, err := c.openOn(c.outgoing(ctx), m.endpoint)
	if err != nil {
		return compare.Answer{}, err
	}
	defer end()
	first := frame.Of(m.request)
	if name, rewrite := engineModel(&c.match, c.target.Target); rewrite {
		first.Override(oipMethods[c.oip][0], name)
	}
	kept := copied{left: maxCopy}
	if err = cs.SendMsg(first); err == nil {
		_ = cs.CloseSend()
	}
	var f frame.Frame
	if err = cs.RecvMsg(&f); err == nil {
		kept.add(f.Peek(maxCopy + 1))
		f.Free()
	}
	if status.Code(err) == codes.Unavailable || ctx.Err() != nil {
		return compare.Answer{}, err
	}
	return callReply(err, &kept), nil
}

// askREST asks an engine that has no gRPC port.
func (m *mirroredCall) askREST(ctx context.Context, c *call) (compare.Answer, error) {
	in := new(pb.ModelInferRequest)
	if err := c.decode(m.request, in); err != nil {
		return callReply(err, &copied{}), nil
	}
	infer, err := convert.NewToREST(in)
	if err != nil {
		return callReply(err, &copied{}), nil
	}
	header := http.Header{"Accept": {"application/json"}}
	infer.Body.Describe(header)
	deadline, _ := ctx.Deadline()
	timeout := deadline.Sub(c.start)
	got, err := askCopy(ctx, m.view, m.endpoint, &upstream.Request{
		Method: http.MethodPost, Target: infer.Path(c.modelName()), Host: m.endpoint.HTTP, Header: header,
		Set:  []upstream.Field{{Name: "X-Request-Id", Value: c.id}, {Name: MirrorHeader, Value: "1"}},
		Body: bytes.NewReader(infer.Body.Bytes), ContentLength: int64(len(infer.Body.Bytes)),
		HeaderTimeout: timeout, IdleTimeout: timeout,
	})
	switch {
	case err != nil:
		return compare.Answer{}, err
	case got.Status/100 != 2:
		return callReply(status.Error(codes.Unknown, ""), &copied{}), nil
	}
	got.Status = http.StatusOK
	return got, nil
}

// copiedStream keeps the message that answers a unary call.
type copiedStream struct {
	grpc.ServerStream
	copied
}

func (s *copiedStream) SendMsg(m any) error {
	switch m := m.(type) {
	case *frame.Frame:
		s.add(m.Peek(s.left + 1)) // before its buffers are given away
	case proto.Message:
		message, err := proto.Marshal(m)
		if err != nil {
			return errors.Join(err, s.ServerStream.SendMsg(m))
		}
		s.add(message)
	}
	return s.ServerStream.SendMsg(m)
}
