package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// collected is an event as a collector got it.
type collected struct {
	http.Header
	data []byte
}

func (c collected) attribute(name string) string {
	return c.Get("Ce-" + name)
}

// eventSink is a collector that keeps what it gets.
type eventSink struct {
	mu     sync.Mutex
	events []collected
	url    string
}

func newEventSink(tb testing.TB) *eventSink {
	tb.Helper()
	s := &eventSink{}
	s.url = "http://" + engine(tb, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, collected{r.Header, data})
		w.WriteHeader(http.StatusAccepted)
	}) + "/in"
	return s
}

// after ends the gateway, which delivers all events before, and returns them, requests first.
func (s *eventSink) after(g *running) []collected {
	g.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortStableFunc(s.events, func(a, b collected) int {
		return strings.Compare(a.attribute("Type"), b.attribute("Type"))
	})
	return s.events
}

// logged gives a service's components a logger.
func logged(s route.Service, l spec.PayloadLog) route.Service {
	for name, b := range s.Components {
		b.Log = &l
		s.Components[name] = b
	}
	return s
}

const (
	requestType  = "org.kubeflow.serving.inference.request"
	responseType = "org.kubeflow.serving.inference.response"
)

func TestRequestsAndAnswersAreToldToACollector(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(string(body), "bad") {
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"error":"bad rows"}`)
			return
		}
		fmt.Fprint(w, `{"predictions":[1]}`)
	})
	both := spec.PayloadLog{Requests: true, Responses: true}
	for name, tc := range map[string]struct {
		log     spec.PayloadLog
		method  string
		path    string
		body    string
		headers map[string]string
		none    bool // no replica
		types   []string
		status  string
		answer  string
	}{
		"both":                    {log: both, body: `{"instances":[[1]]}`, types: []string{requestType, responseType}, status: "200", answer: `{"predictions":[1]}`},
		"requests":                {log: spec.PayloadLog{Requests: true}, body: `{"instances":[[1]]}`, types: []string{requestType}},
		"answers":                 {log: spec.PayloadLog{Responses: true}, body: `{"instances":[[1]]}`, types: []string{responseType}, status: "200", answer: `{"predictions":[1]}`},
		"an answer that isn't OK": {log: both, body: `{"instances":["bad"]}`, types: []string{requestType, responseType}, status: "422", answer: `{"error":"bad rows"}`},
		"no replica":              {log: both, none: true, body: `{"instances":[[1]]}`, types: []string{requestType, responseType}, status: "503"},
		"a question":              {log: both, method: http.MethodGet, path: "/v1/models/iris"},
		"a large body":            {log: both, body: `{"instances":["` + strings.Repeat("x", 300<<10) + `"]}`, types: []string{requestType, responseType}, status: "200", answer: `{"predictions":[1]}`},
	} {
		t.Run(name, func(t *testing.T) {
			sink := newEventSink(t)
			tc.log.URL, tc.log.Headers, tc.log.Annotations = sink.url, []string{"x-tenant", "X-Absent"}, map[string]string{"team": "red"}
			var endpoints []route.Endpoint
			if !tc.none {
				endpoints = append(endpoints, route.Endpoint{HTTP: addr})
			}
			g := start(t, nil, logged(service("iris", endpoints...), tc.log))
			method, path := tc.method, tc.path
			if method == "" {
				method, path = http.MethodPost, "/v1/models/iris:predict"
			}
			r := request(t, method, g.url(path), tc.body)
			r.Header.Set("Ce-Id", "mine")
			r.Header.Set("X-Tenant", "blue")
			r.Header.Set("Content-Type", "application/json")
			a := do(t, client(t), r)
			events := sink.after(g)
			var types []string
			for _, e := range events {
				types = append(types, e.attribute("Type"))
				for attribute, want := range map[string]string{
					"Specversion": "1.0", "Id": "mine", "Inferenceservicename": "iris", "Namespace": "default", "Component": "predictor",
					"Endpoint": "default", "Requestid": a.Header.Get("X-Request-Id"),
					"Metadata": `{"X-Tenant":["blue"]}`, "Annotations": `{"team":"red"}`,
				} {
					if got := e.attribute(attribute); got != want {
						t.Errorf("%s is %q, want %q", attribute, got, want)
					}
				}
				if !tc.none && e.attribute("Source") != "iris-00001" {
					t.Errorf("source %q", e.attribute("Source"))
				}
				if e.Get("Content-Type") != "application/json" || e.attribute("Truncated") != "" {
					t.Errorf("fields %v", e.Header)
				}
				if e.attribute("Type") == requestType {
					if string(e.data) != tc.body {
						t.Errorf("request of %d bytes, want %d", len(e.data), len(tc.body))
					}
					continue
				}
				if e.attribute("Statuscode") != tc.status || tc.answer != "" && string(e.data) != tc.answer || string(e.data) != a.body {
					t.Errorf("answer %s %q, the client got %q", e.attribute("Statuscode"), e.data, a.body)
				}
			}
			if !slices.Equal(types, tc.types) {
				t.Errorf("events %v, want %v", types, tc.types)
			}
		})
	}
}

func TestEachComponentIsLoggedByItself(t *testing.T) {
	addr := engine(t, echoREST)
	sink := newEventSink(t)
	s := service("iris", route.Endpoint{HTTP: addr})
	b := s.Components[spec.Predictor]
	s.Components[spec.Transformer], s.Components[spec.Explainer] = b, b
	s.Entry = spec.Transformer
	g := start(t, nil, logged(s, spec.PayloadLog{URL: sink.url, Requests: true}))
	for _, to := range []struct{ host, path string }{
		{"", "/v1/models/iris:predict"},
		{"", "/v1/models/iris:explain"},
		{"", "/v2/models/iris/explain"},
		{"iris-predictor-default.localhost", "/v1/models/iris:predict"},
	} {
		r := request(t, http.MethodPost, g.url(to.path), `{"instances":[1]}`)
		r.Host = to.host
		if a := do(t, client(t), r); a.StatusCode != http.StatusOK {
			t.Fatalf("%v: %d %s", to, a.StatusCode, a.body)
		}
	}
	var got []string
	ids := map[string]bool{}
	for _, e := range sink.after(g) {
		got = append(got, e.attribute("Component"))
		ids[e.attribute("Id")] = true
	}
	slices.Sort(got)
	if want := []string{"explainer", "explainer", "predictor", "transformer"}; !slices.Equal(got, want) {
		t.Errorf("components %v, want %v", got, want)
	}
	if len(ids) != 4 {
		t.Errorf("%d ids for 4 requests", len(ids))
	}
}

func TestAStreamIsToldWhole(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
		}
	})
	sink := newEventSink(t)
	g := start(t, nil, logged(service("chat", route.Endpoint{HTTP: addr}), spec.PayloadLog{URL: sink.url, Responses: true}))
	do(t, client(t), request(t, http.MethodPost, g.url("/v2/models/chat/generate_stream"), "{}"))
	events := sink.after(g)
	if len(events) != 1 || string(events[0].data) != "data: 0\n\ndata: 1\n\ndata: 2\n\n" || events[0].Get("Content-Type") != "text/event-stream" {
		t.Errorf("events %v", events)
	}
}

func TestALongBodyIsCutAndSaysSo(t *testing.T) {
	addr := engine(t, echoREST)
	sink := newEventSink(t)
	g := start(t, nil, logged(service("iris", route.Endpoint{HTTP: addr}), spec.PayloadLog{URL: sink.url, Requests: true, Responses: true}))
	body := strings.Repeat("0123456789", 600<<10)
	if a := do(t, client(t), request(t, http.MethodPost, g.url("/v2/models/iris/infer"), body)); len(a.body) != len(body) {
		t.Fatalf("the client got %d bytes", len(a.body))
	}
	for _, e := range sink.after(g) {
		if len(e.data) != 4<<20 || e.attribute("Truncated") != "true" || !strings.HasPrefix(body, string(e.data)) {
			t.Errorf("%s: %d bytes, truncated %q", e.attribute("Type"), len(e.data), e.attribute("Truncated"))
		}
	}
}

func TestCallsAreToldToACollector(t *testing.T) {
	sink := newEventSink(t)
	addr := grpcEngine(t, &oipEngine{name: "iris"})
	rest := service("rest", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(bytes.Replace(body, []byte(`"inputs"`), []byte(`"outputs"`), 1))
	})})
	l := spec.PayloadLog{URL: sink.url, Requests: true, Responses: true, Headers: []string{"x-tenant"}}
	g := start(t, nil, logged(service("iris", route.Endpoint{GRPC: addr}), l), logged(rest, l), logged(service("cold"), l))
	conn := connect(t, g.GRPC)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "blue")
	c := oip.NewGRPCInferenceServiceClient(conn)
	for _, model := range []string{"iris", "rest"} {
		if _, err := c.ModelInfer(ctx, inferRequest(model)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.ModelInfer(ctx, inferRequest("cold")); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	if _, err := c.ModelReady(ctx, &oip.ModelReadyRequest{Name: "iris"}); err != nil {
		t.Fatal(err)
	}
	stream, err := connect(t, g.GRPC, grpc.WithAuthority("iris-default.localhost")).
		NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/custom.Chat/Talk")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"a", "fail"} {
		if err := stream.SendMsg(wrapperspb.String(word)); err != nil {
			t.Fatal(err)
		}
	}
	var in wrapperspb.StringValue
	for err == nil {
		err = stream.RecvMsg(&in)
	}
	if status.Code(err) != codes.DataLoss {
		t.Fatal(err)
	}

	got := map[string]string{}
	for _, e := range sink.after(g) {
		key := e.attribute("Inferenceservicename") + " " + e.attribute("Grpcmethod") + " " + strings.TrimPrefix(e.attribute("Type"), "org.kubeflow.serving.inference.")
		if e.attribute("Metadata") != `{"X-Tenant":["blue"]}` {
			t.Errorf("%s: metadata %s", key, e.attribute("Metadata"))
		}
		what := e.attribute("Grpcstatus") + " "
		switch {
		case e.Get("Content-Type") == "application/grpc+proto":
			what += fmt.Sprintf("%q", e.data)
		case strings.HasSuffix(key, "request"):
			var m oip.ModelInferRequest
			if err := proto.Unmarshal(e.data, &m); err != nil {
				t.Error(err)
			}
			what += fmt.Sprint(m.GetModelName(), m.GetInputs()[0].GetContents().GetFp32Contents())
		case len(e.data) > 0:
			var m oip.ModelInferResponse
			if err := proto.Unmarshal(e.data, &m); err != nil {
				t.Error(err)
			}
			what += fmt.Sprint(m.GetOutputs()[0].GetContents().GetFp32Contents())
		}
		got[key] = what
	}
	const infer, talk = "/inference.GRPCInferenceService/ModelInfer", "/custom.Chat/Talk"
	want := map[string]string{
		"iris " + infer + " request":  " iris[1.5 -2]",
		"iris " + infer + " response": "0 [1.5 -2]",
		"rest " + infer + " request":  " rest[1.5 -2]",
		"rest " + infer + " response": "0 [1.5 -2]",
		"cold " + infer + " request":  " cold[1.5 -2]",
		"cold " + infer + " response": "14 ",
		"iris " + talk + " request":   ` "\x00\x00\x00\x00\x03\n\x01a\x00\x00\x00\x00\x06\n\x04fail"`,
		"iris " + talk + " response":  `15 "\x00\x00\x00\x00\a\n\x05re: a"`,
	}
	for key, w := range want {
		if got[key] != w {
			t.Errorf("%s: %q, want %q", key, got[key], w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d kinds of event, want %d: %v", len(got), len(want), got)
	}
}
