package app

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// addresses gives each component that another process must reach by name an address of its
// own in 127.64.0.0/10, at the gateway's port. A name such as iris-predictor.default resolves
// on a cluster only, and *.localhost not in every resolver; a loopback address always works,
// for HTTP and gRPC clients alike. It is safe for concurrent use.
type addresses struct {
	port int

	mu    sync.Mutex
	owner map[netip.Addr]string
}

func newAddresses(port int) *addresses {
	return &addresses{port: port, owner: map[netip.Addr]string{}}
}

// of returns the "host:port" of a component. It depends on the names alone unless two fall on
// one address; then the later asked gets the next that is free.
func (a *addresses) of(key spec.ServiceKey, c spec.Component) string {
	name := key.String() + "/" + string(c)
	a.mu.Lock()
	defer a.mu.Unlock()
	for try := uint32(0); ; try++ {
		ip := loopbackFor(name, try)
		if holder, taken := a.owner[ip]; taken && holder != name {
			continue
		}
		a.owner[ip] = name
		return net.JoinHostPort(ip.String(), strconv.Itoa(a.port))
	}
}

// loopbackFor maps a name to 127.64.0.1 … 127.127.255.254.
func loopbackFor(name string, try uint32) netip.Addr {
	sum := sha256.Sum256(binary.BigEndian.AppendUint32([]byte(name), try))
	return netip.AddrFrom4([4]byte{127, 64 + sum[0]%64, sum[1], 1 + sum[2]%254})
}

// listenerSet is a net.Listener that accepts from several listeners that come and go: the
// gateway's own, which ends the set when it fails, and those of component addresses.
type listenerSet struct {
	first net.Listener
	conns chan net.Conn
	err   chan error
	done  chan struct{}
	log   *slog.Logger

	mu     sync.Mutex
	closed bool
	extra  map[string]net.Listener
	wg     sync.WaitGroup
}

func newListenerSet(first net.Listener, log *slog.Logger) *listenerSet {
	s := &listenerSet{first: first, conns: make(chan net.Conn), err: make(chan error, 1), done: make(chan struct{}), log: log, extra: map[string]net.Listener{}}
	s.wg.Go(func() { s.err <- s.accept(first) })
	return s
}

func (s *listenerSet) accept(ln net.Listener) error {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		select {
		case s.conns <- conn:
		case <-s.done:
			conn.Close()
			return net.ErrClosed
		}
	}
}

// Accept returns the next connection of any listener.
func (s *listenerSet) Accept() (net.Conn, error) {
	select {
	case conn := <-s.conns:
		return conn, nil
	case err := <-s.err:
		return nil, err
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Addr is the address of the first listener.
func (s *listenerSet) Addr() net.Addr { return s.first.Addr() }

// Close closes all listeners and waits until none accepts.
func (s *listenerSet) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.done)
	err := s.first.Close()
	for _, ln := range s.extra {
		ln.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

// follow opens and closes component addresses as the routing table names them, until ctx ends.
func (s *listenerSet) follow(ctx context.Context, table *state.Topic[route.Table]) error {
	for {
		t, changed := table.Watch()
		s.set(loopbackHosts(t))
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func loopbackHosts(t *route.Table) map[string]bool {
	hosts := map[string]bool{}
	for _, svc := range t.Services() {
		for _, h := range svc.Hosts {
			if ip, err := netip.ParseAddr(h.Name); err == nil && ip.IsLoopback() {
				hosts[h.Name] = true
			}
		}
	}
	return hosts
}

func (s *listenerSet) set(hosts map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for host, ln := range s.extra {
		if !hosts[host] {
			ln.Close()
			delete(s.extra, host)
		}
	}
	_, port, err := net.SplitHostPort(s.first.Addr().String())
	if err != nil {
		panic(fmt.Sprintf("BUG: gateway address %s: %v", s.first.Addr(), err))
	}
	for host := range hosts {
		if s.extra[host] != nil {
			continue
		}
		ln, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			s.log.Error("open component address; the transformer that uses it can't reach its predictor", "address", host, "err", err)
			continue
		}
		s.extra[host] = ln
		s.wg.Go(func() {
			if err := s.accept(ln); !errors.Is(err, net.ErrClosed) {
				s.log.Error("component address failed", "address", ln.Addr().String(), "err", err)
			}
		})
	}
}
