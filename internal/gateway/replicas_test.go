package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
)

// replica is an engine on two ports that can be killed. While it hangs it answers nothing.
type replica struct {
	route.Endpoint
	served, hanging atomic.Int64
	hang            atomic.Bool
	dead            chan struct{}
	kill            func()
}

// take is the work of one request.
func (r *replica) take() {
	if !r.hang.Load() {
		r.served.Add(1)
		return
	}
	r.hanging.Add(1)
	<-r.dead
}

func newReplica(t *testing.T) *replica {
	t.Helper()
	r := &replica{dead: make(chan struct{})}
	rest, rpc := listen(t), listen(t)
	r.HTTP, r.GRPC = rest.Addr().String(), rpc.Addr().String()
	web := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.take()
		echoREST(w, q)
	})}
	calls := grpc.NewServer()
	oip.RegisterGRPCInferenceServiceServer(calls, &oipEngine{infer: func(ctx context.Context, q *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
		r.take()
		return (&oipEngine{}).ModelInfer(ctx, q)
	}})
	var wg sync.WaitGroup
	wg.Go(func() { _ = web.Serve(rest) })
	wg.Go(func() { _ = calls.Serve(rpc) })
	r.kill = sync.OnceFunc(func() {
		_ = web.Close()
		calls.Stop()
		close(r.dead)
		wg.Wait()
	})
	t.Cleanup(r.kill)
	return r
}

// A replica that is killed under load takes with it what it had in hand, and nothing else: of
// the requests that began afterwards none fails, and no client loses a second one.
func TestKillingOneOfThreeReplicasLosesOnlyWhatItHadInHand(t *testing.T) {
	const clients, afterwards = 6, 200
	protocols := map[string]func(t *testing.T, g *running) func() error{
		"REST": func(t *testing.T, g *running) func() error {
			c := client(t)
			return func() error {
				a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput))
				if a.StatusCode != http.StatusOK {
					return fmt.Errorf("%d %s", a.StatusCode, a.body)
				}
				return nil
			}
		},
		"gRPC": func(t *testing.T, g *running) func() error {
			c := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
			return func() error {
				_, err := c.ModelInfer(t.Context(), inferRequest("iris"))
				return err
			}
		},
	}
	for protocol, newClient := range protocols {
		t.Run(protocol, func(t *testing.T) {
			victim, second, third := newReplica(t), newReplica(t), newReplica(t)
			g := start(t, nil, service("iris", victim.Endpoint, second.Endpoint, third.Endpoint))
			var killed atomic.Bool
			var wg sync.WaitGroup
			for range clients {
				ask := newClient(t, g)
				wg.Go(func() {
					failures, after := 0, 0
					for after < afterwards {
						late := killed.Load()
						err := ask()
						switch {
						case err != nil && late:
							t.Errorf("a request that began after the kill failed: %v", err)
							return
						case err != nil:
							if failures++; failures > 1 {
								t.Errorf("a client lost more than the request that it had under way: %v", err)
								return
							}
						case late:
							after++
						}
					}
				})
			}
			until(t, "all replicas serve", func() bool {
				return victim.served.Load() > 20 && second.served.Load() > 20 && third.served.Load() > 20
			})
			victim.hang.Store(true)
			until(t, "the victim has work in hand", func() bool { return victim.hanging.Load() > 0 })
			victim.kill()
			killed.Store(true)
			wg.Wait()
		})
	}
}

// until waits for something that other goroutines bring about.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("it never came that %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestClientsThatGoAwayAreNotHeld(t *testing.T) {
	var reached atomic.Int64
	g := start(t, func(c *gateway.Config) { c.Timeouts.Hold = time.Hour }, returning("iris"))
	rpc := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	post := func(c *http.Client, body string) func(context.Context) error {
		return func(ctx context.Context) error {
			resp, err := c.Do(request(t, http.MethodPost, g.url("/v2/models/iris/infer"), body).WithContext(ctx))
			if err == nil {
				resp.Body.Close()
			}
			return err
		}
	}
	tests := map[string]func(context.Context) error{
		"HTTP/1.1":            post(client(t), ""),
		"HTTP/1.1 with body":  post(client(t), oneInput),
		"HTTP/2":              post(h2cClient(t), ""),
		"HTTP/2 with a body":  post(h2cClient(t), oneInput),
		"HTTP/2, a long body": post(h2cClient(t), strings.Repeat("x", 200_000)),
		"gRPC": func(ctx context.Context) error {
			_, err := rpc.ModelInfer(ctx, inferRequest("iris"))
			return err
		},
	}
	for name, ask := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- ask(ctx) }()
			until(t, "the request waits", func() bool { return g.Held() == 1 })
			cancel()
			if err := <-done; err == nil {
				t.Error("the client got an answer")
			}
			until(t, "the gateway lets go", func() bool { return g.Held() == 0 })
		})
	}
	addr := engine(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	g.table.Publish(route.Compile([]route.Service{service("iris", route.Endpoint{HTTP: addr})}))
	do(t, client(t), request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput))
	if n := reached.Load(); n != 1 {
		t.Errorf("the engine saw %d requests, only one client was left", n)
	}
}

// upload is a body of n bytes that nobody keeps.
type upload struct {
	left int64
	sent *atomic.Int64
}

func (u *upload) Read(p []byte) (int, error) {
	if u.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), u.left))
	u.left -= int64(n)
	u.sent.Add(int64(n))
	return n, nil
}

func TestUploadsAreReadAsTheEngineReadsThem(t *testing.T) {
	large, some := int64(1<<30), int64(128<<20)
	if raceEnabled || testing.Short() {
		large = some
	}
	// What sockets and windows hold while the engine reads nothing: far less than the body.
	const most = 64 << 20
	gate := make(chan struct{})
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		<-gate
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	g := start(t, func(c *gateway.Config) { c.MaxBody = -1 }, service("iris", route.Endpoint{HTTP: addr}))
	for name, tc := range map[string]struct {
		c       *http.Client
		size    int64
		counted bool
	}{
		"HTTP/1.1, counted": {client(t), large, true}, "HTTP/1.1, chunked": {client(t), some, false},
		"HTTP/2, counted": {h2cClient(t), some, true}, "HTTP/2, of unknown length": {h2cClient(t), some, false},
	} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int64
			r := request(t, http.MethodPost, g.url("/serving/default/iris/upload"), "")
			r.Body, r.ContentLength = io.NopCloser(&upload{tc.size, &sent}), -1
			if tc.counted {
				r.ContentLength = tc.size
			}
			done := make(chan answer, 1)
			go func() { done <- do(t, tc.c, r) }()
			last, same := int64(0), 0
			until(t, "the client has to wait", func() bool {
				time.Sleep(5 * time.Millisecond)
				if n := sent.Load(); n != last || n == 0 {
					last, same = n, 0
				} else {
					same++
				}
				return same > 40
			})
			if last > most {
				t.Errorf("%d bytes went out although the engine read nothing", last)
			}
			before := heap()
			gate <- struct{}{}
			highest := before
			for {
				select {
				case a := <-done:
					if want := fmt.Sprint(tc.size, nil); a.body != want {
						t.Errorf("the engine read %q, want %q", a.body, want)
					}
					if highest > before+most {
						t.Errorf("the heap grew from %d to %d bytes", before, highest)
					}
					return
				case <-time.After(20 * time.Millisecond):
					highest = max(highest, heap())
				}
			}
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
