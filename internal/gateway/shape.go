package gateway

import (
	"bytes"
	"net"
	"net/http"
	"strconv"
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

const maxRefusal = 400

func (c *shapedConn) Write(b []byte) (int, error) {
	if len(b) < maxRefusal && len(b) > 13 && b[9] >= '4' {
		if shaped := shapeRefusal(b); shaped != nil {
			if _, err := c.TCPConn.Write(shaped); err != nil {
				return 0, err
			}
			return len(b), nil
		}
	}
	return c.TCPConn.Write(b)
}

// shapeRefusal returns the refusal with a JSON body, or nil if b is none.
func shapeRefusal(b []byte) []byte {
	if !bytes.HasPrefix(b, []byte("HTTP/1.")) {
		return nil
	}
	line, _, ok := bytes.Cut(b, refusalHead)
	if !ok || bytes.IndexByte(line, '\n') >= 0 || len(line) < 12 {
		return nil
	}
	code, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return nil
	}
	message := "the request can't be read: " + http.StatusText(code)
	if code == http.StatusRequestHeaderFieldsTooLarge {
		message = "the request's head is larger than " + strconv.Itoa(maxHeaderBytes>>10) +
			" KiB: send less in header fields and the path"
	}
	body := errorBody("", edge{}, message)
	out := append([]byte(nil), line...)
	out = append(out, "\r\nContent-Type: application/json\r\nConnection: close\r\nX-Request-Id: "...)
	out = append(out, requestID(nil)...)
	out = append(out, "\r\nContent-Length: "...)
	out = strconv.AppendInt(out, int64(len(body)), 10)
	out = append(out, "\r\n\r\n"...)
	return append(out, body...)
}
