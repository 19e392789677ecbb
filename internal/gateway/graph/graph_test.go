package graph_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/gateway/graph"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// over calls real HTTP servers by their service's name.
type over struct {
	client *http.Client
	urls   map[string]string
	mu     sync.Mutex
	taken  []string
}

func (o *over) Call(ctx context.Context, step graph.Step, in graph.Message) (graph.Answer, error) {
	o.mu.Lock()
	o.taken = append(o.taken, step.Node+"/"+step.Key)
	o.mu.Unlock()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.urls[step.Service], bytes.NewReader(in.Body))
	if err != nil {
		return graph.Answer{}, err
	}
	resp, err := o.client.Do(r)
	if err != nil {
		return graph.Answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return graph.Answer{Status: resp.StatusCode, Message: graph.Message{Header: resp.Header, Body: body}}, err
}

// services are real servers: ok answers with a prediction, cat with a label, echo with what it was
// given under "got", missing with 404, broken with 500, plain with text, and gone not at all.
func services(t *testing.T) *over {
	t.Helper()
	o := &over{client: &http.Client{Transport: &http.Transport{}}, urls: map[string]string{"gone": "http://127.0.0.1:1"}}
	t.Cleanup(o.client.CloseIdleConnections)
	for name, answer := range map[string]struct {
		status int
		body   string
	}{
		"ok":      {200, `{"predictions":[1,1]}`},
		"cat":     {200, `{"predictions":[{"label":"cat"}]}`},
		"echo":    {200, ""},
		"missing": {404, `{"detail":"Intentional 404 code"}`},
		"broken":  {500, `{"error":"out of luck"}`},
		"plain":   {200, "hello"},
		"big":     {200, `{"id":12345678901234567890}`},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			given, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(answer.status)
			if answer.body == "" {
				fmt.Fprintf(w, `{"got":%s}`, given)
				return
			}
			_, _ = io.WriteString(w, answer.body)
		}))
		t.Cleanup(s.Close)
		o.urls[name] = s.URL
	}
	return o
}

func to(service string, change ...func(*spec.GraphStep)) spec.GraphStep {
	s := spec.GraphStep{Service: service}
	for _, c := range change {
		c(&s)
	}
	return s
}

func hard(s *spec.GraphStep)        { s.Hard = true }
func response(s *spec.GraphStep)    { s.FromResponse = true }
func predictions(s *spec.GraphStep) { s.FromResponse, s.MapPredictions = true, true }
func name(n string) func(*spec.GraphStep) {
	return func(s *spec.GraphStep) { s.Name = n }
}

func when(c string) func(*spec.GraphStep) {
	return func(s *spec.GraphStep) { s.Condition = c }
}

func weight(n int) func(*spec.GraphStep) {
	return func(s *spec.GraphStep) { s.Weight = n }
}
func node(n string) spec.GraphStep { return spec.GraphStep{Node: n} }

func rooted(kind spec.NodeKind, steps ...spec.GraphStep) map[string]spec.GraphNode {
	return map[string]spec.GraphNode{spec.GraphRoot: {Kind: kind, Steps: steps}}
}

func with(nodes map[string]spec.GraphNode, name string, kind spec.NodeKind, steps ...spec.GraphStep) map[string]spec.GraphNode {
	nodes[name] = spec.GraphNode{Kind: kind, Steps: steps}
	return nodes
}

