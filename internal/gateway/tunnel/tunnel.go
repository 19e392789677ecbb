// Package tunnel joins connections that changed their protocol, and ends them when they shall.
package tunnel

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Tunnels are the connections that changed their protocol. The zero Tunnels are none; they are safe for
// concurrent use.
type Tunnels struct {
	mu   sync.Mutex
	open map[*tunnel]bool
	wg   sync.WaitGroup
}

type tunnel struct{ client, engine net.Conn }

func (t *tunnel) close() {
	_ = t.client.Close()
	_ = t.engine.Close()
}

func (ts *Tunnels) add(t *tunnel) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.open == nil {
		ts.open = map[*tunnel]bool{}
	}
	ts.open[t] = true
	ts.wg.Add(1)
}

func (ts *Tunnels) remove(t *tunnel) {
	ts.mu.Lock()
	delete(ts.open, t)
	ts.mu.Unlock()
	ts.wg.Done()
}

// Drain waits for the tunnels to end and closes what is left when ctx ends.
func (ts *Tunnels) Drain(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		for t := range ts.open {
			t.close()
		}
	})
	ts.wg.Wait()
	stop()
}

// Join joins the client's and the engine's connection after a 101 response, whose fields w has, and
// returns when both directions have ended. Upgrade hands over the engine's, with what was read of it
// already; it isn't called where the client's can't change its protocol, which is an error of kind
// errdef.ErrUnsupported.
func (ts *Tunnels) Join(w http.ResponseWriter, upgrade func() (net.Conn, []byte, error)) error {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		return fmt.Errorf("%w: this connection can't change its protocol", errdef.ErrUnsupported)
	}
	engine, early, err := upgrade()
	if err != nil {
		return err
	}
	client, buffered, err := hijacker.Hijack()
	if err != nil {
		return fmt.Errorf("take over the client's connection: %w", err)
	}
	t := &tunnel{client, engine}
	ts.add(t)
	defer ts.remove(t)
	defer t.close()
	if err := client.SetDeadline(time.Time{}); err != nil {
		return err
	}
	out := bufio.NewWriter(client)
	_, _ = out.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = w.Header().Write(out)
	_, _ = out.WriteString("\r\n")
	_, _ = out.Write(early)
	if err := out.Flush(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := io.Copy(engine, buffered.Reader)
		halfClose(engine, client, err)
	})
	_, err = io.Copy(client, engine)
	halfClose(client, engine, err)
	wg.Wait()
	return nil
}

// halfClose passes on the end of one direction; a failure ends both.
func halfClose(to, from net.Conn, err error) {
	if cw, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		if cw.CloseWrite() == nil {
			return
		}
	}
	_ = to.Close()
	_ = from.Close()
}
