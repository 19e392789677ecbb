// Package upstream is the gateway's side towards engines: a lean HTTP/1.1 client with pooled
// connections that writes a request and hands out the response's body without copying more
// than it must. It exists because http.Transport costs more than the rest of the gateway.
package upstream

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"stationmaster.dev/stationmaster/internal/enginetls"
)

// Config bounds a pool. The zero Config is usable.
type Config struct {
	// MaxIdle connections are kept per address; 0 means 256.
	MaxIdle int
	// MaxConns bounds the open connections per address; what comes beyond is refused with
	// ErrOverloaded. 0 means 4096.
	MaxConns int
	// MaxDials is how many connections are made to an address at one time, for a few milliseconds at
	// most; 0 means 8.
	MaxDials int
	// IdleTimeout closes connections that weren't used for so long; 0 means 60 s.
	IdleTimeout time.Duration
	// DialTimeout bounds connecting; 0 means 3 s.
	DialTimeout time.Duration
	// MaxHeaderBytes bounds a response's head, and its trailers; 0 means 64 KiB.
	MaxHeaderBytes int
	// Dial replaces net.Dialer, for tests; nil means TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (c Config) withDefaults() Config {
	if c.MaxIdle == 0 {
		c.MaxIdle = 256
	}
	if c.MaxConns == 0 {
		c.MaxConns = 4096
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = 60 * time.Second
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 3 * time.Second
	}
	if c.MaxDials == 0 {
		c.MaxDials = 8
	}
	if c.MaxHeaderBytes == 0 {
		c.MaxHeaderBytes = 64 << 10
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	return c
}

// Pool holds the connections to all engines. It is safe for concurrent use. It starts no
// goroutine of its own: Sweep must be called now and then.
type Pool struct {
	cfg   Config
	mu    sync.Mutex
	hosts map[Place]*Host
}

// Place is an address ("host:port") and how it is reached.
type Place struct {
	Addr     string
	Security enginetls.Security
}

// NewPool returns an empty pool.
func NewPool(cfg Config) *Pool {
	return &Pool{cfg: cfg.withDefaults(), hosts: map[Place]*Host{}}
}

// Host returns the connections to one address ("host:port") without TLS, as At does.
func (p *Pool) Host(addr string) *Host { return p.At(Place{Addr: addr}) }

// At returns the connections to one place; the same for the same place, until Prune has dropped it.
func (p *Pool) At(place Place) *Host {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[place]
	if h == nil {
		h = &Host{addr: place.Addr, cfg: &p.cfg, secure: place.Security.Config()}
		if h.secure != nil {
			h.secure.NextProtos = []string{"http/1.1"}
		}
		p.hosts[place] = h
	}
	return h
}

// Sweep closes connections that have been idle for too long at now.
func (p *Pool) Sweep(now time.Time) {
	for _, h := range p.all() {
		h.sweep(now.Add(-p.cfg.IdleTimeout))
	}
}

// Prune drops the hosts whose place keep denies: their idle connections close at once,
// those in use when their exchange ends.
func (p *Pool) Prune(keep func(Place) bool) {
	var gone []*Host
	p.mu.Lock()
	for place, h := range p.hosts {
		if !keep(place) {
			delete(p.hosts, place)
			gone = append(gone, h)
		}
	}
	p.mu.Unlock()
	for _, h := range gone {
		h.close()
	}
}

// Close closes all idle connections; those in use close when their exchange ends.
func (p *Pool) Close() { p.Prune(func(Place) bool { return false }) }

func (p *Pool) all() []*Host {
	p.mu.Lock()
	defer p.mu.Unlock()
	hosts := make([]*Host, 0, len(p.hosts))
	for _, h := range p.hosts {
		hosts = append(hosts, h)
	}
	return hosts
}

// Host is one engine address with its connections.
type Host struct {
	addr string
	cfg  *Config
	// secure is nil where there is no TLS.
	secure *tls.Config
	// inflight counts exchanges that began and haven't ended.
	inflight atomic.Int64
	open     atomic.Int64

	mu     sync.Mutex
	idle   []*conn // the last one used is at the end
	closed bool
	// dials is how many requests dial in turn; waiting are those that wait for that, or for a
	// connection: of chan lead.
	dials   int
	waiting list.List
}

// Addr returns the address.
func (h *Host) Addr() string { return h.addr }

// InFlight returns how many exchanges run now.
func (h *Host) InFlight() int64 { return h.inflight.Load() }

// Idle returns how many connections wait for use.
func (h *Host) Idle() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.idle)
}

// trusted is how long a connection counts as open without a look. Engines keep connections
// for seconds.
const trusted = 100 * time.Millisecond

// take returns an idle connection that the engine hasn't closed, with its deadline set, or
// nil if there is none. Where the request can be repeated a connection that was used within
// trusted isn't looked at: it costs a system call, and a failure can be mended.
func (h *Host) take(now, deadline time.Time, repeatable bool) *conn {
	for {
		h.mu.Lock()
		n := len(h.idle)
		if n == 0 {
			h.mu.Unlock()
			return nil
		}
		c := h.idle[n-1]
		h.idle[n-1] = nil
		h.idle = h.idle[:n-1]
		h.mu.Unlock()
		if h.fit(c, now, deadline, repeatable) {
			return c
		}
	}
}

// put gives back a connection that is fit for another exchange.
func (h *Host) put(c *conn) {
	c.idleSince = time.Now()
	t := c.dialled
	c.dialled = nil
	defer t.end() // when mu is free again
	h.mu.Lock()
	if !h.closed && h.lead(lead{conn: c}) {
		h.mu.Unlock()
		return
	}
	if h.closed || len(h.idle) >= h.cfg.MaxIdle {
		h.mu.Unlock()
		c.close()
		return
	}
	h.idle = append(h.idle, c)
	h.mu.Unlock()
}

func (h *Host) sweep(before time.Time) {
	h.mu.Lock()
	n := 0
	for n < len(h.idle) && h.idle[n].idleSince.Before(before) {
		n++
	}
	old := append([]*conn(nil), h.idle[:n]...)
	h.idle = append(h.idle[:0], h.idle[n:]...)
	h.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

func (h *Host) close() {
	h.mu.Lock()
	h.closed = true
	idle := h.idle
	h.idle = nil
	h.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}
