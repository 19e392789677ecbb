package gateway_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// shared is a service two revisions of which share the traffic, and reach one engine each.
func shared(name string, stable, canary route.Endpoint) route.Service {
	s := service(name)
	s.Components[spec.Predictor] = route.Backend{Targets: []route.Target{
		{Revision: name + "-00002", Tag: "latest", ModelName: name, Weight: 50, Endpoints: []route.Endpoint{canary}},
		{Revision: name + "-00001", Tag: "prev", ModelName: name, Weight: 50, Endpoints: []route.Endpoint{stable}},
	}, Rules: []route.HeaderRule{{Header: "X-Tag", Value: "latest", Tag: "latest"}}}
	return s
}

// untilAnswers waits until a gateway reports of a revision what ok accepts.
func untilAnswers(t *testing.T, load *state.Topic[demand.Report], revision string, ok func(evidence.Counts) bool) evidence.Counts {
	t.Helper()
	timeout := time.After(time.Minute)
	var last evidence.Counts
	for {
		r, changed := load.Watch()
		if r != nil {
			for _, a := range r.Answers {
				if last = a.Counts; a.Revision == revision && ok(a.Counts) {
					return a.Counts
				}
			}
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("the last report of %s: %+v", revision, last)
		}
	}
}

func post(t *testing.T, url, body string, header ...string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func TestWhatARevisionAnswersIsCountedWhileItSharesItsTraffic(t *testing.T) {
	load := new(state.Topic[demand.Report])
	good := engine(t, answering(200, "application/json", "{}"))
	bad := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("good") {
			answering(200, "application/json", "{}")(w, r)
			return
		}
		answering(500, "application/json", "{}")(w, r)
	})
	g := start(t, func(c *gateway.Config) { c.Demand = load }, shared("iris", route.Endpoint{HTTP: good}, route.Endpoint{HTTP: bad}), service("alone", route.Endpoint{HTTP: good}))
	latest := []string{"X-Tag", "latest"}
	for range 3 {
		if got := post(t, g.url("/serving/default/iris/v2/models/iris/infer"), "{}", latest...); got != 500 {
			t.Fatalf("status %d", got)
		}
	}
	post(t, g.url("/serving/default/iris/v2/models/iris/infer?good"), "{}", latest...)
	// What isn't an inference says nothing.
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, g.url("/serving/default/iris/v2/models/iris/ready?good"), http.NoBody)
	req.Header.Set("X-Tag", "latest")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	post(t, g.url("/v2/models/alone/infer"), "{}")
	got := untilAnswers(t, load, "iris-00002", func(c evidence.Counts) bool { return c.Requests >= 4 })
	if got.Requests != 4 || got.Errors != 3 || got.Latency.N() != 4 || got.First.N() != 0 {
		t.Errorf("counted %+v", got)
	}
	for _, a := range load.Load().Answers {
		if a.Revision == "alone-00001" {
			t.Error("a revision that shares with nobody is reported")
		}
	}
}

func TestClientsThatLeaveCountByTheTimeThatTheyWaited(t *testing.T) {
	load := new(state.Topic[demand.Report])
	arrived := make(chan struct{}, 1)
	hanging := engine(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	g := start(t, func(c *gateway.Config) { c.Demand = load }, shared("iris", route.Endpoint{HTTP: hanging}, route.Endpoint{HTTP: hanging}))
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url("/serving/default/iris/v2/models/iris/infer"), strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Tag", "latest")
	go func() { <-arrived; cancel() }()
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Fatal("it was answered")
	}
	if got := untilAnswers(t, load, "iris-00002", func(c evidence.Counts) bool { return c.Latency.N() > 0 }); got.Requests != 0 || got.Errors != 0 {
		t.Errorf("counted %+v", got)
	}
}

