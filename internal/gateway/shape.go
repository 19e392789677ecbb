package gateway

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// shape makes net/http's own refusals (a head that is too large or malformed) speak the
// protocols' error shape. They are written before any handler runs, as plain text.
func shape(l net.Listener) net.Listener { return shapedListener{l} }

type shapedListener struct{ net.Listener }

func (l shapedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		return &shapedConn{TCPConn: tcp}, nil
	}
	return c, err
}

// shapedConn rewrites refusals. It embeds the connection so that net/http still sees its
// ReadFrom and CloseWrite.
type shapedConn struct{ *net.TCPConn }

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

func (c *shapedConn) Write(b []byte) (int, error) { return writeShaped(c.TCPConn, b) }

// writeShaped writes b, or what takes its place if it is a refusal.
func writeShaped(c net.Conn, b []byte) (int, error) {
	if len(b) < maxRefusal && len(b) > 13 && b[9] >= '4' {
		if shaped := shapeRefusal(b); shaped != nil {
			if _, err := c.Write(shaped); err != nil {
				return 0, err
			}
			return len(b), nil
		}
	}
	return c.Write(b)
}

// shapeRefusal returns the refusal with a JSON body, or nil if b is none.
func shapeRefusal(b []byte) []byte {
	if !bytes.HasPrefix(b, []byte("HTTP/1.")) {
		return nil
	}
	if bytes.HasPrefix(b[8:], expectationFailed) {
		if !bytes.Contains(b, emptyBody) || bytes.Contains(b, requestIDField) {
			return nil
		}
		return refusal(http.StatusExpectationFailed, "the only expectation that is met here is 100-continue: send the request without the field Expect")
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
		return refusal(code, errHead.Error())
	case code == http.StatusNotImplemented:
		return refusal(code, "the body's transfer encoding isn't supported: send it chunked or with its length")
	case !told:
		return refusal(code, "the request isn't well-formed HTTP: check the request line, the header lines and the body's length")
	}
	return refusal(code, "the request can't be read: "+why)
}

// refusal is a whole response that ends the connection.
func refusal(code int, message string) []byte {
	body := errorBody(false, edge{}, message)
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nConnection: close\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s",
		code, http.StatusText(code), requestID(nil), len(body), body)
}
