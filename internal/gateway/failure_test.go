package gateway_test

import (
	"bufio"
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
	g := start(t, impatient, service("iris", route.Endpoint{HTTP: dead}, route.Endpoint{HTTP: engine(t, named("alive"))}), service("gone", route.Endpoint{HTTP: dead}))
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
	told := service("told")
	told.Components[spec.Predictor] = route.Backend{NotReady: "the predictor of service default/told isn't ready: its model is <damaged>"}
	g := start(t, nil, cold, v1, slow, told)
	c := client(t)
	tests := map[string]struct {
		path   string
		status int
		want   string
	}{
		"no replica":            {"/v2/models/cold/infer", 503, "cold-00001 is loading its model"},
		"V2 asked of V1":        {"/v2/models/old/generate", 501, "POST /v1/models/old:predict"},
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
	toldAnswer := do(t, c, request(t, http.MethodPost, g.url("/v2/models/told/infer"), "{}"))
	if text := errorText(t, toldAnswer); text != "the predictor of service default/told isn't ready: its model is <damaged>" || !strings.Contains(toldAnswer.body, "<damaged>") {
		t.Errorf("a reason that stands by itself became %s", toldAnswer.body)
	}
	if whole := do(t, c, request(t, http.MethodGet, g.url("/v2/health/ready"), "")); strings.Count(whole.body, "default/told") != 1 {
		t.Errorf("the service is named more than once: %s", whole.body)
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
	if err != nil {
		t.Fatalf("a client that sends no more got no answer: %v", err)
	}
	b, _ := io.ReadAll(resp.Body)
	if text := errorText(t, answer{resp, string(b)}); resp.StatusCode != 400 || !strings.Contains(text, "ended before") {
		t.Errorf("small: %v %q", resp.Status, text)
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
		"V1 list":         {"GET", "/v1/models", 200, `{"data":[{"id":"cold","object":"model","created":0,"owned_by":"default","revision":"cold-00001","digest":"sha256:4f2b","state":"unavailable","revisions":[{"id":"cold@cold-00001","revision":"cold-00001","digest":"sha256:4f2b","state":"unavailable","traffic":100}]},{"id":"iris","object":"model","created":0,"owned_by":"default","revision":"iris-00001","digest":"sha256:4f2b","state":"ready","revisions":[{"id":"iris@iris-00001","revision":"iris-00001","digest":"sha256:4f2b","state":"ready","traffic":100}]}],"models":["cold","iris"],"object":"list"}`},
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
		"503 default v2  cold": 1, "404  http  ": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

func TestKilledEngineLosesOnlyWhatItHadInHand(t *testing.T) {
	const clients = 4
	l := listen(t)
	victim := &http.Server{Handler: named("victim"), ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() { defer close(served); _ = victim.Serve(l) }()
	g := start(t, nil, service("iris", route.Endpoint{HTTP: l.Addr().String()}, route.Endpoint{HTTP: engine(t, named("survivor"))}))
	var mu sync.Mutex
	failed, victims, after := 0, 0, 0
	killed := false
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			c := client(t)
			for {
				a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), "{}"))
				mu.Lock()
				switch {
				case a.StatusCode != 200:
					failed++
				case strings.HasPrefix(a.body, "victim"):
					victims++
				case killed:
					after++
				}
				done := after >= 500
				mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	for { // until it has work
		mu.Lock()
		busy := victims > 100
		mu.Unlock()
		if busy {
			break
		}
		do(t, client(t), request(t, http.MethodGet, g.url("/v2/health/live"), ""))
	}
	_ = victim.Close()
	mu.Lock()
	killed = true
	mu.Unlock()
	wg.Wait()
	<-served
	if failed > clients {
		t.Errorf("%d requests failed, %d could be under way", failed, clients)
	}
}

func TestOffersOfHTTP2AreNotPassedOn(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" || r.Header.Get("Http2-Settings") != "" || r.Header.Get("Connection") != "" {
			t.Errorf("the engine got %v", r.Header)
		}
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	r := request(t, http.MethodGet, g.url("/serving/default/iris/x"), "")
	r.Header = http.Header{"Connection": {"Upgrade, HTTP2-Settings"}, "Upgrade": {"h2c"}, "Http2-Settings": {"AAMAAABkAAQAAP__"}}
	if a := do(t, client(t), r); a.StatusCode != 200 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

// What follows a chunked body that is malformed isn't a request: were it read as one, a client
// could smuggle it past whatever looked at the first.
func TestNothingIsReadBehindAMalformedBody(t *testing.T) {
	g := start(t, nil, service("iris", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	})}))
	for name, body := range map[string]string{
		"a size that is no number":  "zz\r\n",
		"a size beyond all numbers": "fffffffffffffffff\r\n",
		"no line end after a chunk": "5\r\nhelloGET /v2 HTTP/1.1\r\n",
	} {
		conn := dial(t, g.HTTP)
		fmt.Fprintf(conn, "POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%sGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", body)
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b, _ := io.ReadAll(resp.Body)
		if text := errorText(t, answer{resp, string(b)}); resp.StatusCode != 400 || !resp.Close || !strings.Contains(text, "chunk") {
			t.Errorf("%s: %v, close %v, %q", name, resp.Status, resp.Close, text)
		}
		if rest, err := io.ReadAll(in); len(rest) > 0 {
			t.Errorf("%s: behind it came %q (%v)", name, rest, err)
		}
	}
}

// Whoever took the other of two lengths would see another request.
func TestTwoLengthsOfTheJSONPartAreRefused(t *testing.T) {
	asked := false
	rest := service("rest", route.Endpoint{HTTP: engine(t, func(http.ResponseWriter, *http.Request) { asked = true })})
	over := service("grpc", route.Endpoint{GRPC: grpcEngine(t, &oipEngine{})})
	g := start(t, nil, rest, over)
	const body = `{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[1]}]}`
	for _, model := range []string{"rest", "grpc"} {
		r := request(t, http.MethodPost, g.url("/v2/models/"+model+"/infer"), body)
		r.Header["Inference-Header-Content-Length"] = []string{fmt.Sprint(len(body)), "3"}
		a := do(t, client(t), r)
		if text := errorText(t, a); a.StatusCode != 400 || !strings.Contains(text, "Inference-Header-Content-Length") {
			t.Errorf("%s: %d %q", model, a.StatusCode, text)
		}
		r = request(t, http.MethodPost, g.url("/v2/models/"+model+"/infer"), body)
		r.Header["Inference-Header-Content-Length"] = []string{fmt.Sprint(len(body)), fmt.Sprint(len(body))}
		if a := do(t, client(t), r); a.StatusCode != 200 {
			t.Errorf("%s, the same length twice: %d %s", model, a.StatusCode, a.body)
		}
	}
	if !asked {
		t.Error("no request reached the engine")
	}
}
