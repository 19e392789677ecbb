package listen_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/gateway/listen"
)

func TestMain(m *testing.M) {
	// net/http lets go of a client that it refused half a second later.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func refuse(status int, why string) []byte {
	body := fmt.Sprintf("{%d %s}", status, why)
	return fmt.Appendf(nil, "HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

// serve runs net/http behind a listener until the test ends, and returns its address.
func serve(t *testing.T, wrap func(net.Listener) net.Listener) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{
		MaxHeaderBytes: 1 << 10, ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/bad" {
				w.WriteHeader(http.StatusBadRequest)
			}
			_, _ = io.WriteString(w, "own")
		}),
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(wrap(l)) }()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return l.Addr().String()
}

func ask(t *testing.T, c net.Conn, request string) string {
	t.Helper()
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestRefusalsOfTheServerAreShapedAndAnswersAreNot(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	config := cert.TLS.Clone()
	cert.Close()
	config.NextProtos = []string{"http/1.1"}
	plain := serve(t, func(l net.Listener) net.Listener { return listen.Plain(l, refuse) })
	secure := serve(t, func(l net.Listener) net.Listener { return listen.TLS(l, config, time.Minute, refuse) })
	for name, dial := range map[string]func() (net.Conn, error){
		"plain": func() (net.Conn, error) { return net.Dial("tcp", plain) },
		"TLS": func() (net.Conn, error) {
			return tls.Dial("tcp", secure, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // what is asked here is no secret
		},
	} {
		t.Run(name, func(t *testing.T) {
			for request, want := range map[string]string{
				"GET / HTTP/1.1\r\nHost: a\r\n\r\n":                                          "own",
				"GET /bad HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":                  "own",
				"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 8<<10) + "\r\n\r\n": "{431 }",
				"GET / HTTP/1.1\r\n\r\n":                                                     "{400 the request can't be read: missing required Host header}",
				"no request\r\n\r\n":                                                         "{400 the request isn't well-formed HTTP: check the request line, the header lines and the body's length}",
				"GET / HTTP/1.1\r\nHost: a\r\nExpect: a miracle\r\n\r\n":                     "{417 the only expectation that is met here is 100-continue: send the request without the field Expect}",
				"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: knots\r\n\r\n":             "{501 the body's transfer encoding isn't supported: send it chunked or with its length}",
			} {
				c, err := dial()
				if err != nil {
					t.Fatal(err)
				}
				if got := ask(t, c, request); got != want {
					t.Errorf("%.40q is answered %q, want %q", request, got, want)
				}
			}
		})
	}
	c, err := net.Dial("tcp", secure)
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(t, c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); got != "{400 this port speaks TLS: ask by https://}" {
		t.Errorf("plain words on the port for TLS are answered %q", got)
	}
}

// A client that connects and says nothing keeps nobody.
func TestClosingEndsHandshakes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	secure := listen.TLS(l, &tls.Config{MinVersion: tls.VersionTLS12}, time.Hour, refuse)
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := secure.Close(); err != nil {
		t.Error(err)
	}
	if _, err := secure.Accept(); err == nil {
		t.Error("it accepts after its end")
	}
}