func TestCallsAreCountedByTheirCodes(t *testing.T) {
	load := new(state.Topic[demand.Report])
	answer := codes.OK
	e := &oipEngine{name: "iris", infer: func(context.Context, *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
		return &oip.ModelInferResponse{ModelName: "iris"}, status.Error(answer, "")
	}}
	addr := route.Endpoint{GRPC: grpcEngine(t, e)}
	s := shared("iris", addr, addr)
	b := s.Components[spec.Predictor]
	b.Targets[0].Weight, b.Targets[1].Weight = 100, 0
	s.Components[spec.Predictor] = b
	g := start(t, func(c *gateway.Config) { c.Demand = load }, s)
	client := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	for _, answer = range []codes.Code{codes.OK, codes.InvalidArgument, codes.NotFound, codes.ResourceExhausted, codes.Internal, codes.Unimplemented, codes.Unknown} {
		_, err := client.ModelInfer(t.Context(), &oip.ModelInferRequest{ModelName: "iris"})
		if got := status.Code(err); got != answer {
			t.Fatalf("code %v, want %v", got, answer)
		}
	}
	if _, err := client.ModelReady(t.Context(), &oip.ModelReadyRequest{Name: "iris"}); err != nil {
		t.Fatal(err)
	}
	if got := untilAnswers(t, load, "iris-00002", func(c evidence.Counts) bool { return c.Requests >= 7 }); got.Requests != 7 || got.Errors != 3 {
		t.Errorf("counted %+v", got)
	}
}

func TestStreamsAreCountedByTheirFirstData(t *testing.T) {
	load := new(state.Topic[demand.Report])
	llm := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk(`"choices":[{"index":0,"delta":{"content":"a"}}]`)+chunk(`"choices":[]`)+"data: [DONE]\n\n")
	})
	s := shared("llm", route.Endpoint{HTTP: llm}, route.Endpoint{HTTP: llm})
	for i := range s.Components[spec.Predictor].Targets {
		s.Components[spec.Predictor].Targets[i].OpenAI = "/"
	}
	g := start(t, func(c *gateway.Config) { c.Demand = load }, s)
	for range 2 {
		if got := post(t, g.url("/openai/v1/chat/completions"), chat, "X-Tag", "latest"); got != 200 {
			t.Fatalf("status %d", got)
		}
	}
	if got := untilAnswers(t, load, "llm-00002", func(c evidence.Counts) bool { return c.Requests >= 2 }); got.First.N() != 2 || got.Latency.N() != 2 {
		t.Errorf("counted %+v", got)
	}
}

func TestCopiesAreCountedByWhatTheySay(t *testing.T) {
	load := new(state.Topic[demand.Report])
	say := func(class string) http.HandlerFunc {
		return answering(200, "application/json", `{"outputs":[{"name":"label","datatype":"INT64","shape":[1],"data":[`+class+`]}]}`)
	}
	g := start(t, func(c *gateway.Config) { c.Demand = load }, shadowed(engine(t, say("1")), engine(t, say("2")), 100))
	const n = 5
	for range n {
		post(t, g.url("/v2/models/iris/infer"), "{}")
	}
	got := untilAnswers(t, load, "iris-00002", func(c evidence.Counts) bool { return c.Compared >= n })
	if got.Compared != n || got.Differ != n || got.Requests != 0 {
		t.Errorf("counted %+v", got)
	}
}

func TestARevisionThatLeftTheTableIsReportedForAWhile(t *testing.T) {
	load := new(state.Topic[demand.Report])
	good := route.Endpoint{HTTP: engine(t, answering(200, "application/json", "{}"))}
	g := start(t, func(c *gateway.Config) { c.Demand = load }, shared("iris", good, good))
	post(t, g.url("/serving/default/iris/v2/models/iris/infer"), "{}", "X-Tag", "latest")
	untilAnswers(t, load, "iris-00002", func(c evidence.Counts) bool { return c.Requests == 1 })
	g.table.Publish(route.Compile([]route.Service{service("iris", good)}))
	post(t, g.url("/v2/models/iris/infer"), "{}")
	before := load.Load()
	untilAnswers(t, load, "iris-00002", func(c evidence.Counts) bool { return c.Requests == 1 && load.Load() != before })
	// It counts on where it was when it is back.
	g.table.Publish(route.Compile([]route.Service{shared("iris", good, good)}))
	post(t, g.url("/serving/default/iris/v2/models/iris/infer"), "{}", "X-Tag", "latest")
	untilAnswers(t, load, "iris-00002", func(c evidence.Counts) bool { return c.Requests == 2 })
}
