package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// graphOf is a table entry for a graph of one node.
func graphOf(name string, kind spec.NodeKind, steps ...spec.GraphStep) route.Service {
	return route.Service{
		Key:        spec.ServiceKey{Namespace: "default", Name: name},
		Graph:      &spec.Graph{Nodes: map[string]spec.GraphNode{spec.GraphRoot: {Kind: kind, Steps: steps}}},
		Hosts:      []route.Host{{Name: name + "-default.localhost"}},
		PathPrefix: "/serving/default/" + name,
		BareNames:  []string{name},
	}
}

// declaring declares the protocols of a service's engine.
func declaring(s route.Service, protocols ...spec.Protocol) route.Service {
	s.Components[spec.Predictor].Targets[0].Protocols = protocols
	return s
}

// witness is an engine that answers with what it was asked: path, head and body.
func witness(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	head := map[string]string{}
	for name := range r.Header {
		head[name] = r.Header.Get(name)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(seen{r.URL.Path, head, json.RawMessage(body)})
}

type seen struct {
	Path string            `json:"path"`
	Head map[string]string `json:"head"`
	Body json.RawMessage   `json:"body"`
}

func saying(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestAGraphIsAnsweredByItsServices(t *testing.T) {
	outside := engine(t, witness)
	seenBy := service("witness", route.Endpoint{HTTP: engine(t, witness)})
	stuck := graphOf("stuck", spec.Sequence, spec.GraphStep{Service: "asleep"})
	stuck.Graph.Timeout = 50 * time.Millisecond
	refused := graphOf("refused", spec.Sequence, spec.GraphStep{Service: "v1"})
	refused.Graph.NotReady = "node n isn't there"
	asleep := cold("asleep")
	g := start(t, nil,
		declaring(service("v1", route.Endpoint{HTTP: engine(t, saying(200, `{"predictions":[1,1]}`))}), spec.V1),
		declaring(seenBy, spec.V1, spec.V2),
		service("missing", route.Endpoint{HTTP: engine(t, saying(404, `{"detail":"Intentional 404 code"}`))}),
		declaring(service("overgrpc", route.Endpoint{GRPC: grpcEngine(t, &oipEngine{})}), spec.GRPCV2),
		asleep, stuck, refused,
		graphOf("chain", spec.Sequence, spec.GraphStep{Service: "v1"}, spec.GraphStep{Service: "witness", FromResponse: true, MapPredictions: true}),
		graphOf("shown", spec.Sequence, spec.GraphStep{Service: "witness"}),
		graphOf("soft", spec.Sequence, spec.GraphStep{Service: "v1"}, spec.GraphStep{Service: "missing"}),
		graphOf("hard", spec.Sequence, spec.GraphStep{Service: "missing", Hard: true}, spec.GraphStep{Service: "v1"}),
		graphOf("both", spec.Ensemble, spec.GraphStep{Service: "v1", Name: "a"}, spec.GraphStep{Service: "missing", Name: "b"}),
		graphOf("choice", spec.Switch, spec.GraphStep{Service: "v1", Condition: "nothing"}),
		graphOf("tensors", spec.Sequence, spec.GraphStep{Service: "overgrpc"}),
		graphOf("byhost", spec.Sequence, spec.GraphStep{URL: "http://witness-default.localhost:1/anywhere?a=b"}),
		graphOf("away", spec.Sequence, spec.GraphStep{URL: "http://" + outside + "/v1/models/other:predict"}),
		graphOf("gone", spec.Sequence, spec.GraphStep{URL: "http://127.0.0.1:1/"}),
		graphOf("nobody", spec.Sequence, spec.GraphStep{Service: "nobody"}),
		graphOf("loop", spec.Sequence, spec.GraphStep{URL: "http://loop-default.localhost/"}),
	)
	const asked = `{"instances":[[1]]}`
	c := client(t)
	for title, tc := range map[string]struct {
		method, path, body string
		status             int
		want               string // part of the answer
	}{
		"by its prefix, whatever the path":     {path: "/serving/default/soft/what/ever", status: 404, want: `{"detail":"Intentional 404 code"}`},
		"by its name, V1":                      {path: "/v1/models/hard:predict", status: 404, want: `{"detail":"Intentional 404 code"}`},
		"by its name, V2":                      {path: "/v2/models/chain/infer", status: 200, want: `"path":"/v1/models/witness:predict"`},
		"a step of V2":                         {path: "/serving/default/shown", body: oneInput, status: 200, want: `"path":"/v2/models/witness/infer"`},
		"predictions go on as instances":       {path: "/serving/default/chain", status: 200, want: `"body":{"instances":[1,1]}`},
		"an ensemble":                          {path: "/serving/default/both", status: 200, want: `{"a":{"predictions":[1,1]},"b":{"detail":"Intentional 404 code"}}`},
		"a switch without a match":             {path: "/serving/default/choice", status: 404, want: `{"error":"Failed to process request","cause":"None of the routes matched with the switch condition"}`},
		"a step that speaks gRPC only":         {path: "/serving/default/tensors", body: oneInput, status: 200, want: `"outputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[1]}]`},
		"a URL of ours needs no connection":    {path: "/serving/default/byhost", status: 200, want: `"path":"/anywhere"`},
		"a URL that isn't ours":                {path: "/serving/default/away", status: 200, want: `"path":"/v1/models/other:predict"`},
		"a URL where nobody answers":           {path: "/serving/default/gone", status: 500, want: `{"error":"Failed to process request","cause":"step 0 of node root: call serviceUrl:`},
		"a service that isn't there":           {path: "/serving/default/nobody", status: 503, want: "there is no service default/nobody, which graph default/nobody names"},
		"a graph that leads to itself":         {path: "/serving/default/loop", status: 500, want: `more than 8 deep`},
		"longer than it may take":              {path: "/serving/default/stuck", status: 504, want: "graph default/stuck had no answer within its time-out of 50ms"},
		"one that can't be":                    {path: "/serving/default/refused", status: 503, want: "node n isn't there"},
		"is it ready":                          {method: http.MethodGet, path: "/v2/models/chain/ready", status: 200, want: `"ready":true`},
		"ready as KServe's router says":        {method: http.MethodGet, path: "/serving/default/chain/readyz", status: 200, want: `"ready":true`},
		"what sleeps is ready":                 {method: http.MethodGet, path: "/v1/models/stuck", status: 200, want: `"ready":true`},
		"not ready for what isn't there":       {method: http.MethodGet, path: "/serving/default/nobody/v2/health/ready", status: 503, want: "there is no service default/nobody"},
		"another method":                       {method: http.MethodPut, path: "/serving/default/chain", status: 405, want: "takes POST"},
		"not by a body's model":                {path: "/v1/chat/completions", body: `{"model":"chain"}`, status: 501, want: "is a graph"},
		"it is listed":                         {method: http.MethodGet, path: "/v1/models", status: 200, want: `"id":"chain"`},
		"the OpenAI API's paths are no others": {path: "/serving/default/both/v1/chat/completions", status: 200, want: `{"a":{"predictions":[1,1]}`},
	} {
		t.Run(title, func(t *testing.T) {
			method, body := tc.method, tc.body
			if method == "" {
				method = http.MethodPost
			}
			if body == "" && method == http.MethodPost {
				body = asked
			}
			a := do(t, c, request(t, method, g.url(tc.path), body))
			if a.StatusCode != tc.status || !strings.Contains(a.body, tc.want) {
				t.Errorf("answered %d %s, want %d with %s", a.StatusCode, a.body, tc.status, tc.want)
			}
			if a.Header.Get("X-Request-Id") == "" || a.Header.Get("Content-Type") != "application/json" {
				t.Errorf("head %v", a.Header)
			}
		})
	}
}

func TestStepsGetTheClientsFields(t *testing.T) {
	outside := engine(t, witness)
	chosen := graphOf("chosen", spec.Sequence, spec.GraphStep{Service: "in"})
	chosen.Graph.Propagate = []string{"^X-Us"}
	away := graphOf("away", spec.Sequence, spec.GraphStep{URL: "http://" + outside})
	awayChosen := graphOf("awaychosen", spec.Sequence, spec.GraphStep{URL: "http://" + outside})
	awayChosen.Graph.Propagate = []string{"X-User", "Authorization"}
	g := start(t, nil, service("in", route.Endpoint{HTTP: engine(t, witness)}),
		graphOf("all", spec.Sequence, spec.GraphStep{Service: "in"}), chosen, away, awayChosen)
	for name, want := range map[string]string{
		"all":        "Authorization X-User",
		"chosen":     "X-User",
		"away":       "",
		"awaychosen": "Authorization X-User",
	} {
		r := request(t, http.MethodPost, g.url("/serving/default/"+name), `{}`)
		for k, v := range map[string]string{
			"X-User": "ann", "Authorization": "Bearer secret", "X-Request-Id": "one", "Traceparent": "00-ab",
			"Stationmaster-Service": "default/" + name, "Te": "trailers",
		} {
			r.Header.Set(k, v)
		}
		a := do(t, client(t), r)
		var s seen
		if err := json.Unmarshal([]byte(a.body), &s); err != nil {
			t.Fatalf("%s: %s: %v", name, a.body, err)
		}
		var got []string
		for _, k := range []string{"Authorization", "X-User"} {
			if s.Head[k] != "" {
				got = append(got, k)
			}
		}
		if strings.Join(got, " ") != want || s.Head["X-Request-Id"] != "one" || s.Head["Traceparent"] != "00-ab" ||
			s.Head["Content-Type"] != "application/json" || s.Head["Stationmaster-Service"] != "" {
			t.Errorf("%s: the step got %v", name, s.Head)
		}
		if a.Header.Get("X-Request-Id") != "one" {
			t.Errorf("%s: the client got %v", name, a.Header)
		}
	}
}

func TestAStepWakesWhatSleeps(t *testing.T) {
	load := new(state.Topic[demand.Report])
	graph := graphOf("chain", spec.Sequence, spec.GraphStep{Service: "rest"})
	g := start(t, func(c *gateway.Config) { c.Demand = load }, cold("rest"), graph)
	answered := make(chan answer, 1)
	c := client(t)
	go func() { answered <- do(t, c, request(t, http.MethodPost, g.url("/v2/models/chain/infer"), oneInput)) }()
	deadline := time.After(time.Minute)
	for heldOf(load, "rest") != 1 {
		_, changed := load.Watch()
		if heldOf(load, "rest") == 1 {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("no request is held")
		}
	}
	g.table.Publish(route.Compile([]route.Service{service("rest", route.Endpoint{HTTP: engine(t, echoREST)}), graph}))
	if a := <-answered; a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"data":[1]`) || a.Header.Get("X-Stationmaster-Revision") != "rest-00001" {
		t.Errorf("answered %d %v %s", a.StatusCode, a.Header, a.body)
	}
}

func TestAGraphAnswersOverGRPC(t *testing.T) {
	g := start(t, nil,
		declaring(service("rest", route.Endpoint{HTTP: engine(t, echoREST)}), spec.V2),
		declaring(service("overgrpc", route.Endpoint{GRPC: grpcEngine(t, &oipEngine{})}), spec.GRPCV2),
		service("missing", route.Endpoint{HTTP: engine(t, saying(404, `{"error":"no such thing"}`))}),
		graphOf("chain", spec.Sequence, spec.GraphStep{Service: "rest"}, spec.GraphStep{Service: "overgrpc", FromResponse: true, MapPredictions: true}),
		graphOf("both", spec.Ensemble, spec.GraphStep{Service: "rest"}),
		graphOf("fails", spec.Sequence, spec.GraphStep{Service: "missing"}),
		graphOf("choice", spec.Switch, spec.GraphStep{Service: "rest", Condition: "nothing"}),
	)
	stub := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	for name, code := range map[string]codes.Code{"chain": codes.OK, "both": codes.Unimplemented, "fails": codes.NotFound, "choice": codes.NotFound} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "stationmaster-service", "default/"+name)
		out, err := stub.ModelInfer(ctx, inferRequest("whatever"))
		if status.Code(err) != code {
			t.Errorf("%s: %v, want %v", name, err, code)
		}
		if name != "chain" || err != nil {
			continue
		}
		want := &oip.InferTensorContents{Fp32Contents: []float32{1.5, -2}}
		if diff := cmp.Diff(want, out.GetOutputs()[0].GetContents(), protocmp.Transform()); diff != "" || out.GetId() != "req-1" {
			t.Errorf("answered %v: %s", out, diff)
		}
	}
	// By the model's name, too.
	if ready, err := stub.ModelReady(t.Context(), &oip.ModelReadyRequest{Name: "chain"}); err != nil || !ready.GetReady() {
		t.Errorf("ready: %v, %v", ready, err)
	}
	if _, err := stub.ModelMetadata(t.Context(), &oip.ModelMetadataRequest{Name: "chain"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("metadata: %v", err)
	}
}

func TestAGraphsStepsAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	missing := service("missing", route.Endpoint{HTTP: engine(t, saying(404, `{}`))})
	g := start(t, func(c *gateway.Config) { c.Metrics = reg }, missing, graphOf("g", spec.Sequence, spec.GraphStep{Service: "missing", Name: "first"}))
	do(t, client(t), request(t, http.MethodPost, g.url("/serving/default/g"), `{}`))
	series := func() []string {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, f := range families {
			if n := f.GetName(); n != "stationmaster_graph_steps_total" && n != "stationmaster_gateway_requests_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				labels := ""
				for _, l := range m.GetLabel() {
					labels += " " + l.GetValue()
				}
				out = append(out, fmt.Sprintf("%s%s %v", f.GetName(), labels, m.GetCounter().GetValue()))
			}
		}
		return out
	}
	want := []string{
		"stationmaster_gateway_requests_total 404 default http  g 1",
		"stationmaster_gateway_requests_total 404 default v1 missing-00001 missing 1",
		"stationmaster_graph_steps_total 404 g default root first 1",
	}
	if diff := cmp.Diff(want, series()); diff != "" {
		t.Error(diff)
	}
	g.table.Publish(route.Compile([]route.Service{missing}))
	do(t, client(t), request(t, http.MethodGet, g.url("/v2"), ""))
	for _, s := range series() {
		if strings.Contains(s, " g ") {
			t.Errorf("%s outlives its graph", s)
		}
	}
}
