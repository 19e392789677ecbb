package gateway_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"stationmaster.dev/stationmaster/internal/route"
)

// TestAnEngineThatClosesItsSideIsAskedAnew: cpp-httplib, say, closes its side of a connection after
// a stream, without having said so, and reads on for a while, so that the next request meets no
// error. The close came before anything waited for it.
func TestAnEngineThatClosesItsSideIsAskedAnew(t *testing.T) {
	l := listen(t)
	closed := make(chan struct{}, 1)
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		var open []net.Conn
		defer func() {
			for _, c := range open {
				_ = c.Close()
			}
		}()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open = append(open, c)
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err != nil {
				continue
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			_ = c.(*net.TCPConn).CloseWrite()
			closed <- struct{}{}
		}
	}()
	g := start(t, nil, service("iris", route.Endpoint{HTTP: l.Addr().String()}))
	c := client(t)
	for range 5 {
		if a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput)); a.StatusCode != http.StatusOK || a.body != "ok" {
			t.Errorf("%d %s", a.StatusCode, a.body)
		}
		<-closed
	}
}
