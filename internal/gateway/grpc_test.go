package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// oipEngine is a real gRPC engine whose one model echoes its inputs.
type oipEngine struct {
	inputs []*oip.ModelMetadataResponse_TensorMetadata // nil for x
	oip.UnimplementedGRPCInferenceServiceServer
	name  string
	infer func(context.Context, *oip.ModelInferRequest) (*oip.ModelInferResponse, error)
}

func (e *oipEngine) ModelInfer(ctx context.Context, r *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
	if e.infer != nil {
		return e.infer(ctx, r)
	}
	out := &oip.ModelInferResponse{ModelName: r.GetModelName(), Id: r.GetId(), RawOutputContents: r.GetRawInputContents()}
	for _, in := range r.GetInputs() {
		out.Outputs = append(out.Outputs, &oip.ModelInferResponse_InferOutputTensor{
			Name: in.GetName(), Datatype: in.GetDatatype(), Shape: in.GetShape(), Contents: in.GetContents(),
		})
	}
	return out, nil
}

func (e *oipEngine) ModelReady(_ context.Context, r *oip.ModelReadyRequest) (*oip.ModelReadyResponse, error) {
	if r.GetName() != e.name {
		return nil, status.Errorf(codes.NotFound, "no model %s", r.GetName())
	}
	return &oip.ModelReadyResponse{Ready: true}, nil
}

func (e *oipEngine) ModelMetadata(_ context.Context, r *oip.ModelMetadataRequest) (*oip.ModelMetadataResponse, error) {
	if e.inputs != nil {
		return &oip.ModelMetadataResponse{Name: r.GetName(), Inputs: e.inputs}, nil
	}
	return &oip.ModelMetadataResponse{Name: r.GetName(), Platform: "test", Inputs: []*oip.ModelMetadataResponse_TensorMetadata{
		{Name: "x", Datatype: "FP32", Shape: []int64{-1, 2}},
	}}, nil
}

func (e *oipEngine) ServerMetadata(context.Context, *oip.ServerMetadataRequest) (*oip.ServerMetadataResponse, error) {
	return &oip.ServerMetadataResponse{Name: e.name}, nil
}

// grpcEngine serves an engine, and a chat service of its own, over gRPC.
func grpcEngine(tb testing.TB, e *oipEngine) string {
	tb.Helper()
	l := listen(tb)
	s := grpc.NewServer(grpc.MaxRecvMsgSize(128<<20), grpc.MaxSendMsgSize(128<<20))
	oip.RegisterGRPCInferenceServiceServer(s, e)
	s.RegisterService(&chatService, struct{}{})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	tb.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

// chatService is a method that the gateway has never heard of: it answers each message, and
// ends by itself when told to.
var chatService = grpc.ServiceDesc{
	ServiceName: "custom.Chat", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Talk", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			md, _ := metadata.FromIncomingContext(s.Context())
			_ = s.SetHeader(metadata.Pairs("x-engine", "yes", "x-saw", strings.Join(md["x-client"], ",")))
			s.SetTrailer(metadata.Pairs("x-total", "done"))
			for {
				var in wrapperspb.StringValue
				if err := s.RecvMsg(&in); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				switch in.GetValue() {
				case "fail":
					st, _ := status.New(codes.DataLoss, "lost").WithDetails(&errdetails.ErrorInfo{Reason: "why"})
					return st.Err()
				case "wait":
					<-s.Context().Done()
					return s.Context().Err()
				}
				if err := s.SendMsg(wrapperspb.String("re: " + in.GetValue())); err != nil {
					return err
				}
			}
		},
	}},
}

func connect(tb testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(128<<20), grpc.MaxCallSendMsgSize(128<<20)),
	}, opts...)
	c, err := grpc.NewClient("passthrough:///"+addr, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

func inferRequest(model string) *oip.ModelInferRequest {
	return &oip.ModelInferRequest{
		ModelName: model, Id: "req-1",
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{
			Name: "x", Datatype: "FP32", Shape: []int64{1, 2},
			Contents: &oip.InferTensorContents{Fp32Contents: []float32{1.5, -2}},
		}},
	}
}

