package upstream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Field is one header field; Name must be canonical.
type Field struct{ Name, Value string }

// Informer takes the responses that come before the final one. It is called while RoundTrip
// is, by its goroutine.
type Informer interface {
	Informational(status int, fields http.Header)
}

// Request is what is sent to an engine. It is used for one call and its retries, then
// released.
type Request struct {
	Method string
	// Target is the request target: path and query as they go on the wire.
	Target string
	Host   string
	// Header is the client's. Hop-by-hop fields, those that Connection names, Expect, and
	// those in Set or Drop aren't sent.
	Header http.Header
	Set    []Field
	// Drop reports fields that aren't sent; nil drops none. Names are canonical.
	Drop func(name string) bool
	Body io.Reader
	// Pieces are the body in place of Body, where all of it is in memory: they are written as they lie
	// there, and can be sent again. Nobody may change them until the request was released.
	Pieces [][]byte
	// Rewind returns the body from its beginning, where it can be sent again; nil where it can't.
	Rewind func() io.Reader
	// ContentLength of Body; 0 means none, -1 unknown.
	ContentLength int64
	// Trailer is read when Body has ended; nil means none.
	Trailer http.Header
	// Upgrade is the protocol that the client wants to change to; empty means none.
	Upgrade string
	// HeaderTimeout bounds the wait for the response's head once the body was sent, and each
	// write. It must be positive.
	HeaderTimeout time.Duration
	// IdleTimeout bounds each wait for more of the response's body; it must be positive.
	IdleTimeout time.Duration
	// AbortBody makes a blocked Body.Read return; nil means that Body never blocks for long.
	// It is called when the engine is done before the body is.
	AbortBody func()
	// Informer is given each 1xx response but 100 and 101; nil ignores them.
	Informer Informer

	buf    *buffer
	head   int  // length of the head within buf
	whole  bool // buf holds the whole body too
	opened bool // Body was read from
}

// Buffers come in two sizes: bufferSize holds a head and a body that is kept for a safe repetition,
// and smallBuffer what most requests are.
const (
	bufferSize  = 72 << 10
	smallBuffer = 4 << 10
	// smallBody leaves as much of a small buffer for the head.
	smallBody = smallBuffer / 2
)

// WholeBody is the size up to which a body of known length is sent in one write with the
// head, and repeated where the engine had closed the connection.
const WholeBody = 64 << 10

type buffer struct{ b []byte }

// noDeadline lifts a deadline.
var noDeadline time.Time

var (
	buffers      = sync.Pool{New: func() any { return &buffer{make([]byte, 0, bufferSize)} }}
	smallBuffers = sync.Pool{New: func() any { return &buffer{make([]byte, 0, smallBuffer)} }}
)

// putBuffer gives a buffer back, of either size; one that grew counts for as much as it has.
func putBuffer(b *buffer) {
	switch n := cap(b.b); {
	case n > 2*bufferSize:
	case n >= bufferSize:
		buffers.Put(b)
	case n >= smallBuffer && n <= 2*smallBuffer:
		smallBuffers.Put(b)
	}
}

// newBuffer returns a buffer for a head and what is kept of a body.
func (r *Request) newBuffer() *buffer {
	if r.ContentLength > smallBody && r.ContentLength <= WholeBody {
		return buffers.Get().(*buffer)
	}
	return smallBuffers.Get().(*buffer)
}

// Release gives the request's buffer back and lets go of its body, which nobody may be reading. The
// request can't be sent afterwards.
func (r *Request) Release() {
	r.Body, r.Pieces, r.Rewind, r.AbortBody = nil, nil, nil, nil
	if r.buf != nil {
		putBuffer(r.buf)
		r.buf = nil
	}
}

// Prepare writes the head into a buffer, and reads a small body behind it. RoundTrip does it
// where it wasn't done. Errors are *BodyError and, for a bad target, ErrInvalid.
func (r *Request) Prepare() error {
	if r.buf != nil {
		return nil
	}
	if err := r.check(); err != nil {
		return err
	}
	r.buf = r.newBuffer()
	b := r.appendHead(r.buf.b[:0])
	r.head = len(b)
	switch {
	case r.Pieces != nil:
	case r.ContentLength == 0 || r.Body == nil:
		r.whole = true
	case r.ContentLength > 0 && r.ContentLength <= WholeBody:
		r.opened = true
		n := int(r.ContentLength)
		if cap(b)-len(b) < n {
			b = append(make([]byte, 0, len(b)+n), b...)
		}
		if _, err := io.ReadFull(r.Body, b[len(b):len(b)+n]); err != nil {
			r.buf.b = b
			return &BodyError{err}
		}
		b = b[:len(b)+n]
		r.whole = true
	}
	r.buf.b = b
	return nil
}

// Retarget changes the target and the set fields before the request goes to another engine.
// It reports false when the body isn't there any more.
func (r *Request) Retarget(target string, set []Field) bool {
	if !r.Repeatable() {
		return false
	}
	r.Target, r.Set = target, set
	if r.buf == nil {
		return true
	}
	old, head := r.buf, r.head
	r.buf = r.newBuffer()
	b := r.appendHead(r.buf.b[:0])
	r.head = len(b)
	b = append(b, old.b[head:]...)
	r.buf.b = b
	putBuffer(old)
	return true
}

// Repeatable reports whether the request can be sent (again).
func (r *Request) Repeatable() bool {
	return r.whole || !r.opened || r.Pieces != nil || r.Rewind != nil
}

func (r *Request) check() error {
	for i := range len(r.Target) {
		if c := r.Target[i]; c <= ' ' || c == 0x7f {
			return fmt.Errorf("%w: the path holds a space or a control character; percent-encode it", errdef.ErrInvalid)
		}
	}
	return nil
}

