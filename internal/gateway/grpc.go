package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/frame"
	"stationmaster.dev/stationmaster/internal/gateway/grpcpool"
	"stationmaster.dev/stationmaster/internal/gateway/payloads"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// The metadata keys that lead a call to a service: ServiceHeader's own, which holds
// "namespace/name", and the one that ModelMesh clients send, which holds a model's name.
const (
	metadataService = "stationmaster-service"
	metadataModel   = "mm-vmodel-id"
)

// oipMethods are the inference protocol's calls, with the fields of their requests that hold
// a model's name, the first that is set counting. Those without are for a whole server.
var oipMethods = map[string][]protowire.Number{
	"ServerLive":            nil,
	"ServerReady":           nil,
	"ServerMetadata":        nil,
	"RepositoryIndex":       nil,
	"ModelReady":            {1},
	"ModelMetadata":         {1},
	"ModelInfer":            {1},
	"RepositoryModelLoad":   {2, 1},
	"RepositoryModelUnload": {2, 1},
}

const oipPrefix = "/inference.GRPCInferenceService/"

func (g *Gateway) newGRPCServer() *grpc.Server {
	s := grpc.NewServer(
		grpc.ForceServerCodecV2(frame.Codec),
		grpc.UnknownServiceHandler(g.serveCall),
		grpc.MaxRecvMsgSize(g.cfg.MaxMessage),
		grpc.MaxSendMsgSize(g.cfg.MaxMessage),
		grpc.InitialWindowSize(grpcpool.Window),
		grpc.InitialConnWindowSize(grpcpool.Window),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(g.cfg.Timeouts.Head),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 30 * time.Minute, Time: 2 * time.Minute}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	healthpb.RegisterHealthServer(s, &health{g: g})
	options := reflection.ServerOptions{Services: reflected{s}}
	reflectionv1.RegisterServerReflectionServer(s, reflection.NewServerV1(options))
	reflectionv1alpha.RegisterServerReflectionServer(s, reflection.NewServer(options))
	return s
}

// reflected lists the server's own services and the one that it passes through.
type reflected struct{ s *grpc.Server }

func (r reflected) GetServiceInfo() map[string]grpc.ServiceInfo {
	info := r.s.GetServiceInfo()
	info[oip.GRPCInferenceService_ServiceDesc.ServiceName] = grpc.ServiceInfo{
		Metadata: oip.GRPCInferenceService_ServiceDesc.Metadata,
	}
	return info
}

// call is one gRPC call on its way.
type call struct {
	g      *Gateway
	stream grpc.ServerStream
	ctx    context.Context //nolint:containedctx // a call lives as long as its context
	view   *view
	md     metadata.MD
	id     string
	start  time.Time
	method string // full, e.g. /inference.GRPCInferenceService/ModelInfer
	// oip is the method's short name if it is one of the inference protocol's.
	oip   string
	first *frame.Frame // the request that was read to route by, nil if none was
	model string       // that it names
	match route.Match
	// recorded is what a collector is told, nil where there is none.
	recorded *payloads.Exchange
	hold     hold
	// target is nil until a revision was chosen.
	target *target
	metric *targetMetrics
	began  bool
	// way is how the call is translated for the engine.
	way way
}

// serveCall answers every call but those of the gateway's own services.
func (g *Gateway) serveCall(_ any, stream grpc.ServerStream) (err error) {
	c := &call{
		g: g, stream: stream, ctx: stream.Context(), start: time.Now(), metric: g.metrics.gateway,
	}
	c.hold = hold{g: g, asker: c, start: c.start, picked: picked{call: c}}
	c.method, _ = grpc.MethodFromServerStream(stream)
	if short, ok := strings.CutPrefix(c.method, oipPrefix); ok {
		if _, known := oipMethods[short]; known {
			c.oip = short
		}
	}
	c.md, _ = metadata.FromIncomingContext(c.ctx)
	c.id = requestID(c.md["x-request-id"])
	defer func() {
		if p := recover(); p != nil {
			g.log.LogAttrs(c.ctx, slog.LevelError, "call handler panicked",
				slog.String("request_id", c.id), slog.Any("err", p), slog.String("stack", string(debug.Stack())))
			err = status.Error(codes.Internal, "the gateway failed in its own work; its log tells more under this request's id")
		}
		c.finish(err)
	}()
	err = c.serve()
	if err != nil && c.target == nil {
		c.identify(nil)
		if after := retryAfter(err); after > 0 && edgeOf(err).status == http.StatusServiceUnavailable {
			stream.SetTrailer(metadata.Pairs("retry-after", strconv.Itoa(after)))
		}
	}
	var refused *refusedError
	if errors.As(err, &refused) && busy(edgeOf(err).status) {
		h := http.Header{}
		refused.tell(h)
		stream.SetTrailer(metadata.Pairs("retry-after", h.Get("Retry-After")))
	}
	return statusOf(err)
}

