package gateway

import (
	"bytes"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// alive keeps the client of a stream that isn't OpenAI's while its request waits: after a silence
// the stream's head goes out, and then a comment each time. From then on it is the exchange's writer:
// the engine's stream follows, and whatever else comes of the request becomes one frame that tells
// the error. Where nothing went out it leaves no trace.
//
//	waiting ──silence──► begun ──head of a stream──► streaming
//	   └──goes on: gone        └──any other head───► instead
type alive struct {
	x *exchange
	// to is the client's writer; v2 says that the stream is one of V2's generate.
	to     http.ResponseWriter
	v2     bool
	header http.Header

	// mu guards what follows, and to, against the timer.
	mu      sync.Mutex
	timer   *time.Timer
	waiting bool
	begun   bool

	// headed says that the answer's head came, and instead that it is none of a stream.
	headed, instead bool
	kept            []byte
}

// wantsEvents reports whether a request's answer can only be a stream of events.
func (x *exchange) wantsEvents() bool {
	if x.r.Method == http.MethodPost && x.match.Call.Op == route.GenerateStream {
		return true
	}
	accept := x.r.Header["Accept"]
	if len(accept) != 1 {
		return false
	}
	kind, _, err := mime.ParseMediaType(accept[0]) // one that lists several is no media type
	return err == nil && kind == "text/event-stream"
}

// watchWait keeps the client alive from now on, if it waits for a stream.
func (x *exchange) watchWait() {
	silence := x.g.cfg.OpenAI.Silence
	if silence <= 0 || x.alive != nil || x.target != nil || x.ask != nil && x.ask.relay != nil || !x.r.ProtoAtLeast(1, 1) || len(x.r.Header["Expect"]) > 0 || !x.wantsEvents() {
		return
	}
	if x.r.ProtoMajor == 1 {
		// What there is of a body that wasn't read stays to be read after the head went out.
		_ = http.NewResponseController(x.w).EnableFullDuplex()
	}
	a := &alive{x: x, to: x.w, v2: x.match.Call.Op == route.GenerateStream, header: http.Header{}, waiting: true}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(silence, a.comment)
	x.alive = a
}

// goesOn ends the watch. What was begun takes the place of the client's writer.
func (x *exchange) goesOn() {
	a := x.alive
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.waiting {
		return // a later wait, of a request that was given to an engine
	}
	a.waiting = false
	a.timer.Stop()
	if a.begun {
		x.w = a
	} else {
		x.alive = nil
	}
}

// comment tells the client that it is waited for.
func (a *alive) comment() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.waiting {
		return
	}
	if !a.begun {
		a.begun = true
		h := a.to.Header()
		h["X-Request-Id"] = []string{a.x.id}
		h["Content-Type"] = []string{"text/event-stream"}
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Accel-Buffering"] = []string{"no"}
		a.to.WriteHeader(http.StatusOK)
	}
	_, _ = a.to.Write([]byte(openai.KeepAlive))
	a.flush()
	a.timer.Reset(a.x.g.cfg.OpenAI.Silence)
}

func (a *alive) flush() {
	if f, ok := a.to.(http.Flusher); ok {
		f.Flush()
	}
}

// Header, WriteHeader, Write and Flush are those of http.ResponseWriter, once the stream was begun.
func (a *alive) Header() http.Header { return a.header }

// WriteHeader finds out whether a stream comes.
func (a *alive) WriteHeader(status int) {
	if a.headed || status < http.StatusOK {
		return
	}
	a.headed = true
	a.instead = status != http.StatusOK || a.header.Get("Content-Encoding") != "" || !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream")
}

func (a *alive) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if !a.instead {
		return a.to.Write(p)
	}
	if len(a.kept)+len(p) <= maxKept {
		a.kept = append(a.kept, p...)
	}
	return len(p), nil
}

// Flush sends what was written.
func (a *alive) Flush() {
	if !a.instead {
		a.flush()
	}
}

// Unwrap lets http.ResponseController find what the writer below can do.
func (a *alive) Unwrap() http.ResponseWriter { return a.to }

// end tells what came in place of a stream.
func (a *alive) end(aborted bool) {
	if a == nil || !a.begun || !a.instead || aborted {
		return
	}
	body := bytes.TrimSpace(a.kept)
	if !bytes.HasPrefix(body, []byte(`{"error"`)) || bytes.ContainsAny(body, "\r\n") {
		body = bytes.TrimSpace(encode(struct {
			Error string `json:"error"`
		}{"the engine answered with something else than a stream"}))
	}
	var frame []byte
	if !a.v2 { // V2's clients read the data alone
		frame = append(frame, "event: error\n"...)
	}
	_, _ = a.to.Write(append(frame, openai.Frame(body)...))
	a.flush()
}
