package gateway

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/batch"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/gateway/frame"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// callInBatch is an infer call in a batch.
type callInBatch struct {
	member
	g       *Gateway
	request *batch.V2
	batch   *spec.Batching
	owner   metricsOwner
	// method, md and from are what the calls of the batch have in common, and who made the first.
	method string
	md     metadata.MD
	from   *peer.Peer
	answer chan batchedReply // has room for the one that comes
}

// batchedReply is a member's part of what came back: a message, or an error.
type batchedReply struct {
	alone   bool
	id      string
	target  *target
	header  metadata.MD
	trailer metadata.MD
	message *pb.ModelInferResponse
	err     error
}

// serveBatched puts an infer call into a batch if its component has a batcher and the call can be
// put together with others. answered says that the error, or the message that was sent, is all.
func (c *call) serveBatched() (answered bool, _ error) {
	if c.oip != "ModelInfer" || !c.g.view().batches {
		return false, nil
	}
	m, _, err := c.find()
	if !c.g.batchable(m, err) || c.first.Len() > maxBatched {
		return false, nil
	}
	c.record()
	size := c.first.Len()
	in := new(pb.ModelInferRequest)
	if proto.Unmarshal(c.first.Peek(size), in) != nil {
		return false, nil // the engine, or the conversion, says what is wrong
	}
	request, err := oip.RequestFromProto(in)
	if err != nil {
		return false, nil
	}
	w := &callInBatch{
		g: c.g, batch: m.Backend.Batch, owner: metricsOwner{m.Service.Key, m.Component}, method: c.method,
		md: batchMetadata(c.md), answer: make(chan batchedReply, 1),
	}
	w.from, _ = peer.FromContext(c.ctx)
	if w.request, err = batch.NewV2(request); err != nil || w.request.Rows() >= w.batch.MaxSize {
		return false, nil
	}
	if !c.g.join(w.key(), w, w.request.Rows(), size, m, c.view) {
		return false, nil
	}
	late, stop := batchTimer(w.batch, c.start)
	defer stop()
	select {
	case r := <-w.answer:
		if r.alone {
			return false, nil
		}
		c.first.Free() // it went as a part of another one
		return true, c.answerBatched(r)
	case <-late:
		w.gone.Store(true)
		return true, errBatchLate(m)
	case <-c.ctx.Done():
		w.gone.Store(true)
		return true, c.ctx.Err()
	}
}

// batchMetadata are the keys that a call shares with those of its batch.
func batchMetadata(md metadata.MD) metadata.MD {
	out := make(metadata.MD, len(md))
	for k, v := range md {
		name := canonicalKey(k)
		if k == ":authority" || k == "content-type" || !reservedMetadata(k) && !own[name] && !strings.HasPrefix(name, "X-B3-") && !strings.HasPrefix(name, "X-Forwarded-") {
			out[k] = v
		}
	}
	return out
}

// key is equal for calls that may share a batch.
func (w *callInBatch) key() string {
	var b strings.Builder
	b.WriteString(string(spec.GRPCV2) + strconv.Quote(w.request.ModelName))
	for _, k := range slices.Sorted(maps.Keys(w.md)) {
		for _, v := range w.md[k] {
			b.WriteString(strconv.Quote(k))
			b.WriteString(strconv.Quote(v))
		}
	}
	return b.String() + w.request.Key()
}

// answerBatched sends a member its part.
func (c *call) answerBatched(r batchedReply) error {
	if r.target == nil && r.err != nil {
		return r.err // as of any call that got to no revision
	}
	c.target, c.metric = r.target, r.target.metrics
	header := r.header.Copy()
	if header == nil {
		header = metadata.MD{}
	}
	header.Set(BatchHeader, r.id)
	c.identify(header)
	c.stream.SetTrailer(r.trailer)
	if r.err != nil {
		return r.err
	}
	return c.stream.SendMsg(r.message)
}

