package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// TestMain looks for leaks. After it answered a request without reading its body, net/http keeps
// the connection's goroutine for half a second, and offers nothing to wait for it.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// serve answers each connection by a function, and returns the address.
func serve(tb testing.TB, f func(net.Conn, *bufio.Reader)) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); f(c, bufio.NewReader(c)) })
		}
	})
	tb.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

func request(method string) *Request {
	return &Request{Method: method, Target: "/x", Host: "h", HeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second}
}

// get makes one exchange and reads the body.
func get(tb testing.TB, h *Host, req *Request) (*Response, http.Header, string, error) {
	tb.Helper()
	defer req.Release()
	into := http.Header{}
	resp, err := h.RoundTrip(tb.Context(), req, into)
	if err != nil {
		return nil, nil, "", err
	}
	status := resp.Status
	var body []byte
	for {
		b, err := resp.Next()
		body = append(body, b...)
		if err != nil {
			trailer := resp.Trailer
			_ = resp.Close()
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return &Response{Status: status, Trailer: trailer}, into, string(body), err
		}
	}
}

func TestResponsesAreReadAsHTTPSays(t *testing.T) {
	tests := map[string]struct {
		raw    string
		method string
		status int
		body   string
		header string // "Name: value" that must be there
		kept   bool
		err    string
	}{
		"counted":                      {raw: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello", kept: true},
		"no reason phrase":             {raw: "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", status: 200, kept: true},
		"lower case names":             {raw: "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: a/b\r\n\r\nok", status: 200, body: "ok", header: "Content-Type: a/b", kept: true},
		"bare line feeds in the head":  {raw: "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", status: 200, body: "ok", kept: true},
		"chunked":                      {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\n\r\n", status: 200, body: "hello", kept: true},
		"chunked with trailers":        {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-T: v\r\nContent-Length: 9\r\n\r\n", status: 200, body: "x", kept: true},
		"to the end":                   {raw: "HTTP/1.1 200 OK\r\n\r\nhello", status: 200, body: "hello"},
		"HTTP/1.0":                     {raw: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
		"HTTP/1.0 that keeps":          {raw: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok", kept: true},
		"that closes":                  {raw: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
		"with bytes behind its end":    {raw: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n", status: 200, body: "ok"},
		"after informational ones":     {raw: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200, kept: true},
		"to HEAD":                      {raw: "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", method: "HEAD", status: 200, kept: true, header: "Content-Length: 500"},
		"204 with a length":            {raw: "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", status: 204, kept: true},
		"304 with a length":            {raw: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", status: 304, kept: true},
		"the same length twice":        {raw: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok", kept: true, header: "Content-Length: 2"},
		"hop-by-hop fields are kept":   {raw: "HTTP/1.1 200 OK\r\nKeep-Alive: 5\r\nConnection: x-a\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n", status: 200, kept: true},
		"two lengths":                  {raw: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!", err: "two lengths"},
		"a list of lengths":            {raw: "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", err: "length"},
		"a signed length":              {raw: "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", err: "length"},
		"a length beyond all":          {raw: "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", err: "length"},
		"length and chunks":            {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n", err: "both"},
		"another encoding":             {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", err: "transfer encoding"},
		"chunked twice":                {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", err: "transfer encoding"},
		"chunks in HTTP/1.0":           {raw: "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", err: "HTTP/1.0"},
		"a folded line":                {raw: "HTTP/1.1 200 OK\r\nX-A: 1\r\n folded\r\n\r\n", err: "folded"},
		"space before the colon":       {raw: "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok", err: "header name"},
		"no colon":                     {raw: "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", err: "header line"},
		"a carriage return in a value": {raw: "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", err: "control character"},
		"a wrong version":              {raw: "HTTP/2.0 200 OK\r\n\r\n", err: "status line"},
		"a short status":               {raw: "HTTP/1.1 20 OK\r\n\r\n", err: "status line"},
		"informational for ever":       {raw: strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 20), err: "informational"},
		"chunk size no number":         {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", err: "chunk size"},
		"chunk size negative":          {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", err: "chunk size"},
		"chunk size beyond all":        {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n", err: "chunk size"},
		"chunk longer than its size":   {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", err: "longer than its size"},
		"chunk without its line end":   {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nab\r\n0\r\n\r\n", err: "carriage return"},
		"chunk extension without end":  {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;" + strings.Repeat("x", 300), err: "longer than"},
		"chunked, cut":                 {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", err: "within its response"},
		"counted, cut":                 {raw: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", err: "within its response"},
		"nothing":                      {raw: "", err: "before it answered"},
		"too many trailers":            {raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 80), err: "trailers are larger"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, func(c net.Conn, in *bufio.Reader) {
				if _, err := http.ReadRequest(in); err == nil {
					_, _ = io.WriteString(c, tc.raw)
					if tc.kept {
						_, _ = in.ReadByte() // until the client closes
					}
				}
			})
			p := NewPool(Config{})
			defer p.Close()
			h := p.Host(addr)
			method := tc.method
			if method == "" {
				method = "GET"
			}
			resp, header, body, err := get(t, h, request(method))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v %q, %v; want %q", resp, body, err, tc.err)
				}
				var ue *Error
				if !errors.As(err, &ue) || errdef.KindOf(err) != errdef.ErrInternal {
					t.Errorf("%v is of kind %v", err, errdef.KindOf(err))
				}
				if h.Idle() != 0 || h.InFlight() != 0 || h.open.Load() != 0 {
					t.Errorf("idle %d, in flight %d, open %d after an error", h.Idle(), h.InFlight(), h.open.Load())
				}
				return
			}
			if err != nil || resp.Status != tc.status || body != tc.body {
				t.Fatalf("got %+v %q, %v", resp, body, err)
			}
			if (h.Idle() == 1) != tc.kept || h.InFlight() != 0 {
				t.Errorf("%d connections kept, %d in flight", h.Idle(), h.InFlight())
			}
			if n, v, ok := strings.Cut(tc.header, ": "); ok && (len(header[n]) != 1 || header[n][0] != v) {
				t.Errorf("header %v", header)
			}
			for n := range header {
				if hopByHop(n) || n == "X-A" {
					t.Errorf("hop-by-hop field %s was passed", n)
				}
			}
			if strings.Contains(name, "trailers") && (len(resp.Trailer) != 1 || resp.Trailer.Get("X-T") != "v") {
				t.Errorf("trailers %v", resp.Trailer)
			}
		})
	}
}

func TestRepetitionIsForStaleConnectionsOnly(t *testing.T) {
	var mu sync.Mutex
	conns := 0
	got := map[string]int{}
	addr := serve(t, func(c net.Conn, in *bufio.Reader) {
		mu.Lock()
		conns++
		mu.Unlock()
		for n := 0; ; n++ {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			mu.Lock()
			got[r.URL.Path]++
			mu.Unlock()
			switch {
			case r.URL.Path == "/crash":
				return
			case r.URL.Path == "/crash-if-kept" && n > 0:
				return
			case r.URL.Path == "/half" && n > 0:
				_, _ = io.WriteString(c, "HTTP/1.1 200")
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	tests := map[string]struct {
		path  string
		body  int
		times int // how often the engine sees it
		fails bool
	}{
		"fresh connection": {path: "/crash", body: 10, times: 1, fails: true},
		"kept connection":  {path: "/crash-if-kept", body: 10, times: 2},
		"response began":   {path: "/half", body: 10, times: 1, fails: true},
		"large body":       {path: "/crash-if-kept", body: WholeBody + 1, times: 1, fails: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := NewPool(Config{})
			defer p.Close()
			h := p.Host(addr)
			if tc.path != "/crash" {
				if _, _, _, err := get(t, h, request("GET")); err != nil {
					t.Fatal(err)
				}
			}
			mu.Lock()
			clear(got)
			mu.Unlock()
			req := request("POST")
			req.Target, req.ContentLength, req.Body = tc.path, int64(tc.body), strings.NewReader(strings.Repeat("x", tc.body))
			_, _, _, err := get(t, h, req)
			mu.Lock()
			defer mu.Unlock()
			if (err != nil) != tc.fails || got[tc.path] != tc.times {
				t.Fatalf("%v; the engine saw it %d times, want %d", err, got[tc.path], tc.times)
			}
		})
	}
}

func TestLimitsHold(t *testing.T) {
	arrived, release := make(chan bool, 3), make(chan bool)
	addr := serve(t, func(c net.Conn, in *bufio.Reader) {
		for {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			arrived <- true
			<-release
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	p := NewPool(Config{MaxConns: 3, MaxIdle: 1})
	defer p.Close()
	h := p.Host(addr)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, _, _, err := get(t, h, request("GET")); err != nil {
				t.Error(err)
			}
		})
	}
	for range 3 {
		<-arrived
	}
	if _, _, _, err := get(t, h, request("GET")); !errors.Is(err, errdef.ErrOverloaded) {
		t.Errorf("a fourth connection: %v", err)
	}
	close(release)
	wg.Wait()
	if h.Idle() != 1 {
		t.Errorf("%d idle connections are kept", h.Idle())
	}
	p.Sweep(time.Now().Add(time.Hour))
	if h.Idle() != 0 || h.open.Load() != 0 {
		t.Errorf("after a sweep: %d idle, %d open", h.Idle(), h.open.Load())
	}
}

func TestTimeOutsHold(t *testing.T) {
	addr := serve(t, func(c net.Conn, in *bufio.Reader) {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if r.URL.Path == "/body" {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
		}
		_, _ = in.ReadByte()
	})
	p := NewPool(Config{})
	defer p.Close()
	for path, stage := range map[string]Stage{"/head": StageHeader, "/body": StageBody} {
		req := request("GET")
		req.Target, req.HeaderTimeout, req.IdleTimeout = path, 50*time.Millisecond, 50*time.Millisecond
		if path == "/body" {
			req.HeaderTimeout = 10 * time.Second
		}
		_, _, _, err := get(t, p.Host(addr), req)
		var ue *Error
		if !errors.As(err, &ue) || ue.Stage != stage || !errors.Is(err, errdef.ErrTimeout) || !strings.Contains(err.Error(), "in time") {
			t.Errorf("%s: %v", path, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	req := request("GET")
	if _, err := p.Host(addr).RoundTrip(ctx, req, http.Header{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}
	req.Release()
}

func TestSlowUploadsGetTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			r, err := http.ReadRequest(bufio.NewReader(theirs))
			if err != nil {
				t.Error(err)
				return
			}
			n, _ := io.Copy(io.Discard, r.Body)
			time.Sleep(50 * time.Second) // the engine's own time begins when it has all
			_, _ = fmt.Fprintf(theirs, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n%04d", n)
		}()
		p := NewPool(Config{Dial: func(context.Context, string, string) (net.Conn, error) { return ours, nil }})
		defer p.Close()
		pr, pw := io.Pipe()
		go func() {
			for range 5 { // longer in all than the time for a head
				time.Sleep(50 * time.Second)
				_, _ = pw.Write([]byte("piece"))
			}
			_ = pw.Close()
		}()
		req := request("POST")
		req.Body, req.ContentLength, req.HeaderTimeout = pr, -1, time.Minute
		if _, _, body, err := get(t, p.Host("engine"), req); err != nil || body != "0025" {
			t.Errorf("%q, %v", body, err)
		}
	})
}

func TestTargetsCannotSmuggle(t *testing.T) {
	for _, target := range []string{"/a b", "/a\r\nX: y", "/\x00", "/\x7f"} {
		req := request("GET")
		req.Target = target
		if err := req.Prepare(); !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("%q: %v", target, err)
		}
	}
	req := request("GET")
	req.Header = http.Header{"X-A": {"1\r\nX-Evil: 1"}, "Transfer-Encoding": {"chunked"}, "Content-Length": {"7"}}
	b := string(req.appendHead(nil))
	if strings.Contains(b, "\r\nX-Evil") || strings.Contains(b, "chunked") || strings.Contains(b, "7") {
		t.Errorf("%q", b)
	}
}

// FuzzResponse feeds the parser whatever an engine might send, and compares what it takes
// with net/http's own reading: what we accept must mean the same there.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x\r\nlo\r\n0\r\nX-T: v\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.0 200 OK\r\n\r\nto the end",
		"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
		"HTTP/1.1 200 OK\r\nConnection: X-A\r\nX-A: 1\r\nTrailer: Content-Length\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		p := NewPool(Config{MaxHeaderBytes: 4 << 10, Dial: func(context.Context, string, string) (net.Conn, error) {
			return &script{in: bytes.NewReader(raw)}, nil
		}})
		_, header, body, err := get(t, p.Host("x"), request("GET"))
		p.Close()
		if err != nil {
			return
		}
		in := bufio.NewReader(bytes.NewReader(raw))
		want, wantErr := http.ReadResponse(in, &http.Request{Method: "GET"})
		for wantErr == nil && want.StatusCode < 200 && want.StatusCode != 101 {
			want, wantErr = http.ReadResponse(in, &http.Request{Method: "GET"})
		}
		if wantErr != nil {
			t.Skip("net/http is stricter here")
		}
		wantBody, wantErr := io.ReadAll(want.Body)
		_ = want.Body.Close()
		if wantErr != nil || string(wantBody) != body {
			t.Fatalf("we read %q, net/http %q, %v", body, wantBody, wantErr)
		}
		for name := range header {
			if hopByHop(name) {
				t.Fatalf("%s was passed on", name)
			}
		}
	})
}

// script is a connection that says what it was told to.
type script struct{ in io.Reader }

func (s *script) Read(b []byte) (int, error)       { return s.in.Read(b) }
func (s *script) Write(b []byte) (int, error)      { return len(b), nil }
func (s *script) Close() error                     { return nil }
func (s *script) LocalAddr() net.Addr              { return nil }
func (s *script) RemoteAddr() net.Addr             { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }
