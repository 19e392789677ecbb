package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// client is an HTTP client of the test's own, so that no connection outlives it.
func client(tb testing.TB) *http.Client {
	tb.Helper()
	t := &http.Transport{DisableCompression: true}
	tb.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: time.Minute}
}

// answer is a response read whole.
type answer struct {
	*http.Response
	body string
}

func do(tb testing.TB, c *http.Client, r *http.Request) answer {
	tb.Helper()
	resp, err := c.Do(r)
	if err != nil {
		tb.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatalf("%s %s: read the body: %v", r.Method, r.URL, err)
	}
	return answer{resp, string(b)}
}

func request(tb testing.TB, method, url, body string) *http.Request {
	tb.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(tb.Context(), method, url, r)
	if err != nil {
		tb.Fatal(err)
	}
	return req
}

// errorText returns the message of an answer in the inference protocols' error shape.
func errorText(tb testing.TB, a answer) string {
	tb.Helper()
	var v map[string]string
	if err := json.Unmarshal([]byte(a.body), &v); err != nil || v["error"] == "" || len(v) != 1 {
		tb.Fatalf("status %d: body %q isn't {\"error\": …}", a.StatusCode, a.body)
	}
	return v["error"]
}

// named is an engine that says who it is and what it was asked.
func named(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %s %s", name, r.Method, r.RequestURI)
	}
}

