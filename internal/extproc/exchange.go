package extproc

import (
	"fmt"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/extproc/reading"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// state is what is kept of one request. States are used again.
type state struct {
	prompt reading.Prompt
	answer reading.Answer
	// held are the pieces of the body that came before a replica was picked.
	held [][]byte
	echo *echo
}

var states = sync.Pool{New: func() any { return &state{echo: newEcho()} }}

// bodies have room for what is read of a body, which is needed until a replica is picked: of the many
// requests that wait for their answers, none holds one.
var bodies = sync.Pool{New: func() any { return new(reading.Body) }}

// exchange is one request and its answer:
//
//	head ──(body as far as it is read)──► picked ──► answer's head ──► answer's body ──► done
//	  └────────────── refused ◄──────────────┘
type exchange struct {
	*state
	p    *picker
	send func(*extprocv3.ProcessingResponse) error

	// in and out are how the proxy sends the bodies.
	in, out modev3.ProcessingMode_BodySendMode
	head    headers
	call    openai.Call
	length  int64
	among   []string
	hinted  bool
	// body is what is read of the body before a replica is picked; nil where nothing is.
	body   *reading.Body
	size   int64
	picked bool
	place  place
	// outcome is how it went at the replica.
	outcome pick.Outcome
	done    bool
}

// take answers one message of the proxy's. An error that has a kind is to be told to the client; any
// other one ends the stream.
func (x *exchange) take(req *extprocv3.ProcessingRequest) error {
	switch r := req.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return x.requestHeaders(req, r.RequestHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		return x.requestBody(r.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		if x.body != nil {
			x.body.End()
		}
		if err := x.settle(false); err != nil {
			return err
		}
		return x.send(passRequestTrailers)
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		x.responseHeaders(req, r.ResponseHeaders)
		return x.send(passResponseHeaders)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return x.responseBody(r.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		x.end(time.Now())
		return x.send(passResponseTrailers)
	}
	return nil // a message of a newer protocol
}

func (x *exchange) requestHeaders(req *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) error {
	x.in, x.out = modev3.ProcessingMode_FULL_DUPLEX_STREAMED, modev3.ProcessingMode_FULL_DUPLEX_STREAMED
	// Proxies before the field was made follow the protocol, which asks for this mode.
	if modes := req.GetProtocolConfig(); modes != nil {
		x.in, x.out = modes.GetRequestBodyMode(), modes.GetResponseBodyMode()
	}
	x.head, x.length = h.GetHeaders().GetHeaders(), -1
	if v := metadata(req, subsetNamespace, subset); v != nil {
		x.among, x.hinted = addresses(v), true
	}
	x.length = x.head.length()
	if x.length > x.p.cfg.MaxBody {
		return x.tooLarge()
	}
	x.prompt.Begin(x.length)
	reads := !h.GetEndOfStream() && x.asks() && (x.in == modev3.ProcessingMode_FULL_DUPLEX_STREAMED ||
		x.in == modev3.ProcessingMode_BUFFERED || x.in == modev3.ProcessingMode_BUFFERED_PARTIAL)
	if !reads {
		return x.settle(false)
	}
	x.body = bodies.Get().(*reading.Body)
	x.body.Begin(x.length, x.p.cfg.MaxRead)
	if x.in == modev3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return nil // the answer comes when enough of the body was read
	}
	return x.send(passRequestHeaders)
}

// asks reports whether the body says what a replica is picked by.
func (x *exchange) asks() bool {
	if x.head.get(":method") != http.MethodPost || x.head.get("content-encoding") != "" || !x.p.group.Policy().ReadsBodies() {
		return false
	}
	path, _, _ := strings.Cut(x.head.get(":path"), "?")
	if u, err := url.PathUnescape(path); err == nil {
		path = u
	}
	at := strings.Index(path, "/v1/")
	if at < 0 {
		return false
	}
	var ok bool
	if x.call, ok = openai.ParsePath(path[at:], ""); !ok || !x.call.Op.Asks() {
		return false
	}
	kind, _, _ := mime.ParseMediaType(x.head.get("content-type"))
	return kind != "multipart/form-data"
}

func (x *exchange) requestBody(b *extprocv3.HttpBody) error {
	if x.size += int64(len(b.GetBody())); x.size > x.p.cfg.MaxBody {
		return x.tooLarge()
	}
	piece, last := b.GetBody(), b.GetEndOfStream()
	if x.in == modev3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return x.duplexBody(piece, last)
	}
	if x.picked {
		return x.send(passRequestBody)
	}
	if x.body != nil {
		x.body.Add(piece, last, len(piece))
	}
	common, to, err := x.lead()
	if err != nil {
		return err
	}
	return x.send(&extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}}, DynamicMetadata: to,
	})
}

// duplexBody takes a piece of a body, all of which is given back: after the head, which waits until
// a replica is picked.
func (x *exchange) duplexBody(piece []byte, last bool) error {
	if x.picked || x.body == nil {
		return x.giveBack(piece, last)
	}
	x.held = append(x.held, piece)
	if !x.body.Add(piece, last, x.p.cfg.MaxRead) {
		return nil
	}
	return x.settle(last)
}

