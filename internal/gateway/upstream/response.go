package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Response is an engine's answer. It belongs to one goroutine, and is valid until Close.
type Response struct {
	Status int
	// ContentLength is -1 when unknown.
	ContentLength int64
	// Trailer is set when Next has returned io.EOF, if there were any.
	Trailer http.Header
	// Announced are the trailer names that the head announced.
	Announced []string

	conn    *conn
	req     *Request
	into    http.Header
	stop    func() bool
	sending chan error // holds the sender's result; nil when there is no sender
	sent    bool
	headed  atomic.Bool // the head was read
	// bodyEnded says that the client's body was read to its end.
	bodyEnded atomic.Bool
	// bodyFailed says that the client's body broke off by itself.
	bodyFailed atomic.Bool
	sendErr    error
	broken     bool
	keep       bool
	mode       bodyMode
	left       int64 // of the body, or of the current chunk
	inChunk    bool
	done       bool
	large      *buffer
	// lent says that somebody may still read what Next returned last.
	lent bool
}

type bodyMode uint8

const (
	bodyNone bodyMode = iota
	bodyCounted
	bodyChunked
	bodyToEnd
)

// maxInformational bounds the 1xx responses before a final one.
const maxInformational = 8

// send is the sender's goroutine; end joins it.
func (r *Response) send() {
	c := r.conn
	err := r.req.send(c, &r.bodyEnded)
	if err == nil && !r.headed.Load() {
		// The engine has HeaderTimeout from now on, however long the body took.
		_ = c.nc.SetReadDeadline(time.Now().Add(r.req.HeaderTimeout))
		if c.aborted.Load() {
			c.abort()
		}
	}
	var be *BodyError
	if errors.As(err, &be) {
		// The engine waits for the rest of a body that never comes: end its call now.
		r.bodyFailed.Store(true)
		c.abort()
	}
	r.sending <- err
}

// settle takes note of the sender's end if it has ended.
func (r *Response) settle() {
	if r.sending == nil || r.sent {
		return
	}
	select {
	case r.sendErr = <-r.sending:
		r.sending = nil
		r.sent = r.sendErr == nil
	default:
	}
}

// Sent reports whether all of the request was sent, so that nobody reads its body any more.
func (r *Response) Sent() bool {
	r.settle()
	return r.sent
}

// senderGrace is how long a response that is whole waits for the last write of its request:
// an engine may answer before the sender has run again.
const senderGrace = 100 * time.Millisecond

func (r *Response) awaitSender() {
	t := time.NewTimer(senderGrace)
	defer t.Stop()
	select {
	case r.sendErr = <-r.sending:
		r.sending = nil
		r.sent = r.sendErr == nil
	case <-t.C:
	}
}

// end joins the sender and gives the connection back or closes it. It returns the client's
// error, if the body was at fault.
func (r *Response) end() error {
	c := r.conn
	if r.sending != nil {
		if r.settle(); r.sending != nil && r.bodyEnded.Load() {
			r.awaitSender()
		}
		if r.sending != nil {
			r.broken = true
			own := r.bodyFailed.Load()
			c.abort()
			if r.req.AbortBody != nil {
				r.req.AbortBody()
			}
			if err := <-r.sending; r.sendErr == nil {
				r.sendErr = err
			}
			r.sending = nil
			// A body that was cut because the engine was done isn't the client's fault.
			if !own {
				r.sendErr = nil
			}
		}
	}
	if r.lent {
		r.large, c.small = nil, nil
	}
	if r.large != nil {
		putBuffer(r.large)
		r.large = nil
	}
	stopped := r.stop()
	err := clientFault(r.sendErr)
	fit := stopped && r.sent && r.keep && r.done && !r.broken && c.r == c.w && !c.aborted.Load()
	c.spare()
	// r is part of the connection: once that is given back, both are another exchange's.
	r.conn = nil
	if fit {
		c.host.put(c)
	} else {
		c.close()
	}
	return err
}

// clientFault returns the *BodyError in err, or nil.
func clientFault(err error) error {
	if err == nil {
		return nil
	}
	var be *BodyError
	if errors.As(err, &be) {
		return be
	}
	return nil
}

// Close ends the exchange: a connection whose body was read to its end is kept, any other is
// closed, which cancels the engine's work. It waits until nothing reads the request's body.
// It returns the *BodyError of a client's body that broke off while the response was read.
func (r *Response) Close() error {
	if r.conn == nil {
		return nil
	}
	host := r.conn.host
	err := r.end()
	host.inflight.Add(-1)
	return err
}

// wait bounds the next read: by HeaderTimeout from the end of the body on before the head,
// by IdleTimeout after it.
func (r *Response) readHead(ctx context.Context) error {
	c := r.conn
	for range maxInformational {
		end, err := r.awaitHead()
		if err != nil {
			return err
		}
		block := string(c.buf[c.r : c.r+end])
		c.r += end
		status, http11, rest, err := parseStatus(block)
		if err != nil {
			return err
		}
		if status >= 200 || status == http.StatusSwitchingProtocols {
			return r.start(status, http11, rest)
		}
		h := http.Header{}
		if _, err := parseFields(rest, h); err != nil {
			return err
		}
		if status != http.StatusContinue && r.req.Informer != nil && ctx.Err() == nil {
			r.req.Informer.Informational(status, h)
		}
	}
	return protocolError("more than %d informational responses", maxInformational)
}

