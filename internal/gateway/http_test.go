package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// oneInput is the body of an infer request.
const oneInput = `{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[1]}]}`

// echoREST is an engine of the Open Inference Protocol whose models echo their inputs.
func echoREST(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, strings.Replace(string(b), `"inputs"`, `"outputs"`, 1))
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

func TestInformationalResponsesComeFirst(t *testing.T) {
	addr := rawEngine(t, func(c net.Conn, in *bufio.Reader) {
		for readRequest(in) == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 102 Processing\r\n\r\n"+
				"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\nConnection: x-own\r\n\r\n"+
				"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
		}
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	for name, c := range map[string]*http.Client{"HTTP/1.1": client(t), "HTTP/2": h2cClient(t)} {
		for _, size := range []int{2, 200_000} {
			var got []string
			r := request(t, http.MethodPost, g.url("/v2/models/iris/infer"), strings.Repeat("x", size))
			r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					got = append(got, fmt.Sprint(code, " ", h.Get("Link")))
					return nil
				},
			}))
			a := do(t, c, r)
			if want := []string{"102 ", "103 </style.css>; rel=preload"}; !slices.Equal(got, want) {
				t.Errorf("%s, %d bytes: got %q, want %q", name, size, got, want)
			}
			if a.StatusCode != 200 || a.body != "done" || a.Header.Get("Link") != "" {
				t.Errorf("%s, %d bytes: %d %q, Link %q", name, size, a.StatusCode, a.body, a.Header.Get("Link"))
			}
		}
	}
	conn := dial(t, g.HTTP)
	fmt.Fprint(conn, "GET /v2/models/iris HTTP/1.0\r\nHost: x\r\n\r\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Errorf("HTTP/1.0, which has none: %q, %v", line, err)
	}
}
