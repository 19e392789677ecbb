package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// network is a network namespace, and the host's beside it. A socket belongs to the namespace
// that its thread was in when it was made, and works from every thread after that: so this
// process reaches a machine's network without leaving its own, and nothing on the host changes.
type network struct {
	path         string
	inside, home *os.File
}

func openNetwork(path string) (*network, error) {
	inside, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the machine's network: %w", err)
	}
	home, err := os.Open("/proc/self/ns/net")
	if err != nil {
		inside.Close()
		return nil, fmt.Errorf("open the host's network: %w", err)
	}
	return &network{path: path, inside: inside, home: home}, nil
}

func (n *network) close() {
	n.inside.Close()
	n.home.Close()
}

// within calls f on a thread that is in the namespace. What f starts elsewhere is not.
func (n *network) within(f func() error) error {
	runtime.LockOSThread()
	if err := unix.Setns(int(n.inside.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the machine's network: %w", err)
	}
	err := f()
	if back := unix.Setns(int(n.home.Fd()), unix.CLONE_NEWNET); back != nil {
		panic("BUG: the thread can't return to its own network: " + back.Error())
	}
	runtime.UnlockOSThread()
	return err
}

// dial connects to an IP address and port.
func (n *network) dial(ctx context.Context, protocol, address string) (conn net.Conn, err error) {
	err = n.within(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, protocol, address)
		return err
	})
	return conn, err
}

func (n *network) listen(ctx context.Context, address string) (l net.Listener, err error) {
	err = n.within(func() error {
		var c net.ListenConfig
		l, err = c.Listen(ctx, "tcp", address)
		return err
	})
	return l, err
}

// configure runs lines of ip's batch language, and lets the machine forward packets.
func (n *network) configure(ctx context.Context, lines ...string) error {
	return n.within(func() error {
		cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("configure the machine's network: %w: %s", err, out)
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
			return fmt.Errorf("let the machine forward packets: %w", err)
		}
		return nil
	})
}

// filter runs a script of nft's language.
func (n *network) filter(ctx context.Context, script string) error {
	return n.within(func() error {
		cmd := exec.CommandContext(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("filter the machine's packets: %w: %s", err, out)
		}
		return nil
	})
}