func TestWhatAGraphAnswers(t *testing.T) {
	const asked = `{"instances":[{"kind":"b"}],"decision_picker":"ERROR"}`
	for title, tc := range map[string]struct {
		nodes  map[string]spec.GraphNode
		random int
		status int
		body   string
		err    string
		taken  string
	}{
		"a sequence answers with its last step": {
			nodes: rooted(spec.Sequence, to("cat"), to("ok")), status: 200, body: `{"predictions":[1,1]}`,
		},
		"a soft failure at the end is the answer": {
			nodes: rooted(spec.Sequence, to("ok"), to("missing")), status: 404, body: `{"detail":"Intentional 404 code"}`,
		},
		"a soft failure is passed over": {
			nodes: rooted(spec.Sequence, to("missing"), to("ok")), status: 200, body: `{"predictions":[1,1]}`,
		},
		"a hard failure ends a sequence": {
			nodes: rooted(spec.Sequence, to("missing", hard), to("ok")), status: 404, body: `{"detail":"Intentional 404 code"}`, taken: "root/0",
		},
		"a step gets the request": {
			nodes: rooted(spec.Sequence, to("ok"), to("echo")), status: 200, body: `{"got":` + asked + `}`,
		},
		"a step gets the answer before it": {
			nodes: rooted(spec.Sequence, to("ok"), to("echo", response)), status: 200, body: `{"got":{"predictions":[1,1]}}`,
		},
		"predictions become instances": {
			nodes: rooted(spec.Sequence, to("ok"), to("echo", predictions)), status: 200, body: `{"got":{"instances":[1,1]}}`,
		},
		"the first step has no answer before it": {
			nodes: rooted(spec.Sequence, to("echo", predictions)), status: 200, body: `{"got":` + asked + `}`,
		},
		"a soft failure is handed on": {
			nodes: rooted(spec.Sequence, to("broken"), to("echo", response)), status: 200, body: `{"got":{"error":"out of luck"}}`,
		},
		"a condition that the answer before meets": {
			nodes: rooted(spec.Sequence, to("cat"), to("ok", when(`predictions.#(label=="cat")`))), status: 200, body: `{"predictions":[1,1]}`,
		},
		"a condition that it doesn't meet ends the sequence": {
			nodes: rooted(spec.Sequence, to("cat"), to("ok", when(`predictions.#(label=="dog")`))), status: 200, body: `{"predictions":[{"label":"cat"}]}`, taken: "root/0",
		},
		"which is no failure, whatever was before": {
			nodes: rooted(spec.Sequence, to("missing"), to("ok", when("predictions"))), status: 200, body: `{"detail":"Intentional 404 code"}`,
		},
		"a condition on what isn't JSON": {
			nodes: rooted(spec.Sequence, to("plain"), to("ok", when("predictions"))), err: "step 1 of node root has a condition, and the answer before it isn't JSON",
		},
		"a switch takes the first that fits": {
			nodes: rooted(spec.Switch, to("broken", when(`instances.#(kind=="a")`)), to("ok", when(`instances.#(kind=="b")`)), to("cat", when("instances"))), status: 200, body: `{"predictions":[1,1]}`,
		},
		"a switch's hard step that fails is its answer": {
			nodes: rooted(spec.Switch, to("missing", hard, when(`[@this].#(decision_picker==ERROR)`))), status: 404, body: `{"detail":"Intentional 404 code"}`,
		},
		"a switch's soft step that fails is its answer too": {
			nodes: rooted(spec.Switch, to("missing", when(`[@this].#(decision_picker==ERROR)`))), status: 404, body: `{"detail":"Intentional 404 code"}`,
		},
		"a switch with nothing that fits": {
			nodes: rooted(spec.Switch, to("ok", when("nothing")), to("ok")), err: graph.ErrNoMatch.Error(),
		},
		"a failing switch is passed over by a soft step": {
			nodes:  with(rooted(spec.Sequence, node("n"), to("ok")), "n", spec.Switch, to("missing", when(`[@this].#(decision_picker==ERROR)`))),
			status: 200, body: `{"predictions":[1,1]}`, taken: "n/0 root/1",
		},
		"a failing switch ends a sequence as a hard step": {
			nodes:  with(rooted(spec.Sequence, spec.GraphStep{Node: "n", Hard: true}, to("ok")), "n", spec.Switch, to("missing", when(`[@this].#(decision_picker==ERROR)`))),
			status: 404, body: `{"detail":"Intentional 404 code"}`, taken: "n/0",
		},
		"an ensemble merges by name, or place": {
			nodes: rooted(spec.Ensemble, to("ok", name("a")), to("missing"), to("big", name("c"))), status: 200,
			body: `{"a":{"predictions":[1,1]},"1":{"detail":"Intentional 404 code"},"c":{"id":12345678901234567890}}`,
		},
		"an ensemble's first hard failure decides": {
			nodes: rooted(spec.Ensemble, to("ok"), to("missing", hard), to("broken", hard), to("broken")), status: 404, body: `{"detail":"Intentional 404 code"}`,
		},
		"an ensemble can't merge text": {
			nodes: rooted(spec.Ensemble, to("ok"), to("plain", name("p"))), err: "step p of node root answered with something else than JSON, which an Ensemble can't merge",
		},
		"a splitter takes its first step": {
			nodes: rooted(spec.Splitter, to("ok", weight(20)), to("cat", weight(80))), random: 19, status: 200, body: `{"predictions":[1,1]}`,
		},
		"a splitter takes its last step": {
			nodes: rooted(spec.Splitter, to("ok", weight(20)), to("cat", weight(80))), random: 99, status: 200, body: `{"predictions":[{"label":"cat"}]}`,
		},
		"a splitter never takes a step without weight": {
			nodes: rooted(spec.Splitter, to("broken", weight(0)), to("cat", weight(100))), random: 0, status: 200, body: `{"predictions":[{"label":"cat"}]}`,
		},
		"a splitter whose weights don't do": {
			nodes: rooted(spec.Splitter, to("ok", weight(20))), random: 20, err: `the weights of node "root" don't sum to 100`,
		},
		"a sequence of an ensemble": {
			nodes:  with(rooted(spec.Sequence, to("cat"), spec.GraphStep{Node: "both", FromResponse: true, Condition: "predictions"}), "both", spec.Ensemble, to("echo"), to("ok")),
			status: 200, body: `{"0":{"got":{"predictions":[{"label":"cat"}]}},"1":{"predictions":[1,1]}}`,
		},
		"nobody answers a soft step":     {nodes: rooted(spec.Sequence, to("gone"), to("ok")), err: "step 0 of node root: Post"},
		"no root":                        {nodes: map[string]spec.GraphNode{}, err: `the graph has no node "root"`},
		"a node that isn't there":        {nodes: rooted(spec.Sequence, node("n")), err: `the graph has no node "n"`},
		"a node without steps":           {nodes: rooted(spec.Sequence), err: `node "root" has no steps`},
		"a node of an unknown type":      {nodes: rooted("Loop", to("ok")), err: `node "root" is of an unknown type, "Loop"`},
		"nodes that lead to each other":  {nodes: rooted(spec.Sequence, node("root")), err: "the graph's nodes lead to each other more than 64 deep"},
		"more calls than a request may":  {nodes: tree(11), err: "the graph led to more than 1000 calls for one request"},
		"a switch deep within, no match": {nodes: with(rooted(spec.Sequence, node("n")), "n", spec.Switch, to("ok", when("nothing"))), err: graph.ErrNoMatch.Error()},
	} {
		t.Run(title, func(t *testing.T) {
			o := services(t)
			a, err := graph.Run(t.Context(), &spec.Graph{Nodes: tc.nodes}, graph.Message{Body: []byte(asked)}, o, func(int) int { return tc.random }, graph.Limits{})
			if tc.err != "" || err != nil {
				if err == nil || tc.err == "" || !strings.HasPrefix(err.Error(), tc.err) {
					t.Fatalf("error %v, want %q", err, tc.err)
				}
				return
			}
			if a.Status != tc.status || string(a.Body) != tc.body {
				t.Errorf("answered %d %s, want %d %s", a.Status, a.Body, tc.status, tc.body)
			}
			if taken := strings.Join(o.taken, " "); tc.taken != "" && taken != tc.taken {
				t.Errorf("took %s, want %s", taken, tc.taken)
			}
		})
	}
}

