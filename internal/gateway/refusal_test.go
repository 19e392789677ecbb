package gateway_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestHeadsThatCannotBeReadAreRefusedInShape(t *testing.T) {
	tlsConfig, roots := certificate(t)
	roots.ServerName = "127.0.0.1"
	g := start(t, func(c *gateway.Config) { c.HTTPS, c.TLS = listen(t), tlsConfig }, service("iris", route.Endpoint{HTTP: engine(t, named("iris"))}))
	tests := map[string]struct {
		head   string
		status int
		want   string
	}{
		"no request line":           {"hello there, gateway\r\n\r\n", 400, "isn't well-formed HTTP"},
		"no host":                   {"GET /v2 HTTP/1.1\r\n\r\n", 400, "missing required Host header"},
		"a field name with a space": {"GET /v2 HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n", 400, "the request"},
		"two lengths":               {"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400, "length"},
		"an unknown encoding":       {"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "chunked"},
		"a version to come":         {"GET /v2 HTTP/3.0\r\nHost: x\r\n\r\n", 505, "unsupported protocol version"},
		"an unknown expectation":    {"GET /v2/models/iris HTTP/1.1\r\nHost: x\r\nExpect: the-moon\r\n\r\n", 417, "100-continue"},
		"1.5 MB of fields":          {"GET /v2 HTTP/1.1\r\nHost: x\r\nX-Big: " + strings.Repeat("x", 1500<<10) + "\r\n\r\n", 431, "64 KiB"},
	}
	for name, tc := range tests {
		for over, conn := range map[string]net.Conn{"TCP": dial(t, g.HTTP), "TLS": tls.Client(dial(t, g.HTTPS), roots)} {
			t.Run(name+" over "+over, func(t *testing.T) {
				go func() { _, _ = io.WriteString(conn, tc.head) }()
				refusedInShape(t, conn, tc.status, tc.want)
			})
		}
	}
	t.Run("no TLS where it is due", func(t *testing.T) {
		conn := dial(t, g.HTTPS)
		_, _ = io.WriteString(conn, "GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
		refusedInShape(t, conn, 400, "https://")
	})
}

func refusedInShape(t *testing.T, conn net.Conn, status int, want string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if text := errorText(t, answer{resp, string(b)}); resp.StatusCode != status || !strings.Contains(text, want) {
		t.Errorf("got %d %q, want %d with %q", resp.StatusCode, text, status, want)
	}
	if resp.Header.Get("X-Request-Id") == "" || !resp.Close {
		t.Errorf("head %v, close %v", resp.Header, resp.Close)
	}
}

// A client that never ends its handshake holds up neither the others nor the end.
func TestUnfinishedHandshakesHoldUpNobody(t *testing.T) {
	tlsConfig, roots := certificate(t)
	g := start(t, func(c *gateway.Config) { c.HTTPS, c.TLS = listen(t), tlsConfig }, service("iris", route.Endpoint{
		HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-Forwarded-Proto")) }),
	}))
	for range 3 {
		_, _ = io.WriteString(dial(t, g.HTTPS), "\x16\x03\x01")
	}
	tr := &http.Transport{TLSClientConfig: roots}
	defer tr.CloseIdleConnections()
	a := do(t, &http.Client{Transport: tr}, request(t, http.MethodGet, "https://"+g.HTTPS+"/v2/models/iris", ""))
	if a.StatusCode != 200 || a.ProtoMajor != 1 || a.body != "https" {
		t.Errorf("%d over %s: the engine is told %q", a.StatusCode, a.Proto, a.body)
	}
	g.stop()
}

// An engine's own 417 is its answer and stays as it is.
func TestAnEnginesRefusalOfAnExpectationPasses(t *testing.T) {
	g := start(t, nil, service("iris", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusExpectationFailed)
	})}))
	if a := do(t, client(t), request(t, http.MethodGet, g.url("/v2/models/iris"), "")); a.StatusCode != 417 || a.body != "" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
}

