package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
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
	wire "stationmaster.dev/stationmaster/internal/wire/oip"
)

// doubler is an engine for V1 and V2 over REST: it doubles the one number of each row. It refuses
// whatever holds a negative number as a whole, and answers 500 to what holds 500, as some engines do.
type doubler struct {
	calls atomic.Int64
	rows  atomic.Int64
	// then is called with each request, if set, before it is answered; true means that it was.
	then func(http.ResponseWriter, *http.Request, []byte) bool
}

func (d *doubler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	d.calls.Add(1)
	if d.then != nil && d.then(w, r, body) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	refuse := func(status int) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":"refused with %d"}`, status)
	}
	verdict := func(v float64) int {
		switch {
		case v < 0:
			return http.StatusBadRequest
		case v == 500:
			return http.StatusInternalServerError
		}
		return 0
	}
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		var in struct{ Instances [][]float64 }
		if json.Unmarshal(body, &in) != nil || in.Instances == nil {
			refuse(http.StatusBadRequest)
			return
		}
		out := make([]float64, len(in.Instances))
		for i, row := range in.Instances {
			if s := verdict(row[0]); s != 0 {
				refuse(s)
				return
			}
			out[i] = 2 * row[0]
		}
		d.rows.Add(int64(len(out)))
		_ = json.NewEncoder(w).Encode(map[string]any{"predictions": out, "model": "doubler"})
		return
	}
	jsonLen, _ := wire.ParseHeaderLength(r.Header.Get(wire.HeaderLength))
	in, err := wire.DecodeRequest(body, jsonLen)
	if err != nil {
		refuse(http.StatusBadRequest)
		return
	}
	values, _ := in.Inputs[0].Values()
	out := make([]float32, 0, len(values.([]float32)))
	for _, v := range values.([]float32) {
		if s := verdict(float64(v)); s != 0 {
			refuse(s)
			return
		}
		out = append(out, 2*v)
	}
	d.rows.Add(in.Inputs[0].Shape[0])
	answer := &wire.InferResponse{ModelName: "doubler", ID: in.ID, Outputs: []wire.Tensor{{Name: "y", Datatype: wire.FP32, Shape: in.Inputs[0].Shape, Data: out}}}
	b, n, _ := wire.AppendResponse(nil, answer, in.WantsBinary)
	if n != wire.WholeBody {
		w.Header().Set(wire.HeaderLength, strconv.Itoa(n))
		w.Header().Set("Content-Type", "application/octet-stream")
	}
	_, _ = w.Write(b)
}

// batching gives a service's components a batcher.
func batching(s route.Service, b spec.Batching) route.Service {
	for name, backend := range s.Components {
		backend.Batch = &b
		s.Components[name] = backend
	}
	return s
}

// patient is a batcher that waits for as many requests as a test sends.
func patient(n int) spec.Batching { return spec.Batching{MaxSize: n, MaxLatency: time.Minute} }

// atOnce sends n requests together and returns the answers.
func atOnce(t *testing.T, n int, send func(i int) answer) []answer {
	t.Helper()
	out := make([]answer, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { out[i] = send(i) })
	}
	wg.Wait()
	return out
}

func predict(i float64) string { return fmt.Sprintf(`{"instances":[[%v]]}`, i) }

func infer(i float64) string {
	return fmt.Sprintf(`{"id":"r%v","inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[%v]}]}`, i, i)
}