// tree is a graph whose nodes lead twice to the next, so that the calls double with each.
func tree(depth int) map[string]spec.GraphNode {
	nodes := rooted(spec.Sequence, node("1"), node("1"))
	for i := 1; i < depth; i++ {
		next := fmt.Sprint(i + 1)
		nodes[fmt.Sprint(i)] = spec.GraphNode{Kind: spec.Sequence, Steps: []spec.GraphStep{node(next), node(next)}}
	}
	nodes[fmt.Sprint(depth)] = spec.GraphNode{Kind: spec.Sequence, Steps: []spec.GraphStep{to("ok")}}
	return nodes
}

func TestOnlyTheRootsSwitchWithoutAMatchIsThatError(t *testing.T) {
	nothing := to("ok", when("nothing"))
	for title, tc := range map[string]struct {
		nodes map[string]spec.GraphNode
		want  bool
	}{
		"at the root": {rooted(spec.Switch, nothing), true},
		"below it":    {with(rooted(spec.Sequence, node("n")), "n", spec.Switch, nothing), false},
	} {
		_, err := graph.Run(t.Context(), &spec.Graph{Nodes: tc.nodes}, graph.Message{Body: []byte("{}")}, nil, nil, graph.Limits{})
		if errors.Is(err, graph.ErrNoMatch) != tc.want || err == nil || err.Error() != graph.ErrNoMatch.Error() {
			t.Errorf("%s: %v", title, err)
		}
	}
}

// callFunc is a caller of one function.
type callFunc func(ctx context.Context, step graph.Step) (graph.Answer, error)

func (f callFunc) Call(ctx context.Context, step graph.Step, _ graph.Message) (graph.Answer, error) {
	return f(ctx, step)
}

