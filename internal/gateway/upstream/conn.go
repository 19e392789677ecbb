package upstream

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// readSize is the buffer that a connection has while there is something in it; heads beyond it get a
// larger one for their time.
const readSize = 8 << 10

var readBuffers = sync.Pool{New: func() any { return new([readSize]byte) }}

// conn is one connection; one exchange uses it at a time.
type conn struct {
	host *Host
	nc   net.Conn
	raw  syscall.RawConn // nil when nc isn't a socket
	// socket is what nc is, or what TLS is spoken over; nil when there is none.
	socket syscall.RawConn
	// buf[r:w] was read from nc and not yet used. While nothing is there buf is nil, so that what waits
	// costs no memory. It is small, unless that was too small.
	buf   []byte
	small *[readSize]byte
	r, w  int
	// dialled is the turn in which it was, nil where it has ended; only who has the connection looks at it.
	dialled *turn
	// used says that an exchange was made, and again that the one under way isn't the first.
	used, again bool
	// received says that a byte of the current response came.
	received  bool
	idleSince time.Time
	deadline  time.Time
	aborted   atomic.Bool
	closed    atomic.Bool

	abortFn  func()
	peekFn   func(fd uintptr) bool
	peekByte [1]byte
	peekErr  error
	peekN    int
	// pending is the next read's error, found by sendWhole.
	pending error
	// peeked says that the connection was seen open just before this exchange.
	peeked bool

	// out, outErr and inErr belong to turn, which turnFn holds.
	out    []byte
	outErr error
	inErr  error
	turnFn func(fd uintptr) bool
	readFn func(fd uintptr) bool
	resp   Response
}

func newConn(h *Host, nc net.Conn) *conn {
	c := &conn{host: h, nc: nc}
	c.abortFn = c.abort
	under := nc
	secured, secure := nc.(*tls.Conn)
	if secure {
		under = secured.NetConn()
	}
	if sc, ok := under.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.socket, c.peekFn = raw, c.peek
			if !secure {
				c.raw, c.turnFn, c.readFn = raw, c.turn, c.read
			}
		}
	}
	return c
}