func TestCallsFindTheirService(t *testing.T) {
	tlsServer, tlsClient := certificate(t)
	l := listen(t)
	addr := grpcEngine(t, &oipEngine{name: "engine-name"})
	iris := service("iris", route.Endpoint{GRPC: addr})
	iris.Components[spec.Predictor].Targets[0].ModelName = "engine-name"
	g := start(t, func(c *gateway.Config) { c.GRPCS, c.TLS = l, tlsServer }, iris, service("cold"))
	conns := map[string]*grpc.ClientConn{
		"plain":     connect(t, g.GRPC),
		"TLS":       connect(t, g.GRPCS, grpc.WithTransportCredentials(credentials.NewTLS(tlsClient))),
		"HTTP port": connect(t, g.HTTP),
		"authority": connect(t, g.GRPC, grpc.WithAuthority("iris-default.localhost:80")),
	}
	tests := map[string]struct {
		conn, model string
		md          []string
		code        codes.Code
		want        string // the model's name at the engine, or part of the error
	}{
		"by model":                     {conn: "plain", model: "iris", want: "engine-name"},
		"by model over TLS":            {conn: "TLS", model: "iris", want: "engine-name"},
		"by model on the HTTP port":    {conn: "HTTP port", model: "iris", want: "engine-name"},
		"by authority":                 {conn: "authority", model: "iris", want: "engine-name"},
		"engine's name, by authority":  {conn: "authority", model: "engine-name", want: "engine-name"},
		"other name, by authority":     {conn: "authority", model: "other", want: "other"},
		"by service metadata":          {conn: "plain", model: "m", md: []string{"stationmaster-service", "default/iris"}, want: "m"},
		"by ModelMesh's metadata":      {conn: "plain", model: "m", md: []string{"mm-vmodel-id", "iris"}, want: "m"},
		"unknown model":                {conn: "plain", model: "none", code: codes.NotFound, want: "services here: default/cold, default/iris"},
		"no model":                     {conn: "plain", model: "", code: codes.InvalidArgument, want: "names no model"},
		"no replica":                   {conn: "plain", model: "cold", code: codes.Unavailable, want: "no replica is ready"},
		"unknown service, by metadata": {conn: "plain", model: "m", md: []string{"stationmaster-service", "default/none"}, code: codes.NotFound, want: "default/none"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := metadata.AppendToOutgoingContext(t.Context(), append(tc.md, "x-request-id", "id-7")...)
			var header metadata.MD
			out, err := oip.NewGRPCInferenceServiceClient(conns[tc.conn]).ModelInfer(ctx, inferRequest(tc.model), grpc.Header(&header))
			if header.Get("x-request-id") == nil || header.Get("x-request-id")[0] != "id-7" {
				t.Errorf("header %v doesn't echo the request id", header)
			}
			if tc.code != codes.OK {
				if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("got %v, want %v with %q", err, tc.code, tc.want)
				}
				return
			}
			if err != nil || out.GetModelName() != tc.want || out.GetOutputs()[0].GetContents().GetFp32Contents()[1] != -2 {
				t.Fatalf("got %v, %v; want model %q", out, err, tc.want)
			}
			if header.Get("x-stationmaster-revision")[0] != "iris-00001" || header.Get("x-model-digest")[0] != digest {
				t.Errorf("header %v doesn't tell what served", header)
			}
		})
	}
}