func TestRequestsFindTheirService(t *testing.T) {
	iris := service("iris", route.Endpoint{HTTP: engine(t, named("predictor"))})
	iris.Hosts = append(iris.Hosts, route.Host{Name: "iris-explainer-default.localhost", Component: spec.Explainer})
	iris.Entry = spec.Transformer
	iris.Components[spec.Transformer] = route.Backend{Targets: []route.Target{{
		Revision: "iris-transformer-00001", Weight: 100, Endpoints: []route.Endpoint{{HTTP: engine(t, named("transformer"))}},
	}}}
	iris.Components[spec.Explainer] = route.Backend{Targets: []route.Target{{
		Revision: "iris-explainer-00001", Weight: 100, Endpoints: []route.Endpoint{{HTTP: engine(t, named("explainer"))}},
	}}}
	renamed := service("text", route.Endpoint{HTTP: engine(t, named("text"))})
	renamed.Components[spec.Predictor].Targets[0].ModelName = "my model"
	young := service("twin", route.Endpoint{HTTP: engine(t, named("young"))})
	young.Key.Namespace, young.Hosts, young.PathPrefix = "other", nil, "/serving/other/twin"
	g := start(t, nil, iris, renamed, young, service("twin", route.Endpoint{HTTP: engine(t, named("twin"))}))

	tests := map[string]struct {
		method, host, path, service string
		status                      int
		want                        string // the engine's words, or part of the error
	}{
		"host of the service":               {host: "iris-default.localhost", path: "/v2/models/iris/infer", want: "transformer POST /v2/models/iris/infer"},
		"host with port and capitals":       {host: "Iris-Default.localhost.:8080", path: "/v1/models/iris:predict", want: "transformer POST /v1/models/iris:predict"},
		"host of a component":               {host: "iris-predictor-default.localhost", path: "/v2/models/iris/infer", want: "predictor POST /v2/models/iris/infer"},
		"explain goes to the explainer":     {host: "iris-default.localhost", path: "/v1/models/iris:explain", want: "explainer POST /v1/models/iris:explain"},
		"explain on a component's host":     {host: "iris-predictor-default.localhost", path: "/v1/models/iris:explain", want: "predictor POST /v1/models/iris:explain"},
		"prefix is stripped":                {path: "/serving/default/iris/v2/models/iris/infer?a=b&c", want: "transformer POST /v2/models/iris/infer?a=b&c"},
		"prefix alone":                      {path: "/serving/default/iris", want: "transformer POST /"},
		"prefix with an escape behind":      {path: "/serving/default/iris/a%2Fb%20c", want: "transformer POST /a%2Fb%20c"},
		"prefix is no prefix of a word":     {path: "/serving/default/irises/v2", status: 404, want: "no route"},
		"bare V2":                           {path: "/v2/models/iris/infer", want: "transformer POST /v2/models/iris/infer"},
		"bare V2 with version":              {path: "/v2/models/iris/versions/3/infer", want: "transformer POST /v2/models/iris/versions/3/infer"},
		"bare V1":                           {path: "/v1/models/iris:predict", want: "transformer POST /v1/models/iris:predict"},
		"bare V1 explain":                   {path: "/v1/models/iris:explain", want: "explainer POST /v1/models/iris:explain"},
		"repository load":                   {path: "/v2/repository/models/iris/load", want: "transformer POST /v2/repository/models/iris/load"},
		"header names the service":          {service: "default/iris", path: "/chat", want: "transformer POST /chat"},
		"header names nothing known":        {service: "default/none", path: "/chat", status: 404, want: "default/none"},
		"header is no key":                  {service: "iris", path: "/chat", status: 400, want: "namespace/name"},
		"model renamed for the engine, V2":  {path: "/v2/models/text/infer", want: "text POST /v2/models/my%20model/infer"},
		"model renamed for the engine, V1":  {path: "/v1/models/text:predict", want: "text POST /v1/models/my%20model:predict"},
		"engine's own model name":           {host: "text-default.localhost", path: "/v2/models/my%20model/infer", want: "text POST /v2/models/my%20model/infer"},
		"name of two services":              {path: "/v2/models/twin/infer", status: 409, want: "default/twin, other/twin"},
		"name of two services, by prefix":   {path: "/serving/other/twin/v2/models/twin/infer", want: "young POST /v2/models/twin/infer"},
		"any path on a service's host":      {host: "iris-default.localhost", path: "/v1/chat/completions", want: "transformer POST /v1/chat/completions"},
		"unknown model":                     {path: "/v2/models/none/infer", status: 404, want: `"none"; services here: default/iris, default/text, default/twin, other/twin`},
		"unknown path":                      {path: "/nothing", status: 404, want: "/serving/<namespace>/<name>"},
		"server metadata reaches an engine": {method: "GET", host: "iris-default.localhost", path: "/v2", want: "transformer GET /v2"},
	}
	c := client(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			method := tc.method
			if method == "" {
				method = http.MethodPost
			}
			r := request(t, method, g.url(tc.path), "{}")
			if tc.host != "" {
				r.Host = tc.host
			}
			if tc.service != "" {
				r.Header.Set(gateway.ServiceHeader, tc.service)
			}
			a := do(t, c, r)
			if tc.status == 0 {
				if a.StatusCode != 200 || a.body != tc.want {
					t.Fatalf("got %d %q, want %q", a.StatusCode, a.body, tc.want)
				}
				return
			}
			if text := errorText(t, a); a.StatusCode != tc.status || !strings.Contains(text, tc.want) {
				t.Fatalf("got %d %q, want %d with %q", a.StatusCode, text, tc.status, tc.want)
			}
			if a.Header.Get("X-Request-Id") == "" {
				t.Error("an error without X-Request-Id")
			}
		})
	}
}

func TestResponsesTellWhatServedThem(t *testing.T) {
	var got http.Header
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		got.Set("Host", r.Host)
		w.Header().Set("X-Model-Digest", "sha256:lie")
		w.Header().Set("X-Request-Id", "lie")
		w.Header().Set("Connection", "X-Private")
		w.Header().Set("X-Private", "1")
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	for id, kept := range map[string]bool{"req-4711": true, "": false, "two words": false, strings.Repeat("x", 129): false} {
		r := request(t, http.MethodPost, g.url("/v2/models/iris/infer"), "{}")
		r.Header.Set("X-Request-Id", id)
		r.Header.Set("Connection", "X-Hop, keep-alive")
		r.Header.Set("X-Hop", "1")
		r.Header.Set("X-Forwarded-For", "10.1.1.1")
		r.Header.Set("X-Kept", "yes")
		r.Header.Set("Kserve-Isvc-Name", "forged")
		a := do(t, client(t), r)
		gotID := a.Header.Get("X-Request-Id")
		if kept != (gotID == id) || gotID == "" {
			t.Errorf("id %q came back as %q", id, gotID)
		}
		want := http.Header{
			"X-Request-Id": {gotID}, "X-Stationmaster-Revision": {"iris-00001"}, "X-Model-Digest": {digest},
			"Content-Length": {"0"}, "Set-Cookie": {"a=1", "b=2"}, "Date": a.Header["Date"],
		}
		if diff := cmp.Diff(want, a.Header); diff != "" {
			t.Errorf("response headers (-want +got):\n%s", diff)
		}
		wantSent := http.Header{
			"X-Request-Id": {gotID}, "X-Kept": {"yes"}, "X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Proto": {"http"},
			"X-Forwarded-Host": {g.HTTP}, "Kserve-Isvc-Name": {"iris"}, "Kserve-Isvc-Namespace": {"default"},
			"User-Agent": {"Go-http-client/1.1"}, "Content-Length": {"2"}, "Host": {g.HTTP},
		}
		if diff := cmp.Diff(wantSent, got); diff != "" {
			t.Errorf("request headers at the engine (-want +got):\n%s", diff)
		}
	}
}