func TestSingleRowsGoTogether(t *testing.T) {
	const n = 32
	for name, tc := range map[string]struct {
		path string
		body func(i float64) string
		want func(i int, batch string) string
	}{
		"V1": {"/v1/models/iris:predict", predict, func(i int, batch string) string {
			return fmt.Sprintf(`{"message":"","batchId":%q,"predictions":[%d],"model":"doubler"}`, batch, 2*i)
		}},
		"V2": {"/v2/models/iris/infer", infer, func(i int, _ string) string {
			return fmt.Sprintf(`{"model_name":"doubler","id":"r%d","outputs":[{"name":"y","datatype":"FP32","shape":[1,1],"data":[%d]}]}`, i, 2*i)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(doubler)
			g := start(t, nil, batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), patient(n)))
			answers := atOnce(t, n, func(i int) answer {
				r := request(t, http.MethodPost, g.url(tc.path), tc.body(float64(i)))
				r.Header.Set("X-Request-Id", fmt.Sprint("id-", i))
				return do(t, client(t), r)
			})
			batches := map[string]bool{}
			for i, a := range answers {
				batch := a.Header.Get(gateway.BatchHeader)
				batches[batch] = true
				var got, want any
				_ = json.Unmarshal([]byte(a.body), &got)
				if err := json.Unmarshal([]byte(tc.want(i, batch)), &want); err != nil {
					t.Fatal(err)
				}
				if a.StatusCode != http.StatusOK || fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("request %d: %d %s, want %s", i, a.StatusCode, a.body, tc.want(i, batch))
				}
				if a.Header.Get("X-Request-Id") != fmt.Sprint("id-", i) || a.Header.Get("X-Stationmaster-Revision") != "iris-00001" || a.Header.Get("Content-Type") != "application/json" {
					t.Errorf("request %d: headers %v", i, a.Header)
				}
			}
			if d.calls.Load() != 1 || d.rows.Load() != n || len(batches) != 1 {
				t.Errorf("the engine got %d calls with %d rows in %d batches, want all %d in one", d.calls.Load(), d.rows.Load(), len(batches), n)
			}
		})
	}
}

func TestBinaryTensorsGoTogether(t *testing.T) {
	d := new(doubler)
	g := start(t, nil, batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), patient(4)))
	answers := atOnce(t, 4, func(i int) answer {
		in := &wire.InferRequest{BinaryOutput: true, Inputs: []wire.Tensor{{Name: "x", Datatype: wire.FP32, Shape: []int64{1, 1}, Data: []float32{float32(i)}}}}
		body, n, err := wire.AppendRequest(nil, in, func(string) bool { return true })
		if err != nil {
			t.Error(err)
		}
		r := request(t, http.MethodPost, g.url("/v2/models/iris/infer"), string(body))
		r.Header.Set(wire.HeaderLength, strconv.Itoa(n))
		return do(t, client(t), r)
	})
	for i, a := range answers {
		n, err := wire.ParseHeaderLength(a.Header.Get(wire.HeaderLength))
		if err != nil {
			t.Fatal(err)
		}
		out, err := wire.DecodeResponse([]byte(a.body), n)
		if err != nil || !bytes.Equal(out.Outputs[0].Raw, mustRaw(t, float32(2*i))) {
			t.Errorf("request %d: %q, %v", i, a.body, err)
		}
	}
	if d.calls.Load() != 1 {
		t.Errorf("%d calls, want 1", d.calls.Load())
	}
}