func TestStreamsOfUnknownMethodsPass(t *testing.T) {
	g := start(t, nil, service("chat", route.Endpoint{GRPC: grpcEngine(t, &oipEngine{})}))
	conn := connect(t, g.GRPC, grpc.WithAuthority("chat-default.localhost"))
	open := func(t *testing.T) (grpc.ClientStream, context.CancelFunc) {
		ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "x-client", "me"))
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/custom.Chat/Talk")
		if err != nil {
			t.Fatal(err)
		}
		return s, cancel
	}
	say := func(t *testing.T, s grpc.ClientStream, text string) (string, error) {
		if err := s.SendMsg(wrapperspb.String(text)); err != nil {
			t.Fatal(err)
		}
		var out wrapperspb.StringValue
		err := s.RecvMsg(&out)
		return out.GetValue(), err
	}
	t.Run("message by message", func(t *testing.T) {
		s, cancel := open(t)
		defer cancel()
		for i := range 10 {
			if got, err := say(t, s, fmt.Sprint(i)); got != fmt.Sprintf("re: %d", i) || err != nil {
				t.Fatalf("%q, %v", got, err)
			}
		}
		_ = s.CloseSend()
		if err := s.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		header, _ := s.Header()
		if header.Get("x-engine")[0] != "yes" || header.Get("x-saw")[0] != "me" || header.Get("x-stationmaster-revision")[0] != "chat-00001" || s.Trailer().Get("x-total")[0] != "done" {
			t.Errorf("header %v, trailer %v", header, s.Trailer())
		}
	})
	t.Run("engine ends it with details", func(t *testing.T) {
		s, cancel := open(t)
		defer cancel()
		_, err := say(t, s, "fail") // the client's half stays open
		st := status.Convert(err)
		if st.Code() != codes.DataLoss || len(st.Details()) != 1 {
			t.Fatalf("%v %v", err, st.Details())
		}
	})
	t.Run("client cancels", func(t *testing.T) {
		s, cancel := open(t)
		if _, err := say(t, s, "x"); err != nil {
			t.Fatal(err)
		}
		if err := s.SendMsg(wrapperspb.String("wait")); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := s.RecvMsg(new(wrapperspb.StringValue)); status.Code(err) != codes.Canceled {
			t.Fatal(err)
		}
	})
	t.Run("without a service named", func(t *testing.T) {
		err := connect(t, g.GRPC).Invoke(t.Context(), "/custom.Chat/Talk", wrapperspb.String("x"), new(wrapperspb.StringValue))
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "stationmaster-service") {
			t.Fatal(err)
		}
	})
}