func TestBodiesPassByteForByte(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Inference-Header-Content-Length", r.Header.Get("Inference-Header-Content-Length"))
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		if r.Header.Get("X-Chunked") != "" {
			w.(http.Flusher).Flush()
		}
		_, _ = w.Write(b)
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	c := client(t)
	for _, size := range []int{0, 1, 1 << 10, 8191, 8192, 8193, 64 << 10, 64<<10 + 1, 128 << 10, 3 << 20} {
		body := make([]byte, size)
		for i := range body {
			body[i] = byte(i * 7)
		}
		for _, mode := range []string{"", "request", "response", "request response"} {
			r := request(t, http.MethodPost, g.url("/v2/models/iris/infer"), "")
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(size)
			if strings.Contains(mode, "request") {
				r.ContentLength = -1
			}
			if strings.Contains(mode, "response") {
				r.Header.Set("X-Chunked", "1")
			}
			r.Header.Set("Content-Type", "application/octet-stream")
			r.Header.Set("Inference-Header-Content-Length", "17")
			t.Logf("%d bytes, chunked %q", size, mode)
			a := do(t, c, r)
			if a.body != string(body) || a.Header.Get("Inference-Header-Content-Length") != "17" {
				t.Errorf("%d bytes, chunked %q: got %d bytes and %v", size, mode, len(a.body), a.Header)
			}
		}
	}
}

func TestEventsArriveOneByOne(t *testing.T) {
	next := make(chan int)
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for i := range next {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
		}
	})
	g := start(t, nil, service("llm", route.Endpoint{HTTP: addr}))
	r := request(t, http.MethodPost, g.url("/serving/default/llm/v1/chat/completions"), `{"stream":true}`)
	resp, err := client(t).Do(r) // returns only because the head is passed on before any event
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for i := range 100 {
		next <- i // the next event isn't sent before the last one was read here
		want := fmt.Sprintf("data: %d\n", i)
		if line, err := lines.ReadString('\n'); err != nil || line != want {
			t.Fatalf("got %q, %v; want %q", line, err, want)
		}
		if line, err := lines.ReadString('\n'); err != nil || line != "\n" {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	close(next)
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Fatalf("after the last event: %q, %v", rest, err)
	}
}

