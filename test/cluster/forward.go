package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// forwarder copies each connection to one of its own.
type forwarder struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

// serve returns when the forwarder is closed and its last connection ended.
func (f *forwarder) serve() error {
	ctx, cancel := context.WithCancel(context.Background())
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	for {
		conn, err := f.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		conns.Go(func() { f.forward(ctx, conn) })
	}
}

func (f *forwarder) forward(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	if !f.track(conn) {
		return
	}
	defer f.forget(conn)
	target, err := f.dial(ctx)
	if err != nil {
		return // the client sees its connection closed, as by a server that is down
	}
	defer target.Close()
	if !f.track(target) {
		return
	}
	defer f.forget(target)
	var back sync.WaitGroup
	back.Go(func() { relay(conn, target) })
	relay(target, conn)
	back.Wait()
}

// relay copies until from ends, and then ends what to receives.
func relay(to, from net.Conn) {
	io.Copy(to, from) //nolint:errcheck // either side may go at any time
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		half.CloseWrite() //nolint:errcheck // as above
	}
}

func (f *forwarder) track(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	if f.open == nil {
		f.open = map[net.Conn]bool{}
	}
	f.open[conn] = true
	return true
}

func (f *forwarder) forget(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, conn)
}

func (f *forwarder) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for conn := range f.open {
		conn.Close()
	}
	return f.listener.Close()
}
