package main

import (
	"net"
	"sync"
)

// connections are those that an engine has.
type connections struct {
	mu  sync.Mutex
	all map[net.Conn]bool
}

// reset breaks all of them off.
func (c *connections) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.all {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
		delete(c.all, conn)
	}
}

// listener notes the connections that it accepts.
type listener struct {
	net.Listener
	open *connections
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.mu.Lock()
	defer l.open.mu.Unlock()
	l.open.all[c] = true
	return &noted{c, l.open}, nil
}

// noted is a connection that is forgotten when it is closed.
type noted struct {
	net.Conn
	open *connections
}

func (c *noted) Close() error {
	c.open.mu.Lock()
	delete(c.open.all, c.Conn)
	c.open.mu.Unlock()
	return c.Conn.Close()
}