func TestBothDirectionsStreamAtOnce(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.(http.Flusher).Flush()
		in := bufio.NewReader(r.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(w, "echo ", line)
			w.(http.Flusher).Flush()
		}
	})
	g := start(t, nil, service("llm", route.Endpoint{HTTP: addr}))
	pr, pw := io.Pipe()
	r := request(t, http.MethodPost, g.url("/serving/default/llm/duplex"), "")
	r.Body, r.ContentLength = pr, -1
	resp, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out := bufio.NewReader(resp.Body)
	for i := range 20 {
		fmt.Fprintf(pw, "%d\n", i)
		if line, err := out.ReadString('\n'); err != nil || line != fmt.Sprintf("echo %d\n", i) {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	_ = pw.Close()
	if _, err := io.ReadAll(out); err != nil {
		t.Fatal(err)
	}
}

func TestUpgradedConnectionsPassBothWays(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Connection") != "Upgrade" {
			http.Error(w, "no upgrade", http.StatusBadRequest)
			return
		}
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	})
	g := start(t, nil, service("llm", route.Endpoint{HTTP: addr}))
	conn := dial(t, g.HTTP)
	fmt.Fprintf(conn, "GET /serving/default/llm/ws HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n")
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "websocket" || resp.Header.Get("X-Stationmaster-Revision") != "llm-00001" {
		t.Fatalf("%v, %v", resp, err)
	}
	fmt.Fprint(conn, " and bye")
	_ = conn.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(in)
	if err != nil || string(got) != "hello and bye" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func dial(tb testing.TB, addr string) net.Conn {
	tb.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestTrailersPassBothWays(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Announced")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-Announced", r.Trailer.Get("X-Sum"))
		w.Header().Set(http.TrailerPrefix+"X-Late", "late")
		w.(http.Flusher).Flush()
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	r := request(t, http.MethodPost, g.url("/serving/default/iris/x"), "")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader("body")), -1
	r.Trailer = http.Header{"X-Sum": {"42"}}
	a := do(t, client(t), r)
	want := http.Header{"X-Announced": {"42"}, "X-Late": {"late"}}
	if a.body != "body" || cmp.Diff(want, a.Trailer) != "" {
		t.Fatalf("got %q and trailers %v", a.body, a.Trailer)
	}
}

func TestBodilessAnswersKeepTheirShape(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(http.StatusNoContent)
		case "/304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(http.StatusNotModified)
		case "/hint":
			w.Header().Set("Link", "</x>")
			w.WriteHeader(http.StatusEarlyHints)
			fmt.Fprint(w, "final")
		default:
			w.Header().Set("Content-Length", "5")
			fmt.Fprint(w, "hello")
		}
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	c := client(t)
	for range 3 {
		for _, tc := range []struct {
			method, path string
			status       int
			length       int64
			body         string
		}{
			{"GET", "/204", 204, 0, ""}, {"GET", "/304", 304, 0, ""}, {"HEAD", "/x", 200, 5, ""},
			{"GET", "/x", 200, 5, "hello"}, {"GET", "/hint", 200, 5, "final"}, {"DELETE", "/x", 200, 5, "hello"},
		} {
			a := do(t, c, request(t, tc.method, g.url("/serving/default/iris"+tc.path), ""))
			if a.StatusCode != tc.status || a.body != tc.body || (tc.status == 200 && a.ContentLength != tc.length) {
				t.Errorf("%s %s: %d %q, length %d", tc.method, tc.path, a.StatusCode, a.body, a.ContentLength)
			}
		}
	}
}

func TestClientGoneEndsTheEngineCall(t *testing.T) {
	began, ended := make(chan string), make(chan string)
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/stream" {
			w.(http.Flusher).Flush()
		}
		began <- r.URL.Path
		<-r.Context().Done()
		ended <- r.URL.Path
	})
	g := start(t, nil, service("llm", route.Endpoint{HTTP: addr}))
	for _, path := range []string{"/unary", "/stream"} {
		for _, proto := range []string{"h1", "h2"} {
			ctx, cancel := context.WithCancel(t.Context())
			r := request(t, http.MethodPost, g.url("/serving/default/llm"+path), "{}").WithContext(ctx)
			c := client(t)
			if proto == "h2" {
				c = h2cClient(t)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				if resp, err := c.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			if got := <-began; got != path {
				t.Fatal(got)
			}
			cancel()
			if got := <-ended; got != path {
				t.Fatal(got)
			}
			<-done
		}
	}
}

func h2cClient(tb testing.TB) *http.Client {
	tb.Helper()
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p}
	tb.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

