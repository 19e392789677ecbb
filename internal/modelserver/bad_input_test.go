package modelserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

func TestTwoLengthsOfTheJSONPart(t *testing.T) {
	r := start(t, nil)
	r.waitReady(t)
	post := func(lengths ...string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.http+"/v2/models/m/infer", strings.NewReader(inferBody))
		if err != nil {
			t.Fatal(err)
		}
		req.Header[oip.HeaderLength] = lengths
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	n := fmt.Sprint(len(inferBody))
	if got := post(n, "5"); got != http.StatusBadRequest {
		t.Errorf("two different ones: %d", got)
	}
	if got := post(n, n); got != http.StatusOK {
		t.Errorf("the same one twice: %d", got)
	}
}

func TestErrorsKeepTheirSigns(t *testing.T) {
	r := start(t, nil)
	r.waitReady(t)
	for path, want := range map[string]string{
		"/v2/models/a<b>&c/infer":   `model \"a<b>&c\" is not found`,
		"/v1/models/a<b>&c:predict": `model \"a<b>&c\" is not found`,
	} {
		if code, _, body := r.call(t, "POST", path, "{}"); code != 404 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// asIs sends bytes as a message, whatever they are.
type asIs struct{}

func (asIs) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (asIs) Unmarshal([]byte, any) error   { return nil }
func (asIs) Name() string                  { return "proto" }

var _ encoding.Codec = asIs{}

func TestUnreadableMessagesAreTheClientsFault(t *testing.T) {
	r := start(t, nil)
	r.waitReady(t)
	const inference = "/inference.GRPCInferenceService/"
	tests := map[string]struct {
		method, message string
		wantPart        string
	}{
		"a field cut off":              {inference + "ModelInfer", "\x0a\x05abc", "inference.ModelInferRequest: "},
		"an unknown kind of field":     {inference + "ModelInfer", "\x0f", "inference.ModelInferRequest: "},
		"a name that isn't UTF-8":      {inference + "ModelInfer", "\x0a\x01\xff", "string field contains invalid UTF-8"},
		"a tensor's that isn't either": {inference + "ModelInfer", "\x2a\x03\x0a\x01\xff", "string field contains invalid UTF-8"},
		"a message that must be empty": {inference + "ServerLive", "\xff", "inference.ServerLiveRequest: "},
		"the health check's":           {"/grpc.health.v1.Health/Check", "\x0a\x09a", "grpc.health.v1.HealthCheckRequest: "},
		"one of a stream":              {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "\x0a\x09a", "ServerReflectionRequest: "},
	}
	for port, addr := range map[string]string{"its own": r.grpc, "that of HTTP": strings.TrimPrefix(r.http, "http://")} {
		conn := r.dial(t, addr)
		for name, tc := range tests {
			t.Run(name+" on "+port, func(t *testing.T) {
				var out []byte
				err := conn.Invoke(t.Context(), tc.method, []byte(tc.message), &out, grpc.ForceCodec(asIs{}))
				if st := status.Convert(err); st.Code() != codes.InvalidArgument || !strings.Contains(st.Message(), tc.wantPart) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

func TestMessagesReachTheClientWhateverTheyQuote(t *testing.T) {
	r := start(t, nil)
	r.waitReady(t)
	long := strings.Repeat("\u00e9", 20000)
	rank := make([]int64, 100000)
	for i := range rank {
		rank[i] = 1
	}
	x := &pb.ModelInferRequest_InferInputTensor{Name: "x", Datatype: "FP32", Shape: rank, Contents: &pb.InferTensorContents{Fp32Contents: []float32{1}}}
	c := pb.NewGRPCInferenceServiceClient(r.dial(t, r.grpc))
	for name, q := range map[string]*pb.ModelInferRequest{
		"a rank":      {ModelName: "m", Inputs: []*pb.ModelInferRequest_InferInputTensor{x}},
		"an output":   {ModelName: "m", Outputs: []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: long}}},
		"a parameter": {ModelName: "m", Parameters: map[string]*pb.InferParameter{long: {}}},
		"a datatype":  {ModelName: "m", Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: long, Datatype: long}}},
		"an input":    {ModelName: "m", Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: long, Datatype: "FP32", Shape: []int64{0}}}},
	} {
		_, err := c.ModelInfer(t.Context(), q)
		if st := status.Convert(err); st.Code() != codes.InvalidArgument || len(st.Message()) > 1024 {
			t.Errorf("%s: %v with %d bytes", name, st.Code(), len(st.Message()))
		}
	}
	if _, err := c.ModelInfer(t.Context(), &pb.ModelInferRequest{ModelName: long, ModelVersion: long}); status.Code(err) != codes.NotFound || len(err.Error()) > 1200 {
		t.Errorf("a model: %.200v", err)
	}
	for name, call := range map[string][3]string{
		"a path":   {"GET", "/" + long, ""},
		"a model":  {"POST", "/v2/models/" + long + "/infer", "{}"},
		"a method": {strings.Repeat("A", 20000), "/v2/models/m/infer", "{}"},
		"a number": {"POST", "/v2/repository/index", `{"ready":` + strings.Repeat("9", 20000) + `}`},
		"an input": {"POST", "/v1/models/m:predict", `{"inputs":{"` + long + `":1}}`},
	} {
		code, _, body := r.call(t, call[0], call[1], call[2])
		if code < 400 || code >= 500 || len(body) > 1200 {
			t.Errorf("%s: %d with %d bytes", name, code, len(body))
		}
	}
}

func TestRequestsBeyondWhatMayBeHeldAreRefused(t *testing.T) {
	gate := make(chan struct{})
	r := start(t, func(c *Config) {
		c.Open = func(context.Context, string) (Session, error) { return &sums{gate: gate}, nil }
		c.MaxBodyBytes, c.MaxHeldBytes, c.HeldWait, c.Parallel = 400_000, 700_000, 10*time.Millisecond, 8
	})
	r.waitReady(t)
	padded := inferBody + strings.Repeat(" ", 300_000-len(inferBody))
	var group sync.WaitGroup
	results := make(chan int, 2)
	for range cap(results) {
		group.Go(func() {
			code, _, _ := r.call(t, "POST", "/v2/models/m/infer", padded)
			results <- code
		})
	}
	eventually(t, "both run", func() bool { return len(r.model.slots) == 2 })
	code, header, body := r.call(t, "POST", "/v2/models/m/infer", padded)
	if code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || !strings.Contains(body, "holds 700000 bytes") {
		t.Errorf("a third of known size: %d %v %s", code, header, body)
	}
	if code, _, body := r.call(t, "POST", "/v2/models/m/infer", "{}"); code != http.StatusBadRequest {
		t.Errorf("a small one: %d %s", code, body)
	}
	// A packed body's size shows while it is read.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.http+"/v2/models/m/infer", gzipped(padded))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Encoding", "gzip")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a third of unknown size: %d", res.StatusCode)
	}
	c := pb.NewGRPCInferenceServiceClient(r.dial(t, r.grpc))
	_, err = c.ModelInfer(t.Context(), &pb.ModelInferRequest{ModelName: "m", Id: strings.Repeat("a", 300_000)})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "holds 700000 bytes") {
		t.Errorf("a third over gRPC: %v", err)
	}
	if _, err := c.ServerLive(t.Context(), &pb.ServerLiveRequest{}); err != nil {
		t.Errorf("a small one over gRPC: %v", err)
	}
	close(gate)
	group.Wait()
	for range cap(results) {
		if code := <-results; code != http.StatusOK {
			t.Errorf("one of the two: %d", code)
		}
	}
	if code, _, body := r.call(t, "POST", "/v2/models/m/infer", padded); code != http.StatusOK {
		t.Errorf("afterwards: %d %s", code, body)
	}
	if !r.held.sem.TryAcquire(700_000) {
		t.Error("something is still held")
	}
	r.held.sem.Release(700_000)
}