func (c *call) finish(err error) {
	p := protoGRPC
	if c.oip != "" {
		p = protoGRPCV2
	}
	took := time.Since(c.start)
	code := status.Code(err)
	c.g.metrics.counting(c.metric, c.match.Service).end(p, int(code), took, c.began)
	c.witness(code, took)
	c.hold.end(c.start.Add(took))
	c.told(code)
	if !c.g.log.Enabled(c.ctx, slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", c.id), slog.String("method", c.method),
		slog.String("code", code.String()), slog.Duration("took", took),
	}
	if c.match.Service != nil {
		attrs = append(attrs, slog.String("service", c.match.Service.Key.String()))
	}
	if c.target != nil {
		attrs = append(attrs, slog.String("revision", c.target.Revision))
	}
	c.g.log.LogAttrs(c.ctx, slog.LevelDebug, "call", attrs...)
}

// identify sets the response's header metadata: the engine's, and what each response carries.
func (c *call) identify(engine metadata.MD) {
	md := metadata.MD{}
	for k, v := range engine {
		if !reservedMetadata(k) {
			md[k] = v
		}
	}
	md["x-request-id"] = []string{c.id}
	if c.target != nil {
		delete(md, "x-stationmaster-revision")
		delete(md, "x-model-digest")
		if c.target.revision != nil {
			md["x-stationmaster-revision"] = c.target.revision
		}
		if c.target.digest != nil {
			md["x-model-digest"] = c.target.digest
		}
	}
	_ = c.stream.SetHeader(md) // fails only when the header went out
}

// reservedMetadata are keys that the transport sets itself.
func reservedMetadata(k string) bool {
	switch k {
	case "content-type", "user-agent", "te", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding",
		"connection", "host", "trailer":
		return true
	}
	return strings.HasPrefix(k, ":")
}

func (c *call) serve() error {
	if size(c.md) > maxHead {
		return errHead
	}
	if err := c.readFirst(); err != nil {
		return err
	}
	if answered, err := c.serveBatched(); answered {
		return err
	}
	t, e, err := c.hold.pick(c.ctx, c.find)
	c.record()
	if err != nil {
		return err
	}
	if t == nil {
		if s := c.match.Service; s != nil && s.Graph != nil {
			return c.serveGraph(s)
		}
		return c.serveWhole()
	}
	c.choose(t)
	c.began = true
	c.metric.begin()
	m := c.mirror()
	err = c.forward(e)
	if m != nil {
		m.send(err)
	}
	return err
}

func (c *call) choose(t *route.Target) {
	c.target = c.view.targets[t]
	c.hold.chosen(c.target)
	if c.began {
		c.metric.inflight.Dec()
		c.target.metrics.begin()
	}
	c.metric = c.target.metrics
}

// readFirst reads the request of a call of the inference protocol, and the model's name in it.
func (c *call) readFirst() (err error) {
	numbers := oipMethods[c.oip]
	if len(numbers) == 0 {
		return nil
	}
	c.first = new(frame.Frame)
	if err := c.stream.RecvMsg(c.first); err != nil {
		return c.requestError(err)
	}
	for _, num := range numbers {
		if c.model, err = c.first.Field(num); err != nil {
			return errdef.New(errdef.ErrInvalid, "the request of "+c.method+" is "+err.Error())
		}
		if c.model != "" {
			break
		}
	}
	return nil
}

// requestError says what is wrong with a request that can't be received. A message that breaks
// off or can't be decompressed was answered by grpc itself already, as an internal error.
func (c *call) requestError(err error) error {
	if errors.Is(err, io.EOF) {
		return errdef.New(errdef.ErrInvalid, "the call of "+c.method+" came without its request")
	}
	return err
}