// rawEngine serves each connection by a function that gets it after a whole request head.
func rawEngine(tb testing.TB, serve func(net.Conn, *bufio.Reader)) string {
	tb.Helper()
	l := listen(tb)
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() { defer c.Close(); serve(c, bufio.NewReader(c)) })
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range maps.Keys(open) {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

// readRequest reads a request with its body.
func readRequest(in *bufio.Reader) error {
	r, err := http.ReadRequest(in)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

func TestBrokenEnginesGiveBadGateway(t *testing.T) {
	tests := map[string]struct {
		reply string
		want  string
	}{
		"dies before it answers":      {"", "closed the connection before it answered"},
		"dies within the head":        {"HTTP/1.1 200 OK\r\nContent-", "engine"},
		"dies before any of the body": {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", "within its response"},
		"speaks something else":       {"SSH-2.0-OpenSSH_9.2\r\n\r\n", "malformed HTTP response"},
		"gives two lengths":           {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "two lengths"},
		"gives a length and chunks":   {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "both a length and chunks"},
		"changes protocol unasked":    {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "nobody asked"},
		"sends a head without end":    {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Fill: "+strings.Repeat("y", 1000)+"\r\n", 100), "larger than"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			addr := rawEngine(t, func(c net.Conn, in *bufio.Reader) {
				if readRequest(in) == nil {
					_, _ = io.WriteString(c, tc.reply)
				}
			})
			g := start(t, nil, service("bad", route.Endpoint{HTTP: addr}), service("good", route.Endpoint{HTTP: engine(t, named("good"))}))
			c := client(t)
			a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/bad/infer"), "{}"))
			if text := errorText(t, a); a.StatusCode != http.StatusBadGateway || !strings.Contains(text, tc.want) {
				t.Errorf("got %d %q, want 502 with %q", a.StatusCode, text, tc.want)
			}
			if a.Header.Get("X-Stationmaster-Revision") != "bad-00001" {
				t.Error("the answer doesn't say which revision failed")
			}
			if a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/good/infer"), "{}")); a.StatusCode != 200 {
				t.Errorf("the other service answers %d", a.StatusCode)
			}
		})
	}
}

func TestResponseCutInTheMiddleIsSeenByTheClient(t *testing.T) {
	for name, head := range map[string]string{
		"counted": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
		"chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			addr := rawEngine(t, func(c net.Conn, in *bufio.Reader) {
				if readRequest(in) == nil {
					_, _ = io.WriteString(c, head)
				}
			})
			g := start(t, nil, service("bad", route.Endpoint{HTTP: addr}))
			resp, err := client(t).Do(request(t, http.MethodPost, g.url("/v2/models/bad/infer"), "{}"))
			if err != nil {
				return // also a way of seeing it
			}
			defer resp.Body.Close()
			if b, err := io.ReadAll(resp.Body); err == nil {
				t.Fatalf("a cut response looked whole: %q", b)
			}
		})
	}
}

func TestStaleKeptConnectionsCostNoRequest(t *testing.T) {
	addr := rawEngine(t, func(c net.Conn, in *bufio.Reader) {
		for range 2 { // promises to keep the connection, and closes it
			if readRequest(in) != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	c := client(t)
	for i := range 200 {
		a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), "{}"))
		if a.StatusCode != 200 {
			t.Fatalf("request %d: %d %s", i, a.StatusCode, a.body)
		}
	}
}

func TestUnreachableReplicaIsPassedOver(t *testing.T) {
	l := listen(t)
	dead := l.Addr().String()
	_ = l.Close()
	g := start(t, nil, service("iris", route.Endpoint{HTTP: dead}, route.Endpoint{HTTP: engine(t, named("alive"))}), service("gone", route.Endpoint{HTTP: dead}))
	c := client(t)
	for range 20 {
		if a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), "{}")); a.StatusCode != 200 {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
	}
	a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/gone/infer"), "{}"))
	if text := errorText(t, a); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || !strings.Contains(text, "connect to the engine") {
		t.Fatalf("%d %q", a.StatusCode, text)
	}
}