// run asks for all members at once, as inBatch.run does over HTTP.
func (w *callInBatch) run(ctx context.Context, id string, members []waiter) {
	ctx, cancel := batchContext(ctx, w.batch)
	defer cancel()
	all, requests := make([]*callInBatch, len(members)), make([]*batch.V2, len(members))
	for i, m := range members {
		all[i] = m.(*callInBatch)
		requests[i] = all[i].request
	}
	if len(all) == 1 {
		w.answer <- batchedReply{alone: true} // as it came
		return
	}
	raw := w.request.Inputs[0].Data == nil
	merged, err := oip.RequestToProto(batch.MergeV2(requests, id), raw)
	var parts []*pb.ModelInferResponse
	base := batchedReply{id: id}
	if err == nil {
		got := &keptStream{ctx: ctx}
		if w.from != nil {
			got.ctx = peer.NewContext(ctx, w.from)
		}
		base.target, err = w.ask(got, merged)
		base.header, base.trailer = got.header, got.trailer
		if err == nil {
			parts, err = split(got.message, requests)
		}
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		base.err = status.Error(codes.DeadlineExceeded, "the batch that the call went in wasn't answered in time")
	case len(all) > 1 && mayBeOnesCode(status.Code(statusOf(err))):
		w.g.metrics.batched.alone.WithLabelValues(w.owner.labels()...).Add(float64(len(all)))
		base.alone = true
	default:
		base.err = err
	}
	for i, m := range all {
		r := base
		if err == nil {
			r.message = parts[i]
		}
		m.answer <- r
	}
}

// mayBeOnesCode reports whether a failure may be the fault of one member: not what is about the
// service as a whole.
func mayBeOnesCode(c codes.Code) bool {
	switch c {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return false
	}
	return true
}

func split(answer *pb.ModelInferResponse, requests []*batch.V2) ([]*pb.ModelInferResponse, error) {
	whole, err := oip.ResponseFromProto(answer)
	if err != nil {
		return nil, convert.Broken(err)
	}
	parts, err := batch.SplitV2(whole, requests)
	if err != nil {
		return nil, err
	}
	out := make([]*pb.ModelInferResponse, len(parts))
	for i, p := range parts {
		if out[i], err = oip.ResponseToProto(p, len(answer.GetRawOutputContents()) > 0); err != nil {
			return nil, convert.Broken(err)
		}
	}
	return out, nil
}

// ask makes the batch's call as if a client had.
func (w *callInBatch) ask(got *keptStream, merged *pb.ModelInferRequest) (t *target, err error) {
	message, err := proto.Marshal(merged)
	if err != nil {
		return nil, err
	}
	c := &call{
		g: w.g, stream: got, ctx: got.ctx, md: w.md, id: merged.GetId(), start: time.Now(), method: w.method, oip: "ModelInfer",
		first: frame.Of(message), model: merged.GetModelName(), metric: w.g.metrics.gateway,
	}
	c.hold = hold{g: w.g, asker: c, start: c.start}
	defer func() {
		if p := recover(); p != nil {
			c.g.log.LogAttrs(c.ctx, slog.LevelError, "batch panicked",
				slog.String("request_id", c.id), slog.Any("err", p), slog.String("stack", string(debug.Stack())))
			err = status.Error(codes.Internal, "the gateway failed in its own work; its log tells more under this request's id")
		}
		if c.began {
			c.metric.inflight.Dec()
		}
		c.hold.end(time.Now())
		t = c.target
	}()
	picked, e, err := c.hold.pick(c.ctx, c.find)
	if err != nil {
		return nil, err
	}
	if picked == nil {
		return nil, errdef.New(errdef.ErrUnavailable, "the service went away while the call waited in a batch: try again")
	}
	c.choose(picked)
	c.began = true
	c.metric.begin()
	m := c.mirror()
	err = c.forward(e)
	if m != nil {
		m.send(err)
	}
	if err != nil {
		return nil, err
	}
	if got.message == nil {
		return nil, errdef.New(errdef.ErrInternal, "the engine's answer to the batch is no message of ModelInfer")
	}
	return nil, nil
}

// keptStream is the stream of a call that the gateway makes itself: it keeps the answer.
type keptStream struct {
	ctx             context.Context //nolint:containedctx // as grpc.ServerStream has it
	header, trailer metadata.MD
	message         *pb.ModelInferResponse
}

func (s *keptStream) Context() context.Context { return s.ctx }

func (s *keptStream) SetHeader(md metadata.MD) error {
	s.header = metadata.Join(s.header, md)
	return nil
}

func (s *keptStream) SendHeader(md metadata.MD) error { return s.SetHeader(md) }

func (s *keptStream) SetTrailer(md metadata.MD) { s.trailer = metadata.Join(s.trailer, md) }

func (s *keptStream) RecvMsg(any) error { return io.EOF }

func (s *keptStream) SendMsg(m any) error {
	switch m := m.(type) {
	case *frame.Frame:
		s.message = new(pb.ModelInferResponse)
		if err := proto.Unmarshal(m.Take(), s.message); err != nil {
			return convert.Broken(err)
		}
	case *pb.ModelInferResponse:
		s.message = m
	}
	return nil
}
