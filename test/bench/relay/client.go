package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"sync/atomic"
	"time"
)

// client is one kept connection that costs little itself.
type client struct {
	conn net.Conn
	r    *bufio.Reader
	// lines reads an answer's body.
	lines *bufio.Reader
	// request is head and body.
	request []byte
	// serial is where in the request a number stands that makes it differ from those before.
	serial int
}

// question is what a client asks.
type question struct {
	frames int
	pace   time.Duration
	// prompt is the text of the user's message, which needs no escapes in JSON.
	prompt []byte
}

// connect opens a connection to an address.
func connect(addr string, q question) (*client, error) {
	conn, err := net.Dial("tcp", addr) //nolint:noctx // a connection over loopback is there at once
	if err != nil {
		return nil, err
	}
	const begin = `{"model":"` + model + `","stream":true,"messages":[{"role":"system","content":"Answer in numbers."},{"role":"user","content":"`
	const number, end = "00000000", `"}],"max_tokens":16}`
	c := &client{conn: conn, r: bufio.NewReaderSize(conn, 4<<10), lines: bufio.NewReaderSize(nil, 2<<10)}
	c.request = fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nUser-Agent: relay\r\nAccept: */*\r\n"+
		"Content-Type: application/json\r\n%s: %d\r\n%s: %s\r\nContent-Length: %d\r\n\r\n",
		addr, framesHeader, q.frames, paceHeader, q.pace, len(begin)+len(q.prompt)+len(number)+len(end))
	c.request = append(append(c.request, begin...), q.prompt...)
	c.serial = len(c.request)
	c.request = append(append(c.request, number...), end...)
	return c, nil
}

func (c *client) close() { _ = c.conn.Close() }

// mark gives the next request a number, 0 to 99,999,999, at the prompt's end.
func (c *client) mark(n int) {
	copy(c.request[c.serial:], fmt.Sprintf("%08d", n))
}

var content = []byte(`"content":"`)

// ask sends the request and reads the stream, whose frames must be all that were asked for, in their
// order, and [DONE]. It returns the time to the first of them. seen, where it isn't nil, counts
// frames as they come.
func (c *client) ask(frames int, seen *atomic.Int64) (first time.Duration, err error) {
	start := time.Now()
	if _, err := c.conn.Write(c.request); err != nil {
		return 0, err
	}
	length, err := c.head()
	if err != nil {
		return 0, err
	}
	if length < 0 {
		c.lines.Reset(httputil.NewChunkedReader(c.r))
	} else {
		c.lines.Reset(io.LimitReader(c.r, length))
	}
	ended := false
	for n := 0; ; {
		line, err := c.lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			if !ended || n != frames {
				return 0, fmt.Errorf("the stream ended after %d of %d frames", n, frames)
			}
			break
		}
		if err != nil {
			return 0, err
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		switch {
		case !ok: // the line that ends a frame, or a comment
			continue
		case ended:
			return 0, errors.New("there is more after [DONE]")
		case bytes.HasPrefix(data, []byte("[DONE]")):
			ended = true
			continue
		}
		if n == 0 {
			first = time.Since(start)
		}
		at := bytes.Index(data, content)
		if at < 0 || len(data) < at+len(content)+6 {
			return 0, fmt.Errorf("a frame is %q", data)
		}
		if got, err := strconv.Atoi(string(data[at+len(content) : at+len(content)+6])); err != nil || got != n {
			return 0, fmt.Errorf("frame %d is %q", n, data)
		}
		n++
		if seen != nil {
			seen.Add(1)
		}
	}
	if length >= 0 {
		return first, nil
	}
	// The chunks' end is an empty line, for there are no trailers.
	if line, err := c.r.ReadSlice('\n'); err != nil || len(line) != 2 {
		return 0, fmt.Errorf("after the last chunk there is %q: %w", line, err)
	}
	return first, nil
}

// head reads an answer's head. It returns the body's length, negative where it is in chunks.
func (c *client) head() (length int64, err error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		return 0, fmt.Errorf("it answers %q", line)
	}
	const unknown = -2
	length = unknown
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		switch {
		case len(name) == 0 && length == unknown:
			return 0, errors.New("the answer ends with its connection")
		case len(name) == 0:
			return length, nil
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			length = -1
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64); err != nil {
				return 0, err
			}
		}
	}
}
