package gateway_test

import (
	"net/http"
	"strings"
	"sync"
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

// impatient makes requests wait for a replica only briefly.
func impatient(c *gateway.Config) { c.Timeouts.Hold = 50 * time.Millisecond }

// returning is a service whose only replica is being started again.
func returning(name string) route.Service {
	s := service(name)
	s.Components[spec.Predictor] = route.Backend{Returning: true, NotReady: "its only replica is starting"}
	return s
}

// deadAddr is an address that nothing listens on.
func deadAddr(t *testing.T) string {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return l.Addr().String()
}

func TestRequestsWaitForAReplicaThatReturns(t *testing.T) {
	// Engines that speak REST, gRPC or both: the gateway converts where it must.
	models := []string{"both", "rest", "grpc"}
	tests := map[string]func(t *testing.T) *route.Table{
		"no table yet":                 func(*testing.T) *route.Table { return nil },
		"the table lacks services yet": func(*testing.T) *route.Table { return &route.Table{Partial: true} },
		"the replica is being started": func(*testing.T) *route.Table {
			var s []route.Service
			for _, m := range models {
				s = append(s, returning(m))
			}
			return route.Compile(s)
		},
		"the replica is gone before the table says so": func(t *testing.T) *route.Table {
			dead := deadAddr(t)
			return route.Compile([]route.Service{
				service("both", route.Endpoint{HTTP: dead, GRPC: dead}),
				service("rest", route.Endpoint{HTTP: dead}),
				service("grpc", route.Endpoint{GRPC: dead}),
			})
		},
	}
	for name, before := range tests {
		t.Run(name, func(t *testing.T) {
			g := start(t, nil)
			g.table.Publish(before(t))
			httpAddr, grpcAddr := engine(t, echoREST), grpcEngine(t, &oipEngine{})
			c, stub := client(t), oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
			var wg sync.WaitGroup
			for _, model := range models {
				for range 4 {
					wg.Go(func() {
						a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/"+model+"/infer"), oneInput))
						if a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"data":[1]`) {
							t.Errorf("HTTP to %s: %d %s", model, a.StatusCode, a.body)
						}
						if got := a.Header.Get("X-Stationmaster-Revision"); got != "back" {
							t.Errorf("HTTP to %s: revision %q", model, got)
						}
					})
					wg.Go(func() {
						var header metadata.MD
						if _, err := stub.ModelInfer(t.Context(), inferRequest(model), grpc.Header(&header)); err != nil {
							t.Errorf("gRPC to %s: %v", model, err)
						}
						if got := header["x-stationmaster-revision"]; len(got) != 1 || got[0] != "back" {
							t.Errorf("gRPC to %s: revision %q", model, got)
						}
					})
				}
			}
			for deadline := time.Now().Add(time.Minute); g.Held() < int64(len(models)); {
				if time.Now().After(deadline) {
					t.Fatal("no request waits")
				}
				time.Sleep(time.Millisecond)
			}
			back := []route.Service{
				service("both", route.Endpoint{HTTP: httpAddr, GRPC: grpcAddr}),
				service("rest", route.Endpoint{HTTP: httpAddr}),
				service("grpc", route.Endpoint{GRPC: grpcAddr}),
			}
			for i := range back {
				back[i].Components[spec.Predictor].Targets[0].Revision = "back"
			}
			g.table.Publish(route.Compile(back))
			wg.Wait()
			if n := g.Held(); n != 0 {
				t.Errorf("%d requests still count as waiting", n)
			}
		})
	}
}

func TestRequestsWaitNoLongerThanTheyMay(t *testing.T) {
	g := start(t, impatient, returning("iris"), service("gone", route.Endpoint{HTTP: deadAddr(t)}))
	c, stub := client(t), oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	for model, want := range map[string]string{"iris": "its only replica is starting", "gone": "connect to the engine"} {
		a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/"+model+"/infer"), "{}"))
		if text := errorText(t, a); a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, want) {
			t.Errorf("%s: %d %q", model, a.StatusCode, text)
		}
	}
	if _, err := stub.ModelInfer(t.Context(), inferRequest("iris")); status.Code(err) != codes.Unavailable {
		t.Errorf("gRPC: %v", err)
	}
}

func TestAServiceThatDoesNotReturnIsRefusedAtOnce(t *testing.T) {
	s := service("iris")
	s.Components[spec.Predictor] = route.Backend{NotReady: "its model is damaged"}
	g := start(t, func(c *gateway.Config) { c.Timeouts.Hold = time.Hour }, s)
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v2/models/iris/infer"), "{}"))
	if text := errorText(t, a); a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "damaged") {
		t.Errorf("%d %q", a.StatusCode, text)
	}
}

func TestDrainEndsTheWait(t *testing.T) {
	g := start(t, func(c *gateway.Config) { c.Timeouts.Hold = time.Hour }, returning("iris"))
	c := client(t)
	done := make(chan answer, 1)
	go func() { done <- do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), "{}")) }()
	for g.Held() == 0 {
		time.Sleep(time.Millisecond)
	}
	g.stop()
	if a := <-done; a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}
