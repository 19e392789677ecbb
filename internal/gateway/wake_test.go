package gateway_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// cold is a service that was rolled out and of which nothing runs.
func cold(name string) route.Service {
	s := service(name)
	b := s.Components[spec.Predictor]
	b.Cold, b.NotReady, b.Startup = true, "no replica runs", 3100*time.Millisecond
	s.Components[spec.Predictor] = b
	return s
}

// heldOf is the number of requests that the latest report has waiting for a service.
func heldOf(load *state.Topic[demand.Report], name string) int {
	n := 0
	if r := load.Load(); r != nil {
		for _, s := range r.Samples {
			if s.Service.Name == name {
				n += s.Held
			}
		}
	}
	return n
}

func TestAStampedeOnWhatSleepsWakesItAndIsAnswered(t *testing.T) {
	load := new(state.Topic[demand.Report])
	g := start(t, func(c *gateway.Config) { c.Demand = load }, cold("rest"), cold("grpc"))
	began := time.Now()
	httpAddr, grpcAddr := engine(t, echoREST), grpcEngine(t, &oipEngine{})
	c, stub := client(t), oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	var wg sync.WaitGroup
	for range 500 {
		wg.Go(func() {
			a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/rest/infer"), oneInput))
			if a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"data":[1]`) {
				t.Errorf("HTTP: %d %s", a.StatusCode, a.body)
			}
		})
		wg.Go(func() {
			if _, err := stub.ModelInfer(t.Context(), inferRequest("grpc")); err != nil {
				t.Errorf("gRPC: %v", err)
			}
		})
	}
	until(t, "the first request is reported", func() bool { return heldOf(load, "rest") > 0 && heldOf(load, "grpc") > 0 })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the first waiting request was told after %v", took)
	}
	until(t, "all wait", func() bool { return heldOf(load, "rest") == 500 && heldOf(load, "grpc") == 500 })
	g.table.Publish(route.Compile([]route.Service{service("rest", route.Endpoint{HTTP: httpAddr}), service("grpc", route.Endpoint{GRPC: grpcAddr})}))
	wg.Wait()
	until(t, "none waits", func() bool { return g.Held() == 0 && heldOf(load, "rest") == 0 })
}

func TestALateWakeIsRefusedWithTheTimeThatAStartTakes(t *testing.T) {
	g := start(t, func(c *gateway.Config) { c.Timeouts.Wake = 50 * time.Millisecond }, cold("iris"))
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput))
	if a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") != "4" || !strings.Contains(errorText(t, a), "no ready replica after 50ms of waiting: no replica runs") {
		t.Errorf("%d Retry-After %q %s", a.StatusCode, a.Header.Get("Retry-After"), a.body)
	}
	var trailer metadata.MD
	_, err := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC)).ModelInfer(t.Context(), inferRequest("iris"), grpc.Trailer(&trailer))
	if got := trailer["retry-after"]; status.Code(err) != codes.Unavailable || len(got) != 1 || got[0] != "4" {
		t.Errorf("gRPC: %v, retry-after %v", err, got)
	}
}

func TestTheServicesOwnTimeOutBoundsTheWait(t *testing.T) {
	s := cold("iris")
	s.Timeout = 50 * time.Millisecond
	g := start(t, nil, s)
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput))
	if a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(errorText(t, a), "after 50ms of waiting") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestAWakeThatFailsEndsTheWait(t *testing.T) {
	load := new(state.Topic[demand.Report])
	g := start(t, func(c *gateway.Config) { c.Demand = load }, cold("iris"))
	done := make(chan answer, 1)
	c := client(t)
	go func() { done <- do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput)) }()
	until(t, "it waits", func() bool { return heldOf(load, "iris") == 1 })
	failed := service("iris")
	failed.Components[spec.Predictor] = route.Backend{NotReady: "the model is damaged", Startup: 61 * time.Second}
	g.table.Publish(route.Compile([]route.Service{failed}))
	if a := <-done; a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") != "61" || !strings.Contains(errorText(t, a), "damaged") {
		t.Errorf("%d Retry-After %q %s", a.StatusCode, a.Header.Get("Retry-After"), a.body)
	}
}

func TestOneServiceCannotTakeAllPlacesToWait(t *testing.T) {
	load := new(state.Topic[demand.Report])
	g := start(t, func(c *gateway.Config) { c.Demand, c.MaxHeld = load, 10 }, cold("hot"), cold("other"))
	c := client(t)
	answers := make(chan answer, 40)
	ask := func(name string) {
		answers <- do(t, c, request(t, http.MethodPost, g.url("/v2/models/"+name+"/infer"), oneInput))
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer g.stop()
	for range 20 {
		wg.Go(func() { ask("hot") })
	}
	for range 10 { // it has all places while nobody else asks for one
		if a := <-answers; a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(errorText(t, a), "too many requests wait for default/hot") {
			t.Errorf("%d %s", a.StatusCode, a.body)
		}
	}
	for range 6 { // but no more than half of them for long
		wg.Go(func() { ask("other") })
	}
	until(t, "another service's requests wait in their stead", func() bool { return heldOf(load, "other") == 5 && heldOf(load, "hot") == 5 })
	sent := map[string]int{}
	for range 6 {
		a := <-answers
		for _, name := range []string{"hot", "other"} {
			if a.StatusCode == http.StatusServiceUnavailable && strings.Contains(errorText(t, a), "too many requests wait for default/"+name) {
				sent[name]++
			}
		}
	}
	if sent["hot"] != 5 || sent["other"] != 1 {
		t.Errorf("refused or sent away: %v", sent)
	}
}

func TestANamespacesStampedeLeavesToOthersWhatTheyNeed(t *testing.T) {
	load := new(state.Topic[demand.Report])
	of := func(namespace, name string) route.Service {
		s := cold(name)
		s.Key.Namespace = namespace
		return s
	}
	g := start(t, func(c *gateway.Config) { c.Demand, c.MaxHeld = load, 12 }, of("hot", "a"), of("hot", "b"), of("hot", "c"), of("calm", "d"))
	c, stub := client(t), oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer g.stop()
	var refused atomic.Int64
	ask := func(name string) {
		wg.Go(func() {
			if a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/"+name+"/infer"), oneInput)); a.StatusCode == http.StatusServiceUnavailable {
				refused.Add(1)
			}
		})
	}
	for _, name := range []string{"a", "b", "c"} {
		for range 20 {
			ask(name)
		}
	}
	until(t, "a namespace has all places", func() bool { return refused.Load() == 48 && g.Held() == 12 })
	for range 5 { // within its half; over gRPC, too
		ask("d")
	}
	wg.Go(func() { _, _ = stub.ModelInfer(t.Context(), inferRequest("d")) })
	until(t, "another has its part", func() bool { return heldOf(load, "d") == 6 && refused.Load() == 54 })
	for _, name := range []string{"a", "b", "c"} { // and each service of the first an even part of what is left, or one more
		if n := heldOf(load, name); n < 1 || n > 3 {
			t.Errorf("%d requests wait for %s, want 2", n, name)
		}
	}
}

func TestALargeBodyTakesAsManyPlacesAsItsMemory(t *testing.T) {
	g := start(t, func(c *gateway.Config) { c.MaxHeld = 3 }, cold("iris"))
	c := client(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer g.stop()
	for range 2 {
		wg.Go(func() {
			// Whatever becomes of it: the gateway ends while one waits.
			if resp, err := c.Do(request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput+strings.Repeat(" ", 40<<10))); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	until(t, "one waits in two places", func() bool { return g.Held() == 2 })
}

func TestASleepingServiceCountsAsReadyAsAWhole(t *testing.T) {
	g := start(t, nil, cold("iris"))
	if a := do(t, client(t), request(t, http.MethodGet, g.url("/v2/health/ready"), "")); a.StatusCode != http.StatusOK {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestLoadIsTheTimeWeightedAverage(t *testing.T) {
	load := new(state.Topic[demand.Report])
	entered, leave := make(chan bool, 16), make(chan bool)
	addr := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		entered <- true
		<-leave
		_, _ = w.Write([]byte("{}"))
	})
	g := start(t, func(c *gateway.Config) { c.Demand = load }, service("iris", route.Endpoint{HTTP: addr}))
	c := client(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput)) })
		<-entered
	}
	sample := func() demand.Sample {
		r, changed := load.Watch()
		if r != nil && len(r.Samples) == 1 {
			<-changed
			return load.Load().Samples[0]
		}
		return demand.Sample{}
	}
	until(t, "three requests in flight for a second", func() bool { return sample().Concurrency > 2.9 })
	close(leave)
	wg.Wait()
	until(t, "none", func() bool {
		return sample() == demand.Sample{Service: spec.ServiceKey{Namespace: "default", Name: "iris"}, Revision: "iris-00001"}
	})
	rps := 0.0
	second := load.Load().Second
	for range 10 {
		do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput))
	}
	for rps < 9.5 && load.Load().Second < second+3 {
		before := load.Load().Second
		until(t, "the next second", func() bool { return load.Load().Second > before })
		s := load.Load().Samples[0]
		rps += s.RPS
	}
	if rps < 9 || rps > 11 {
		t.Errorf("%.2f requests a second in all seconds together, want 10", rps)
	}
}

// limited is a service whose replicas take so many requests at once.
func limited(limit int, addrs ...string) route.Service {
	s := service("iris")
	b := s.Components[spec.Predictor]
	b.Targets[0].Limit = limit
	for _, a := range addrs {
		b.Targets[0].Endpoints = append(b.Targets[0].Endpoints, route.Endpoint{Replica: a, HTTP: a})
	}
	return s
}

func TestContainerConcurrencyIsAHardLimit(t *testing.T) {
	const limit, requests = 3, 200
	var most, under [2]atomic.Int64
	addrs := make([]string, 2)
	for i := range addrs {
		addrs[i] = engine(t, func(w http.ResponseWriter, _ *http.Request) {
			n := under[i].Add(1)
			defer under[i].Add(-1)
			for m := most[i].Load(); n > m && !most[i].CompareAndSwap(m, n); m = most[i].Load() {
			}
			time.Sleep(time.Millisecond)
			_, _ = w.Write([]byte(`{}`))
		})
	}
	g := start(t, nil, limited(limit, addrs[0]))
	c := client(t)
	var wg sync.WaitGroup
	for i := range requests {
		if i == requests/2 { // a second replica, and the places of the first stay occupied
			g.table.Publish(route.Compile([]route.Service{limited(limit, addrs...)}))
		}
		wg.Go(func() {
			if a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput)); a.StatusCode != http.StatusOK {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
		})
	}
	wg.Wait()
	for i := range most {
		if m := most[i].Load(); m > limit {
			t.Errorf("replica %d had %d requests at once, want %d at most", i, m, limit)
		}
	}
	if most[0].Load() < limit {
		t.Errorf("the first replica had %d requests at once at most, so the limit wasn't tried", most[0].Load())
	}
	until(t, "none waits", func() bool { return g.Held() == 0 })
}

func TestAFullServiceRefusesAfterItsTimeOut(t *testing.T) {
	entered, leave := make(chan bool, 1), make(chan bool)
	addr := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		// The head is out, so the time-out isn't this request's.
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		entered <- true
		<-leave
		_, _ = w.Write([]byte("{}"))
	})
	s := limited(1, addr)
	g := start(t, func(c *gateway.Config) { c.Timeouts.Response = 100 * time.Millisecond }, s)
	c := client(t)
	var wg sync.WaitGroup
	wg.Go(func() { do(t, c, request(t, http.MethodGet, g.url("/v2/models/iris"), "")) })
	<-entered
	a := do(t, c, request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput))
	if a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || !strings.Contains(errorText(t, a), "busy for 100ms") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	close(leave)
	wg.Wait()
}

// Requests of one caller that wait in line for a full service don't keep another caller waiting for
// all of them.
func TestCallersOfAFullServiceTakeTurns(t *testing.T) {
	came, leave := make(chan string, 32), make(chan bool, 32)
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		came <- r.Header.Get("X-Api-Key")
		<-leave
		_, _ = w.Write([]byte("{}"))
	})
	g := start(t, nil, limited(1, addr))
	c := client(t)
	var wg sync.WaitGroup
	ask := func(key string) {
		wg.Go(func() {
			r := request(t, http.MethodPost, g.url("/v2/models/iris/infer"), oneInput)
			r.Header.Set("X-Api-Key", key)
			if a := do(t, c, r); a.StatusCode != http.StatusOK {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
		})
	}
	ask("greedy")
	if who := <-came; who != "greedy" {
		t.Fatal(who)
	}
	for n := range int64(20) {
		ask("greedy")
		until(t, "it waits", func() bool { return g.Held() == n+1 })
	}
	for n, key := range []string{"one", "two", "three", "four"} { // any of which may share greedy's flow, hardly all
		ask(key)
		until(t, "it waits", func() bool { return g.Held() == int64(21+n) })
	}
	others := 0
	for range 8 {
		leave <- true
		if who := <-came; who != "greedy" {
			others++
		}
	}
	for range 17 {
		leave <- true
	}
	wg.Wait()
	if others < 2 {
		t.Errorf("%d of the other callers had a turn among the first eight", others)
	}
}
