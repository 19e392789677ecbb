// Package listen has the front door's listeners: connections over TLS are handed on once their
// handshake is done, and what net/http itself refuses to clients of HTTP/1.1, as plain text and before
// any handler runs, gets the shape that the protocols have.
package listen

import (
	"bytes"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// Refusal makes a whole response that ends the connection. Why is empty for status 431, whose bound
// its maker knows.
type Refusal func(status int, why string) []byte

// Plain returns a listener whose connections have net/http's own refusals (a head that is too large or
// malformed) made by refuse.
func Plain(l net.Listener, refuse Refusal) net.Listener { return shapedListener{l, refuse} }

type shapedListener struct {
	net.Listener
	refuse Refusal
}

func (l shapedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		return &shapedConn{tcp, l.refuse}, nil
	}
	return c, err
}

// shapedConn rewrites refusals. It embeds the connection so that net/http still sees its
// ReadFrom and CloseWrite.
type shapedConn struct {
	*net.TCPConn
	refuse Refusal
}

// refusalHead is what net/http writes behind the status line of a refusal, and only there:
// handlers' responses carry a date.
var refusalHead = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")

// The refusal of an Expect field that net/http doesn't know is a response without a body; all
// of the gateway's own carry a request's identifier.
var (
	expectationFailed = []byte(" 417 Expectation Failed\r\n")
	emptyBody         = []byte("\r\nContent-Length: 0\r\n")
	requestIDField    = []byte("\r\nX-Request-Id: ")
)

const maxRefusal = 400

func (c *shapedConn) Write(b []byte) (int, error) { return c.refuse.write(c.TCPConn, b) }

// write writes b, or what takes its place if it is a refusal.
func (refuse Refusal) write(c net.Conn, b []byte) (int, error) {
	if len(b) < maxRefusal && len(b) > 13 && b[9] >= '4' {
		if shaped := refuse.shape(b); shaped != nil {
			if _, err := c.Write(shaped); err != nil {
				return 0, err
			}
			return len(b), nil
		}
	}
	return c.Write(b)
}

// shape returns what takes the place of b, or nil if b is no refusal.
func (refuse Refusal) shape(b []byte) []byte {
	if !bytes.HasPrefix(b, []byte("HTTP/1.")) {
		return nil
	}
	if bytes.HasPrefix(b[8:], expectationFailed) {
		if !bytes.Contains(b, emptyBody) || bytes.Contains(b, requestIDField) {
			return nil
		}
		return refuse(http.StatusExpectationFailed, "the only expectation that is met here is 100-continue: send the request without the field Expect")
	}
	line, text, ok := bytes.Cut(b, refusalHead)
	if !ok || bytes.IndexByte(line, '\n') >= 0 || len(line) < 12 {
		return nil
	}
	code, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return nil
	}
	// Where net/http knows what is wrong it says so behind the status's own words.
	_, why, told := strings.Cut(string(text), http.StatusText(code)+": ")
	switch {
	case code == http.StatusRequestHeaderFieldsTooLarge:
		return refuse(code, "")
	case code == http.StatusNotImplemented:
		return refuse(code, "the body's transfer encoding isn't supported: send it chunked or with its length")
	case !told:
		return refuse(code, "the request isn't well-formed HTTP: check the request line, the header lines and the body's length")
	}
	return refuse(code, "the request can't be read: "+why)
}
