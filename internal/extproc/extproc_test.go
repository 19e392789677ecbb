package extproc_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"stationmaster.dev/stationmaster/internal/extproc"
	"stationmaster.dev/stationmaster/internal/extproc/pool"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/spec"
)

const three = "10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000"

func chat(text string) string {
	return fmt.Sprintf(`{"model":"llama","max_tokens":8,"messages":[{"role":"user","content":%q}]}`, text)
}

func TestARequestIsLedInEachBodyMode(t *testing.T) {
	p := serve(t, extproc.Config{Fallback: true}, three)
	long := strings.Repeat("all work and no play ", 3000)
	for name, r := range map[string]request{
		"streamed both ways":                 {in: duplex, out: duplex, body: chat("hi")},
		"streamed both ways, in pieces":      {in: duplex, out: duplex, body: chat(long), pieces: 9},
		"streamed both ways, with trailers":  {in: duplex, out: duplex, body: chat(long), pieces: 3, trailers: true},
		"by a proxy that doesn't say how":    {unsaid: true, body: chat("hi"), pieces: 2},
		"buffered":                           {in: buffered, out: buffered, body: chat(long)},
		"in pieces after the head":           {in: streamed, out: streamed, body: chat(long), pieces: 3},
		"without its body":                   {in: none, out: none, body: chat("hi")},
		"a request that has none":            {in: duplex, out: duplex, method: "GET", path: "/v1/models"},
		"a path that isn't of the API":       {in: duplex, out: duplex, path: "/tokenize", body: `{"x":1}`, pieces: 1},
		"a compressed body":                  {in: duplex, out: duplex, body: "\x1f\x8b", headers: map[string]string{"content-encoding": "gzip"}},
		"under a prefix, and with arguments": {in: duplex, out: duplex, path: "/openai/v1/completions?a=b", body: `{"model":"m","prompt":"x"}`},
	} {
		t.Run(name, func(t *testing.T) {
			c := p.ask(t, r)
			if c.refused != nil {
				t.Fatalf("refused: %v", c.refused)
			}
			if c.to != c.meta {
				t.Errorf("the header says %q, the metadata %q", c.to, c.meta)
			}
			to := strings.Split(c.to, ",")
			if len(to) != 2 || to[0] == to[1] || !strings.Contains(three, to[0]) || !strings.Contains(three, to[1]) {
				t.Errorf("led to %q, want one endpoint and another", c.to)
			}
			if (r.in == duplex || r.unsaid) && c.body != r.body {
				t.Errorf("%d bytes were given back, want the %d that came", len(c.body), len(r.body))
			}
			if r.out == none && !r.unsaid {
				c.end()
				return
			}
			pieces := []string{`{"usage":{"prompt_tokens":3,`, `"completion_tokens":5}}`}
			if got := c.answer("200", "application/json", "", "", pieces...); got != strings.Join(pieces, "") {
				t.Errorf("the answer came out as %q", got)
			}
			c.end()
		})
	}
}

func TestTurnsOfAConversationReachOneEndpoint(t *testing.T) {
	p := serve(t, extproc.Config{}, three)
	used := map[string]int{}
	for conversation := range 12 {
		said := fmt.Sprintf("conversation %d: ", conversation) + strings.Repeat("once upon a time ", 40)
		var first string
		for turn := range 4 {
			c := p.ask(t, request{in: duplex, out: duplex, body: chat(said), pieces: 2})
			if turn == 0 {
				first = c.first()
				used[first]++
			} else if c.first() != first {
				t.Errorf("turn %d of conversation %d went to %s, those before to %s", turn, conversation, c.first(), first)
			}
			c.answer("200", "application/json", c.first(), "", `{"usage":{"prompt_tokens":3,"completion_tokens":5}}`)
			c.end()
			said += strings.Repeat("and then what ", 20)
		}
	}
	if len(used) != 3 {
		t.Errorf("conversations are at %v, want all endpoints used", used)
	}
}

func TestRequestsUnderWayAreCountedUntilTheAnswersEnd(t *testing.T) {
	p := serve(t, extproc.Config{Limit: 1}, "10.0.0.1:8000,10.0.0.2:8000")
	one := p.ask(t, request{in: duplex, out: duplex, body: chat("a")})
	two := p.ask(t, request{in: duplex, out: duplex, body: chat("b")})
	if one.first() == two.first() {
		t.Fatalf("both are at %s, whose limit is one", one.first())
	}
	three := p.ask(t, request{in: duplex, out: duplex, body: chat("c")})
	if three.refused == nil || three.refused.GetStatus().GetCode() != 429 || !strings.Contains(string(three.refused.GetBody()), "rate_limit_error") {
		t.Fatalf("with all at their limit: %v, led to %q", three.refused, three.to)
	}
	one.answer("200", "text/event-stream", "", "", "data: {\"choices\":[{}]}\n\n", "data: [DONE]\n\n")
	if again := p.ask(t, request{in: duplex, out: duplex, body: chat("d")}); again.first() != one.first() {
		t.Errorf("led to %q (%v), want %s, whose answer ended", again.to, again.refused, one.first())
	} else {
		again.cancel() // the client went away
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		c := p.ask(t, request{in: duplex, out: duplex, body: chat("e")})
		if c.refused == nil {
			c.cancel()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a request whose client went away still counts")
		}
	}
	two.end()
}