func TestServicesThatCannotAnswerSayWhy(t *testing.T) {
	cold := service("cold")
	b := cold.Components[spec.Predictor]
	b.NotReady = "revision cold-00001 is loading its model"
	cold.Components[spec.Predictor] = b
	v1 := service("old", route.Endpoint{HTTP: engine(t, named("old"))})
	v1.Components[spec.Predictor].Targets[0].Protocols = []spec.Protocol{spec.V1}
	slow := service("slow", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})})
	slow.Timeout = 50 * time.Millisecond
	g := start(t, nil, cold, v1, slow)
	c := client(t)
	tests := map[string]struct {
		path   string
		status int
		want   string
	}{
		"no replica":            {"/v2/models/cold/infer", 503, "cold-00001 is loading its model"},
		"V2 asked of V1":        {"/v2/models/old/infer", 501, "POST /v1/models/old:predict"},
		"no answer in time":     {"/v2/models/slow/infer", 504, "no response in time"},
		"space within the path": {"/serving/default/old/a b", 400, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(tc.path, " ") {
				conn := dial(t, g.HTTP)
				fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", tc.path)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || resp.StatusCode != tc.status || resp.Header.Get("Content-Type") != "application/json" {
					t.Fatalf("%v, %v", resp, err)
				}
				return
			}
			a := do(t, c, request(t, http.MethodPost, g.url(tc.path), "{}"))
			if text := errorText(t, a); a.StatusCode != tc.status || !strings.Contains(text, tc.want) {
				t.Fatalf("got %d %q, want %d with %q", a.StatusCode, text, tc.status, tc.want)
			}
			if (a.Header.Get("Retry-After") != "") != (tc.status == 503) {
				t.Errorf("Retry-After is %q", a.Header.Get("Retry-After"))
			}
		})
	}
	a := do(t, c, request(t, http.MethodPost, g.url("/serving/default/cold/v1/chat/completions"), "{}"))
	var v struct {
		Error struct{ Message, Type string }
	}
	if err := json.Unmarshal([]byte(a.body), &v); err != nil || v.Error.Type != "server_error" || !strings.Contains(v.Error.Message, "loading") {
		t.Errorf("an OpenAI client got %s (%v)", a.body, err)
	}
}

func TestBodiesBeyondTheLimitAreRefused(t *testing.T) {
	addr := engine(t, named("iris"))
	g := start(t, func(c *gateway.Config) { c.MaxBody = 100_000 }, service("iris", route.Endpoint{HTTP: addr}))
	for name, length := range map[string]int64{"announced": 200_000, "chunked": -1} {
		t.Run(name, func(t *testing.T) {
			r := request(t, http.MethodPost, g.url("/v2/models/iris/infer"), "")
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 200_000))), length
			a := do(t, client(t), r)
			if text := errorText(t, a); a.StatusCode != 413 || !strings.Contains(text, "100000 bytes") {
				t.Fatalf("%d %q", a.StatusCode, text)
			}
		})
	}
	r := request(t, http.MethodPost, g.url("/v2/models/iris/infer"), "")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 100_000))), -1
	if a := do(t, client(t), r); a.StatusCode != 200 {
		t.Fatalf("a body of just the limit: %d %s", a.StatusCode, a.body)
	}
}