func TestDeadlinesAndCancelsReachTheEngine(t *testing.T) {
	ended := make(chan error, 1)
	began := make(chan time.Duration, 1)
	e := &oipEngine{infer: func(ctx context.Context, _ *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
		deadline, _ := ctx.Deadline()
		began <- time.Until(deadline)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}}
	short := service("short", route.Endpoint{GRPC: grpcEngine(t, e)})
	short.Timeout = 50 * time.Millisecond
	long := service("long", route.Endpoint{GRPC: grpcEngine(t, e)})
	g := start(t, nil, short, long)
	c := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	if _, err := c.ModelInfer(t.Context(), inferRequest("short")); status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	<-ended
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	go func() {
		if left := <-began; left > 20*time.Second {
			t.Errorf("the engine was given %v", left)
		}
		cancel()
	}()
	if _, err := c.ModelInfer(ctx, inferRequest("long")); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestBigMessagesPass(t *testing.T) {
	g := start(t, func(c *gateway.Config) { c.MaxMessage = 65 << 20 }, service("big", route.Endpoint{GRPC: grpcEngine(t, &oipEngine{})}))
	c := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	for _, size := range []int{40 << 20, 66 << 20} {
		r := inferRequest("big")
		r.Inputs[0] = &oip.ModelInferRequest_InferInputTensor{Name: "x", Datatype: "UINT8", Shape: []int64{int64(size)}}
		r.RawInputContents = [][]byte{make([]byte, size)}
		out, err := c.ModelInfer(t.Context(), r)
		if size > 65<<20 {
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%d bytes: %v", size, err)
			}
		} else if err != nil || len(out.GetRawOutputContents()[0]) != size {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestCallsPassOverUnreachableReplicas(t *testing.T) {
	l := listen(t)
	dead := l.Addr().String()
	_ = l.Close()
	g := start(t, impatient, service("iris", route.Endpoint{GRPC: dead}, route.Endpoint{GRPC: grpcEngine(t, &oipEngine{})}), service("gone", route.Endpoint{GRPC: dead}))
	c := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	for range 10 {
		if _, err := c.ModelInfer(t.Context(), inferRequest("iris")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.ModelInfer(t.Context(), inferRequest("gone")); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
}

func TestTheGatewayAnswersCallsForAllServices(t *testing.T) {
	g := start(t, nil, service("iris", route.Endpoint{GRPC: grpcEngine(t, &oipEngine{name: "own"})}), service("cold"))
	conn := connect(t, g.GRPC)
	c := oip.NewGRPCInferenceServiceClient(conn)
	ctx := t.Context()
	if r, err := c.ServerLive(ctx, &oip.ServerLiveRequest{}); err != nil || !r.GetLive() {
		t.Error(r, err)
	}
	if r, err := c.ServerReady(ctx, &oip.ServerReadyRequest{}); err != nil || r.GetReady() {
		t.Error("ready although one service isn't:", r, err)
	}
	if r, err := c.ServerMetadata(ctx, &oip.ServerMetadataRequest{}); err != nil || r.GetName() != "stationmaster" {
		t.Error(r, err)
	}
	r, err := c.RepositoryIndex(ctx, &oip.RepositoryIndexRequest{})
	want := &oip.RepositoryIndexResponse{Models: []*oip.RepositoryIndexResponse_ModelIndex{
		{Name: "cold", State: "UNAVAILABLE", Reason: "no replica of the predictor is ready"}, {Name: "iris", State: "READY"},
	}}
	if diff := cmp.Diff(want, r, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("index, %v:\n%s", err, diff)
	}
	onHost := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC, grpc.WithAuthority("iris-default.localhost")))
	if r, err := onHost.ServerMetadata(ctx, &oip.ServerMetadataRequest{}); err != nil || r.GetName() != "own" {
		t.Error("on a service's host:", r, err)
	}

	h := healthpb.NewHealthClient(conn)
	for name, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"": healthpb.HealthCheckResponse_SERVING, "iris": healthpb.HealthCheckResponse_SERVING,
		"default/iris": healthpb.HealthCheckResponse_SERVING, "cold": healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		if r, err := h.Check(ctx, &healthpb.HealthCheckRequest{Service: name}); err != nil || r.GetStatus() != want {
			t.Errorf("health of %q: %v, %v", name, r, err)
		}
	}
	if _, err := h.Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	watchCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := h.Watch(watchCtx, &healthpb.HealthCheckRequest{Service: "cold"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatal(r, err)
	}
	g.table.Publish(route.Compile([]route.Service{service("cold", route.Endpoint{GRPC: "127.0.0.1:1"})}))
	if r, err := watch.Recv(); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatal(r, err)
	}

	rs, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := rs.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "inference.GRPCInferenceService"}}); err != nil {
		t.Fatal(err)
	}
	if r, err := rs.Recv(); err != nil || len(r.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Fatal(r, err)
	}
	_ = rs.CloseSend()
	_, _ = rs.Recv()
}

