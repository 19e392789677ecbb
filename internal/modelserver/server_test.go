package modelserver

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// TestMain looks for leaks. After it answered a request without reading its body, net/http keeps
// the connection's goroutine for half a second, and offers nothing to wait for it.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// sums is a model of two inputs and three outputs that computes for real: the sum of each row
// of x, the text s as it is, and the sum of all as a half float (of whole numbers to 2048).
type sums struct {
	gate   chan struct{} // when set, Run waits for an entry
	closed atomic.Bool
}

func (*sums) Inputs() []oip.TensorMetadata {
	return []oip.TensorMetadata{
		{Name: "x", Datatype: oip.FP32, Shape: []int64{-1, 2}},
		{Name: "s", Datatype: oip.Bytes, Shape: []int64{-1, 1}},
	}
}

func (*sums) Outputs() []oip.TensorMetadata {
	return []oip.TensorMetadata{
		{Name: "sum", Datatype: oip.FP32, Shape: []int64{-1}},
		{Name: "text", Datatype: oip.Bytes, Shape: []int64{-1, 1}},
		{Name: "count", Datatype: oip.Int64, Shape: []int64{-1}},
	}
}
func (*sums) Backend() string { return "test" }
func (s *sums) Close() error  { s.closed.Store(true); return nil }

func (s *sums) Run(ctx context.Context, in []oip.Tensor, outputs []string) ([]oip.Tensor, error) {
	if s.gate != nil {
		select {
		case <-s.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	v, err := in[0].Values()
	if err != nil {
		return nil, err
	}
	x := v.([]float32)
	rows := in[0].Shape[0]
	if rows == 13 {
		panic("unlucky")
	}
	if rows == 12 {
		return nil, errors.New("a dozen is too much")
	}
	sum, count := make([]float32, rows), make([]int64, rows)
	for i := range sum {
		sum[i], count[i] = x[2*i]+x[2*i+1], 2
	}
	all := map[string]oip.Tensor{
		"sum":   {Name: "sum", Datatype: oip.FP32, Shape: []int64{rows}, Data: sum},
		"text":  {Name: "text", Datatype: oip.Bytes, Shape: in[1].Shape, Data: in[1].Data, Raw: in[1].Raw},
		"count": {Name: "count", Datatype: oip.Int64, Shape: []int64{rows}, Data: count},
	}
	var out []oip.Tensor
	for _, name := range outputs {
		out = append(out, all[name])
	}
	return out, nil
}

// running is a server under test.
type running struct {
	*Server
	http, grpc string
	stop       context.CancelFunc
	done       chan error
}

func start(t *testing.T, change func(*Config)) *running {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model.onnx"), []byte("any"), 0o600); err != nil {
		t.Fatal(err)
	}
	addrs := make(chan [2]string, 1)
	cfg := Config{
		Model: "m", Dir: dir, HTTP: "127.0.0.1:0", GRPC: "127.0.0.1:0",
		Open:      func(context.Context, string) (Session, error) { return &sums{}, nil },
		Listening: func(h, g string) { addrs <- [2]string{h, g} },
		Drain:     10 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{Server: s, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- s.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		select {
		case err := <-r.done:
			r.done <- err
		case <-time.After(time.Minute):
			t.Error("the server doesn't end")
		}
	})
	select {
	case a := <-addrs:
		r.http, r.grpc = "http://"+a[0], a[1]
	case err := <-r.done:
		t.Fatalf("ended: %v", err)
	}
	return r
}

func (r *running) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, "ready", func() bool { return r.model.ready() })
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never %s", what)
		}
	}
}

// call makes a request and returns its status, header and body.
func (r *running) call(t *testing.T, method, path, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.http+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(out)
}

func (r *running) dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

const inferBody = `{"id":"req-4711","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[1,2,3,4]},{"name":"s","shape":[2,1],"datatype":"BYTES","data":["a","b"]}]}`