func TestWhatCantBePickedIsRefusedInTheShapeOfTheAPI(t *testing.T) {
	big := strings.Repeat("x", 5000)
	for name, tc := range map[string]struct {
		r     request
		pool  string
		cfg   extproc.Config
		gone  bool
		want  int
		words string
	}{
		"no endpoint":                 {r: request{in: duplex, body: chat("hi")}, gone: true, want: 503, words: "no pod is ready"},
		"no pool yet":                 {r: request{in: duplex, body: chat("hi")}, want: 503, words: "starting"},
		"an empty subset":             {r: request{in: duplex, body: chat("hi"), hinted: true}, pool: three, want: 503, words: "none of the 0 endpoints"},
		"a subset of others":          {r: request{in: buffered, body: chat("hi"), hinted: true, subset: []any{"10.9.9.9:1"}}, pool: three, want: 503, words: "none of the 1 endpoints"},
		"no model":                    {r: request{in: duplex, body: `{"messages":[]}`}, pool: three, want: 400, words: `"param":"model"`},
		"no JSON":                     {r: request{in: duplex, body: `nonsense`}, pool: three, want: 400, words: "invalid_request_error"},
		"two models":                  {r: request{in: buffered, body: `{"model":"a","model":"b"}`}, pool: three, want: 400, words: "twice"},
		"a body over the bound":       {r: request{in: duplex, body: chat(big), pieces: 4}, cfg: extproc.Config{MaxBody: 4000}, pool: three, want: 413, words: "4000 bytes"},
		"one announced over it":       {r: request{in: buffered, body: chat(big), headers: map[string]string{"content-length": "5100"}}, cfg: extproc.Config{MaxBody: 4000}, pool: three, want: 413, words: "4000 bytes"},
		"a model too far behind":      {r: request{in: duplex, body: `{"messages":"` + big + `","model":"m"}`, pieces: 4}, cfg: extproc.Config{MaxRead: 3000}, pool: three, want: 413, words: "put it first"},
		"a subset, without a body":    {r: request{in: duplex, method: "GET", path: "/v1/models", hinted: true}, pool: three, want: 503, words: "server_error"},
		"a buffered body in no shape": {r: request{in: buffered, body: `[]`}, pool: three, want: 400, words: "error"},
	} {
		t.Run(name, func(t *testing.T) {
			p := serve(t, tc.cfg, tc.pool)
			if tc.gone {
				p.pool.Publish(&pool.Pool{Key: spec.ServiceKey{Namespace: "a", Name: "b"}, Known: true, Problem: "no pod is ready"})
			}
			c := p.ask(t, tc.r)
			if c.refused == nil {
				t.Fatalf("it was led to %q", c.to)
			}
			body := string(c.refused.GetBody())
			if got := int(c.refused.GetStatus().GetCode()); got != tc.want || !strings.HasPrefix(body, `{"error":{"message":`) || !strings.Contains(body, tc.words) {
				t.Errorf("%d %s, want %d and %q", got, body, tc.want, tc.words)
			}
		})
	}
}

func TestALongBodyIsLedBeforeItsEnd(t *testing.T) {
	p := serve(t, extproc.Config{MaxRead: 2000}, three)
	body := chat(strings.Repeat("y", 20_000))
	if c := p.ask(t, request{in: duplex, body: body, pieces: 20}); c.refused != nil || c.body != body {
		t.Errorf("refused %v, and %d of %d bytes were given back", c.refused, len(c.body), len(body))
	}
}

func TestASubsetIsKeptTo(t *testing.T) {
	p := serve(t, extproc.Config{}, three)
	for range 20 {
		c := p.ask(t, request{in: duplex, body: chat("hi"), hinted: true, subset: []any{"10.0.0.9:8000", "10.0.0.2:8000"}})
		if c.to != "10.0.0.2:8000" {
			t.Fatalf("led to %q", c.to)
		}
	}
	// One that is named twice is one, also where a second is told.
	p = serve(t, extproc.Config{Fallback: true}, three)
	c := p.ask(t, request{in: duplex, body: chat("hi"), hinted: true, subset: []any{"10.0.0.2:8000", "10.0.0.2:8000"}})
	if c.to != "10.0.0.2:8000" {
		t.Errorf("led to %q", c.to)
	}
}

