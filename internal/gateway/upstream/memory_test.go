package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// While an engine is silent its connection has no buffer, and neither has an idle one; a request's is
// free once the answer has begun.
func TestWhatWaitsHoldsNoBuffer(t *testing.T) {
	more := make(chan struct{})
	addr := serve(t, func(c net.Conn, in *bufio.Reader) {
		for range 2 {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
			<-more
			_, _ = io.WriteString(c, "6\r\nsecond\r\n0\r\n\r\n")
		}
	})
	p := NewPool(Config{})
	defer p.Close()
	h := p.Host(addr)
	for range 2 { // a connection that is new, and one that was used
		req := request(http.MethodPost)
		req.Body, req.ContentLength = strings.NewReader("question"), 8
		resp, err := h.RoundTrip(t.Context(), req, http.Header{})
		if err != nil {
			t.Fatal(err)
		}
		if req.buf != nil || req.Body != nil || !resp.Sent() {
			t.Errorf("the answer has begun and the request is still kept: buffer %v, body %v", req.buf, req.Body)
		}
		c := resp.conn
		if b, err := resp.Next(); string(b) != "first" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
		if _, err := resp.line(); err != nil { // the first chunk's end
			t.Fatal(err)
		}
		resp.inChunk = false
		arrived := true
		if err := c.raw.Control(func(fd uintptr) { arrived = c.read(fd) }); err != nil || arrived || c.buf != nil || c.small != nil {
			t.Errorf("nothing has come: arrived %v, error %v, a buffer of %d bytes", arrived, err, len(c.buf))
		}
		more <- struct{}{}
		if b, err := resp.Next(); string(b) != "second" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
		if _, err := resp.Next(); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if err := resp.Close(); err != nil {
			t.Fatal(err)
		}
		if h.Idle() != 1 || c.buf != nil || c.small != nil {
			t.Errorf("%d idle connections, one with a buffer of %d bytes", h.Idle(), len(c.buf))
		}
	}
}

// A head that is larger than the usual buffer is read, and what follows it, from small pieces too.
func TestLargeHead(t *testing.T) {
	head := "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Large: " + strings.Repeat("x", 3*readSize) + "\r\n\r\n"
	addr := serve(t, func(c net.Conn, in *bufio.Reader) {
		for {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			for all := head + "body"; all != ""; {
				n := min(1000, len(all))
				_, _ = io.WriteString(c, all[:n])
				all = all[n:]
			}
		}
	})
	p := NewPool(Config{})
	defer p.Close()
	for range 2 {
		_, into, body, err := get(t, p.Host(addr), request(http.MethodGet))
		if body != "body" || len(into.Get("X-Large")) != 3*readSize || !errors.Is(err, io.EOF) && err != nil {
			t.Errorf("%q, %d bytes of a field, %v", body, len(into.Get("X-Large")), err)
		}
	}
}

// A body in memory is written as it lies there, and again where the engine had closed the connection.
func TestBodiesInPieces(t *testing.T) {
	pieces := [][]byte{[]byte("first "), nil, bytes.Repeat([]byte("x"), 3*stretch/2), []byte(" last"), bytes.Repeat([]byte("y"), stretch)}
	want := string(bytes.Join(pieces, nil))
	var mu sync.Mutex
	conns := 0
	addr := serve(t, func(c net.Conn, in *bufio.Reader) {
		mu.Lock()
		conns++
		mu.Unlock()
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != want {
			t.Errorf("the engine got %d bytes of %d, %v", len(got), len(want), err)
		}
		// The connection is closed after one answer, which doesn't say so.
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})
	p := NewPool(Config{})
	defer p.Close()
	for range 3 {
		req := request(http.MethodPost)
		req.Pieces, req.ContentLength = pieces, int64(len(want))
		if _, _, body, err := get(t, p.Host(addr), req); body != "ok" || !errors.Is(err, io.EOF) && err != nil {
			t.Fatalf("%q, %v", body, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if conns < 3 {
		t.Errorf("%d connections", conns)
	}
}

// What a client's connection couldn't write may still be read there, so that no other exchange gets it.
func TestWhatWasLentIsNotUsedAgain(t *testing.T) {
	for name, size := range map[string]int{"a small piece": 100, "a large one": 3 * readSize} {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, func(c net.Conn, in *bufio.Reader) {
				if _, err := http.ReadRequest(in); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", size))
				}
				_, _ = in.ReadByte()
			})
			p := NewPool(Config{})
			defer p.Close()
			resp, err := p.Host(addr).RoundTrip(t.Context(), request(http.MethodGet), http.Header{})
			if err != nil {
				t.Fatal(err)
			}
			var piece []byte
			for got := 0; got < size; got += len(piece) {
				if piece, err = resp.Next(); err != nil {
					t.Fatal(err)
				}
			}
			resp.Lend()
			if err := resp.Close(); err != nil {
				t.Fatal(err)
			}
			for range 8 {
				clear(readBuffers.Get().(*[readSize]byte)[:])
				b := buffers.Get().(*buffer).b
				clear(b[:cap(b)])
			}
			if strings.Trim(string(piece), "x") != "" {
				t.Error("what was lent is another's by now")
			}
		})
	}
}