func mustRaw(t *testing.T, v float32) []byte {
	t.Helper()
	raw, err := (&wire.Tensor{Datatype: wire.FP32, Data: []float32{v}}).AppendRaw(nil)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestCallsGoTogether(t *testing.T) {
	var calls atomic.Int64
	echo := &oipEngine{name: "grpc"}
	counted := &oipEngine{name: "grpc", infer: func(ctx context.Context, r *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
		calls.Add(1)
		if slices.ContainsFunc(r.GetInputs()[0].GetContents().GetFp32Contents(), func(v float32) bool { return v < 0 }) {
			return nil, status.Error(codes.InvalidArgument, "negative")
		}
		return echo.ModelInfer(ctx, r)
	}}
	d := new(doubler)
	g := start(t, nil,
		batching(service("grpc", route.Endpoint{GRPC: grpcEngine(t, counted)}), patient(16)),
		batching(service("rest", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), patient(16)))
	conn := connect(t, g.GRPC)
	ask := func(model string, i int) (*oip.ModelInferResponse, metadata.MD, error) {
		r := inferRequest(model)
		r.Id, r.Inputs[0].Shape, r.Inputs[0].Contents.Fp32Contents = fmt.Sprint(i), []int64{1, 1}, []float32{float32(i)}
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", fmt.Sprint("id-", i))
		out, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(ctx, r, grpc.Header(&header))
		return out, header, err
	}
	for model, factor := range map[string]float32{"grpc": 1, "rest": 2} {
		atOnce(t, 16, func(i int) answer {
			out, header, err := ask(model, i)
			switch {
			case err != nil:
				t.Errorf("%s, call %d: %v", model, i, err)
			case out.GetId() != fmt.Sprint(i) || !slices.Equal(out.GetOutputs()[0].GetContents().GetFp32Contents(), []float32{factor * float32(i)}):
				t.Errorf("%s, call %d: %v", model, i, out)
			case !slices.Equal(header.Get("x-request-id"), []string{fmt.Sprint("id-", i)}) || !slices.Equal(header.Get("x-stationmaster-revision"), []string{model + "-00001"}) || len(header.Get(gateway.BatchHeader)) != 1:
				t.Errorf("%s, call %d: header %v", model, i, header)
			}
			return answer{}
		})
	}
	if calls.Load() != 1 || d.calls.Load() != 1 {
		t.Errorf("%d and %d calls, want 1 each", calls.Load(), d.calls.Load())
	}
	atOnce(t, 16, func(i int) answer {
		out, _, err := ask("grpc", i-1)
		if i == 0 && status.Code(err) != codes.InvalidArgument || i > 0 && (err != nil || out.GetOutputs()[0].GetContents().GetFp32Contents()[0] != float32(i-1)) {
			t.Errorf("call %d beside a bad one: %v, %v", i-1, out, err)
		}
		return answer{}
	})
	if calls.Load() != 1+1+16 {
		t.Errorf("%d calls, want those of a batch by themselves when it failed", calls.Load())
	}
}

func TestNobodyFailsForANeighbour(t *testing.T) {
	for name, tc := range map[string]struct {
		values []float64
		then   func(http.ResponseWriter, *http.Request, []byte) bool
		want   []int
		calls  int64
	}{
		"all good":        {values: []float64{1, 2, 3, 4}, want: []int{200, 200, 200, 200}, calls: 1},
		"a bad row":       {values: []float64{1, -1, 3, 4}, want: []int{200, 400, 200, 200}, calls: 5},
		"a broken answer": {values: []float64{1, 2, 3, 500}, want: []int{200, 200, 200, 500}, calls: 5},
		"what is about the service, which all are told": {
			values: []float64{1, 2, 3, 4}, want: []int{503, 503, 503, 503}, calls: 1,
			then: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			},
		},
		"an engine that can't do several rows": {
			values: []float64{1, 2, 3, 4}, want: []int{200, 200, 200, 200}, calls: 5,
			then: func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
				if strings.Count(string(body), "],[") == 0 {
					return false
				}
				_, _ = io.WriteString(w, `{"predictions":[1]}`)
				return true
			},
		},
		"an answer that breaks off": {
			values: []float64{1, 2, 3, 4}, want: []int{200, 200, 200, 200}, calls: 5,
			then: func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
				if strings.Count(string(body), "],[") == 0 {
					return false
				}
				w.Header().Set("Content-Length", "100000")
				_, _ = w.Write(make([]byte, 50000))
				return true
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &doubler{then: tc.then}
			g := start(t, nil, batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), patient(4)))
			for i, a := range atOnce(t, 4, func(i int) answer {
				return do(t, client(t), request(t, http.MethodPost, g.url("/v1/models/iris:predict"), predict(tc.values[i])))
			}) {
				if a.StatusCode != tc.want[i] || a.StatusCode == 200 && !strings.Contains(a.body, fmt.Sprintf(`"predictions":[%v]`, 2*tc.values[i])) {
					t.Errorf("request %d: %d %s, want %d", i, a.StatusCode, a.body, tc.want[i])
				}
			}
			if got := d.calls.Load(); got != tc.calls {
				t.Errorf("%d calls, want %d", got, tc.calls)
			}
		})
	}
}