func TestABodyThatStandsStillIsGivenUp(t *testing.T) {
	r := start(t, func(c *Config) { c.Stall = 20 * time.Millisecond })
	r.waitReady(t)
	for name, header := range map[string]string{"plain": "", "packed": "Content-Encoding: gzip\r\n"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.http, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n"+header+"\r\n{"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
	}
	// The deadline is for the body alone: a model may take longer.
	gate := make(chan struct{})
	slow := start(t, func(c *Config) {
		c.Stall = time.Millisecond
		c.Open = func(context.Context, string) (Session, error) { return &sums{gate: gate}, nil }
	})
	slow.waitReady(t)
	time.AfterFunc(50*time.Millisecond, func() { close(gate) })
	if code, _, body := slow.call(t, "POST", "/v2/models/m/infer", inferBody); code != http.StatusOK {
		t.Errorf("a slow model: %d %s", code, body)
	}
}

func TestOddButLegalRequests(t *testing.T) {
	r := start(t, nil)
	r.waitReady(t)
	packed, err := io.ReadAll(gzipped(inferBody))
	if err != nil {
		t.Fatal(err)
	}
	for _, encoding := range []string{"GZIP", "x-gzip"} {
		if code, _, body := r.call(t, "POST", "/v2/models/m/infer", string(packed), "Content-Encoding", encoding); code != http.StatusOK {
			t.Errorf("Content-Encoding %s: %d %s", encoding, code, body)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.http+"/v2/models/m/infer", strings.NewReader(string(packed)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Content-Encoding"] = []string{"gzip", "gzip"}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusNotImplemented {
		t.Errorf("packed twice: %d", res.StatusCode)
	}
	for body, want := range map[string]string{
		`{"ready":"yes"}`: `{"error":"ready can't be of the kind string"}`,
		`[]`:              `{"error":"the body's JSON is of another kind, array, than is expected here"}`,
		`{"ready":`:       `{"error":"the body isn't JSON: unexpected end of JSON input"}`,
	} {
		if code, _, got := r.call(t, "POST", "/v2/repository/index", body); code != http.StatusBadRequest || got != want {
			t.Errorf("index of %s: %d %s", body, code, got)
		}
	}
	if code, _, _ := r.call(t, "POST", "/v2/models/m/versions//infer", inferBody); code != http.StatusNotFound {
		t.Errorf("an empty version: %d", code)
	}
}