func answer(status int) graph.Answer {
	return graph.Answer{Status: status, Message: graph.Message{Body: []byte(`{}`)}}
}

func TestAHardFailureEndsItsSiblings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int32
		c := callFunc(func(ctx context.Context, step graph.Step) (graph.Answer, error) {
			if step.Key == "2" {
				time.Sleep(time.Second) // by then all others are under way
				return answer(http.StatusBadGateway), nil
			}
			<-ctx.Done()
			ended.Add(1)
			return graph.Answer{}, ctx.Err()
		})
		nodes := rooted(spec.Ensemble, to("soft"), node("inner"), to("fails", hard), to("later", hard))
		with(nodes, "inner", spec.Ensemble, to("a"), to("b"))
		a, err := graph.Run(t.Context(), &spec.Graph{Nodes: nodes}, graph.Message{}, c, nil, graph.Limits{})
		if err != nil || a.Status != http.StatusBadGateway || ended.Load() != 4 {
			t.Errorf("answered %d, %v; %d steps were ended", a.Status, err, ended.Load())
		}
	})
}

func TestAnEarlierHardStepIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := callFunc(func(ctx context.Context, step graph.Step) (graph.Answer, error) {
			if step.Key == "0" {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
				return answer(http.StatusNotFound), ctx.Err()
			}
			return answer(http.StatusBadGateway), nil
		})
		a, err := graph.Run(t.Context(), &spec.Graph{Nodes: rooted(spec.Ensemble, to("slow", hard), to("fast", hard))}, graph.Message{}, c, nil, graph.Limits{})
		if err != nil || a.Status != http.StatusNotFound {
			t.Errorf("answered %d, %v, want the first step's 404", a.Status, err)
		}
	})
}

func TestTimeOutsEndStepsAndGraphs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forever := callFunc(func(ctx context.Context, _ graph.Step) (graph.Answer, error) {
			<-ctx.Done()
			return graph.Answer{}, ctx.Err()
		})
		g := &spec.Graph{Nodes: rooted(spec.Sequence, to("slow")), StepTimeout: 3 * time.Second}
		_, err := graph.Run(t.Context(), g, graph.Message{}, forever, nil, graph.Limits{})
		if err == nil || err.Error() != "step 0 of node root: no answer within 3s" {
			t.Errorf("a step's time-out: %v", err)
		}
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		for _, kind := range []spec.NodeKind{spec.Sequence, spec.Ensemble} {
			_, err = graph.Run(ctx, &spec.Graph{Nodes: rooted(kind, to("slow"), to("slow"))}, graph.Message{}, forever, nil, graph.Limits{})
			if !errors.Is(err, why) {
				t.Errorf("the time-out of a %s: %v", kind, err)
			}
		}
	})
}

func TestNoMoreCallsThanAllowedAreMadeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		c := callFunc(func(context.Context, graph.Step) (graph.Answer, error) {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(time.Second)
			now.Add(-1)
			return answer(http.StatusOK), nil
		})
		steps := make([]spec.GraphStep, 12)
		for i := range steps {
			steps[i] = to("ok")
		}
		a, err := graph.Run(t.Context(), &spec.Graph{Nodes: rooted(spec.Ensemble, steps...)}, graph.Message{}, c, nil, graph.Limits{Parallel: 3})
		if err != nil || a.Status != http.StatusOK || most.Load() != 3 {
			t.Errorf("answered %d, %v; %d at once", a.Status, err, most.Load())
		}
	})
}

func TestAnEnsemblesAnswerIsBounded(t *testing.T) {
	c := callFunc(func(context.Context, graph.Step) (graph.Answer, error) { return answer(http.StatusOK), nil })
	_, err := graph.Run(t.Context(), &spec.Graph{Nodes: rooted(spec.Ensemble, to("a"), to("b"))}, graph.Message{}, c, nil, graph.Limits{Bytes: 3})
	if err == nil || !strings.Contains(err.Error(), "larger than 3 bytes") {
		t.Errorf("%v", err)
	}
}

// tensors is a V2 answer with a binary tensor behind its JSON.
func tensors(json string, tail string) graph.Message {
	return graph.Message{
		Header: http.Header{"Inference-Header-Content-Length": {fmt.Sprint(len(json))}},
		Body:   []byte(json + tail),
	}
}