func TestRequestsThatDifferGoApart(t *testing.T) {
	type sent struct{ path, body, header string }
	for name, tc := range map[string]struct {
		sent  []sent
		calls int64
	}{
		"alike but for what each has for itself": {
			[]sent{{"/v1/models/iris:predict", predict(1), "Traceparent: a"}, {"/v1/models/iris:predict", predict(2), "User-Agent: b"}}, 1,
		},
		"a header that an engine may heed": {
			[]sent{{"/v1/models/iris:predict", predict(1), "X-Tenant: a"}, {"/v1/models/iris:predict", predict(2), "X-Tenant: b"}}, 2,
		},
		"another host": {
			[]sent{{"/v1/models/iris:predict", predict(1), ""}, {"/v1/models/iris:predict", predict(2), "Host: iris-default.localhost"}}, 2,
		},
		"another protocol": {[]sent{{"/v1/models/iris:predict", predict(1), ""}, {"/v2/models/iris/infer", infer(1), ""}}, 2},
		"a query":          {[]sent{{"/v1/models/iris:predict", predict(1), ""}, {"/v1/models/iris:predict?x=1", predict(2), ""}}, 2},
		"other shapes":     {[]sent{{"/v1/models/iris:predict", predict(1), ""}, {"/v1/models/iris:predict", `{"instances":[[1,2]]}`, ""}}, 2},
		"other parameters": {
			[]sent{{"/v2/models/iris/infer", infer(1), ""}, {"/v2/models/iris/infer", strings.Replace(infer(1), "{", `{"parameters":{"k":1},`, 1), ""}}, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(doubler)
			// Those that go apart go when the gateway's patience is over.
			b := spec.Batching{MaxSize: 2, MaxLatency: 20 * time.Millisecond}
			if tc.calls == 1 {
				b.MaxLatency = time.Minute
			}
			g := start(t, nil, batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), b))
			for i, a := range atOnce(t, len(tc.sent), func(i int) answer {
				s := tc.sent[i]
				r := request(t, http.MethodPost, g.url(s.path), s.body)
				if k, v, ok := strings.Cut(s.header, ": "); k == "Host" {
					r.Host = v
				} else if ok {
					r.Header.Set(k, v)
				}
				return do(t, client(t), r)
			}) {
				if a.StatusCode != http.StatusOK {
					t.Errorf("request %d: %d %s", i, a.StatusCode, a.body)
				}
			}
			if got := d.calls.Load(); got != tc.calls {
				t.Errorf("%d calls, want %d", got, tc.calls)
			}
		})
	}
}

func TestWhatCannotBePutTogetherGoesAloneAndAsItCame(t *testing.T) {
	var mu sync.Mutex
	var got []string
	d := &doubler{then: func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, string(body))
		_, _ = io.WriteString(w, "mine")
		return true
	}}
	g := start(t, nil, batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), patient(2)))
	for _, tc := range []struct{ path, body string }{
		{"/v1/models/iris:predict", `{"inputs":{"x":[1]}}`},
		{"/v1/models/iris:predict", `{"instances":[[1],[2,3]]}`},
		{"/v1/models/iris:predict", `not JSON`},
		{"/v1/models/iris:explain", predict(1)},
		{"/v2/models/iris/infer", `{"inputs":[{"name":"x","shape":[],"datatype":"FP32","data":[1]}]}`},
		{"/v2/models/iris/infer", strings.Replace(infer(1), "{", `{"parameters":{"sequence_id":1},`, 1)},
		{"/v2/models/iris/infer", `{"inputs":[{"name":"x","shape":[2,1],"datatype":"FP32","data":[1,2]}]}`}, // full by itself
		{"/v2/models/iris/generate", `{}`},
	} {
		a := do(t, client(t), request(t, http.MethodPost, g.url(tc.path), tc.body))
		if a.body != "mine" || a.Header.Get(gateway.BatchHeader) != "" || got[len(got)-1] != tc.body {
			t.Errorf("%s %s: the engine got %q, the client %d %q", tc.path, tc.body, got[len(got)-1], a.StatusCode, a.body)
		}
	}
	r := request(t, http.MethodPost, g.url("/v1/models/iris:predict"), predict(1))
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(predict(1))), -1 // of unknown length
	if a := do(t, client(t), r); a.body != "mine" {
		t.Errorf("a chunked body: %d %q", a.StatusCode, a.body)
	}
}