// awaitHead reads until a whole head is in the buffer and returns its length.
func (r *Response) awaitHead() (int, error) {
	c := r.conn
	scanned := 0
	for {
		if n := headEnd(c.buf[c.r:c.w], scanned); n > 0 {
			return n, nil
		}
		scanned = max(0, c.w-c.r-3)
		if c.w-c.r >= c.host.cfg.MaxHeaderBytes {
			return 0, protocolError("the response's head is larger than %d bytes", c.host.cfg.MaxHeaderBytes)
		}
		if c.full() && !c.grow(c.host.cfg.MaxHeaderBytes) {
			return 0, protocolError("the response's head is larger than %d bytes", c.host.cfg.MaxHeaderBytes)
		}
		err := c.fill()
		if err == nil {
			continue
		}
		// While the body is still being sent the engine has all the time it needs.
		if errors.Is(err, os.ErrDeadlineExceeded) && r.sending != nil && !c.aborted.Load() {
			if r.settle(); r.sendErr == nil {
				if err := c.extend(r.req.HeaderTimeout); err == nil {
					continue
				}
			}
		}
		if r.settle(); r.sendErr != nil {
			var be *BodyError
			if errors.As(r.sendErr, &be) {
				return 0, be
			}
		}
		if errors.Is(err, io.EOF) && c.received {
			err = io.ErrUnexpectedEOF
		}
		return 0, err
	}
}

// start takes a final head and decides how the body is framed (RFC 9112, section 6.3).
func (r *Response) start(status int, http11 bool, fields string) error {
	f, err := parseFields(fields, r.into)
	if err != nil {
		return err
	}
	r.Status = status
	r.headed.Store(true)
	r.keep = http11 && !listed(f.connection, "close") || !http11 && listed(f.connection, "keep-alive")
	r.ContentLength = f.length
	switch {
	case status == http.StatusSwitchingProtocols:
		if r.req.Upgrade == "" {
			return protocolError("a change of protocol that nobody asked for")
		}
		r.into["Upgrade"] = []string{f.upgrade}
		r.into["Connection"] = []string{"Upgrade"}
		r.done, r.keep = true, false
	case r.req.Method == http.MethodHead, status == http.StatusNoContent, status == http.StatusNotModified:
		r.done = true
	case f.chunked:
		if !http11 {
			return protocolError("chunks in HTTP/1.0")
		}
		r.mode, r.ContentLength = bodyChunked, -1
		for _, v := range f.trailer {
			for name := range strings.SplitSeq(v, ",") {
				if n, ok := canonical(textproto.TrimString(name)); ok && !forbiddenTrailer(n) {
					r.Announced = append(r.Announced, n)
				}
			}
		}
	case f.length == 0:
		r.done = true
	case f.length > 0:
		r.mode, r.left = bodyCounted, f.length
	default:
		r.mode, r.keep = bodyToEnd, false
	}
	return nil
}

// Next returns the next piece of the body, valid until the next call, and io.EOF when the
// body has ended well. It waits at most the request's IdleTimeout.
func (r *Response) Next() ([]byte, error) {
	b, err := r.next()
	if err == nil || err == io.EOF { //nolint:errorlint // a wrapped EOF is a break, not the end
		return b, err
	}
	r.broken = true
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return nil, &Error{Stage: StageBody, Addr: r.conn.host.addr, Err: err}
}

func (r *Response) next() ([]byte, error) {
	if r.done {
		return nil, io.EOF
	}
	switch r.mode {
	case bodyCounted:
		b, err := r.take(r.left)
		if err != nil {
			return nil, unexpected(err)
		}
		if r.left -= int64(len(b)); r.left == 0 {
			r.done = true
		}
		return b, nil
	case bodyToEnd:
		b, err := r.take(1 << 62)
		if err == io.EOF { //nolint:errorlint // as above
			r.done = true
		}
		return b, err
	}
	for r.left == 0 {
		if r.inChunk {
			if line, err := r.line(); err != nil {
				return nil, unexpected(err)
			} else if len(line) != 0 {
				return nil, protocolError("a chunk is longer than its size says")
			}
			r.inChunk = false
		}
		line, err := r.line()
		if err != nil {
			return nil, unexpected(err)
		}
		if r.left, err = chunkSize(line); err != nil {
			return nil, err
		}
		if r.left == 0 {
			if err := r.trailers(); err != nil {
				return nil, unexpected(err)
			}
			r.done = true
			return nil, io.EOF
		}
		r.inChunk = true
	}
	b, err := r.take(r.left)
	r.left -= int64(len(b))
	return b, unexpected(err)
}

