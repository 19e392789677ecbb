package payloads

import (
	"io"
	"net/http"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

// MaxKept is the most that is kept of a body for its event, each way. What is longer is cut, and its
// event says so.
const MaxKept = 4 << 20

// Exchange is what is kept of a request and its answer until both are told. Its bodies may be read and
// written by any goroutine.
type Exchange struct {
	to  Taker
	log *spec.PayloadLog
	// event is what both events share.
	event Event

	// mu guards what follows: a body may still be read when its answer has ended.
	mu              sync.Mutex
	request, answer kept
	done            bool
}

// Taker takes the events of logged requests. It doesn't block.
type Taker interface {
	Emit(*Event)
}

// kept is the beginning of a body, cut at MaxKept.
type kept struct {
	b   []byte
	cut bool
}

func (k *kept) add(p []byte) {
	if room := MaxKept - len(k.b); len(p) > room {
		p, k.cut = p[:room], true
	}
	k.b = append(k.b, p...)
}

// NewExchange begins what log asks for. about is what is known of the request: when it came, its ID,
// service, component and the like; headers returns the values of its fields.
func NewExchange(to Taker, log *spec.PayloadLog, about Event, headers func(name string) []string) *Exchange {
	x := &Exchange{to: to, log: log, event: about}
	x.event.URL, x.event.Store, x.event.Annotations = log.URL, log.Store, log.Annotations
	for _, name := range log.Headers {
		if v := headers(name); len(v) > 0 {
			if x.event.Headers == nil {
				x.event.Headers = map[string][]string{}
			}
			x.event.Headers[http.CanonicalHeaderKey(name)] = v
		}
	}
	return x
}

// Expect makes room for so many bytes of the request.
func (x *Exchange) Expect(n int) { x.request.b = make([]byte, 0, n) }

// Asked keeps a piece of the request, and Answered one of the answer.
func (x *Exchange) Asked(p []byte) { x.keep(&x.request, p) }

// Answered is described at Asked.
func (x *Exchange) Answered(p []byte) { x.keep(&x.answer, p) }

func (x *Exchange) keep(k *kept, p []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.done {
		k.add(p)
	}
}

// End is how an exchange ended.
type End struct {
	At time.Time
	// Revision answered, and Tag is its tag, if it has one; both are empty where none was chosen.
	Revision, Tag string
	// Status is the answer's, an HTTP status or, for a gRPC call, a code.
	Status int
	// Request and Answer add to its event what is to be told of each alone.
	Request, Answer func(*Event)
	// Cut says that the answer broke off.
	Cut bool
}

// Tell sends the events that the log asks for. What comes later isn't kept.
func (x *Exchange) Tell(e End) {
	x.mu.Lock()
	x.done = true
	asked, answered := x.request, x.answer
	x.mu.Unlock()
	x.event.Revision, x.event.Endpoint, x.event.Source = e.Revision, "default", x.event.Service.Namespace+"/"+x.event.Service.Name
	if e.Tag != "" {
		x.event.Endpoint = e.Tag
	}
	if e.Revision != "" {
		x.event.Source = e.Revision
	}
	if x.log.Requests {
		ev := x.event
		ev.Kind, ev.Data, ev.Truncated = Request, asked.b, asked.cut
		e.Request(&ev)
		x.to.Emit(&ev)
	}
	if x.log.Responses {
		ev := x.event
		ev.Kind, ev.Time, ev.Status, ev.Data, ev.Truncated = Response, e.At, e.Status, answered.b, answered.cut || e.Cut
		e.Answer(&ev)
		x.to.Emit(&ev)
	}
}

// Body keeps what is read of a request's body.
func (x *Exchange) Body(of io.ReadCloser) io.ReadCloser { return &askedBody{of, x} }

// Writer keeps what is written of an answer's body.
func (x *Exchange) Writer(of http.ResponseWriter) http.ResponseWriter { return &answeredBody{of, x} }

type askedBody struct {
	io.ReadCloser
	x *Exchange
}

func (b *askedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.x.Asked(p[:n])
	return n, err
}

type answeredBody struct {
	http.ResponseWriter
	x *Exchange
}

func (a *answeredBody) Write(p []byte) (int, error) {
	n, err := a.ResponseWriter.Write(p)
	a.x.Answered(p[:n])
	return n, err
}

func (a *answeredBody) Flush() {
	if f, ok := a.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap lets http.ResponseController find what the writer below can do.
func (a *answeredBody) Unwrap() http.ResponseWriter { return a.ResponseWriter }
