package gateway

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
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
func (p *grpcPool) begin(addr string) (*grpcConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("gateway: %w: it is shutting down", errdef.ErrUnavailable)
	}
	c := p.entry(addr)
	if c.conn == nil {
		conn, err := grpc.NewClient("passthrough:///"+addr, p.options...)
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