func TestREST(t *testing.T) {
	r := start(t, nil)
	r.waitReady(t)
	tests := map[string]struct {
		method, path, body string
		wantStatus         int
		want               string // the whole body, or a part after "…"
	}{
		"root":                       {"GET", "/", "", 200, `{"status":"alive"}`},
		"live":                       {"GET", "/v2/health/live", "", 200, `{"live":true}`},
		"ready":                      {"GET", "/v2/health/ready", "", 200, `{"ready":true}`},
		"server metadata":            {"GET", "/v2", "", 200, `{"name":"stationmaster-onnx","version":"devel","extensions":["binary_tensor_data","model_repository"]}`},
		"models":                     {"GET", "/v2/models", "", 200, `{"models":["m"]}`},
		"model metadata":             {"GET", "/v2/models/m", "", 200, `…"platform":"onnx_test","inputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}`},
		"model metadata's backend":   {"GET", "/v2/models/m", "", 200, `…"properties":{"backend":"test"}`},
		"of version 1":               {"GET", "/v2/models/m/versions/1", "", 200, `…"name":"m"`},
		"of another version":         {"GET", "/v2/models/m/versions/2", "", 404, `…leave the version out`},
		"model ready":                {"GET", "/v2/models/m/ready", "", 200, `{"name":"m","ready":true}`},
		"versioned model ready":      {"GET", "/v2/models/m/versions/1/ready", "", 200, `{"name":"m","ready":true}`},
		"V1 models":                  {"GET", "/v1/models", "", 200, `{"models":["m"]}`},
		"V1 model":                   {"GET", "/v1/models/m", "", 200, `{"name":"m","ready":true}`},
		"V1 unknown model":           {"GET", "/v1/models/n", "", 404, `{"error":"model \"n\" is not found; this server has \"m\""}`},
		"unknown model":              {"POST", "/v2/models/n/infer", "{}", 404, `…is not found`},
		"unknown path":               {"GET", "/v3", "", 404, `…there is nothing at`},
		"unknown verb":               {"POST", "/v1/models/m:guess", "", 404, `…there is nothing at`},
		"wrong method":               {"GET", "/v2/models/m/infer", "", 405, `{"error":"GET is not allowed here; use POST"}`},
		"infer":                      {"POST", "/v2/models/m/infer", inferBody, 200, `{"model_name":"m","id":"req-4711","outputs":[{"name":"sum","datatype":"FP32","shape":[2],"data":[3,7]},{"name":"text","datatype":"BYTES","shape":[2,1],"data":["a","b"]},{"name":"count","datatype":"INT64","shape":[2],"data":[2,2]}]}`},
		"infer of version 1":         {"POST", "/v2/models/m/versions/1/infer", inferBody, 200, `…"id":"req-4711"`},
		"infer of another version":   {"POST", "/v2/models/m/versions/7/infer", inferBody, 404, `…no version \"7\"`},
		"one output":                 {"POST", "/v2/models/m/infer", strings.Replace(inferBody, `"inputs"`, `"outputs":[{"name":"count"}],"inputs"`, 1), 200, `{"model_name":"m","id":"req-4711","outputs":[{"name":"count","datatype":"INT64","shape":[2],"data":[2,2]}]}`},
		"unknown output":             {"POST", "/v2/models/m/infer", strings.Replace(inferBody, `"inputs"`, `"outputs":[{"name":"n"}],"inputs"`, 1), 400, `…the model has no output \"n\"; it has [\"sum\" \"text\" \"count\"]`},
		"missing input":              {"POST", "/v2/models/m/infer", `{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`, 400, `…input \"s\" is missing`},
		"unknown input":              {"POST", "/v2/models/m/infer", strings.Replace(inferBody, `"inputs":[`, `"inputs":[{"name":"z","shape":[0],"datatype":"FP32","data":[]},`, 1), 400, `…no input \"z\"`},
		"wrong datatype":             {"POST", "/v2/models/m/infer", strings.Replace(inferBody, "FP32", "FP64", 1), 400, `…input \"x\" is FP64; the model takes FP32`},
		"wrong shape":                {"POST", "/v2/models/m/infer", strings.Replace(inferBody, "[2,2]", "[4,1]", 1), 400, `…input \"x\" has the shape [4 1]; the model takes [-1 2]`},
		"element count":              {"POST", "/v2/models/m/infer", strings.Replace(inferBody, "[2,2]", "[3,2]", 1), 400, `…shape [3 2] has 6 elements and the data 4`},
		"malformed":                  {"POST", "/v2/models/m/infer", `{"inputs":`, 400, `…JSON at byte 10`},
		"empty body":                 {"POST", "/v2/models/m/infer", ``, 400, `…the text ends`},
		"predict rows by name":       {"POST", "/v1/models/m:predict", `{"instances":[{"x":[1,2],"s":"a"},{"x":[3,4],"s":"b"}]}`, 200, `{"predictions":[{"sum":3,"text":["a"],"count":2},{"sum":7,"text":["b"],"count":2}]}`},
		"predict columns":            {"POST", "/v1/models/m:predict", `{"inputs":{"x":[[1,2]],"s":["a"]}}`, 200, `{"predictions":[{"sum":3,"text":["a"],"count":2}]}`},
		"predict the wrong way":      {"POST", "/v1/models/m:predict", `{"instances":[[1,2]]}`, 400, `…as an object with a value for each`},
		"explain":                    {"POST", "/v1/models/m:explain", `{}`, 501, `…no explainer`},
		"index":                      {"POST", "/v2/repository/index", ``, 200, `[{"name":"m","state":"READY","reason":""}]`},
		"index of the ready":         {"POST", "/v2/repository/index", `{"ready":true}`, 200, `[{"name":"m","state":"READY","reason":""}]`},
		"unload of an unknown model": {"POST", "/v2/repository/models/n/unload", ``, 404, `…is not found`},
		"the model fails":            {"POST", "/v2/models/m/infer", rowsBody(12), 500, `{"error":"run the model: a dozen is too much"}`},
		"the model panics":           {"POST", "/v2/models/m/infer", rowsBody(13), 500, `…the model panicked`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, header, body := r.call(t, tc.method, tc.path, tc.body)
			part, isPart := strings.CutPrefix(tc.want, "…")
			if code != tc.wantStatus || !isPart && body != tc.want || isPart && !strings.Contains(body, part) {
				t.Errorf("got %d %s\nwant %d %s", code, body, tc.wantStatus, tc.want)
			}
			if got := header.Get("Content-Type"); got != "application/json" {
				t.Errorf("content type %q", got)
			}
			if code >= 400 {
				var e oip.ErrorBody
				if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error == "" {
					t.Errorf("%s isn't an error's body: %v", body, err)
				}
			}
		})
	}
	if _, _, page := r.call(t, "GET", "/metrics", ""); !strings.Contains(page, `stationmaster_runtime_requests_total{code="200",protocol="v2"}`) ||
		!strings.Contains(page, "stationmaster_runtime_batch_size_count") || !strings.Contains(page, "stationmaster_runtime_model_load_seconds") {
		t.Errorf("the metrics lack something:\n%s", page)
	}
}

