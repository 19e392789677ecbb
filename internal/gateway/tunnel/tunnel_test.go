package tunnel_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of a connection over TCP.
func pair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// joined returns the two ends between which a tunnel runs, past the client's head of a response.
func joined(t *testing.T, ts *tunnel.Tunnels) (client *bufio.Reader, toGateway, engine net.Conn, done chan error) {
	t.Helper()
	near, engine := pair(t)
	done = make(chan error, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Upgrade", "knots")
		done <- ts.Join(w, func() (net.Conn, []byte, error) { return near, []byte("early "), nil })
	}))
	t.Cleanup(s.Close)
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\nat once "); err != nil {
		t.Fatal(err)
	}
	client = bufio.NewReader(c)
	resp, err := http.ReadResponse(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "knots" {
		t.Fatalf("the head is %d %v", resp.StatusCode, resp.Header)
	}
	return client, c, engine, done
}

func TestEachDirectionEndsByItself(t *testing.T) {
	var ts tunnel.Tunnels
	client, toGateway, engine, done := joined(t, &ts)
	if err := toGateway.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	heard, err := io.ReadAll(engine)
	if err != nil || string(heard) != "at once " {
		t.Errorf("the engine heard %q, %v", heard, err)
	}
	if _, err := io.WriteString(engine, "late"); err != nil {
		t.Fatal(err)
	}
	_ = engine.Close()
	if heard, err = io.ReadAll(client); err != nil || string(heard) != "early late" {
		t.Errorf("the client heard %q, %v", heard, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ts.Drain(t.Context())
}

func TestADrainWaitsAndThenEndsThem(t *testing.T) {
	var ts tunnel.Tunnels
	client, _, _, done := joined(t, &ts)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ts.Drain(ctx)
	<-done
	_, _ = io.ReadAll(client) // it ends
}

func TestAWriterThatKeepsItsConnection(t *testing.T) {
	var ts tunnel.Tunnels
	err := ts.Join(httptest.NewRecorder(), func() (net.Conn, []byte, error) {
		t.Error("the engine's connection was taken")
		return nil, nil, net.ErrClosed
	})
	if !errors.Is(err, errdef.ErrUnsupported) {
		t.Error(err)
	}
}