func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // as above
		return io.ErrUnexpectedEOF
	}
	return err
}

// Fault is an error of the engine's that was found in what the body says; the connection isn't used
// again.
func (r *Response) Fault(err error) error {
	r.broken = true
	return &Error{Stage: StageBody, Addr: r.conn.host.addr, Err: err}
}

// Lend says that whoever was given what Next returned last may read on in it for a while, as a server of
// HTTP/2 does with what it couldn't write: its memory is used by nobody else then.
func (r *Response) Lend() { r.lent = true }

// Ended reports whether the body's end is known without waiting: then a flush can be spared.
func (r *Response) Ended() bool {
	if r.done {
		return true
	}
	if r.mode != bodyChunked || r.left != 0 {
		return false
	}
	c := r.conn
	rest := c.buf[c.r:c.w]
	if r.inChunk {
		var ok bool
		if rest, ok = bytes.CutPrefix(rest, []byte("\r\n")); !ok {
			return false
		}
	}
	return bytes.Equal(rest, []byte("0\r\n\r\n"))
}

// Ready reports whether Next would return without waiting.
func (r *Response) Ready() bool {
	c := r.conn
	switch {
	case r.done:
		return true
	case r.mode != bodyChunked || r.left > 0:
		return c.r < c.w
	}
	rest := c.buf[c.r:c.w]
	if r.inChunk {
		if len(rest) < 2 {
			return false
		}
		rest = rest[2:]
	}
	i := bytes.IndexByte(rest, '\n')
	return i >= 0 && i+1 < len(rest)
}

// take returns up to limit bytes: what is buffered, or one read.
func (r *Response) take(limit int64) ([]byte, error) {
	c := r.conn
	if c.r == c.w {
		if err := r.extend(); err != nil {
			return nil, err
		}
		if limit > readSize {
			if r.large == nil {
				r.large = buffers.Get().(*buffer)
			}
			b := r.large.b[:WholeBody]
			if limit < int64(len(b)) {
				b = b[:limit]
			}
			n, err := c.nc.Read(b)
			if n > 0 {
				return b[:n], nil
			}
			return nil, err
		}
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
	b := c.buf[c.r:c.w]
	if int64(len(b)) > limit {
		b = b[:limit]
	}
	c.r += len(b)
	return b, nil
}

func (r *Response) extend() error { return r.conn.extend(r.req.IdleTimeout) }

// maxChunkLine bounds a chunk's size with its extensions.
const maxChunkLine = 256

// line returns a line without its end. The buffer is large enough for maxChunkLine.
func (r *Response) line() ([]byte, error) {
	c := r.conn
	for {
		if i := bytes.IndexByte(c.buf[c.r:c.w], '\n'); i >= 0 {
			line := c.buf[c.r : c.r+i]
			c.r += i + 1
			if len(line) == 0 || line[len(line)-1] != '\r' {
				return nil, protocolError("a line in a chunked body ends without a carriage return")
			}
			if len(line) > maxChunkLine {
				return nil, protocolError("a chunk's size line is longer than %d bytes", maxChunkLine)
			}
			return line[:len(line)-1], nil
		}
		if c.w-c.r > maxChunkLine {
			return nil, protocolError("a chunk's size line is longer than %d bytes", maxChunkLine)
		}
		if err := r.extend(); err != nil {
			return nil, err
		}
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
}

// trailers reads what follows the last chunk.
func (r *Response) trailers() error {
	c := r.conn
	for {
		b := c.buf[c.r:c.w]
		if len(b) >= 2 && b[0] == '\r' && b[1] == '\n' {
			c.r += 2
			return nil
		}
		if i := bytes.Index(b, []byte("\r\n\r\n")); i >= 0 {
			n := i + 4
			h := http.Header{}
			if _, err := parseFields(string(b[:n]), h); err != nil {
				return err
			}
			c.r += n
			for name := range h {
				if forbiddenTrailer(name) {
					delete(h, name)
				}
			}
			r.Trailer = h
			return nil
		}
		if len(b) >= c.host.cfg.MaxHeaderBytes ||
			(c.full() && !c.grow(c.host.cfg.MaxHeaderBytes)) {
			return protocolError("the trailers are larger than %d bytes", c.host.cfg.MaxHeaderBytes)
		}
		if err := r.extend(); err != nil {
			return err
		}
		if err := c.fill(); err != nil {
			return err
		}
	}
}

// Upgrade hands out the connection after a 101 response, and what was already read from it.
// The caller closes it; Close must still be called, when it is done with it.
func (r *Response) Upgrade() (net.Conn, []byte, error) {
	c := r.conn
	if r.Status != http.StatusSwitchingProtocols {
		return nil, nil, protocolError("status %d changes no protocol", r.Status)
	}
	if !r.stop() {
		return nil, nil, context.Canceled
	}
	if err := c.nc.SetDeadline(noDeadline); err != nil {
		return nil, nil, err
	}
	return c.nc, c.buf[c.r:c.w], nil
}