func rowsBody(rows int) string {
	n := strings.TrimSuffix(strings.Repeat("1,", 2*rows), ",")
	s := strings.TrimSuffix(strings.Repeat(`"a",`, rows), ",")
	return fmt.Sprintf(`{"inputs":[{"name":"x","shape":[%d,2],"datatype":"FP32","data":[%s]},{"name":"s","shape":[%d,1],"datatype":"BYTES","data":[%s]}]}`, rows, n, rows, s)
}

func TestBinaryExtension(t *testing.T) {
	r := start(t, nil)
	r.waitReady(t)
	no := false
	req := &oip.InferRequest{
		ID: "b", BinaryOutput: true, Outputs: []oip.RequestedOutput{{Name: "count", Binary: &no}, {Name: "text"}, {Name: "sum"}},
		Inputs: []oip.Tensor{
			{Name: "s", Datatype: oip.Bytes, Shape: []int64{1, 1}, Data: [][]byte{{0xff, 0}}},
			{Name: "x", Datatype: oip.FP32, Shape: []int64{1, 2}, Data: []float32{1, 2}},
		},
	}
	body, n, err := oip.AppendRequest(nil, req, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	code, header, out := r.call(t, "POST", "/v2/models/m/infer", string(body), oip.HeaderLength, fmt.Sprint(n), "Content-Type", "application/octet-stream")
	if code != 200 || header.Get("Content-Type") != "application/octet-stream" {
		t.Fatalf("%d %v %q", code, header, out)
	}
	jsonLen, err := oip.ParseHeaderLength(header.Get(oip.HeaderLength))
	if err != nil {
		t.Fatal(err)
	}
	res, err := oip.DecodeResponse([]byte(out), jsonLen)
	if err != nil {
		t.Fatal(err)
	}
	if res.ID != "b" || len(res.Outputs) != 3 || res.Outputs[0].Raw != nil ||
		string(res.Outputs[1].Raw) != "\x02\x00\x00\x00\xff\x00" || string(res.Outputs[2].Raw) != "\x00\x00\x40\x40" {
		t.Errorf("got %+v", res)
	}
	// What isn't UTF-8 can't be answered in JSON, and the message says what can be done.
	req.BinaryOutput = false
	body, n, err = oip.AppendRequest(body[:0], req, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if code, _, out := r.call(t, "POST", "/v2/models/m/infer", string(body), oip.HeaderLength, fmt.Sprint(n)); code != 400 || !strings.Contains(out, "gRPC") {
		t.Errorf("%d %s", code, out)
	}
	for name, length := range map[string]string{"beyond the body": "99999", "no number": "x", "negative": "-1"} {
		if code, _, out := r.call(t, "POST", "/v2/models/m/infer", string(body), oip.HeaderLength, length); code != 400 || !strings.Contains(out, oip.HeaderLength) {
			t.Errorf("header %s: %d %s", name, code, out)
		}
	}
}

func TestGRPCOnBothPorts(t *testing.T) {
	r := start(t, nil)
	r.waitReady(t)
	for port, addr := range map[string]string{"its own": r.grpc, "that of HTTP": strings.TrimPrefix(r.http, "http://")} {
		t.Run(port, func(t *testing.T) {
			conn := r.dial(t, addr)
			c, ctx := pb.NewGRPCInferenceServiceClient(conn), t.Context()
			if m, err := c.ServerReady(ctx, &pb.ServerReadyRequest{}); err != nil || !m.GetReady() {
				t.Errorf("ready: %v, %v", m, err)
			}
			if m, err := c.ServerLive(ctx, &pb.ServerLiveRequest{}); err != nil || !m.GetLive() {
				t.Errorf("live: %v, %v", m, err)
			}
			if m, err := c.ModelReady(ctx, &pb.ModelReadyRequest{Name: "m", Version: "1"}); err != nil || !m.GetReady() {
				t.Errorf("model ready: %v, %v", m, err)
			}
			if m, err := c.ServerMetadata(ctx, &pb.ServerMetadataRequest{}); err != nil || m.GetName() != serverName {
				t.Errorf("server metadata: %v, %v", m, err)
			}
			if m, err := c.ModelMetadata(ctx, &pb.ModelMetadataRequest{Name: "m"}); err != nil || len(m.GetInputs()) != 2 || m.GetProperties()["backend"] != "test" {
				t.Errorf("metadata: %v, %v", m, err)
			}
			if m, err := c.RepositoryIndex(ctx, &pb.RepositoryIndexRequest{}); err != nil || m.GetModels()[0].GetState() != oip.StateReady {
				t.Errorf("index: %v, %v", m, err)
			}
			h, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
			if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("health: %v, %v", h, err)
			}
			stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
				t.Fatal(err)
			}
			if m, err := stream.Recv(); err != nil || !strings.Contains(m.String(), "inference.GRPCInferenceService") {
				t.Errorf("reflection: %v, %v", m, err)
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}

			for _, raw := range []bool{false, true} {
				req, err := oip.RequestToProto(&oip.InferRequest{ModelName: "m", ID: "g", Inputs: []oip.Tensor{
					{Name: "x", Datatype: oip.FP32, Shape: []int64{1, 2}, Data: []float32{1, 2}},
					{Name: "s", Datatype: oip.Bytes, Shape: []int64{1, 1}, Data: [][]byte{{0xff}}},
				}}, raw)
				if err != nil {
					t.Fatal(err)
				}
				m, err := c.ModelInfer(ctx, req)
				if err != nil {
					t.Fatal(err)
				}
				res, err := oip.ResponseFromProto(m)
				if err != nil {
					t.Fatal(err)
				}
				v, _ := res.Outputs[0].Values()
				if sum, ok := v.([]float32); !ok || sum[0] != 3 || res.ID != "g" || (len(m.GetRawOutputContents()) > 0) != raw {
					t.Errorf("raw=%v: %v", raw, m)
				}
			}
			for name, tc := range map[string]struct {
				req  *pb.ModelInferRequest
				want codes.Code
			}{
				"an unknown model":   {&pb.ModelInferRequest{ModelName: "n"}, codes.NotFound},
				"an unknown version": {&pb.ModelInferRequest{ModelName: "m", ModelVersion: "2"}, codes.NotFound},
				"no inputs":          {&pb.ModelInferRequest{ModelName: "m"}, codes.InvalidArgument},
				"a bad tensor":       {&pb.ModelInferRequest{ModelName: "m", Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{3}}}}, codes.InvalidArgument},
			} {
				if _, err := c.ModelInfer(ctx, tc.req); status.Code(err) != tc.want {
					t.Errorf("%s: %v, want %v", name, err, tc.want)
				}
			}
		})
	}
}