// decode reads a request of the inference protocol.
func (c *call) decode(message []byte, into proto.Message) error {
	if err := proto.Unmarshal(message, into); err != nil {
		return errdef.New(errdef.ErrInvalid, fmt.Sprintf("the request of %s isn't one: %v", c.method, err))
	}
	return nil
}

// find looks the call up in the latest table.
func (c *call) find() (*route.Match, *view, error) {
	c.view = c.g.view()
	c.match = route.Match{}
	whole, err := c.route()
	if whole {
		c.match = route.Match{}
	}
	c.view.table.Steer(&c.match, c.header)
	return &c.match, c.view, err
}

// route finds the service: by metadata, by authority, else by the model that the request
// names. whole says that the call is for the gateway as a whole.
func (c *call) route() (whole bool, err error) {
	numbers, model, table := oipMethods[c.oip], c.model, c.view.table
	if key := c.md[metadataService]; len(key) == 1 {
		if c.match, err = byKey(table, key[0], "/"); err != nil {
			return false, err
		}
		c.match.Call.Model = model
		return false, nil
	}
	if authority := c.md[":authority"]; len(authority) == 1 {
		if m, ok := table.Host(authority[0]); ok {
			c.match = m
			c.match.Call.Model = model
			return false, nil
		}
	}
	if named := c.md[metadataModel]; len(named) == 1 {
		if c.match, err = table.Model(named[0], "/"); err != nil {
			return false, err
		}
		c.match.Call.Model = model
		return false, nil
	}
	if model != "" {
		if c.match, err = table.Model(model, "/"); err != nil {
			return false, err
		}
		c.match.Call.Model = model
		return false, nil
	}
	if c.oip != "" && len(numbers) == 0 {
		return true, nil
	}
	if c.oip != "" {
		return false, errdef.New(errdef.ErrInvalid, "the request of "+c.method+" names no model")
	}
	return false, errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
		"method %.200q isn't the gateway's own: name the service that has it by its host as the authority, or by the metadata %s: namespace/name",
		c.method, metadataService))
}

// forward passes the call on in the way that the engine understands.
func (c *call) forward(e *route.Endpoint) error {
	t := c.target
	v2 := c.oip != "" && len(t.Protocols) > 0
	switch {
	case e.GRPC != "" && (!v2 || t.speaks(spec.GRPCV2) || !t.speaks(spec.V2)):
		return c.pass(e)
	case c.oip != "" && oipMethods[c.oip] == nil:
		return c.serveWhole()
	case c.wayTo(t.Target).reaches(t.Target, e):
		return c.translate(e)
	case c.oip != "" && e.HTTP != "" && (!v2 || t.speaks(spec.V2)):
		return c.convertToREST(e)
	case c.oip != "":
		return errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
			"revision %s of %s speaks %s only, not the Open Inference Protocol: use its protocol's paths over HTTP%s",
			t.Revision, t.service, joinProtocols(t.Protocols), hintV1(t, c.match.Service)))
	}
	return errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
		"the engine of %s has no gRPC port, so it can't answer %.200q", t.service, c.method))
}

// timed bounds a unary inference call by the service's time-out.
func (c *call) timed() (context.Context, context.CancelFunc) {
	if c.oip == "" {
		return context.WithCancel(c.ctx)
	}
	d := c.match.Service.Timeout
	if d <= 0 {
		d = c.g.cfg.Timeouts.Response
	}
	if b := c.match.Backend.Batch; b != nil && c.oip == "ModelInfer" {
		d = batchLeft(b, c.start, d)
	}
	return context.WithTimeout(c.ctx, d)
}

// outgoing is the metadata for the engine.
func (c *call) outgoing(ctx context.Context) context.Context {
	md := make(metadata.MD, len(c.md)+5)
	hide := c.target != nil && withheld(c.target.Target, false)
	for k, v := range c.md {
		switch {
		case reservedMetadata(k), k == metadataService, k == "x-request-id":
		case c.g.dropped(canonicalKey(k)), hide && private(canonicalKey(k)):
		default:
			md[k] = v
		}
	}
	md["x-request-id"] = []string{c.id}
	if p, ok := peer.FromContext(c.ctx); ok {
		md["x-forwarded-for"] = append(md["x-forwarded-for"], hostOf(p.Addr.String()))
	}
	md["kserve-isvc-name"] = []string{c.match.Service.Key.Name}
	md["kserve-isvc-namespace"] = []string{c.match.Service.Key.Namespace}
	return metadata.NewOutgoingContext(ctx, md)
}

