package upstream

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A client that is told that the engine couldn't be reached asks again; one whose request the
// engine may have done must not be told so.
func TestAnEngineThatEndsOverARequestIsNotOneThatCannotBeReached(t *testing.T) {
	for name, tc := range map[string]struct {
		idle time.Duration
		want Stage
	}{
		"seen open just before": {time.Second, StageHeader},
		"used a moment ago":     {-time.Minute, StageDial},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer func() { _ = c.Close() }()
				in := bufio.NewReader(c)
				if _, err := http.ReadRequest(in); err != nil {
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				_, _ = http.ReadRequest(in) // over which it ends
			})
			p := NewPool(Config{})
			defer p.Close()
			h := p.Host(l.Addr().String())
			if _, _, _, err := get(t, h, request("GET")); err != nil {
				t.Fatal(err)
			}
			_ = l.Close()
			h.mu.Lock()
			h.idle[0].idleSince = h.idle[0].idleSince.Add(-tc.idle)
			h.mu.Unlock()
			_, _, _, err = get(t, h, request("GET"))
			var ours *Error
			if !errors.As(err, &ours) || ours.Stage != tc.want {
				t.Errorf("%v, want one of stage %s", err, tc.want)
			}
		})
	}
}
