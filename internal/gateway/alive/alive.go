// Package alive keeps the clients of streams while their requests wait for somebody to answer them.
package alive

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// maxKept is the most that is kept of what came in place of a stream.
const maxKept = 1 << 20

// Client is the client of a stream of events whose request waits: after a silence the stream's head goes
// out, and then a comment each time. From then on it is the request's writer: the engine's stream
// follows, and whatever else comes of the request becomes one frame that tells the error. Where nothing
// went out it leaves no trace.
//
//	waiting ──silence──► begun ──head of a stream──► streaming
//	   └──goes on: gone        └──any other head───► instead
type Client struct {
	id      string
	silence time.Duration
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

// Watch keeps a client from now on. It is told the request's id in the stream's head; v2 says that the
// stream is one of V2's generate, whose clients read the data of an error alone.
func Watch(w http.ResponseWriter, id string, v2 bool, silence time.Duration) *Client {
	c := &Client{id: id, silence: silence, to: w, v2: v2, header: http.Header{}, waiting: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(silence, c.comment)
	return c
}

// GoesOn ends the watch, for the request goes on. It reports whether it was the first to do so, and
// whether a stream was begun, whose writer the Client is now.
func (c *Client) GoesOn() (first, begun bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, c.waiting = c.waiting, false
	c.timer.Stop()
	return first, c.begun
}

// comment tells the client that it is waited for.
func (c *Client) comment() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.waiting {
		return
	}
	if !c.begun {
		c.begun = true
		h := c.to.Header()
		h["X-Request-Id"] = []string{c.id}
		h["Content-Type"] = []string{"text/event-stream"}
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Accel-Buffering"] = []string{"no"}
		c.to.WriteHeader(http.StatusOK)
	}
	_, _ = c.to.Write([]byte(openai.KeepAlive))
	c.flush()
	c.timer.Reset(c.silence)
}

func (c *Client) flush() {
	if f, ok := c.to.(http.Flusher); ok {
		f.Flush()
	}
}

// Header is http.ResponseWriter's, as are WriteHeader, Write and Flush, once the stream was begun.
func (c *Client) Header() http.Header { return c.header }

// WriteHeader finds out whether a stream comes.
func (c *Client) WriteHeader(status int) {
	if c.headed || status < http.StatusOK {
		return
	}
	c.headed = true
	c.instead = status != http.StatusOK || c.header.Get("Content-Encoding") != "" || !strings.HasPrefix(c.header.Get("Content-Type"), "text/event-stream")
}

func (c *Client) Write(p []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	if !c.instead {
		return c.to.Write(p)
	}
	if len(c.kept)+len(p) <= maxKept {
		c.kept = append(c.kept, p...)
	}
	return len(p), nil
}

// Flush sends what was written.
func (c *Client) Flush() {
	if !c.instead {
		c.flush()
	}
}

// Unwrap lets http.ResponseController find what the writer below can do.
func (c *Client) Unwrap() http.ResponseWriter { return c.to }

// End tells what came in place of a stream, unless the answer was aborted. The End of nil does nothing.
func (c *Client) End(aborted bool) {
	if c == nil || !c.begun || !c.instead || aborted {
		return
	}
	body := bytes.TrimSpace(c.kept)
	if !bytes.HasPrefix(body, []byte(`{"error"`)) || bytes.ContainsAny(body, "\r\n") {
		body = []byte(`{"error":"the engine answered with something else than a stream"}`)
	}
	var frame []byte
	if !c.v2 { // V2's clients read the data alone
		frame = append(frame, "event: error\n"...)
	}
	_, _ = c.to.Write(append(frame, openai.Frame(body)...))
	c.flush()
}
