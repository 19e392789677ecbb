package gateway_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// cheapEngine answers each request on a connection with the same bytes and allocates nothing
// per request, so that what a benchmark shows is the gateway's.
func cheapEngine(tb testing.TB, body int, reply []byte) string {
	tb.Helper()
	return rawEngine(tb, func(c net.Conn, in *bufio.Reader) {
		for {
			length := 0
			for {
				line, err := in.ReadSlice('\n')
				if err != nil {
					return
				}
				if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
					length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
				}
				if len(line) == 2 {
					break
				}
			}
			if length != body {
				tb.Errorf("the engine got %d bytes", length)
				return
			}
			if _, err := in.Discard(length); err != nil {
				return
			}
			if _, err := c.Write(reply); err != nil {
				return
			}
		}
	})
}

// chain is a client's connection through a gateway to an engine.
type chain struct {
	conn    net.Conn
	in      *bufio.Reader
	request []byte
	reply   int // bytes of a reply's body
}

func newChain(tb testing.TB, size int, stream bool) *chain {
	tb.Helper()
	body := bytes.Repeat([]byte("x"), size)
	reply := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", size, body)
	if stream {
		reply = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range 16 {
			reply = fmt.Appendf(reply, "%x\r\n%s\r\n", size/16, body[:size/16])
		}
		reply = append(reply, "0\r\n\r\n"...)
	}
	g := start(tb, func(c *gateway.Config) { c.Metrics = prometheus.NewRegistry() },
		service("iris", route.Endpoint{HTTP: cheapEngine(tb, size, reply)}))
	conn := dial(tb, g.HTTP)
	head := fmt.Sprintf("POST /v2/models/iris/infer HTTP/1.1\r\nHost: gateway\r\nUser-Agent: bench\r\nAccept: */*\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", size)
	return &chain{conn: conn, in: bufio.NewReaderSize(conn, 1<<20), request: append([]byte(head), body...), reply: size}
}

func (c *chain) once() error {
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	chunked := false
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		chunked = chunked || bytes.HasPrefix(line, []byte("Transfer-Encoding"))
		if len(line) == 2 {
			break
		}
	}
	if !chunked {
		_, err := c.in.Discard(c.reply)
		return err
	}
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 64)
		if err != nil {
			return err
		}
		if _, err := c.in.Discard(int(n) + 2); err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
	}
}

// BenchmarkChain measures the whole way through the gateway: one client on loopback, an
// engine that costs little.
func BenchmarkChain(b *testing.B) {
	for _, size := range []int{1 << 10, 128 << 10} {
		for _, kind := range []string{"unary", "stream"} {
			b.Run(fmt.Sprintf("%s/%dKiB", kind, size>>10), func(b *testing.B) {
				c := newChain(b, size, kind == "stream")
				b.ReportAllocs()
				for b.Loop() {
					if err := c.once(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// newChat is a chain for a chat request with a prompt of a size, answered by a stream of two frames.
func newChat(tb testing.TB, prompt int) *chain {
	tb.Helper()
	body := fmt.Sprintf(`{"model":"llm","stream":true,"messages":[{"role":"user","content":"%s"}],"max_tokens":16}`, bytes.Repeat([]byte("x"), prompt))
	sent := len(body) + len(`,"stream_options":{"include_usage":true}`)
	frame := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"llm","choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"
	reply := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	for _, f := range []string{frame, "data: [DONE]\n\n"} {
		reply = fmt.Appendf(reply, "%x\r\n%s\r\n", len(f), f)
	}
	reply = append(reply, "0\r\n\r\n"...)
	s := service("llm", route.Endpoint{HTTP: cheapEngine(tb, sent, reply)})
	s.Hosts, s.PathPrefix = nil, ""
	t := &s.Components[spec.Predictor].Targets[0]
	t.OpenAI, t.Engine = "/", "vllm"
	g := start(tb, func(c *gateway.Config) { c.Metrics = prometheus.NewRegistry() }, s)
	conn := dial(tb, g.HTTP)
	request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nUser-Agent: bench\r\nAccept: */*\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return &chain{conn: conn, in: bufio.NewReaderSize(conn, 1<<20), request: request}
}

// BenchmarkChat is the same for chat requests that name their model on the bare address.
func BenchmarkChat(b *testing.B) {
	for _, size := range []int{256, 220 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			c := newChat(b, size)
			b.ReportAllocs()
			for b.Loop() {
				if err := c.once(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The allocations per request that the whole chain may make, net/http's own included. They
// are budgets: lower them when the code gets better, and think before raising them.
const (
	unaryBudget = 45
	largeBudget = 50
)

func TestAllocationsStayWithinBudget(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates too")
	}
	for size, budget := range map[int]float64{1 << 10: unaryBudget, 128 << 10: largeBudget} {
		c := newChain(t, size, false)
		got := testing.AllocsPerRun(500, func() {
			if err := c.once(); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("%d bytes: %.0f allocations per request", size, got)
		if got > budget {
			t.Errorf("%d bytes: %.0f allocations per request, the budget is %.0f", size, got, budget)
		}
	}
}