func TestUnloadAndLoadAtAClientsWish(t *testing.T) {
	var opened atomic.Int64
	fail := atomic.Bool{}
	r := start(t, func(c *Config) {
		c.Open = func(context.Context, string) (Session, error) {
			if fail.Load() {
				return nil, errdef.New(errdef.ErrUnsupported, "operator FancyOp isn't there")
			}
			opened.Add(1)
			return &sums{}, nil
		}
	})
	r.waitReady(t)
	c := pb.NewGRPCInferenceServiceClient(r.dial(t, r.grpc))
	// KServe's clients send the name where Triton has the repository's.
	if m, err := c.RepositoryModelUnload(t.Context(), &pb.RepositoryModelUnloadRequest{RepositoryName: "m"}); err != nil || !m.GetIsUnloaded() {
		t.Fatalf("unload: %v, %v", m, err)
	}
	for path, want := range map[string]int{"/v2/health/live": 200, "/v2/health/ready": 200, "/v2/models/m/ready": 503, "/v1/models/m": 503, "/v2/models/m": 503} {
		if code, header, body := r.call(t, "GET", path, ""); code != want || code == 503 && (!strings.Contains(body, "unavailable: unloaded at a client's wish; POST /v2/repository/models/<name>/load") || header.Get("Retry-After") == "") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, _, body := r.call(t, "POST", "/v2/models/m/infer", inferBody); code != 503 {
		t.Errorf("infer: %d %s", code, body)
	}
	if m, err := c.ModelReady(t.Context(), &pb.ModelReadyRequest{Name: "m"}); err != nil || m.GetReady() {
		t.Errorf("model ready: %v, %v", m, err)
	}
	if code, _, body := r.call(t, "POST", "/v2/repository/models/m/load", ""); code != 200 || opened.Load() != 2 {
		t.Errorf("load: %d %s", code, body)
	}
	if code, _, body := r.call(t, "POST", "/v2/models/m/infer", inferBody); code != 200 {
		t.Errorf("infer after load: %d %s", code, body)
	}
	fail.Store(true)
	if code, _, body := r.call(t, "POST", "/v2/repository/models/m/load", ""); code != 501 || !strings.Contains(body, "FancyOp") {
		t.Errorf("failing load: %d %s", code, body)
	}
	if code, _, body := r.call(t, "POST", "/v2/models/m/infer", inferBody); code != 200 {
		t.Errorf("a failed load took the model away that served: %d %s", code, body)
	}
	if code, _, body := r.call(t, "POST", "/v2/repository/models/m/unload", ""); code != 200 {
		t.Errorf("unload: %d %s", code, body)
	}
	if code, _, body := r.call(t, "POST", "/v2/repository/models/m/load", ""); code != 501 {
		t.Errorf("failing load: %d %s", code, body)
	}
	if _, _, body := r.call(t, "POST", "/v2/repository/index", ""); !strings.Contains(body, `"state":"UNAVAILABLE"`) || !strings.Contains(body, "FancyOp") {
		t.Errorf("index: %s", body)
	}
}

func TestLiveWhileLoadingAndReadyAfter(t *testing.T) {
	loaded := make(chan struct{})
	r := start(t, func(c *Config) {
		c.Open = func(ctx context.Context, _ string) (Session, error) {
			select {
			case <-loaded:
				return &sums{}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	eventually(t, "loading", func() bool { return r.model.status.Load().state == oip.StateLoading })
	if code, _, _ := r.call(t, "GET", "/v2/health/live", ""); code != 200 {
		t.Errorf("live: %d", code)
	}
	if code, _, body := r.call(t, "GET", "/v2/health/ready", ""); code != 503 || !strings.Contains(body, `model \"m\" is not ready: loading`) {
		t.Errorf("ready: %d %s", code, body)
	}
	h, err := healthpb.NewHealthClient(r.dial(t, r.grpc)).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health: %v, %v", h, err)
	}
	close(loaded)
	eventually(t, "ready", func() bool { code, _, _ := r.call(t, "GET", "/v2/health/ready", ""); return code == 200 })
}

func TestBeyondTheQueueRequestsAreRefusedAtOnce(t *testing.T) {
	gate := make(chan struct{})
	r := start(t, func(c *Config) {
		c.Parallel, c.Queue = 1, 1
		c.Open = func(context.Context, string) (Session, error) { return &sums{gate: gate}, nil }
	})
	r.waitReady(t)
	codes := make(chan int, 2)
	post := func(ctx context.Context) {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.http+"/v2/models/m/infer", strings.NewReader(inferBody))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			codes <- 0
			return
		}
		_ = res.Body.Close()
		codes <- res.StatusCode
	}
	go post(t.Context())
	eventually(t, "one running", func() bool { return len(r.model.slots) == 1 })
	waiting, leave := context.WithCancel(t.Context())
	go post(waiting)
	eventually(t, "one waiting", func() bool { return r.model.waiting.Load() == 1 })
	if code, _, body := r.call(t, "POST", "/v2/models/m/infer", inferBody); code != 503 || !strings.Contains(body, "1 requests wait already") {
		t.Errorf("%d %s", code, body)
	}
	leave() // a client that goes away gives its place in the queue back
	if code := <-codes; code != 0 {
		t.Errorf("the one that left got %d", code)
	}
	eventually(t, "none waiting", func() bool { return r.model.waiting.Load() == 0 })
	eventually(t, "counted", func() bool {
		_, _, page := r.call(t, "GET", "/metrics", "")
		return strings.Contains(page, `stationmaster_runtime_requests_total{code="499",protocol="v2"} 1`)
	})
	go post(t.Context())
	eventually(t, "one waiting again", func() bool { return r.model.waiting.Load() == 1 })
	close(gate)
	for range 2 {
		if code := <-codes; code != 200 {
			t.Errorf("got %d", code)
		}
	}
}

func TestADrainingServerFinishesWhatItHas(t *testing.T) {
	gate := make(chan struct{})
	session := &sums{gate: gate}
	r := start(t, func(c *Config) {
		c.Open = func(context.Context, string) (Session, error) { return session, nil }
	})
	r.waitReady(t)
	type answer struct {
		code int
		err  error
	}
	rest, rpc := make(chan answer, 1), make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, r.http+"/v2/models/m/infer", strings.NewReader(inferBody))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			rest <- answer{0, err}
			return
		}
		_ = res.Body.Close()
		rest <- answer{res.StatusCode, nil}
	}()
	req, err := oip.DecodeRequest([]byte(inferBody), oip.WholeBody)
	if err != nil {
		t.Fatal(err)
	}
	req.ModelName = "m"
	m, err := oip.RequestToProto(req, false)
	if err != nil {
		t.Fatal(err)
	}
	c := pb.NewGRPCInferenceServiceClient(r.dial(t, r.grpc))
	go func() { _, err := c.ModelInfer(t.Context(), m); rpc <- err }()
	eventually(t, "both running", func() bool { return len(r.model.slots)+int(r.model.waiting.Load()) == 2 })
	r.stop()
	eventually(t, "draining", func() bool { return r.draining.Load() })
	if session.closed.Load() {
		t.Error("the model was freed under requests")
	}
	close(gate)
	if a := <-rest; a.code != 200 {
		t.Errorf("REST: %v", a)
	}
	if err := <-rpc; err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if err := <-r.done; err != nil {
		t.Errorf("Run: %v", err)
	}
	r.done <- nil
	if !session.closed.Load() {
		t.Error("the model wasn't freed")
	}
}