func TestHugeHeadIsRefusedInShape(t *testing.T) {
	g := start(t, nil, service("iris", route.Endpoint{HTTP: engine(t, named("iris"))}))
	conn := dial(t, g.HTTP)
	go func() {
		_, _ = io.WriteString(conn, "POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nX-Big: ")
		_, _ = io.WriteString(conn, strings.Repeat("x", 10<<20))
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if text := errorText(t, answer{resp, string(b)}); resp.StatusCode != 431 || !strings.Contains(text, "64 KiB") {
		t.Fatalf("%d %q", resp.StatusCode, text)
	}
}

func TestCutBodyEndsTheEngineCall(t *testing.T) {
	ended := make(chan error, 1)
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		ended <- err
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	for name, framing := range map[string]string{"counted": "Content-Length: 1000000", "chunked": "Transfer-Encoding: chunked"} {
		conn := dial(t, g.HTTP)
		fmt.Fprintf(conn, "POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n5\r\nhello\r\n", framing)
		_ = conn.(*net.TCPConn).CloseWrite()
		if err := <-ended; err == nil {
			t.Errorf("%s: the engine saw a whole body", name)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil && resp.StatusCode != 400 {
			t.Errorf("%s: %v", name, resp.Status)
		}
	}
	conn := dial(t, g.HTTP) // small: no engine is bothered
	fmt.Fprint(conn, "POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhello")
	_ = conn.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && resp.StatusCode != 400 {
		t.Errorf("small: %v", resp.Status)
	}
	select {
	case err := <-ended:
		t.Errorf("an engine got a cut small body: %v", err)
	default:
	}
}

func TestEarlyAnswerReachesAClientThatStillSends(t *testing.T) {
	addr := rawEngine(t, func(c net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!")
		_, _ = io.Copy(io.Discard, in) // until the gateway gives up
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	pr, pw := io.Pipe()
	defer pw.Close()
	r := request(t, http.MethodPost, g.url("/serving/default/iris/upload"), "")
	r.Body, r.ContentLength = pr, -1 // never ends
	a := do(t, client(t), r)
	if a.StatusCode != 422 || a.body != "no!" {
		t.Fatalf("%d %q", a.StatusCode, a.body)
	}
}

func TestExpectContinueIsAnsweredByTheGateway(t *testing.T) {
	g := start(t, nil, service("iris", route.Endpoint{HTTP: engine(t, named("iris"))}), service("cold"))
	c := client(t)
	c.Transport.(*http.Transport).ExpectContinueTimeout = time.Minute
	for path, want := range map[string]bool{"/v2/models/iris/infer": true, "/v2/models/cold/infer": false} {
		continued := false
		r := request(t, http.MethodPost, g.url(path), strings.Repeat("x", 1000))
		r.Header.Set("Expect", "100-continue")
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got100Continue: func() { continued = true }}))
		a := do(t, c, r)
		if continued != want || (a.StatusCode == 200) != want {
			t.Errorf("%s: %d, continued %v", path, a.StatusCode, continued)
		}
	}
}

func TestTheGatewayAnswersForAllServices(t *testing.T) {
	cold := service("cold")
	g := start(t, func(c *gateway.Config) { c.Version = "1.2.3" }, service("iris", route.Endpoint{HTTP: engine(t, named("iris"))}), cold)
	tests := map[string]struct {
		method, path string
		status       int
		want         string
	}{
		"metadata":        {"GET", "/v2", 200, `{"extensions":["model_repository","binary_tensor_data"],"name":"stationmaster","version":"1.2.3"}`},
		"live":            {"GET", "/v2/health/live", 200, `{"live":true}`},
		"ready":           {"GET", "/v2/health/ready", 503, `{"error":"not all models are ready: default/cold: no replica of the predictor is ready"}`},
		"V2 list":         {"GET", "/v2/models", 200, `{"models":["cold","iris"]}`},
		"V1 list":         {"GET", "/v1/models", 200, `{"data":[{"id":"cold","object":"model","created":0,"owned_by":"default"},{"id":"iris","object":"model","created":0,"owned_by":"default"}],"models":["cold","iris"],"object":"list"}`},
		"index":           {"POST", "/v2/repository/index", 200, `[{"name":"cold","state":"UNAVAILABLE","reason":"no replica of the predictor is ready"},{"name":"iris","state":"READY","reason":""}]`},
		"wrong method":    {"POST", "/v2/health/live", 405, `{"error":"/v2/health/live takes GET, not POST"}`},
		"trailing slash":  {"GET", "/v2/", 200, `{"extensions":["model_repository","binary_tensor_data"],"name":"stationmaster","version":"1.2.3"}`},
		"index, bad body": {"POST", "/v2/repository/index?x", 200, ""},
	}
	c := client(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a := do(t, c, request(t, tc.method, g.url(tc.path), ""))
			if a.StatusCode != tc.status || (tc.want != "" && strings.TrimSpace(a.body) != tc.want) {
				t.Fatalf("got %d %s\nwant %d %s", a.StatusCode, a.body, tc.status, tc.want)
			}
		})
	}
	g.table.Publish(route.Compile([]route.Service{service("iris", route.Endpoint{HTTP: engine(t, named("iris"))})}))
	if a := do(t, c, request(t, "GET", g.url("/v2/health/ready"), "")); a.StatusCode != 200 {
		t.Errorf("all ready: %d %s", a.StatusCode, a.body)
	}
}