func TestATensorThatFindsNoCompanyGoesAsItCame(t *testing.T) {
	var got string
	d := &doubler{then: func(_ http.ResponseWriter, _ *http.Request, body []byte) bool { got = string(body); return false }}
	g := start(t, nil, batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), spec.Batching{MaxSize: 100, MaxLatency: time.Millisecond}))
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v2/models/iris/infer"), infer(4)))
	if a.StatusCode != http.StatusOK || got != infer(4) || a.Header.Get(gateway.BatchHeader) != "" {
		t.Errorf("%d %s, the engine got %s", a.StatusCode, a.body, got)
	}
}

func TestABatchGoesWhenItIsDue(t *testing.T) {
	d := new(doubler)
	g := start(t, nil, batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), spec.Batching{MaxSize: 100, MaxLatency: time.Millisecond}))
	for range 3 {
		a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/models/iris:predict"), predict(4)))
		if a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"predictions":[8]`) {
			t.Errorf("%d %s", a.StatusCode, a.body)
		}
	}
}

func TestTheGatewaysEndSendsWhatWaits(t *testing.T) {
	d := new(doubler)
	g := start(t, nil, batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), patient(100)))
	answered := make(chan answer, 1)
	go func() {
		answered <- do(t, client(t), request(t, http.MethodPost, g.url("/v1/models/iris:predict"), predict(4)))
	}()
	until(t, "it waits", func() bool { return g.Waiting(false) == 1 })
	g.stop()
	if a := <-answered; a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"predictions":[8]`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestABatchersTimeOutEndsTheWait(t *testing.T) {
	for name, tc := range map[string]struct {
		batch spec.Batching
		hang  bool
		v2    bool
	}{
		"for the engine's answer to one alone": {batch: spec.Batching{MaxSize: 2, MaxLatency: time.Millisecond, Timeout: 100 * time.Millisecond}, hang: true, v2: true},
		"for the batch to fill":                {batch: spec.Batching{MaxSize: 100, MaxLatency: time.Hour, Timeout: 50 * time.Millisecond}},
		"for the engine's answer":              {batch: spec.Batching{MaxSize: 1, MaxLatency: time.Hour, Timeout: 50 * time.Millisecond}, hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			released := make(chan struct{})
			d := &doubler{}
			if tc.hang {
				d.then = func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
					select {
					case <-r.Context().Done():
					case <-released:
					}
					return true
				}
			}
			g := start(t, nil, batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), tc.batch))
			path, body := "/v1/models/iris:predict", predict(1)
			if tc.v2 {
				path, body = "/v2/models/iris/infer", infer(1)
			}
			a := do(t, client(t), request(t, http.MethodPost, g.url(path), body))
			if a.StatusCode != http.StatusGatewayTimeout || errorText(t, a) == "" {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
			if tc.hang && tc.v2 {
				_, err := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC)).ModelInfer(t.Context(), inferRequest("iris"))
				if status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("over gRPC: %v", err)
				}
			}
			close(released)
		})
	}
}

func TestAClientThatLeavesABatchHarmsNobody(t *testing.T) {
	d := new(doubler)
	g := start(t, nil, batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), patient(3)))
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		r := request(t, http.MethodPost, g.url("/v1/models/iris:predict"), predict(-7)).WithContext(ctx)
		resp, err := client(t).Do(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		left <- err
	}()
	until(t, "it waits", func() bool { return g.Waiting(false) == 1 })
	leave()
	if <-left == nil {
		t.Fatal("the request of a client that left was answered")
	}
	until(t, "the gateway knows", func() bool { return g.Waiting(true) == 1 })
	for i, a := range atOnce(t, 2, func(i int) answer {
		return do(t, client(t), request(t, http.MethodPost, g.url("/v1/models/iris:predict"), predict(float64(i))))
	}) {
		if a.StatusCode != http.StatusOK || !strings.Contains(a.body, fmt.Sprintf(`"predictions":[%d]`, 2*i)) {
			t.Errorf("request %d: %d %s", i, a.StatusCode, a.body)
		}
	}
	if d.calls.Load() != 1 || d.rows.Load() != 2 {
		t.Errorf("%d calls with %d rows, want 1 with 2", d.calls.Load(), d.rows.Load())
	}
}

