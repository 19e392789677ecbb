package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

// endless is a log that says one line and then nothing until it is left or over.
type endless struct {
	left <-chan struct{}
	over <-chan struct{}
	said bool
}

func (e *endless) Read(b []byte) (int, error) {
	if !e.said {
		e.said = true
		return copy(b, "engine starts\n"), nil
	}
	select {
	case <-e.left:
	case <-e.over:
	}
	return 0, io.EOF
}

func (e *endless) Close() error { return nil }

// door is a served side door with logs that read as open says.
func door(t *testing.T, open func(context.Context, LogQuery) (io.ReadCloser, error)) (dataDir string, ln net.Listener, stop func() error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dataDir = t.TempDir()
	token, err := WriteAccess(dataDir, ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, Config{Ready: func() error { return nil }, Token: token, Logs: open}) }()
	var ended bool
	stop = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		_ = stop()
		http.DefaultClient.CloseIdleConnections()
	})
	return dataDir, ln, stop
}

func TestAFollowedLogEndsByAWordWhenTheControlPlaneStops(t *testing.T) {
	dir, _, stop := door(t, func(ctx context.Context, _ LogQuery) (io.ReadCloser, error) { return &endless{left: ctx.Done()}, nil })
	log, err := OpenLogs(t.Context(), dir, LogQuery{Service: spec.ServiceKey{Namespace: "default", Name: "iris"}, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	line := make([]byte, len("engine starts\n"))
	if _, err := io.ReadFull(log, line); err != nil || string(line) != "engine starts\n" {
		t.Fatalf("read %q, %v", line, err)
	}
	if err := stop(); err != nil {
		t.Errorf("serving ended with %v", err)
	}
	if _, err := io.ReadAll(log); !errors.Is(err, ErrStopped) {
		t.Errorf("the log ended with %v, want ErrStopped", err)
	}
}

func TestAFollowedLogEndsPlainlyWhenItsReplicaIsGone(t *testing.T) {
	over := make(chan struct{})
	dir, _, _ := door(t, func(ctx context.Context, _ LogQuery) (io.ReadCloser, error) {
		return &endless{left: ctx.Done(), over: over}, nil
	})
	log, err := OpenLogs(t.Context(), dir, LogQuery{Follow: true, Service: spec.ServiceKey{Namespace: "default", Name: "iris"}})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	close(over)
	if raw, err := io.ReadAll(log); err != nil || string(raw) != "engine starts\n" {
		t.Errorf("read %q, %v", raw, err)
	}
}

func TestAFollowedLogWhoseServerIsKilledEndsAsStopped(t *testing.T) {
	// A server that is cut off in the middle of a chunked body, as by kill -9.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, 4096)
		_, _ = c.Read(buf)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
	}()
	dir := t.TempDir()
	if _, err := WriteAccess(dir, ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	log, err := OpenLogs(t.Context(), dir, LogQuery{Follow: true, Service: spec.ServiceKey{Namespace: "default", Name: "iris"}})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if raw, err := io.ReadAll(log); string(raw) != "abc" || !errors.Is(err, ErrStopped) {
		t.Errorf("read %q, %v", raw, err)
	}
	<-done
}

func TestLogsAreForTheBearerOfTheToken(t *testing.T) {
	dir, ln, _ := door(t, func(_ context.Context, q LogQuery) (io.ReadCloser, error) {
		switch q.Service.Name {
		case "gone":
			return nil, errdef.New(errdef.ErrNotFound, "service default/gone has no replica here")
		case "broken":
			return nil, errors.New("disk on fire")
		}
		if want := (LogQuery{Service: q.Service, Component: spec.Transformer, Replica: "r", Container: "c", Tail: 3, Previous: true}); q != want {
			t.Errorf("asked for %+v, want %+v", q, want)
		}
		return &endless{over: closed}, nil
	})
	q := LogQuery{Component: spec.Transformer, Replica: "r", Container: "c", Tail: 3, Previous: true}
	for name, want := range map[string]error{"iris": nil, "gone": errdef.ErrNotFound, "broken": errdef.ErrInternal} {
		q.Service = spec.ServiceKey{Namespace: "default", Name: name}
		log, err := OpenLogs(t.Context(), dir, q)
		if want != nil {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if raw, err := io.ReadAll(log); err != nil || string(raw) != "engine starts\n" {
			t.Errorf("read %q, %v", raw, err)
		}
		log.Close()
	}
	resp, err := http.Get("http://" + ln.Addr().String() + "/logs/default/iris?tail=-1")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %s", resp.Status)
	}
	if info, err := os.Stat(filepath.Join(dir, accessFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file: %v, %v", info.Mode(), err)
	}
	q.Tail = -1
	if got := q.values().Get("tail"); got != "" {
		t.Errorf("a negative tail is asked for as %q", got)
	}
}

// closed is over from the start.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