func (r *Request) appendHead(b []byte) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.Target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.Host...)
	b = append(b, '\r', '\n')
	named := r.Header["Connection"]
fields:
	for name, values := range r.Header {
		if hopByHop(name) || name == "Content-Length" || name == "Expect" || name == "Host" ||
			(r.Drop != nil && r.Drop(name)) || (len(named) > 0 && listed(named, name)) {
			continue
		}
		for i := range r.Set {
			if r.Set[i].Name == name {
				continue fields
			}
		}
		for _, v := range values {
			b = appendField(b, name, v)
		}
	}
	for i := range r.Set {
		if r.Set[i].Value != "" {
			b = appendField(b, r.Set[i].Name, r.Set[i].Value)
		}
	}
	switch {
	case r.Upgrade != "":
		b = append(b, "Connection: Upgrade\r\nUpgrade: "...)
		b = append(b, r.Upgrade...)
		b = append(b, '\r', '\n')
	case len(r.Header["Te"]) > 0 && listed(r.Header["Te"], "trailers"):
		b = append(b, "Connection: TE\r\nTE: trailers\r\n"...)
	}
	switch {
	case r.ContentLength > 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.ContentLength, 10)
		b = append(b, '\r', '\n')
	case r.ContentLength < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
		for name := range r.Trailer {
			b = appendField(b, "Trailer", name)
		}
	case r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch:
		b = append(b, "Content-Length: 0\r\n"...)
	}
	return append(b, '\r', '\n')
}

// appendField writes a field. Servers of net/http have checked what clients sent; a value
// that could end the line is cut out all the same.
func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ':', ' ')
	if strings.ContainsAny(value, "\r\n\x00") {
		value = strings.NewReplacer("\r", " ", "\n", " ", "\x00", " ").Replace(value)
	}
	b = append(b, value...)
	return append(b, '\r', '\n')
}

// hopByHop reports fields that concern one connection only (RFC 9110, section 7.6.1, and
// those that proxies of old used).
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Proxy-Authenticate", "Proxy-Authorization", "Http2-Settings":
		return true
	}
	return false
}

// listed reports whether a comma-separated list names a token, whatever its case and
// parameters.
func listed(values []string, token string) bool {
	for _, v := range values {
		for v != "" {
			var part string
			part, v, _ = strings.Cut(v, ",")
			part, _, _ = strings.Cut(part, ";")
			if strings.EqualFold(textproto.TrimString(part), token) {
				return true
			}
		}
	}
	return false
}

// send writes a body that Prepare didn't keep. It runs beside the reading of the response, and
// sets ended when nothing more will be read from the body.
func (r *Request) send(c *conn, ended *atomic.Bool) error {
	if r.Pieces != nil {
		ended.Store(true)
		return r.sendPieces(c)
	}
	buf := buffers.Get().(*buffer)
	defer putBuffer(buf)
	b := buf.b[:cap(buf.b)]
	head := r.buf.b[:r.head]
	if r.ContentLength > 0 {
		n := copy(b, head)
		if n < len(head) { // a head that is larger than the buffer
			if err := c.write(head, r.HeaderTimeout); err != nil {
				return err
			}
			n = 0
		}
		return r.sendCounted(c, b, n, ended)
	}
	if err := c.write(head, r.HeaderTimeout); err != nil {
		return err
	}
	return r.sendChunked(c, b, ended)
}

// stretch is how much of a body in memory an engine has HeaderTimeout to take.
const stretch = 256 << 10

func (r *Request) sendPieces(c *conn) error {
	room := stretch
	var out net.Buffers
	for _, p := range append([][]byte{r.buf.b[:r.head]}, r.Pieces...) {
		for len(p) > 0 {
			n := min(len(p), room)
			out, p, room = append(out, p[:n]), p[n:], room-n
			if room > 0 {
				continue
			}
			if err := c.writeAll(out, r.HeaderTimeout); err != nil {
				return err
			}
			out, room = out[:0], stretch
		}
	}
	return c.writeAll(out, r.HeaderTimeout)
}

func (r *Request) sendCounted(c *conn, b []byte, filled int, ended *atomic.Bool) error {
	left := r.ContentLength
	for left > 0 {
		room := b[filled:]
		if int64(len(room)) > left {
			room = room[:left]
		}
		n, err := r.Body.Read(room)
		if left -= int64(n); left == 0 {
			ended.Store(true)
		}
		if filled += n; filled > 0 && n > 0 {
			if err := c.write(b[:filled], r.HeaderTimeout); err != nil {
				return err
			}
			filled = 0
		}
		if err != nil && left > 0 {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return &BodyError{err}
		}
	}
	return nil
}

func (r *Request) sendChunked(c *conn, b []byte, ended *atomic.Bool) error {
	const sizeRoom = 10 // eight hex digits and CRLF
	for {
		n, err := r.Body.Read(b[sizeRoom : len(b)-2])
		if errors.Is(err, io.EOF) {
			ended.Store(true)
		}
		if n > 0 {
			size := strconv.AppendInt(make([]byte, 0, sizeRoom), int64(n), 16)
			size = append(size, '\r', '\n')
			from := sizeRoom - len(size)
			copy(b[from:], size)
			copy(b[sizeRoom+n:], "\r\n")
			if err := c.write(b[from:sizeRoom+n+2], r.HeaderTimeout); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return &BodyError{err}
		}
	}
	end := b[:0]
	end = append(end, "0\r\n"...)
	for name, values := range r.Trailer {
		for _, v := range values {
			end = appendField(end, name, v)
		}
	}
	return c.write(append(end, '\r', '\n'), r.HeaderTimeout)
}