func TestRESTIsConvertedForGRPCEngines(t *testing.T) {
	e := &oipEngine{name: "engine-name"}
	iris := service("iris", route.Endpoint{GRPC: grpcEngine(t, e)})
	iris.Components[spec.Predictor].Targets[0].ModelName = "engine-name"
	iris.Components[spec.Predictor].Targets[0].Protocols = []spec.Protocol{spec.GRPCV2}
	g := start(t, nil, iris)
	c := client(t)
	tests := map[string]struct {
		method, path, body, header string
		status                     int
		want, wantHeader           string
	}{
		"infer":            {path: "/infer", body: `{"id":"r1","inputs":[{"name":"x","datatype":"INT64","shape":[2],"data":[9007199254740993,-1]}]}`, status: 200, want: `"data":[9007199254740993,-1]`},
		"text":             {path: "/infer", body: `{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["héllo"]}]}`, status: 200, want: `"data":["héllo"]`},
		"versioned":        {path: "/versions/2/infer", body: `{"inputs":[{"name":"x","datatype":"BOOL","shape":[1],"data":[true]}]}`, status: 200, want: `"data":[true]`},
		"half floats":      {path: "/infer", body: `{"inputs":[{"name":"x","datatype":"FP16","shape":[1],"data":[1]}]}`, status: 400, want: "FP16"},
		"not JSON":         {path: "/infer", body: `{"inputs":[`, status: 400, want: "error"},
		"count off":        {path: "/infer", body: `{"inputs":[{"name":"x","datatype":"FP32","shape":[3],"data":[1]}]}`, status: 400, want: "x"},
		"wrong method":     {method: "GET", path: "/infer", status: 405, want: "takes POST"},
		"metadata":         {method: "GET", path: "", status: 200, want: `"platform":"test"`},
		"ready":            {method: "GET", path: "/ready", status: 200, want: `"ready":true`},
		"unknown to gRPC":  {path: "/generate", status: 501, want: "only over gRPC"},
		"binary in, out":   {path: "/infer", header: "105", body: `{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}}]}` + "\x00\x3c", status: 200, want: "\x00\x3c", wantHeader: "x"},
		"engine's refusal": {path: "/infer", body: `{"id":"refuse","inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}`, status: 400, want: "shape is wrong"},
	}
	e.infer = func(ctx context.Context, r *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
		if r.GetId() == "refuse" {
			return nil, status.Error(codes.InvalidArgument, "shape is wrong")
		}
		return (&oipEngine{}).ModelInfer(ctx, r)
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			method := tc.method
			if method == "" {
				method = http.MethodPost
			}
			r := request(t, method, g.url("/v2/models/iris"+tc.path), tc.body)
			if tc.header != "" {
				r.Header.Set("Inference-Header-Content-Length", fmt.Sprint(len(tc.body)-2))
			}
			a := do(t, c, r)
			if a.StatusCode != tc.status || !strings.Contains(a.body, tc.want) {
				t.Fatalf("got %d %q, want %d with %q", a.StatusCode, a.body, tc.status, tc.want)
			}
			if (a.Header.Get("Inference-Header-Content-Length") != "") != (tc.wantHeader != "") {
				t.Errorf("headers %v", a.Header)
			}
			if a.Header.Get("X-Stationmaster-Revision") != "iris-00001" {
				t.Error("no revision in the answer")
			}
			if tc.status >= 400 {
				errorText(t, a)
			}
		})
	}
}

func TestGRPCIsConvertedForRESTEngines(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/v2/models/engine-name/infer":
			if strings.Contains(string(b), `"id":"refuse"`) {
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(w, `{"error":"shape is wrong"}`)
				return
			}
			if h := r.Header.Get("Inference-Header-Content-Length"); h != "" {
				n, _ := strconv.Atoi(h)
				w.Header().Set("Inference-Header-Content-Length", strconv.Itoa(n+len("outputs")-len("inputs")))
			}
			_, _ = w.Write([]byte(strings.Replace(string(b), `"inputs"`, `"outputs"`, 1)))
		case "/v2/models/engine-name/ready":
			fmt.Fprint(w, `{"name":"engine-name","ready":true}`)
		case "/v2/models/engine-name":
			fmt.Fprint(w, `{"name":"engine-name","platform":"p","inputs":[{"name":"x","datatype":"FP32","shape":[-1]}],"outputs":[]}`)
		case "/v2/repository/models/engine-name/load":
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":"no such model"}`)
		}
	})
	iris := service("iris", route.Endpoint{HTTP: addr})
	iris.Components[spec.Predictor].Targets[0].ModelName = "engine-name"
	iris.Components[spec.Predictor].Targets[0].Protocols = []spec.Protocol{spec.V2}
	old := service("old", route.Endpoint{HTTP: addr})
	old.Components[spec.Predictor].Targets[0].Protocols = []spec.Protocol{spec.V1}
	g := start(t, nil, iris, old)
	c := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	ctx := t.Context()

	out, err := c.ModelInfer(ctx, inferRequest("iris"))
	want := &oip.ModelInferResponse{ModelName: "engine-name", Id: "req-1", Outputs: []*oip.ModelInferResponse_InferOutputTensor{{
		Name: "x", Datatype: "FP32", Shape: []int64{1, 2}, Contents: &oip.InferTensorContents{Fp32Contents: []float32{1.5, -2}},
	}}}
	if diff := cmp.Diff(want, out, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("contents: %v\n%s", err, diff)
	}
	for _, datatype := range []string{"FP16", "BF16"} {
		r := &oip.ModelInferRequest{
			ModelName: "iris", RawInputContents: [][]byte{{0, 0x3c}},
			Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: datatype, Shape: []int64{1}}},
		}
		out, err := c.ModelInfer(ctx, r)
		if err != nil || len(out.GetRawOutputContents()) != 1 || string(out.GetRawOutputContents()[0]) != "\x00\x3c" {
			t.Errorf("%s: %v %v", datatype, out, err)
		}
	}
	refused := inferRequest("iris")
	refused.Id = "refuse"
	if _, err := c.ModelInfer(ctx, refused); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "shape is wrong") {
		t.Error(err)
	}
	if r, err := c.ModelReady(ctx, &oip.ModelReadyRequest{Name: "iris"}); err != nil || !r.GetReady() {
		t.Error(r, err)
	}
	if _, err := c.ModelReady(ctx, &oip.ModelReadyRequest{Name: "iris", Version: "9"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if r, err := c.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "iris"}); err != nil || r.GetInputs()[0].GetShape()[0] != -1 {
		t.Error(r, err)
	}
	if _, err := c.RepositoryModelLoad(ctx, &oip.RepositoryModelLoadRequest{ModelName: "iris"}); err != nil {
		t.Error(err)
	}
	if _, err := c.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "old"}); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "speaks v1 only") {
		t.Error(err)
	}
}