// streamDesc fits every call: grpc frames unary ones no differently.
var streamDesc = grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// open starts the call on an engine, on another one or what takes its place where the first
// can't be reached.
// The caller calls end when the call has ended.
func (c *call) open(ctx context.Context, e *route.Endpoint) (cs grpc.ClientStream, end func(), err error) {
	for first := true; ; first = false {
		cs, end, err = c.openOn(ctx, e)
		if err != nil {
			c.hold.picked.ended(c.ctx, status.Code(err), true)
		}
		if err == nil || status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			return cs, end, err
		}
		if first {
			c.metric.upstreamError("dial")
		}
		t, other := c.hold.another(ctx, e, first, &c.match, c.view, c.find)
		if other == nil || other.GRPC == "" {
			return nil, nil, err
		}
		c.choose(t)
		e = other
	}
}

func (c *call) openOn(ctx context.Context, e *route.Endpoint) (grpc.ClientStream, func(), error) {
	conn, err := c.g.dialer.Begin(ctx, grpcPlace(e))
	if err != nil {
		return nil, nil, err
	}
	options := []grpc.CallOption{grpc.ForceCodecV2(frame.Codec)}
	if authority := c.md[":authority"]; len(authority) == 1 && !e.Security.On() { // over TLS it is the certificate's name
		options = append(options, grpc.CallAuthority(authority[0]))
	}
	cs, err := conn.NewStream(ctx, &streamDesc, c.method, options...)
	if err != nil {
		conn.End()
		return nil, nil, err
	}
	return cs, conn.End, nil
}

// pass sends the call's messages to an engine and back as they are.
func (c *call) pass(e *route.Endpoint) error {
	ctx, cancel := c.timed()
	defer cancel()
	cs, end, err := c.open(c.outgoing(ctx), e)
	if err != nil {
		c.identify(nil)
		return c.engineError(err)
	}
	defer end()
	if c.first != nil {
		if name, rewrite := engineModel(&c.match, c.target.Target); rewrite {
			c.first.Override(oipMethods[c.oip][0], name)
		}
		if err := cs.SendMsg(c.first); err != nil && !errors.Is(err, io.EOF) {
			c.identify(nil)
			return c.engineError(err)
		}
		if err := cs.CloseSend(); err != nil {
			c.identify(nil)
			return c.engineError(err)
		}
		return c.relay(cs)
	}
	// Waiting for the client's next message ends when this handler returns, not before: so
	// the sender is joined by the drain.
	c.g.relays.Go(func() { c.relayRequests(cs, cancel) })
	return c.relay(cs)
}

// relayRequests copies the client's messages. It ends with the client's half of the stream,
// or with the call.
func (c *call) relayRequests(cs grpc.ClientStream, cancel context.CancelFunc) {
	for {
		var f frame.Frame
		err := c.stream.RecvMsg(&f)
		if errors.Is(err, io.EOF) {
			_ = cs.CloseSend()
			return
		}
		if err != nil {
			cancel()
			return
		}
		if cs.SendMsg(&f) != nil {
			return // the receiving side learns why
		}
	}
}

// relay copies the engine's messages, and its header before them and its trailer after.
func (c *call) relay(cs grpc.ClientStream) error {
	header, err := cs.Header()
	c.identify(header)
	for err == nil {
		var f frame.Frame
		if err = cs.RecvMsg(&f); err != nil {
			break
		}
		if err := c.stream.SendMsg(&f); err != nil {
			return err
		}
	}
	trailer := cs.Trailer()
	for k := range trailer {
		if reservedMetadata(k) || strings.HasPrefix(k, "grpc-status") || k == "grpc-message" {
			delete(trailer, k)
		}
	}
	c.stream.SetTrailer(trailer)
	if errors.Is(err, io.EOF) {
		c.hold.picked.ended(c.ctx, codes.OK, false)
		return nil
	}
	c.hold.picked.ended(c.ctx, status.Code(err), false)
	return c.engineError(err)
}

// engineError counts an error of the transport; those that an engine sent are its answer.
func (c *call) engineError(err error) error {
	if c.ctx.Err() == nil && status.Code(err) == codes.Unavailable {
		c.metric.upstreamError("call")
	}
	return err
}