func TestConditionsReadTheJSONBeforeBinaryTensors(t *testing.T) {
	c := callFunc(func(context.Context, graph.Step) (graph.Answer, error) { return answer(http.StatusOK), nil })
	in := tensors(`{"inputs":[{"name":"x"}]}`, "\x00\x01{")
	g := &spec.Graph{Nodes: rooted(spec.Switch, to("ok", when(`inputs.#(name=="x")`)))}
	if a, err := graph.Run(t.Context(), g, in, c, nil, graph.Limits{}); err != nil || a.Status != http.StatusOK {
		t.Errorf("answered %d, %v", a.Status, err)
	}
	in.Header.Set("Inference-Header-Content-Length", "1000")
	if _, err := graph.Run(t.Context(), g, in, c, nil, graph.Limits{}); !errors.Is(err, graph.ErrNoMatch) {
		t.Errorf("a length beyond the body: %v", err)
	}
}

func TestOutputsBecomeInputs(t *testing.T) {
	for title, tc := range map[string]struct{ in, want graph.Message }{
		"JSON": {
			graph.Message{Body: []byte(`{"model_name":"a","id":"7","outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[1]}]}`)},
			graph.Message{Body: []byte(`{"id":"7","inputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[1]}]}`)},
		},
		"binary": {
			tensors(`{"model_name":"a","outputs":[{"parameters":{"binary_data_size":4}}]}`, "\x00\x00\x80\x3f"),
			tensors(`{"inputs":[{"parameters":{"binary_data_size":4}}]}`, "\x00\x00\x80\x3f"),
		},
		"V1 keeps what else it has": {
			graph.Message{Body: []byte(`{"predictions":[1],"model":"a"}`)},
			graph.Message{Body: []byte(`{"instances":[1],"model":"a"}`)},
		},
		"neither": {graph.Message{Body: []byte(`[1]`)}, graph.Message{Body: []byte(`[1]`)}},
	} {
		t.Run(title, func(t *testing.T) {
			got := graph.MapPredictions(tc.in)
			if string(got.Body) != string(tc.want.Body) || got.Header.Get("Inference-Header-Content-Length") != tc.want.Header.Get("Inference-Header-Content-Length") {
				t.Errorf("got %v %q", got.Header, got.Body)
			}
		})
	}
}

func TestTheProtocolOfABodyIsSeen(t *testing.T) {
	for body, want := range map[string]spec.Protocol{
		`{"instances":[[1]]}`: spec.V1, `{"decision_picker":"ERROR"}`: "", `not JSON`: "",
		`{"inputs":{"a":[1]}}`: "", `{"inputs":[[1,2]]}`: "",
		`{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}`: spec.V2,
	} {
		if got := graph.ProtocolOf(graph.Message{Body: []byte(body)}); got != want {
			t.Errorf("%s: %q", body, got)
		}
	}
	if graph.ProtocolOf(tensors(`{}`, "x")) != spec.V2 {
		t.Error("binary tensors are V2's")
	}
}

// FuzzConditions looks for conditions and bodies that the graph can't take.
func FuzzConditions(f *testing.F) {
	f.Add([]byte(`{"a":[{"b":1}]}`), `a.#(b==1)`, "")
	f.Add([]byte(`{"decision_picker":"ERROR"}`), `[@this].#(decision_picker==ERROR)`, "5")
	f.Add([]byte(strings.Repeat("[", 20000)), `{.a}`, "-1")
	f.Add([]byte(`{"predictions":1,"predictions":2}`), `@this|@pretty`, "x")
	f.Add([]byte(`{"outputs":[],"id":"é"}xx`), `..#`, "21")
	f.Fuzz(func(t *testing.T, body []byte, condition, length string) {
		m := graph.Message{Body: body}
		if length != "" {
			m.Header = http.Header{"Inference-Header-Content-Length": {length}}
		}
		graph.ProtocolOf(m)
		c := callFunc(func(context.Context, graph.Step) (graph.Answer, error) {
			return graph.Answer{Status: http.StatusOK, Message: m}, nil
		})
		for _, nodes := range []map[string]spec.GraphNode{
			rooted(spec.Switch, to("s", when(condition))),
			rooted(spec.Sequence, to("s"), to("s", when(condition), predictions)),
			rooted(spec.Ensemble, to("s", name(condition)), to("s")),
		} {
			a, err := graph.Run(t.Context(), &spec.Graph{Nodes: nodes}, m, c, nil, graph.Limits{})
			if err == nil && nodes[spec.GraphRoot].Kind == spec.Ensemble && !json.Valid(a.Body) {
				t.Errorf("merged into %q", a.Body)
			}
		}
		if mapped := graph.MapPredictions(m); length == "" && json.Valid(body) && !json.Valid(mapped.Body) {
			t.Errorf("mapped into %q", mapped.Body)
		}
	})
}