func TestABatchWakesWhatSleepsAndTakesOnePlace(t *testing.T) {
	d := new(doubler)
	addr := engine(t, d.ServeHTTP)
	g := start(t, nil, batching(cold("iris"), patient(4)))
	done := make(chan []answer, 1)
	go func() {
		done <- atOnce(t, 4, func(i int) answer {
			return do(t, client(t), request(t, http.MethodPost, g.url("/v1/models/iris:predict"), predict(float64(i))))
		})
	}()
	until(t, "one is held for all four", func() bool { return g.Held() == 1 })
	ready := limited(1, addr)
	ready.Key.Name, ready.BareNames = "iris", []string{"iris"}
	g.table.Publish(route.Compile([]route.Service{batching(ready, patient(4))}))
	for i, a := range <-done {
		if a.StatusCode != http.StatusOK || !strings.Contains(a.body, fmt.Sprintf(`"predictions":[%d]`, 2*i)) {
			t.Errorf("request %d: %d %s", i, a.StatusCode, a.body)
		}
	}
	if d.calls.Load() != 1 {
		t.Errorf("%d calls, want 1", d.calls.Load())
	}
}

func TestWhatSleepsIsStartedWhileABatchFills(t *testing.T) {
	load := new(state.Topic[demand.Report])
	d := new(doubler)
	addr := engine(t, d.ServeHTTP)
	g := start(t, func(c *gateway.Config) { c.Demand = load }, batching(cold("iris"), patient(2)))
	send := func(i int) answer {
		return do(t, client(t), request(t, http.MethodPost, g.url("/v1/models/iris:predict"), predict(float64(i))))
	}
	first := make(chan answer, 1)
	go func() { first <- send(1) }()
	until(t, "the first is told of before its batch goes", func() bool { return heldOf(load, "iris") == 1 && g.Waiting(false) == 1 })
	g.table.Publish(route.Compile([]route.Service{batching(service("iris", route.Endpoint{HTTP: addr}), patient(2))}))
	for _, a := range []answer{send(2), <-first} {
		if a.StatusCode != http.StatusOK {
			t.Errorf("%d %s", a.StatusCode, a.body)
		}
	}
	if d.calls.Load() != 1 {
		t.Errorf("%d calls, want 1", d.calls.Load())
	}
	until(t, "none waits", func() bool { return heldOf(load, "iris") == 0 })
}

func TestEachRequestOfABatchIsLogged(t *testing.T) {
	d := new(doubler)
	sink := newEventSink(t)
	s := batching(service("iris", route.Endpoint{HTTP: engine(t, d.ServeHTTP)}), patient(3))
	g := start(t, nil, logged(s, spec.PayloadLog{URL: sink.url, Requests: true, Responses: true}))
	atOnce(t, 3, func(i int) answer {
		return do(t, client(t), request(t, http.MethodPost, g.url("/v1/models/iris:predict"), predict(float64(i))))
	})
	requests, answers := map[string]bool{}, map[string]bool{}
	for _, e := range sink.after(g) {
		if e.attribute("Type") == requestType {
			requests[string(e.data)] = true
			continue
		}
		var body struct{ Predictions []float64 }
		if err := json.Unmarshal(e.data, &body); err != nil || len(body.Predictions) != 1 || e.attribute("Revision") != "iris-00001" || e.attribute("Statuscode") != "200" {
			t.Errorf("%s %v %v", e.data, err, e.Header)
		}
		answers[fmt.Sprint(body.Predictions)] = true
	}
	if len(requests) != 3 || len(answers) != 3 || !requests[predict(1)] || !answers["[2]"] {
		t.Errorf("requests %v, answers %v", requests, answers)
	}
}