func TestLargeHeadsAreRefusedInEachProtocol(t *testing.T) {
	tlsConfig, roots := certificate(t)
	g := start(t, func(c *gateway.Config) { c.HTTPS, c.TLS = listen(t), tlsConfig },
		service("iris", route.Endpoint{HTTP: engine(t, named("iris")), GRPC: grpcEngine(t, &oipEngine{})}))
	secure := func(h2 bool) *http.Client {
		tr := &http.Transport{TLSClientConfig: roots.Clone(), ForceAttemptHTTP2: h2}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	clients := map[string]struct {
		base string
		*http.Client
	}{
		"HTTP/1.1":      {"http://" + g.HTTP, client(t)},
		"HTTP/2":        {"http://" + g.HTTP, h2cClient(t)},
		"HTTP/1.1, TLS": {"https://" + g.HTTPS, secure(false)},
		"HTTP/2, TLS":   {"https://" + g.HTTPS, secure(true)},
	}
	for name, c := range clients {
		t.Run(name, func(t *testing.T) {
			for size, want := range map[int]int{60 << 10: 200, 70 << 10: 431, 900 << 10: 431} {
				r := request(t, http.MethodPost, c.base+"/v2/models/iris/infer", "{}")
				r.Header.Set("X-Big", strings.Repeat("x", size))
				a := do(t, c.Client, r)
				if a.StatusCode != want || a.Header.Get("X-Request-Id") == "" {
					t.Errorf("%d bytes: %d %v", size, a.StatusCode, a.Header)
				}
				if want == 431 && !strings.Contains(errorText(t, a), "64 KiB") {
					t.Errorf("%d bytes: %s", size, a.body)
				}
			}
			r := request(t, http.MethodPost, c.base+"/v1/chat/completions", "{}")
			r.Header.Set("X-Big", strings.Repeat("x", 70<<10))
			if a := do(t, c.Client, r); a.StatusCode != 431 || !strings.Contains(a.body, `"type":"invalid_request_error"`) {
				t.Errorf("an OpenAI client got %d %s", a.StatusCode, a.body)
			}
		})
	}
}

func TestLargeMetadataIsRefusedAndHarmsNoOtherCall(t *testing.T) {
	g := start(t, nil, service("iris", route.Endpoint{GRPC: grpcEngine(t, &oipEngine{})}))
	for name, addr := range map[string]string{"gRPC port": g.GRPC, "HTTP port": g.HTTP} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{}, 1)
			c := oip.NewGRPCInferenceServiceClient(connect(t, addr, grpc.WithStatsHandler(connEnds(ended))))
			for size, want := range map[int]codes.Code{50 << 10: codes.OK, 70 << 10: codes.ResourceExhausted, 900 << 10: codes.ResourceExhausted} {
				ctx := metadata.AppendToOutgoingContext(t.Context(), "x-big", strings.Repeat("x", size))
				_, err := c.ModelInfer(ctx, inferRequest("iris"))
				if status.Code(err) != want {
					t.Errorf("%d bytes: %v, want %v", size, err, want)
				}
				if want != codes.OK && !strings.Contains(fmt.Sprint(err), "64 KiB") {
					t.Errorf("%d bytes: %v", size, err)
				}
			}
			select {
			case <-ended:
				t.Error("the connection was closed")
			default:
			}
		})
	}
}

// Retry-After says when a try is of use: after the time that a start takes, or when what crashed is
// started again if that is later; and nothing where only a person brings the service back.
func TestRetryAfterSaysWhenATryIsOfUse(t *testing.T) {
	in := func(d time.Duration) time.Time { return time.Now().Add(d) }
	for name, tc := range map[string]struct {
		backend route.Backend
		// least and most seconds; both 0 for no Retry-After at all
		least, most int
	}{
		"nothing is known":                    {route.Backend{}, 2, 2},
		"a start took 4 s":                    {route.Backend{Startup: 4 * time.Second}, 4, 4},
		"a crash loop, tried again in 10 min": {route.Backend{Startup: 4 * time.Second, NextTry: in(10 * time.Minute)}, 540, 600},
		"a crash loop, tried again at once":   {route.Backend{Startup: 4 * time.Second, NextTry: in(-time.Minute)}, 4, 4},
		"stopped":                             {route.Backend{Startup: 4 * time.Second, Stopped: true}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := service("iris")
			tc.backend.NotReady = "it isn't ready"
			s.Components[spec.Predictor] = tc.backend
			g := start(t, nil, s)
			ok := func(what, value string, scale int) {
				t.Helper()
				n, err := strconv.Atoi(value)
				if tc.most == 0 && value != "" || tc.most > 0 && (err != nil || n < tc.least*scale || n > tc.most*scale) {
					t.Errorf("%s is %q, want %d to %d", what, value, tc.least*scale, tc.most*scale)
				}
			}
			a := do(t, client(t), request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput))
			if a.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("status %d", a.StatusCode)
			}
			ok("Retry-After", a.Header.Get("Retry-After"), 1)
			a = do(t, client(t), request(t, http.MethodPost, g.url("/openai/v1/chat/completions"), `{"model":"iris"}`))
			ok("Retry-After", a.Header.Get("Retry-After"), 1)
			ok("Retry-After-Ms", a.Header.Get("Retry-After-Ms"), 1000)
			if got := a.Header.Get("X-Should-Retry"); (got == "false") != (tc.most == 0) {
				t.Errorf("X-Should-Retry is %q", got)
			}
			var trailer metadata.MD
			_, err := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC)).ModelInfer(t.Context(), inferRequest("iris"), grpc.Trailer(&trailer))
			if status.Code(err) != codes.Unavailable {
				t.Errorf("gRPC: %v", err)
			}
			ok("the trailer retry-after", strings.Join(trailer["retry-after"], " "), 1)
		})
	}
}
