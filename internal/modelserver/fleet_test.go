package modelserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/runtimecmd"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// yard holds models whose file is a number, by which they multiply what they are given. A file
// that is no number can't be opened. It counts what is in memory.
type yard struct {
	open, most, opened, fetched atomic.Int64
	gate                        chan struct{} // when set, each Open takes an entry
	run                         chan struct{} // when set, each Run takes an entry
}

type times struct {
	yard *yard
	by   float32
}

func (y *yard) Open(ctx context.Context, path string) (Session, error) {
	if y.gate != nil {
		select {
		case <-y.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(string(raw)), 32)
	if err != nil {
		return nil, fmt.Errorf("no number: %q", raw)
	}
	y.opened.Add(1)
	for now := y.open.Add(1); ; {
		if most := y.most.Load(); now <= most || y.most.CompareAndSwap(most, now) {
			return &times{y, float32(n)}, nil
		}
	}
}

func (*times) Inputs() []oip.TensorMetadata {
	return []oip.TensorMetadata{{Name: "x", Datatype: oip.FP32, Shape: []int64{-1}}}
}

func (*times) Outputs() []oip.TensorMetadata {
	return []oip.TensorMetadata{{Name: "y", Datatype: oip.FP32, Shape: []int64{-1}}}
}
func (*times) Backend() string { return "test" }
func (m *times) Close() error  { m.yard.open.Add(-1); return nil }

func (m *times) Run(ctx context.Context, in []oip.Tensor, _ []string) ([]oip.Tensor, error) {
	if m.yard.run != nil {
		select {
		case <-m.yard.run:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	v, err := in[0].Values()
	if err != nil {
		return nil, err
	}
	x := v.([]float32)
	y := make([]float32, len(x))
	for i := range x {
		y[i] = x[i] * m.by
	}
	return []oip.Tensor{{Name: "y", Datatype: oip.FP32, Shape: in[0].Shape, Data: y}}, nil
}

// listedModel is a line of a test's list.
type listedModel struct{ name, uri, memory string }

func writeList(t *testing.T, path string, models ...listedModel) {
	t.Helper()
	lines := []any{}
	for _, m := range models {
		lines = append(lines, map[string]any{"modelName": m.name, "modelSpec": map[string]string{"storageUri": m.uri, "framework": "onnx", "memory": m.memory}})
	}
	raw, err := json.Marshal(lines)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// many starts a server of models; the URI of each is its number.
func many(t *testing.T, y *yard, budget int64, wait time.Duration, models ...listedModel) (r *running, list string) {
	t.Helper()
	dir := t.TempDir()
	list = filepath.Join(dir, "models.json")
	writeList(t, list, models...)
	r = start(t, func(c *Config) {
		c.Model, c.Dir, c.Open, c.Parallel = "", "", y.Open, 2
		c.Many = &Many{List: list, Budget: budget, Wait: wait, Fetch: func(_ context.Context, uri, _ string) (string, string, func(), error) {
			y.fetched.Add(1)
			if uri == "nowhere" {
				return "", "", nil, errors.New("there is nothing there")
			}
			at := filepath.Join(dir, "bytes", uri)
			if err := errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(filepath.Join(at, "model.onnx"), []byte(uri), 0o600)); err != nil {
				return "", "", nil, err
			}
			return at, "", func() {}, nil
		}}
	})
	eventually(t, "ready", func() bool { code, _, _ := r.call(t, "GET", "/v2/health/ready", ""); return code == 200 })
	return r, list
}

func numbered(n int, memory string) []listedModel {
	out := make([]listedModel, n)
	for i := range out {
		out[i] = listedModel{fmt.Sprint("m", i), strconv.Itoa(i), memory}
	}
	return out
}

// multiply asks a model for five times its number.
func (r *running) multiply(t *testing.T, model string) (int, string) {
	t.Helper()
	code, _, body := r.call(t, "POST", "/v2/models/"+model+"/infer", `{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[5]}]}`)
	return code, body
}

func five(model string, by int) string {
	return fmt.Sprintf(`{"model_name":%q,"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[%d]}]}`, model, 5*by)
}

func (r *running) metric(t *testing.T, name string) string {
	t.Helper()
	_, _, page := r.call(t, "GET", "/metrics", "")
	for line := range strings.Lines(page) {
		if v, ok := strings.CutPrefix(line, "stationmaster_runtime_"+name+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	t.Fatalf("there is no metric %s", name)
	return ""
}

func TestManyModelsAnswerRightlyWithinTheirMemory(t *testing.T) {
	var y yard
	r, _ := many(t, &y, 10, 0, numbered(40, "1")...)
	stub := pb.NewGRPCInferenceServiceClient(r.dial(t, r.grpc))
	var clients sync.WaitGroup
	for range 12 {
		clients.Go(func() {
			for range 40 {
				i := rand.IntN(40)
				name := fmt.Sprint("m", i)
				switch rand.IntN(3) {
				case 0:
					if code, body := r.multiply(t, name); code != 200 || body != five(name, i) {
						t.Errorf("%s: %d %s", name, code, body)
					}
				case 1:
					code, _, body := r.call(t, "POST", "/v1/models/"+name+":predict", `{"instances":[5]}`)
					if code != 200 || body != fmt.Sprintf(`{"predictions":[%d]}`, 5*i) {
						t.Errorf("%s over V1: %d %s", name, code, body)
					}
				default:
					res, err := stub.ModelInfer(t.Context(), &pb.ModelInferRequest{ModelName: name, Inputs: []*pb.ModelInferRequest_InferInputTensor{{
						Name: "x", Datatype: "FP32", Shape: []int64{1}, Contents: &pb.InferTensorContents{Fp32Contents: []float32{5}},
					}}})
					if err != nil || res.GetOutputs()[0].GetContents().GetFp32Contents()[0] != float32(5*i) {
						t.Errorf("%s over gRPC: %v %v", name, res, err)
					}
				}
			}
		})
	}
	clients.Wait()
	if most := y.most.Load(); most > 10 {
		t.Errorf("%d models were in memory at once", most)
	}
	if n := y.fetched.Load(); n > 40 {
		t.Errorf("40 models were fetched %d times", n)
	}
	if r.metric(t, "models") != "40" || r.metric(t, "models_budget_bytes") != "10" || r.metric(t, "model_loads_total") != fmt.Sprint(y.opened.Load()) || r.metric(t, "model_evictions_total") == "0" {
		t.Errorf("metrics: %s models, %s bytes, %s loads, %s evictions", r.metric(t, "models"), r.metric(t, "models_budget_bytes"), r.metric(t, "model_loads_total"), r.metric(t, "model_evictions_total"))
	}
}

func TestManyRequestsForOneModelLoadItOnce(t *testing.T) {
	y := yard{gate: make(chan struct{})}
	r, _ := many(t, &y, 10, 0, numbered(2, "1")...)
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			if code, body := r.multiply(t, "m1"); code != 200 || body != five("m1", 1) {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	eventually(t, "all waiting", func() bool { return r.metric(t, "requests_waiting") == "20" })
	_, _, index := r.call(t, "POST", "/v2/repository/index", "")
	if !strings.Contains(index, `{"name":"m1","state":"LOADING"`) || !strings.Contains(index, `{"name":"m0","state":"UNAVAILABLE","reason":"`+notAsked) {
		t.Errorf("index while it loads: %s", index)
	}
	close(y.gate)
	clients.Wait()
	if y.opened.Load() != 1 || y.fetched.Load() > 2 {
		t.Errorf("opened %d times, fetched %d times", y.opened.Load(), y.fetched.Load())
	}
	if _, _, index := r.call(t, "POST", "/v2/repository/index", `{"ready":true}`); !strings.Contains(index, `"m1"`) || strings.Contains(index, `"m0"`) {
		t.Errorf("index of what is ready: %s", index)
	}
}

func TestAModelThatLoadsKeepsNobodyElseWaiting(t *testing.T) {
	y := yard{gate: make(chan struct{}, 1)}
	r, _ := many(t, &y, 10, 0, numbered(3, "1")...)
	y.gate <- struct{}{}
	if code, _ := r.multiply(t, "m1"); code != 200 {
		t.Fatal(code)
	}
	slow := make(chan int, 1)
	go func() { code, _ := r.multiply(t, "m2"); slow <- code }()
	eventually(t, "waiting", func() bool { return r.metric(t, "requests_waiting") == "1" })
	if code, body := r.multiply(t, "m1"); code != 200 || body != five("m1", 1) {
		t.Errorf("%d %s", code, body)
	}
	y.gate <- struct{}{}
	if code := <-slow; code != 200 {
		t.Errorf("the slow one: %d", code)
	}
}

func TestNoClientTakesAModelAwayByUnloading(t *testing.T) {
	var y yard
	r, _ := many(t, &y, 10, 0, numbered(2, "1")...)
	if code, _, body := r.call(t, "POST", "/v2/repository/models/m1/load", ""); code != 200 || y.open.Load() != 1 {
		t.Fatalf("load: %d %s, %d in memory", code, body, y.open.Load())
	}
	if code, _, body := r.call(t, "POST", "/v2/repository/models/m1/unload", ""); code != 200 {
		t.Fatalf("unload: %d %s", code, body)
	}
	eventually(t, "freed", func() bool { return y.open.Load() == 0 })
	for _, path := range []string{"/v2/health/ready", "/v2/models/m1/ready", "/v1/models/m1"} {
		if code, _, body := r.call(t, "GET", path, ""); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := r.multiply(t, "m1"); code != 200 || body != five("m1", 1) {
		t.Errorf("%d %s", code, body)
	}
	if r.metric(t, "model_unloads_total") != "1" || r.metric(t, "model_evictions_total") != "0" {
		t.Error("an unload isn't counted as one")
	}
}

func TestTheListIsFollowed(t *testing.T) {
	var y yard
	r, list := many(t, &y, 10, 0, listedModel{"a", "1", "1"}, listedModel{"b", "2", "1"})
	for _, m := range []string{"a", "b"} {
		if code, body := r.multiply(t, m); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
	}
	writeList(t, list, listedModel{"b", "7", "1"}, listedModel{"c", "3", "1"})
	// A name that isn't known has the list read at once.
	if code, body := r.multiply(t, "c"); code != 200 || body != five("c", 3) {
		t.Errorf("c: %d %s", code, body)
	}
	eventually(t, "b has its new bytes", func() bool {
		code, body := r.multiply(t, "b")
		if code != 200 {
			t.Errorf("b: %d %s", code, body)
		}
		return body == five("b", 7)
	})
	if code, body := r.multiply(t, "a"); code != 404 || !strings.Contains(body, `model \"a\" is not found among the 2 models`) {
		t.Errorf("a: %d %s", code, body)
	}
	eventually(t, "freed what left", func() bool { return y.open.Load() == 2 })
	if err := os.WriteFile(list, []byte("no list"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _ := r.multiply(t, "a"); code != 404 {
		t.Errorf("a: %d", code)
	}
	if code, body := r.multiply(t, "c"); code != 200 {
		t.Errorf("c, after the list broke: %d %s", code, body)
	}
	if _, _, body := r.call(t, "GET", "/v2/models", ""); body != `{"models":["b","c"]}` {
		t.Errorf("models: %s", body)
	}
}

func TestAModelThatCannotBeServedSaysWhy(t *testing.T) {
	var y yard
	r, _ := many(t, &y, 10, 0, listedModel{"broken", "x", "1"}, listedModel{"lost", "nowhere", "1"}, listedModel{"large", "1", "1Ki"}, listedModel{"good", "2", "1"})
	for model, want := range map[string]string{
		"broken": `can't be loaded: load `, "lost": "can't be loaded: there is nothing there",
		"large": "can't be loaded: it takes 1024 bytes of memory, and all models together may take 10",
	} {
		for range 3 {
			code, body := r.multiply(t, model)
			if code != 503 || !strings.Contains(body, want) {
				t.Errorf("%s: %d %s", model, code, body)
			}
		}
		if code, _, body := r.call(t, "GET", "/v2/models/"+model+"/ready", ""); code != 503 || !strings.Contains(body, want) {
			t.Errorf("%s: ready: %d %s", model, code, body)
		}
	}
	if code, body := r.multiply(t, "good"); code != 200 || body != five("good", 2) {
		t.Errorf("good: %d %s", code, body)
	}
	// A client that asks for it has it tried again at once.
	before := y.fetched.Load()
	if code, _, _ := r.call(t, "POST", "/v2/repository/models/lost/load", ""); code != 503 || y.fetched.Load() == before {
		t.Errorf("load: %d after %d fetches", code, y.fetched.Load())
	}
}

func TestAModelThatFailedRests(t *testing.T) {
	failed, now := errors.New("broken"), time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		l    *listed
		want error
	}{
		"never failed":           {&listed{}, nil},
		"failed a moment ago":    {&listed{failed: failed, retry: now.Add(1)}, failed},
		"failed a while ago":     {&listed{failed: failed, retry: now}, nil},
		"is being loaded anyway": {&listed{failed: failed, retry: now.Add(1), attempt: &attempt{}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.l.mayTry(now); !errors.Is(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestARequestWaitsNoLongerThanItMayForRoom(t *testing.T) {
	y := yard{run: make(chan struct{})}
	r, _ := many(t, &y, 1, 50*time.Millisecond, numbered(3, "1")...)
	busy := make(chan int, 1)
	go func() { code, _ := r.multiply(t, "m1"); busy <- code }()
	eventually(t, "busy", func() bool { return r.metric(t, "requests_in_flight") == "1" })
	code, header, body := r.call(t, "POST", "/v2/models/m2/infer", `{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[5]}]}`)
	if code != 503 || header.Get("Retry-After") == "" || !strings.Contains(body, `isn't in memory after 50ms: waits for memory (1 of 1 bytes`) {
		t.Errorf("%d %s", code, body)
	}
	if r.metric(t, "models_waiting") != "0" || r.metric(t, "requests_waiting") != "0" {
		t.Error("what nobody waits for is still waited for")
	}
	close(y.run)
	if code := <-busy; code != 200 {
		t.Errorf("the busy one: %d", code)
	}
	if code, body := r.multiply(t, "m2"); code != 200 || body != five("m2", 2) {
		t.Errorf("%d %s", code, body)
	}
}

func TestAClientThatGoesAwayWaitsNoLonger(t *testing.T) {
	y := yard{run: make(chan struct{})}
	r, _ := many(t, &y, 1, time.Minute, numbered(3, "1")...)
	busy := make(chan int, 1)
	go func() { code, _ := r.multiply(t, "m1"); busy <- code }()
	eventually(t, "busy", func() bool { return r.metric(t, "requests_in_flight") == "1" })
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.http+"/v2/models/m2", http.NoBody)
		if err == nil {
			_, err = http.DefaultClient.Do(req)
		}
		left <- err
	}()
	eventually(t, "waiting", func() bool { return r.metric(t, "models_waiting") == "1" })
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	eventually(t, "nobody waiting", func() bool { return r.metric(t, "models_waiting") == "0" && r.metric(t, "requests_waiting") == "0" })
	close(y.run)
	if code := <-busy; code != 200 {
		t.Errorf("the busy one: %d", code)
	}
	if code, body := r.multiply(t, "m2"); code != 200 || body != five("m2", 2) {
		t.Errorf("%d %s", code, body)
	}
}

func TestTheMemoryForModelsIsWhatTheFlagsSay(t *testing.T) {
	for name, tc := range map[string]struct {
		budget, limit string
		models, all   int64
		want          string
	}{
		"nothing":                {"", "", 0, 0, ""},
		"a limit alone":          {"", "2Gi", 3 << 29, 2 << 30, ""},
		"a budget alone":         {"64Mi", "", 64 << 20, 0, ""},
		"a budget within limits": {"64Mi", "2Gi", 64 << 20, 2 << 30, ""},
		"a budget in ells":       {"3ells", "", 0, 0, "--memory_budget"},
		"a limit in ells":        {"", "3ells", 0, 0, "--memory_limit"},
	} {
		t.Run(name, func(t *testing.T) {
			models, all, err := memoryFor(tc.budget, tc.limit)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil || models != tc.models || all != tc.all {
				t.Errorf("%d and %d, %v", models, all, err)
			}
		})
	}
}

// TestCommandServesManyModels serves real files through a real store.
func TestCommandServesManyModels(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	dir := t.TempDir()
	model, err := filepath.Abs("testdata/linear")
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "models.json")
	writeList(t, list, listedModel{"a", "file://" + model, "1Mi"}, listedModel{"b", "file://" + model, "1Mi"}, listedModel{"lost", "file:///does/not/exist", "1Mi"})
	out, outWriter := io.Pipe()
	var errs bytes.Buffer
	exit := make(chan int, 1)
	go func() {
		exit <- command(ctx, []string{"--models_config", list, "--model_store", filepath.Join(dir, "store"), "--memory_budget", "1Mi", "--http_port", "0", "--grpc_port", "0"}, outWriter, &errs)
		_ = outWriter.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v; stderr %s", err, errs.String())
	}
	var addr string
	if _, err := fmt.Sscanf(line, "listening http=%s grpc=", &addr); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	r := &running{http: "http://" + addr}
	eventually(t, "ready", func() bool { code, _, _ := r.call(t, "GET", "/v2/health/ready", ""); return code == 200 })
	for _, name := range []string{"a", "b", "a"} {
		if code, _, body := r.call(t, "POST", "/v1/models/"+name+":predict", `{"instances":[[1,1,1,1]]}`); code != 200 || body != `{"predictions":[[18.5,23,25]]}` {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
	if code, body := r.multiply(t, "lost"); code != 503 || !strings.Contains(body, "/does/not/exist") {
		t.Errorf("lost: %d %s", code, body)
	}
	if r.metric(t, "models_loaded") != "1" || r.metric(t, "model_evictions_total") != "2" {
		t.Errorf("%s loaded, %s evictions", r.metric(t, "models_loaded"), r.metric(t, "model_evictions_total"))
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if code := <-exit; code != runtimecmd.OK {
		t.Errorf("exit %d, stderr %s", code, errs.String())
	}
}

// said is what a server reports of a model.
func (r *running) said(t *testing.T, model string) modellist.Entry {
	t.Helper()
	code, _, body := r.call(t, "GET", modellist.ReportPath, "")
	report, err := modellist.ParseReport([]byte(body))
	if code != 200 || err != nil {
		t.Fatalf("report: %d %s: %v", code, body, err)
	}
	for _, e := range report.Models {
		if e.Name == model {
			return e
		}
	}
	return modellist.Entry{}
}

func TestTheBytesOfModelsAreFetchedBeforeAnybodyAsksAndToldOf(t *testing.T) {
	var y yard
	r, list := many(t, &y, 10, 0, listedModel{"good", "2", "1"}, listedModel{"lost", "nowhere", "1"}, listedModel{"large", "1", "1Ki"}, listedModel{"broken", "x", "1"})
	want := map[string]modellist.Entry{
		"good":   {Name: "good", URI: "2", State: modellist.Ready},
		"lost":   {Name: "lost", URI: "nowhere", State: modellist.Failed, Reason: modellist.NotFetched, Message: "there is nothing there"},
		"large":  {Name: "large", URI: "1", State: modellist.Failed, Reason: modellist.TooLarge, Message: "it takes 1024 bytes of memory, and all models together may take 10; raise --memory_budget or the service's memory limit"},
		"broken": {Name: "broken", URI: "x", State: modellist.Ready},
	}
	for name, w := range want {
		eventually(t, name+" is told of", func() bool { return r.said(t, name) == w })
	}
	if y.opened.Load() != 0 {
		t.Errorf("%d models are in memory that nobody asked for", y.opened.Load())
	}
	if code, _ := r.multiply(t, "broken"); code != 503 {
		t.Errorf("broken: %d", code)
	}
	if e := r.said(t, "broken"); e.State != modellist.Failed || e.Reason != modellist.NotLoaded || !strings.Contains(e.Message, "no number") {
		t.Errorf("broken: %+v", e)
	}
	_, header, _ := r.call(t, "GET", modellist.ReportPath, "")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.http+modellist.ReportPath, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("If-None-Match", header.Get("Etag"))
	if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusNotModified || resp.Body.Close() != nil {
		t.Errorf("the same again: %v, %v", resp, err)
	}
	writeList(t, list)
	eventually(t, "what left is told of no more", func() bool { return r.said(t, "good") == modellist.Entry{} })
}

func TestAModelServesOnUntilTheBytesOfItsSuccessorAreThere(t *testing.T) {
	var y yard
	r, list := many(t, &y, 10, 0, listedModel{"a", "2", "1"})
	if code, body := r.multiply(t, "a"); code != 200 || body != five("a", 2) {
		t.Fatalf("%d %s", code, body)
	}
	serves := func(by int) {
		t.Helper()
		if code, body := r.multiply(t, "a"); code != 200 || body != five("a", by) {
			t.Errorf("%d %s, want %d", code, body, by)
		}
	}
	writeList(t, list, listedModel{"a", "nowhere", "1"})
	lost := modellist.Entry{Name: "a", URI: "nowhere", State: modellist.Failed, Reason: modellist.NotFetched, Message: "there is nothing there", Serves: true}
	eventually(t, "the update fails", func() bool { serves(2); return r.said(t, "a") == lost })
	writeList(t, list, listedModel{"a", "3", "1Ki"})
	eventually(t, "the next is too large", func() bool { serves(2); return r.said(t, "a").Reason == modellist.TooLarge })
	writeList(t, list, listedModel{"a", "2", "1"})
	eventually(t, "it is taken back", func() bool {
		serves(2)
		return r.said(t, "a") == modellist.Entry{Name: "a", URI: "2", State: modellist.Ready}
	})
	writeList(t, list, listedModel{"a", "4", "1"})
	eventually(t, "a good one takes its place", func() bool { return r.said(t, "a") == modellist.Entry{Name: "a", URI: "4", State: modellist.Ready} })
	serves(4)
	eventually(t, "the one before is freed", func() bool { return y.open.Load() == 1 })
}