// settle picks a replica unless that was done, and sends the head on its way with what was held,
// after which comes nothing if last.
func (x *exchange) settle(last bool) error {
	if x.picked {
		return nil
	}
	common, to, err := x.lead()
	if err != nil {
		return err
	}
	if err := x.send(&extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}}, DynamicMetadata: to,
	}); err != nil {
		return err
	}
	for i, piece := range x.held {
		if err := x.giveBack(piece, last && i == len(x.held)-1); err != nil {
			return err
		}
	}
	clear(x.held)
	x.held = x.held[:0]
	return nil
}

func (x *exchange) giveBack(piece []byte, last bool) error {
	x.echo.of(piece, last)
	return x.send(&x.echo.request)
}

// lead picks a replica and returns what leads the request there.
func (x *exchange) lead() (*extprocv3.CommonResponse, *structpb.Struct, error) {
	policy := x.p.group.Policy()
	if x.body != nil {
		if err := x.prompt.Read(x.call.Op, x.body, x.length, policy.Hashes()); err != nil {
			return nil, nil, err
		}
		x.prompt.Ask.Adapter = x.p.adapter(x.prompt.Model)
		x.releaseBody()
	}
	if policy.Sessions() {
		x.prompt.Ask.Session = policy.SessionOf(x.head.get)
	}
	at, err := x.p.pick(&x.prompt.Ask, x.among, x.hinted, time.Now())
	if err != nil {
		return nil, nil, err
	}
	x.place, x.picked, x.head, x.among = at, true, nil, nil
	x.p.cfg.metrics.picked()
	common, to := leading(at.to)
	return common, to, nil
}

func (x *exchange) tooLarge() error {
	return errdef.New(errdef.ErrTooLarge, fmt.Sprintf("the body is larger than %d bytes", x.p.cfg.MaxBody))
}

func (x *exchange) responseHeaders(req *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) {
	if !x.picked {
		return // of an answer that no engine gave
	}
	head := headers(h.GetHeaders().GetHeaders())
	status, _ := strconv.Atoi(head.get(":status"))
	x.servedBy(metadata(req, destinationNamespace, served).GetStringValue())
	x.outcome = outcome(status, details(req))
	x.answer.Begin(status, head.get("content-type"), head.get("content-encoding"))
	if h.GetEndOfStream() {
		x.end(time.Now())
	}
}

// servedBy moves the request to the endpoint that answered it: the one that was picked couldn't be
// reached then.
func (x *exchange) servedBy(address string) {
	v := x.place.view
	i, ok := v.at[address]
	if !ok || i == x.place.at {
		return
	}
	now := time.Now()
	x.place.charge.Release(pick.Unreached, 0, rand.Uint64(), now) //nolint:gosec // spreads load, guards nothing
	x.place.charge, x.place.at = x.p.group.Take(v.replicas[i], &x.prompt.Ask, now), i
}

// details says in the proxy's words where an answer came from, if it was told to say so (the
// attribute response.code_details); else it is empty.
func details(req *extprocv3.ProcessingRequest) string {
	for _, of := range req.GetAttributes() {
		if v := of.GetFields()["response.code_details"]; v != nil {
			return v.GetStringValue()
		}
	}
	return ""
}

// outcome is what an answer's status says of the replica.
func outcome(status int, details string) pick.Outcome {
	switch {
	case strings.Contains(details, "connection_failure"), strings.Contains(details, "no_healthy_upstream"):
		return pick.Unreached
	case strings.Contains(details, "connection_termination"):
		return pick.Failed
	}
	switch status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return pick.Failed
	}
	return pick.Answered
}

func (x *exchange) responseBody(b *extprocv3.HttpBody) error {
	if n := x.answer.Add(b.GetBody()); n > 0 {
		x.place.charge.Streamed(n)
	}
	if b.GetEndOfStream() {
		x.end(time.Now())
	}
	if x.out != modev3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return x.send(passResponseBody)
	}
	x.echo.of(b.GetBody(), b.GetEndOfStream())
	return x.send(&x.echo.response)
}

// end takes the request off its replica. Only the first call does anything.
func (x *exchange) end(now time.Time) {
	if x.done {
		return
	}
	x.done = true
	if !x.picked {
		return
	}
	prompt, produced := x.answer.End()
	x.p.cfg.metrics.tokens(prompt, produced)
	x.place.charge.Release(x.outcome, produced, rand.Uint64(), now) //nolint:gosec // spreads load, guards nothing
}

func (x *exchange) releaseBody() {
	if x.body != nil {
		x.body.Release(x.p.cfg.MaxRead)
		bodies.Put(x.body)
		x.body = nil
	}
}

// release gives back what the exchange used.
func (x *exchange) release() {
	x.end(time.Now())
	x.releaseBody()
	s := x.state
	s.prompt.Begin(0)
	clear(s.held)
	s.held = s.held[:0]
	s.echo.of(nil, false)
	s.answer.Begin(0, "", "")
	states.Put(s)
}
