package extproc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"stationmaster.dev/stationmaster/internal/extproc"
	"stationmaster.dev/stationmaster/internal/extproc/pool"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/state"
)

const (
	duplex   = modev3.ProcessingMode_FULL_DUPLEX_STREAMED
	buffered = modev3.ProcessingMode_BUFFERED
	streamed = modev3.ProcessingMode_STREAMED
	none     = modev3.ProcessingMode_NONE
)

// picker is an endpoint picker under test, and a proxy's connection to it.
type picker struct {
	pool    state.Topic[pool.Pool]
	samples state.Topic[pick.Samples]
	conn    *grpc.ClientConn
	proxy   extprocv3.ExternalProcessorClient
}

// serve starts an endpoint picker of some addresses; it ends with the test.
func serve(t testing.TB, cfg extproc.Config, addresses string) *picker {
	t.Helper()
	p := &picker{}
	if addresses != "" {
		static, err := pool.Static(addresses)
		if err != nil {
			t.Fatal(err)
		}
		p.pool.Publish(static)
	}
	cfg.Pool, cfg.Samples = &p.pool, &p.samples
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- extproc.New(cfg).Run(ctx, ln) }()
	p.conn, err = grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	p.proxy = extprocv3.NewExternalProcessorClient(p.conn)
	t.Cleanup(func() {
		_ = p.conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the endpoint picker ended with %v", err)
		}
	})
	return p
}

// request is one that a proxy asks about.
type request struct {
	in, out modev3.ProcessingMode_BodySendMode
	method  string // POST where empty
	path    string // that of chats where empty
	headers map[string]string
	body    string
	pieces  int // 1 where 0
	subset  []any
	hinted  bool
	// trailers has the body end by them.
	trailers bool
	// unsaid leaves the modes out, as old proxies do.
	unsaid bool
}

// call is a request that is under way.
type call struct {
	t      testing.TB
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
	req    request
	// to is where the request is led, meta the same in the metadata.
	to, meta string
	// refused is set where the request was answered in the engines' stead.
	refused *extprocv3.ImmediateResponse
	// body is what was given back.
	body string
}

func (c *call) send(m *extprocv3.ProcessingRequest) {
	c.t.Helper()
	// io.EOF says that the picker ended the stream, and Recv says why.
	if err := c.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		c.t.Fatal(err)
	}
}

// next takes the next answer.
func (c *call) next() *extprocv3.ProcessingResponse {
	c.t.Helper()
	m, err := c.stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	if m.GetImmediateResponse() != nil {
		c.refused = m.GetImmediateResponse()
		c.cancel()
	}
	return m
}

func (c *call) led(common *extprocv3.CommonResponse, m *extprocv3.ProcessingResponse) {
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == "x-gateway-destination-endpoint" {
			c.to = string(h.GetHeader().GetRawValue())
		}
	}
	c.meta = m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue()
}

func header(key, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: key, RawValue: []byte(value)}
}

// ask sends a request and takes the answers up to its whole body.
func (p *picker) ask(t testing.TB, r request) *call {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := p.proxy.Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &call{t: t, stream: stream, cancel: cancel, req: r}
	if r.method == "" {
		r.method = "POST"
	}
	if r.path == "" {
		r.path = "/v1/chat/completions"
	}
	fields := []*corev3.HeaderValue{header(":method", r.method), header(":path", r.path), header("content-type", "application/json")}
	for k, v := range r.headers {
		fields = append(fields, header(k, v))
	}
	first := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		Headers: &corev3.HeaderMap{Headers: fields}, EndOfStream: r.body == "",
	}}}
	if !r.unsaid {
		first.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: r.in, ResponseBodyMode: r.out}
	}
	if r.hinted {
		list, err := structpb.NewList(r.subset)
		if err != nil {
			t.Fatal(err)
		}
		first.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb.subset_hint": {
			Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-subset": structpb.NewListValue(list)},
		}}}
	}
	c.send(first)
	waits := r.body == "" || r.in != duplex && !r.unsaid
	if waits {
		m := c.next()
		c.led(m.GetRequestHeaders().GetResponse(), m)
	}
	if r.body == "" || c.refused != nil {
		return c
	}
	if r.in == none && !r.unsaid {
		return c
	}
	pieces := split(r.body, max(r.pieces, 1))
	for i, piece := range pieces {
		last := i == len(pieces)-1 && !r.trailers
		c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(piece), EndOfStream: last}}})
		if waits {
			m := c.next()
			if c.to == "" {
				c.led(m.GetRequestBody().GetResponse(), m)
			}
		}
	}
	if r.trailers {
		c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}})
	}
	if waits {
		return c
	}
	m := c.next()
	if c.refused != nil {
		return c
	}
	c.led(m.GetRequestHeaders().GetResponse(), m)
	for {
		m := c.next()
		if m.GetRequestTrailers() != nil || c.refused != nil {
			return c
		}
		back := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		c.body += string(back.GetBody())
		if back.GetEndOfStream() {
			return c
		}
	}
}

// first is the address that the request is led to.
func (c *call) first() string {
	to, _, _ := strings.Cut(c.to, ",")
	return to
}

// answer passes an answer back, as the endpoint served gave it, and returns its body as it came out.
func (c *call) answer(status, kind, served, details string, pieces ...string) string {
	c.t.Helper()
	m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
		Headers:     &corev3.HeaderMap{Headers: []*corev3.HeaderValue{header(":status", status), header("content-type", kind)}},
		EndOfStream: len(pieces) == 0,
	}}}
	if served != "" {
		m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": {
			Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-served": structpb.NewStringValue(served)},
		}}}
	}
	if details != "" {
		m.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {
			Fields: map[string]*structpb.Value{"response.code_details": structpb.NewStringValue(details)},
		}}
	}
	c.send(m)
	if c.next().GetResponseHeaders() == nil {
		c.t.Fatal("the answer's head got no answer")
	}
	out := ""
	for i, piece := range pieces {
		c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(piece), EndOfStream: i == len(pieces)-1}}})
		got := c.next().GetResponseBody().GetResponse()
		if c.req.out == duplex || c.req.unsaid {
			out += string(got.GetBodyMutation().GetStreamedResponse().GetBody())
		} else if got.GetBodyMutation() == nil {
			out += piece
		}
	}
	return out
}

// end ends the exchange as a proxy does, and waits until the picker has done so, too.
func (c *call) end() {
	c.t.Helper()
	if err := c.stream.CloseSend(); err != nil {
		c.t.Fatal(err)
	}
	if m, err := c.stream.Recv(); err == nil {
		c.t.Fatalf("after the end came %v", m)
	}
}

func split(s string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, s[i*len(s)/n:(i+1)*len(s)/n])
	}
	return out
}