func TestBadBodies(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxBodyBytes = 1000 })
	r.waitReady(t)
	if code, _, body := r.call(t, "POST", "/v2/models/m/infer", strings.Repeat(" ", 1001)); code != 413 || !strings.Contains(body, "over 1000 bytes") {
		t.Errorf("too large: %d %s", code, body)
	}
	if code, _, body := r.call(t, "POST", "/v2/models/m/infer", inferBody, "Content-Encoding", "br"); code != 501 || !strings.Contains(body, `\"br\"`) {
		t.Errorf("brotli: %d %s", code, body)
	}
	if code, _, body := r.call(t, "POST", "/v2/models/m/infer", inferBody, "Content-Encoding", "gzip"); code != 400 {
		t.Errorf("no gzip: %d %s", code, body)
	}
	// A chunked body says no length, and a packed one may be a bomb.
	for name, write := range map[string]func() (io.Reader, string){
		"chunked": func() (io.Reader, string) { return io.MultiReader(strings.NewReader(strings.Repeat(" ", 1001))), "" },
		"bomb":    func() (io.Reader, string) { return gzipped(strings.Repeat(" ", 100000)), "gzip" },
	} {
		in, encoding := write()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.http+"/v2/models/m/infer", in)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Encoding", encoding)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != 413 {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
	}
	addr := strings.TrimPrefix(r.http, "http://")
	raw := func(request string) *http.Response {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() { // the server may answer before it has read all
			_, _ = io.WriteString(conn, request)
			_ = conn.(*net.TCPConn).CloseWrite()
		}()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res
	}
	if res := raw("POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{\"inputs\":"); res.StatusCode != 400 {
		t.Errorf("a body cut off: %d", res.StatusCode)
	}
	if res := raw("GET /v2 HTTP/1.1\r\nHost: x\r\nX-Big: " + strings.Repeat("a", 10<<20) + "\r\n\r\n"); res.StatusCode != 431 {
		t.Errorf("a header of 10 MB: %d", res.StatusCode)
	}
	if code, _, _ := r.call(t, "POST", "/v2/models/m/infer", inferBody); code != 200 {
		t.Errorf("the server was harmed: %d", code)
	}
}