// connEnds tells when a client's connection ends.
type connEnds chan struct{}

func (connEnds) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (connEnds) HandleRPC(context.Context, stats.RPCStats)                         {}
func (connEnds) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (e connEnds) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		e <- struct{}{}
	}
}

// rawMessage is a gRPC message given as bytes, so that it can be no protobuf message at all.
type rawMessage []byte

type rawMessages struct{}

func (rawMessages) Name() string                    { return "proto" }
func (rawMessages) Marshal(v any) ([]byte, error)   { return v.(rawMessage), nil }
func (rawMessages) Unmarshal(b []byte, v any) error { *v.(*rawMessage) = b; return nil }

func TestMalformedMessagesAreTheClientsFault(t *testing.T) {
	rest := service("rest", route.Endpoint{HTTP: engine(t, echoREST)})
	g := start(t, nil, rest, service("grpc", route.Endpoint{GRPC: grpcEngine(t, &oipEngine{})}))
	conn := connect(t, g.GRPC)
	whole, err := proto.Marshal(inferRequest("rest"))
	if err != nil {
		t.Fatal(err)
	}
	named := []byte("\x0a\x04rest")
	tests := map[string]struct {
		method  string
		message []byte
	}{
		"cut within a tensor":           {"ModelInfer", whole[:len(whole)-3]},
		"cut within the name":           {"ModelInfer", whole[:4]},
		"no protobuf":                   {"ModelInfer", []byte("{\"inputs\":[]}")},
		"readiness, cut":                {"ModelReady", append(named[:6:6], 0x12, 9)},
		"metadata, cut":                 {"ModelMetadata", append(named[:6:6], 0x12, 9)},
		"load, cut":                     {"RepositoryModelLoad", append([]byte("\x12\x04rest"), 0x0a, 9)},
		"unload, cut":                   {"RepositoryModelUnload", append([]byte("\x12\x04rest"), 0x0a, 9)},
		"server readiness, no protobuf": {"ServerReady", []byte{0xff}},
		"index, no protobuf":            {"RepositoryIndex", []byte{0xff}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out rawMessage
			err := conn.Invoke(t.Context(), "/inference.GRPCInferenceService/"+tc.method, rawMessage(tc.message), &out, grpc.ForceCodec(rawMessages{}))
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("got %v, want InvalidArgument", err)
			}
		})
	}
	r := request(t, http.MethodPost, g.url("/inference.GRPCInferenceService/ModelInfer"), "")
	r.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	a := do(t, h2cClient(t), r)
	if got := a.Header.Get("Grpc-Status") + a.Trailer.Get("Grpc-Status"); got != fmt.Sprint(int(codes.InvalidArgument)) {
		t.Errorf("no message: grpc-status %q", got)
	}
	if _, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), inferRequest("rest")); err != nil {
		t.Errorf("a good call afterwards: %v", err)
	}
}