func (c *conn) peek(fd uintptr) bool {
	c.peekN, _, c.peekErr = syscall.Recvfrom(int(fd), c.peekByte[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return true
}

// stale reports whether the engine closed an idle connection, or sent something unasked.
func (c *conn) stale() bool {
	if c.r != c.w {
		return true
	}
	if c.socket == nil {
		return false
	}
	if err := c.socket.Read(c.peekFn); err != nil {
		return true
	}
	return c.peekErr != syscall.EAGAIN && c.peekErr != syscall.EINTR //nolint:errorlint // as recvfrom gave it, on every request
}

// sendWhole writes a request that is in memory, and waits for the first piece of the response
// in the same turn: Go's own Read would try once in vain before it waits, as the engine can't
// have answered yet. That call is a tenth of what a small request costs.
func (c *conn) sendWhole(b []byte) error {
	if c.raw == nil {
		_, err := c.nc.Write(b)
		return err
	}
	c.spare()
	c.out, c.outErr, c.inErr = b, nil, nil
	err := c.raw.Read(c.turnFn)
	rest := c.out
	c.out = nil
	switch {
	case c.outErr != nil:
		return os.NewSyscallError("write", c.outErr)
	case err == nil && len(rest) > 0: // the socket's buffer is full
		_, err = c.nc.Write(rest)
		return err
	case err == nil && c.inErr != nil:
		c.pending = c.inErr
	case err != nil:
		c.pending = err
	}
	return nil
}

// turn is called with the read side armed: first it writes, then, when there is something, it
// reads. What comes between the two isn't missed. A used connection is read at once, too.
func (c *conn) turn(fd uintptr) bool {
	if len(c.out) > 0 {
		for len(c.out) > 0 {
			n, err := syscall.Write(int(fd), c.out)
			if n > 0 {
				c.out = c.out[n:]
			}
			switch err {
			case nil, syscall.EINTR:
			case syscall.EAGAIN:
				return true
			default:
				c.outErr = err
				return true
			}
		}
		if !c.again {
			return false
		}
		// What the engine did before the read side was armed, such as to close its side, wakes
		// nobody.
	}
	return c.read(fd)
}

// read reads once into the buffer, which it has for as long as something comes; it reports false when
// there is nothing yet. Its error is inErr.
func (c *conn) read(fd uintptr) bool {
	c.room()
	for {
		n, err := syscall.Read(int(fd), c.buf[c.w:])
		switch {
		case n > 0:
			c.w += n
			c.received = true
			return true
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
		case err != nil:
			c.inErr = os.NewSyscallError("read", err)
		default:
			c.inErr = io.EOF
		}
		if c.r == c.w {
			c.spare()
		}
		return c.inErr != nil
	}
}

// room gives the connection a buffer.
func (c *conn) room() {
	if c.buf == nil {
		c.small = readBuffers.Get().(*[readSize]byte)
		c.buf = c.small[:]
	}
}

// spare takes the buffer away, with what is in it.
func (c *conn) spare() {
	if c.small != nil {
		readBuffers.Put(c.small)
	}
	c.small, c.buf, c.r, c.w = nil, nil, 0, 0
}

// full reports whether no more fits behind what is in the buffer from its beginning on.
func (c *conn) full() bool { return c.buf != nil && c.r == 0 && c.w == len(c.buf) }

func (c *conn) close() {
	if c.closed.CompareAndSwap(false, true) {
		c.host.open.Add(-1)
		_ = c.nc.Close()
		c.dialled.end()
	}
}

// abort makes pending and coming reads and writes fail. It may be called from any goroutine.
func (c *conn) abort() {
	c.aborted.Store(true)
	_ = c.nc.SetDeadline(time.Unix(1, 0))
}

// setDeadline bounds reads and writes. Calls that move it by little do nothing.
func (c *conn) setDeadline(t time.Time) error {
	if err := c.nc.SetDeadline(t); err != nil {
		return err
	}
	c.deadline = t
	if c.aborted.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// extend makes sure that a wait of d from now on is possible, and of little more.
func (c *conn) extend(d time.Duration) error {
	if c.aborted.Load() {
		return os.ErrDeadlineExceeded
	}
	want := time.Now().Add(d)
	if diff := want.Sub(c.deadline); diff >= 0 && diff < d/16 {
		return nil
	}
	if err := c.nc.SetReadDeadline(want); err != nil {
		return err
	}
	c.deadline = want
	if c.aborted.Load() {
		_ = c.nc.SetDeadline(time.Unix(1, 0))
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (c *conn) write(b []byte, timeout time.Duration) error {
	if err := c.writeWithin(timeout); err != nil {
		return err
	}
	_, err := c.nc.Write(b)
	return err
}

// writeAll writes several pieces, if it can in one call of the system.
func (c *conn) writeAll(pieces net.Buffers, timeout time.Duration) error {
	if err := c.writeWithin(timeout); err != nil {
		return err
	}
	_, err := pieces.WriteTo(c.nc)
	return err
}

// writeWithin bounds the next writes, unless timeout is 0.
func (c *conn) writeWithin(timeout time.Duration) error {
	if timeout <= 0 {
		return nil
	}
	if err := c.nc.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if c.aborted.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// fill reads once into the buffer, which isn't full. What Next returned before isn't valid any more.
func (c *conn) fill() error {
	if err := c.pending; err != nil {
		c.pending = nil
		return err
	}
	if c.r == c.w {
		c.spare()
	} else if c.w == len(c.buf) {
		copy(c.buf, c.buf[c.r:c.w])
		c.w -= c.r
		c.r = 0
	}
	if c.raw != nil {
		c.inErr = nil
		if err := c.raw.Read(c.readFn); err != nil {
			return err
		}
		return c.inErr
	}
	c.room()
	n, err := c.nc.Read(c.buf[c.w:])
	if n > 0 {
		c.received = true
		c.w += n
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// grow doubles the buffer, up to limit; it reports false when the buffer is that large.
func (c *conn) grow(limit int) bool {
	if len(c.buf) >= limit {
		return false
	}
	bigger := make([]byte, min(2*len(c.buf), limit))
	n := copy(bigger, c.buf[c.r:c.w])
	c.spare()
	c.buf, c.w = bigger, n
	return true
}

// RoundTrip sends a request and returns the response once its head is there; header fields
// are added to into. It blocks at most for the request's time-outs, and no longer than ctx.
//
// A request is sent again, once and on a new connection to the same address, where the
// engine turned out to have closed a kept connection: only when no byte of a response came
// and the body can be repeated. Errors are *Error for the engine's side, *BodyError for the
// client's body, ctx's error when ctx ended, and ErrInvalid for a bad target. After an error
// the request may be sent to another host if it is Repeatable; with a response its buffer is released,
// and the caller must Close the response and not use it afterwards.
func (h *Host) RoundTrip(ctx context.Context, req *Request, into http.Header) (*Response, error) {
	if err := req.Prepare(); err != nil {
		return nil, err
	}
	h.inflight.Add(1)
	now := time.Now()
	deadline := now.Add(req.HeaderTimeout)
	c := h.take(now, deadline, req.whole)
	// doubt is how an attempt ended that the engine may have seen, and ended over.
	var doubt error
	for connect := true; ; connect = false {
		if c == nil {
			var err error
			if connect {
				c, err = h.connect(ctx, deadline, req.whole)
			} else {
				c, err = h.dial(ctx, deadline)
			}
			if err != nil {
				h.inflight.Add(-1)
				if cause := context.Cause(ctx); cause != nil {
					return nil, cause
				}
				if doubt != nil {
					return nil, doubt
				}
				return nil, err
			}
		}
		resp, again, err := c.exchange(ctx, req, into)
		if err == nil {
			return resp, nil
		}
		if !again {
			h.inflight.Add(-1)
			return nil, err
		}
		doubt = nil
		if c.peeked {
			doubt = err
		}
		c = nil
	}
}

// exchange does one attempt. again says that the failure is that of a stale connection and
// may be mended by a new one.
func (c *conn) exchange(ctx context.Context, req *Request, into http.Header) (_ *Response, again bool, _ error) {
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, c.abortFn)
	}
	reused := c.used
	c.again, c.used = reused, true
	c.received = false
	c.pending = nil
	resp := &c.resp
	*resp = Response{conn: c, req: req, stop: stop, into: into}
	stage := StageWrite
	var err error
	if req.whole {
		resp.sent = true
		if err = c.sendWhole(req.buf.b); err != nil && readable(c) {
			err = nil // the engine answered before it had read all; it won't be reused
			resp.sent = false
		}
	} else {
		resp.sending = make(chan error, 1)
		if req.opened && req.Pieces == nil {
			req.Body = req.Rewind()
		}
		req.opened = true
		go resp.send()
	}
	if err == nil {
		stage = StageHeader
		err = resp.readHead(ctx)
	}
	if err == nil {
		if req.whole {
			req.Release() // nothing sends it again
		}
		return resp, false, nil
	}
	resp.broken = true
	sendErr := resp.end()
	var cause error
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	switch {
	case cause != nil:
		return nil, false, cause
	case sendErr != nil:
		return nil, false, sendErr
	}
	again = reused && !c.received && req.Repeatable() && gone(err)
	return nil, again, &Error{Stage: stage, Addr: c.host.addr, Err: err}
}

// readable reports whether something can be read although a write failed.
func readable(c *conn) bool {
	if c.socket == nil || c.socket.Read(c.peekFn) != nil {
		return false
	}
	return c.peekErr == nil && c.peekN > 0
}
