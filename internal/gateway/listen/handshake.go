package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// handshaker accepts TLS connections once their handshake is done. Only then it is known what
// they speak: net/http must see HTTP/2's as they are, and those of HTTP/1.1 are shaped.
type handshaker struct {
	net.Listener
	config  *tls.Config
	timeout time.Duration
	refuse  Refusal
	ctx     context.Context //nolint:containedctx // it ends the handshakes under way, with the listener
	cancel  context.CancelFunc
	ready   chan net.Conn
	failed  chan error
	wg      sync.WaitGroup
}

// TLS returns a listener of connections whose handshake is done, which may take as long as timeout; those
// of HTTP/1.1 are as Plain's. A client that doesn't speak TLS is told so. It accepts connections of l
// at once and until Close, which ends the handshakes under way and waits for them.
func TLS(l net.Listener, config *tls.Config, timeout time.Duration, refuse Refusal) net.Listener {
	h := &handshaker{Listener: l, config: config, timeout: timeout, refuse: refuse, ready: make(chan net.Conn), failed: make(chan error)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.wg.Go(h.accept)
	return h
}

func (h *handshaker) accept() {
	for {
		c, err := h.Listener.Accept()
		if err == nil {
			h.wg.Go(func() { h.greet(c) })
			continue
		}
		select {
		case h.failed <- err: // the server decides whether to go on
		case <-h.ctx.Done():
		}
		if errors.Is(err, net.ErrClosed) || h.ctx.Err() != nil {
			return
		}
	}
}

func (h *handshaker) greet(raw net.Conn) {
	ctx, cancel := context.WithTimeout(h.ctx, h.timeout)
	defer cancel()
	c := tls.Server(raw, h.config)
	if err := c.HandshakeContext(ctx); err != nil {
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) && plain.Conn != nil && looksLikeHTTP(plain.RecordHeader) {
			_ = raw.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = raw.Write(h.refuse(http.StatusBadRequest, "this port speaks TLS: ask by https://"))
		}
		_ = raw.Close()
		return
	}
	var conn net.Conn = c
	if c.ConnectionState().NegotiatedProtocol != "h2" {
		conn = &shapedTLS{c, h.refuse}
	}
	select {
	case h.ready <- conn:
	case <-h.ctx.Done():
		_ = raw.Close()
	}
}

// looksLikeHTTP reports whether what came in place of a TLS record is the start of a request.
func looksLikeHTTP(header [5]byte) bool {
	switch string(header[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "PATCH", "DELET":
		return true
	}
	return false
}

// Accept returns the next connection that is ready, or the listener's error.
func (h *handshaker) Accept() (net.Conn, error) {
	select {
	case c := <-h.ready:
		return c, nil
	case err := <-h.failed:
		return nil, err
	case <-h.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close closes the listener and ends the handshakes under way.
func (h *handshaker) Close() error {
	err := h.Listener.Close()
	h.cancel()
	h.wg.Wait()
	return err
}

// shapedTLS is a connection of HTTP/1.1 over TLS whose refusals are rewritten. net/http finds
// the TLS state by its ConnectionState.
type shapedTLS struct {
	*tls.Conn
	refuse Refusal
}

func (c *shapedTLS) Write(b []byte) (int, error) { return c.refuse.write(c.Conn, b) }