func TestOneEndpointIsNamedUnlessASecondIsAskedFor(t *testing.T) {
	p := serve(t, extproc.Config{}, three)
	if c := p.ask(t, request{in: duplex, body: chat("hi")}); c.to == "" || strings.Contains(c.to, ",") {
		t.Errorf("led to %q", c.to)
	}
}

func TestAnEndpointThatIsPassedOverGetsNoMore(t *testing.T) {
	p := serve(t, extproc.Config{Picking: "round-robin"}, "10.0.0.1:8000,10.0.0.2:8000")
	const dead, alive = "10.0.0.1:8000", "10.0.0.2:8000"
	for range 2 {
		c := p.ask(t, request{in: duplex, out: duplex, body: chat("hi")})
		c.answer("200", "application/json", alive, "", "{}")
		c.end()
	}
	for i := range 10 {
		c := p.ask(t, request{in: duplex, out: duplex, body: chat("hi")})
		if c.first() == dead && i < 5 {
			t.Errorf("request %d was led to the one that can't be reached", i)
		}
		c.answer("200", "application/json", alive, "", "{}")
		c.end()
	}
}

func TestTheProxysDetailsTellAnUnreachedEndpoint(t *testing.T) {
	p := serve(t, extproc.Config{Picking: "round-robin"}, "10.0.0.1:8000,10.0.0.2:8000")
	dead := ""
	for i := range 4 {
		c := p.ask(t, request{in: duplex, out: duplex, body: chat("hi")})
		switch {
		case i == 0:
			dead = c.first()
			c.answer("503", "text/plain", "", "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_111}", "no")
		case c.first() == dead:
			t.Errorf("request %d went there again", i)
			fallthrough
		default:
			c.answer("200", "application/json", "", "via_upstream", "{}")
		}
		c.end()
	}
}

func TestAnAdapterIsSentWhereItIs(t *testing.T) {
	p := serve(t, extproc.Config{}, three)
	now := time.Now()
	p.samples.Publish(&pick.Samples{
		"10.0.0.1:8000": {At: now, KVUse: -1, Running: 0, Waiting: 0, MaxAdapters: 1, Adapters: []string{"other"}},
		"10.0.0.2:8000": {At: now, KVUse: -1, Running: 0, Waiting: 0, MaxAdapters: 1, Adapters: []string{"sql"}},
		"10.0.0.3:8000": {At: now, KVUse: -1, Running: 0, Waiting: 0, MaxAdapters: 1, Adapters: []string{"other"}},
	})
	body := strings.Replace(chat("select"), "llama", "sql", 1)
	deadline := time.Now().Add(30 * time.Second)
	for row := 0; row < 6; {
		c := p.ask(t, request{in: duplex, out: duplex, body: body})
		if row++; c.first() != "10.0.0.2:8000" {
			row = 0 // the sample isn't there yet
		}
		c.answer("200", "application/json", "", "", "{}")
		c.end()
		if time.Now().After(deadline) {
			t.Fatal("an adapter's requests don't go where it is")
		}
	}
}

func TestHealthIsThatOfThePool(t *testing.T) {
	p := serve(t, extproc.Config{}, "")
	health := healthv1.NewHealthClient(p.conn)
	want := func(service string, want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		w, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		for {
			got, err := w.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got.GetStatus() == want {
				return
			}
		}
	}
	const serving, not = healthv1.HealthCheckResponse_SERVING, healthv1.HealthCheckResponse_NOT_SERVING
	want("liveness", serving)
	want("readiness", not)
	p.pool.Publish(&pool.Pool{Known: true, Problem: "no pod is ready"})
	for _, service := range []string{"", "readiness", "liveness", "envoy.service.ext_proc.v3.ExternalProcessor"} {
		want(service, serving)
	}
}

func TestEndpointsComeAndGo(t *testing.T) {
	p := serve(t, extproc.Config{Fallback: true}, "10.0.0.1:8000")
	if c := p.ask(t, request{in: duplex, body: chat("hi")}); c.to != "10.0.0.1:8000" {
		t.Fatalf("led to %q", c.to)
	}
	next, err := pool.Static("10.0.0.2:8000,[fd00::1]:8000")
	if err != nil {
		t.Fatal(err)
	}
	p.pool.Publish(next)
	c := p.ask(t, request{in: duplex, body: chat("hi")})
	if got := strings.Split(c.to, ","); len(got) != 2 || !slices.Contains(got, "10.0.0.2:8000") || !slices.Contains(got, "[fd00::1]:8000") {
		t.Errorf("led to %q", c.to)
	}
}
