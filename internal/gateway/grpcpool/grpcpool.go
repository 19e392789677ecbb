// Package grpcpool holds the gateway's gRPC connections to engines, as upstream holds those for
// HTTP/1.1.
package grpcpool

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/errdef"
)

// Pool holds one connection per place; HTTP/2 carries many calls on it. It is safe for
// concurrent use and starts nothing by itself.
type Pool struct {
	options []grpc.DialOption

	mu     sync.Mutex
	conns  map[Place]*Conn
	closed bool
}

// Place is an address ("host:port") and how it is reached.
type Place struct {
	Addr     string
	Security enginetls.Security
}

// Conn is the connection to one place.
type Conn struct {
	// ClientConn is nil until the first Begin.
	*grpc.ClientConn
	calls *atomic.Int64
	// socket is the latest that it has; nil before there was one.
	socket atomic.Pointer[socket]
}

// socket is a connection as grpc sees it.
type socket struct {
	net.Conn
	// dropped is closed once grpc has closed the connection; by then no call begins on it.
	dropped chan struct{}
	once    sync.Once
}

func (s *socket) Close() error {
	s.once.Do(func() { close(s.dropped) })
	return s.Conn.Close()
}

// ended reports whether the engine has closed the connection, which grpc may not know yet. What
// the engine sent before may still lie unread in front of the end, so a read wouldn't tell.
func (s *socket) ended() bool {
	sc, ok := s.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 0)
		closed = err == nil && n > 0
	})
	return closed || err != nil
}

// dial connects for grpc.
func (c *Conn) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: nc, dropped: make(chan struct{})}
	c.socket.Store(s)
	return s, nil
}

// noticing bounds the wait for grpc to notice that a connection has ended: a busy machine may
// not run its reader for a while.
const noticing = time.Second

// settle waits until grpc has dropped a connection that the engine has closed. A call that
// began on it would fail, though it could be made on another replica. The state that grpc tells
// doesn't do: it lags behind, and may not even be Ready when a call has ended already.
func (c *Conn) settle(ctx context.Context) {
	s := c.socket.Load()
	if s == nil || !s.ended() {
		return
	}
	timer := time.NewTimer(noticing)
	defer timer.Stop()
	select {
	case <-s.dropped:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Window is the flow-control window of streams and connections in bytes: large enough that one big tensor
// doesn't wait for updates.
const Window = 1 << 20

// New makes a pool for messages of up to maxMessage bytes each way.
func New(maxMessage int) *Pool {
	return &Pool{
		conns: map[Place]*Conn{},
		options: []grpc.DialOption{
			grpc.WithDefaultCallOptions(
				grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage),
			),
			grpc.WithDisableServiceConfig(),
			grpc.WithDisableRetry(),
			grpc.WithIdleTimeout(5 * time.Minute),
			grpc.WithInitialWindowSize(Window),
			grpc.WithInitialConnWindowSize(Window),
			// An engine that restarts is on this machine or near: look again soon.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: 3 * time.Second,
			}),
		},
	}
}

// entry returns a place's entry. The caller holds the lock.
func (p *Pool) entry(at Place) *Conn {
	c := p.conns[at]
	if c == nil {
		c = &Conn{calls: new(atomic.Int64)}
		p.conns[at] = c
	}
	return c
}

// Calls returns the counter of a place's calls under way.
func (p *Pool) Calls(at Place) *atomic.Int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.entry(at).calls
}

// Begin returns the connection to a place for one call, whose end is told by End. It
// connects when it is first used. It blocks for a moment, and no longer than ctx, where the
// engine has just closed the connection. After Close it returns ErrUnavailable.
func (p *Pool) Begin(ctx context.Context, at Place) (*Conn, error) {
	c, err := p.take(at)
	if err == nil {
		c.settle(ctx)
	}
	return c, err
}

func (p *Pool) take(at Place) (*Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("gateway: %w: it is shutting down", errdef.ErrUnavailable)
	}
	c := p.entry(at)
	if c.ClientConn == nil {
		proof := insecure.NewCredentials()
		if at.Security.On() {
			proof = credentials.NewTLS(at.Security.Config())
		}
		conn, err := grpc.NewClient("passthrough:///"+at.Addr,
			append(p.options, grpc.WithTransportCredentials(proof), grpc.WithContextDialer(c.dial))...)
		if err != nil {
			return nil, fmt.Errorf("gateway: address %q of an engine: %w", at.Addr, err)
		}
		c.ClientConn = conn
	}
	c.calls.Add(1)
	return c, nil
}

// End tells that a call has ended.
func (c *Conn) End() { c.calls.Add(-1) }

// Prune drops places that keep doesn't want. Calls under way on them end with the connection, so a place is
// dropped only when it has none; a later Prune finds it again.
func (p *Pool) Prune(keep func(Place) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, c := range p.conns {
		if keep(at) || c.calls.Load() > 0 {
			continue
		}
		delete(p.conns, at)
		if c.ClientConn != nil {
			_ = c.ClientConn.Close()
		}
	}
}

// Close ends all connections, and the calls on them.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for at, c := range p.conns {
		delete(p.conns, at)
		if c.ClientConn != nil {
			_ = c.ClientConn.Close()
		}
	}
}
