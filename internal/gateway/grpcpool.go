package gateway

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// grpcPool holds one connection per engine address; HTTP/2 carries many calls on it.
type grpcPool struct {
	options []grpc.DialOption

	mu     sync.Mutex
	conns  map[string]*grpcConn
	closed bool
}

type grpcConn struct {
	conn  *grpc.ClientConn
	calls *atomic.Int64
	// socket is the latest that conn has.
	socket atomic.Pointer[syscall.RawConn]
}

// dial connects for grpc.
func (c *grpcConn) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.socket.Store(&raw)
		}
	}
	return nc, nil
}

// ended reports whether the engine has closed the connection, which grpc may not know yet.
func (c *grpcConn) ended() bool {
	raw := c.socket.Load()
	if raw == nil {
		return false
	}
	ended := false
	err := (*raw).Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ended = n <= 0 && err != syscall.EAGAIN && err != syscall.EINTR
	})
	return ended || err != nil
}

// noticing bounds the wait for grpc to notice that a connection has ended.
const noticing = 100 * time.Millisecond

// settle waits until grpc knows of a connection's end where the engine has closed it. A call
// that began on it would fail, though it could be made on another replica.
func (c *grpcConn) settle(ctx context.Context) {
	if !c.ended() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, noticing)
	defer cancel()
	c.conn.WaitForStateChange(ctx, connectivity.Ready)
}

// grpcWindow is the flow-control window towards engines: large enough that one big tensor
// doesn't wait for updates.
const grpcWindow = 1 << 20

func newGRPCPool(maxMessage int) *grpcPool {
	return &grpcPool{
		conns: map[string]*grpcConn{},
		options: []grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(
				grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage),
			),
			grpc.WithDisableServiceConfig(),
			grpc.WithDisableRetry(),
			grpc.WithIdleTimeout(5 * time.Minute),
			grpc.WithInitialWindowSize(grpcWindow),
			grpc.WithInitialConnWindowSize(grpcWindow),
			// An engine that restarts is on this machine or near: look again soon.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: 3 * time.Second,
			}),
		},
	}
}

// entry returns an address's entry. The caller holds the lock.
func (p *grpcPool) entry(addr string) *grpcConn {
	c := p.conns[addr]
	if c == nil {
		c = &grpcConn{calls: new(atomic.Int64)}
		p.conns[addr] = c
	}
	return c
}

// calls returns the counter of an address's calls under way.
func (p *grpcPool) calls(addr string) *atomic.Int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.entry(addr).calls
}

// begin returns the connection to an address for one call, which ends with the entry's end.
// It connects when it is first used.
func (p *grpcPool) begin(ctx context.Context, addr string) (*grpcConn, error) {
	c, err := p.take(addr)
	if err == nil {
		c.settle(ctx)
	}
	return c, err
}

func (p *grpcPool) take(addr string) (*grpcConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("gateway: %w: it is shutting down", errdef.ErrUnavailable)
	}
	c := p.entry(addr)
	if c.conn == nil {
		conn, err := grpc.NewClient("passthrough:///"+addr, append(p.options, grpc.WithContextDialer(c.dial))...)
		if err != nil {
			return nil, fmt.Errorf("gateway: address %q of an engine: %w", addr, err)
		}
		c.conn = conn
	}
	c.calls.Add(1)
	return c, nil
}

func (c *grpcConn) end() { c.calls.Add(-1) }

// prune drops addresses. Calls under way on them end with the connection, so an address is
// dropped only when it has none; a later prune finds it again.
func (p *grpcPool) prune(keep func(string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, c := range p.conns {
		if keep(addr) || c.calls.Load() > 0 {
			continue
		}
		delete(p.conns, addr)
		if c.conn != nil {
			_ = c.conn.Close()
		}
	}
}

func (p *grpcPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for addr, c := range p.conns {
		delete(p.conns, addr)
		if c.conn != nil {
			_ = c.conn.Close()
		}
	}
}

var rawCodec encoding.CodecV2 = newFrameCodec()
