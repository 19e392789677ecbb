package local

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// ports hands out port numbers that nothing on the machine listens on and that no other
// replica was given. They lie below the kernel's ephemeral range where that leaves room, so
// that no outgoing connection takes one between allocation and bind.
type ports struct {
	mu       sync.Mutex
	taken    map[int]bool
	low, top int
}

func newPorts() *ports {
	p := &ports{taken: map[int]bool{}, low: 20000, top: 32000}
	raw, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	var lo, hi int
	if err == nil {
		if _, err = fmt.Sscan(string(raw), &lo, &hi); err == nil && lo < p.top && hi > p.low {
			if p.low, p.top = 10000, lo; lo < 12000 {
				p.low, p.top = 20000, 60000
			}
		}
	}
	return p
}

// take returns a free port, as asked if preferred isn't zero and it is free.
func (p *ports) take(preferred int, not map[int]bool) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if preferred != 0 && !p.taken[preferred] && portFree(preferred) {
		p.taken[preferred] = true
		return preferred, nil
	}
	for range 2000 {
		n := p.low + rand.IntN(p.top-p.low) //nolint:gosec // spreads, guards nothing
		if !p.taken[n] && !not[n] && portFree(n) {
			p.taken[n] = true
			return n, nil
		}
	}
	return 0, errdef.New(errdef.ErrUnavailable, fmt.Sprintf("no free port between %d and %d on this machine", p.low, p.top))
}

// claim marks ports as taken by an adopted replica.
func (p *ports) claim(m map[int]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range m {
		p.taken[n] = true
	}
}

func (p *ports) release(m map[int]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range m {
		delete(p.taken, n)
	}
}

// portFree reports whether a server could bind the port on every address. It binds without
// listening, so nobody can connect meanwhile.
func portFree(n int) bool {
	try := func(family int, addr unix.Sockaddr) bool {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return true // no such address family here
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return false
		}
		err = unix.Bind(fd, addr)
		return err == nil || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)
	}
	return try(unix.AF_INET, &unix.SockaddrInet4{Port: n}) && try(unix.AF_INET6, &unix.SockaddrInet6{Port: n})
}