func gzipped(s string) io.Reader {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, _ = io.WriteString(w, s)
	_ = w.Close()
	return &buf
}

func TestStartupFailuresEndTheRun(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	good := func(context.Context, string) (Session, error) { return &sums{}, nil }
	dir := t.TempDir()
	tests := map[string]struct {
		cfg  Config
		want string
	}{
		"no folder":     {Config{Dir: filepath.Join(dir, "gone"), Open: good}, "doesn't exist"},
		"empty folder":  {Config{Dir: dir, Open: good}, "is empty; it must hold model.onnx"},
		"port taken":    {Config{Dir: dir, Open: good, HTTP: taken.Addr().String()}, "is taken by another program; choose another --http_port"},
		"bad gRPC port": {Config{Dir: dir, Open: good, GRPC: taken.Addr().String()}, "choose another --grpc_port"},
		"load fails": {Config{Dir: folder(t, "model.onnx"), Open: func(context.Context, string) (Session, error) {
			return nil, errdef.New(errdef.ErrUnsupported, "operator FancyOp isn't there")
		}}, "operator FancyOp"},
		"load panics": {Config{Dir: folder(t, "model.onnx"), Open: func(context.Context, string) (Session, error) { panic("odd") }}, "panic: odd"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.cfg.Model = "m"
			if tc.cfg.HTTP == "" {
				tc.cfg.HTTP = "127.0.0.1:0"
			}
			s, err := New(tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

func folder(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFind(t *testing.T) {
	tests := map[string]struct {
		files             []string
		want, wantVersion string
		wantErr           string
	}{
		"model.onnx among others":    {[]string{"a.onnx", "model.onnx", "1/model.onnx"}, "model.onnx", "", ""},
		"the only ONNX file":         {[]string{"readme.md", "net.ONNX"}, "net.ONNX", "", ""},
		"the newest version":         {[]string{"2/model.onnx", "10/model.onnx", "11/other", "config.pbtxt"}, "10/model.onnx", "10", ""},
		"several ONNX files":         {[]string{"a.onnx", "b.onnx"}, "", "", "several ONNX files (a.onnx, b.onnx)"},
		"nothing of ours":            {[]string{"model.pkl"}, "", "", "holds no ONNX model, only model.pkl"},
		"a folder that is no number": {[]string{"x/model.onnx"}, "", "", "holds no ONNX model, only x"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, tc.files...)
			path, version, err := Find(dir)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || path != filepath.Join(dir, tc.want) || version != tc.wantVersion {
				t.Errorf("got %q, %q, %v", path, version, err)
			}
		})
	}
}

func TestAVersionedFolderServesItsVersionOnly(t *testing.T) {
	r := start(t, func(c *Config) { c.Dir = folder(t, "3/model.onnx") })
	r.waitReady(t)
	if code, _, body := r.call(t, "POST", "/v2/models/m/versions/3/infer", inferBody); code != 200 || !strings.Contains(body, `"model_version":"3"`) {
		t.Errorf("%d %s", code, body)
	}
	if code, _, body := r.call(t, "GET", "/v2/models/m/versions/1", ""); code != 404 || !strings.Contains(body, `it has \"3\"`) {
		t.Errorf("%d %s", code, body)
	}
	if _, _, body := r.call(t, "GET", "/v2/models/m", ""); !strings.Contains(body, `"versions":["3"]`) {
		t.Error(body)
	}
}