func TestTableSwapsLoseNoRequest(t *testing.T) {
	a, b := engine(t, named("iris")), engine(t, named("iris"))
	g := start(t, func(c *gateway.Config) { c.Metrics = prometheus.NewRegistry() }, service("iris", route.Endpoint{HTTP: a}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c := client(t)
			for ctx.Err() == nil {
				resp, err := c.Post(g.url("/v2/models/iris/infer"), "application/json", strings.NewReader("{}"))
				if err != nil {
					t.Error(err)
					return
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 || err != nil {
					t.Errorf("%d, %v", resp.StatusCode, err)
					return
				}
			}
		})
	}
	for i := 0; ctx.Err() == nil; i++ {
		s := service("iris", route.Endpoint{HTTP: []string{a, b}[i%2]})
		s.Components[spec.Predictor].Targets[0].Revision = fmt.Sprintf("iris-%05d", i)
		g.table.Publish(route.Compile([]route.Service{s}))
		do(t, client(t), request(t, "GET", g.url("/v2/health/live"), ""))
	}
	wg.Wait()
}

func TestDrainLetsRequestsFinish(t *testing.T) {
	began, finish := make(chan bool), make(chan bool)
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		began <- true
		<-finish
		fmt.Fprint(w, "done")
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	got := make(chan string, 1)
	c := client(t)
	r := request(t, "GET", g.url("/serving/default/iris/x"), "")
	go func() {
		resp, err := c.Do(r)
		if err != nil {
			got <- err.Error()
			return
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		got <- string(b)
	}()
	<-began
	stopped := make(chan bool)
	go func() { g.stop(); close(stopped) }()
	for { // until new connections are refused
		conn, err := net.Dial("tcp", g.HTTP)
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	close(finish)
	if s := <-got; s != "done" {
		t.Errorf("got %q", s)
	}
	<-stopped
}

func TestHTTP2WithAndWithoutTLS(t *testing.T) {
	tlsConfig, roots := certificate(t)
	l := listen(t)
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %d", r.Proto, r.Header.Get("X-Forwarded-Proto"), len(b))
	})
	g := start(t, func(c *gateway.Config) { c.HTTPS, c.TLS = l, tlsConfig }, service("iris", route.Endpoint{HTTP: addr}))
	secure := &http.Transport{TLSClientConfig: roots, ForceAttemptHTTP2: true}
	defer secure.CloseIdleConnections()
	for scheme, c := range map[string]*http.Client{"http": h2cClient(t), "https": {Transport: secure}} {
		for _, size := range []int{0, 100, 1 << 20} {
			base := map[string]string{"http": g.HTTP, "https": g.HTTPS}[scheme]
			r := request(t, http.MethodPost, scheme+"://"+base+"/v2/models/iris/infer", strings.Repeat("x", size))
			a := do(t, c, r)
			if want := fmt.Sprintf("HTTP/1.1 %s %d", scheme, size); a.body != want || a.ProtoMajor != 2 {
				t.Errorf("%s: got %q over %s, want %q", scheme, a.body, a.Proto, want)
			}
		}
	}
}

func TestMetricsCountWhatClientsSaw(t *testing.T) {
	reg := prometheus.NewRegistry()
	g := start(t, func(c *gateway.Config) { c.Metrics = reg }, service("iris", route.Endpoint{HTTP: engine(t, named("iris"))}), service("cold"))
	c := client(t)
	for _, path := range []string{"/v2/models/iris/infer", "/v2/models/iris/infer", "/v1/models/iris:predict", "/v2/models/cold/infer", "/none", "/serving/default/iris/x"} {
		do(t, c, request(t, http.MethodPost, g.url(path), "{}"))
	}
	g.stop() // requests are counted once their handlers have ended
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "stationmaster_gateway_requests_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			got[strings.Join(labels, " ")] = m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{ // labels are sorted by name: code, namespace, protocol, revision, service
		"200 default v2 iris-00001 iris": 2, "200 default v1 iris-00001 iris": 1, "200 default http iris-00001 iris": 1,
		"503  v2  ": 1, "404  http  ": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}
