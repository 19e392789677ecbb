package gateway_test

import (
	"io"
	"net/http"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// asText is a call of a text, raw or not.
func asText(model, text string, raw bool) *pb.ModelInferRequest {
	in := &pb.ModelInferRequest_InferInputTensor{Name: "text_input", Datatype: "BYTES", Shape: []int64{1}}
	r := &pb.ModelInferRequest{ModelName: model, Id: "7", Inputs: []*pb.ModelInferRequest_InferInputTensor{in}}
	if raw {
		r.RawInputContents = [][]byte{append([]byte{byte(len(text)), 0, 0, 0}, text...)}
	} else {
		in.Contents = &pb.InferTensorContents{BytesContents: [][]byte{[]byte(text)}}
	}
	return r
}

func TestGRPCOverOpenAIAndV1(t *testing.T) {
	v1 := service("v1", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/v1/models/v1":
			_, _ = io.WriteString(w, `{"name":"v1","ready":"False"}`)
		case r.URL.Path == "/v1/models/v1:predict" && string(b) == `{"instances":["a"]}`:
			_, _ = io.WriteString(w, `{"predictions":[[1,2]]}`)
		default:
			http.Error(w, `{"error":{"message":"the engine's own words"}}`, http.StatusBadRequest)
		}
	})})
	g := start(t, nil, speaking(v1, "", spec.V1), llm("llm", "/api", "served", route.Endpoint{HTTP: engine(t, languageEngine)}))
	c := pb.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	ctx := t.Context()

	out, err := c.ModelInfer(ctx, asText("llm", "a", false))
	if err != nil || out.GetModelName() != "llm" || out.GetId() != "7" || string(out.GetOutputs()[0].GetContents().GetBytesContents()[0]) != "a!" ||
		out.GetParameters()["completion_tokens"].GetInt64Param() != 4 {
		t.Errorf("a prompt: %v, %v", out, err)
	}
	if out, err = c.ModelInfer(ctx, asText("llm", "a", true)); err != nil || string(out.GetRawOutputContents()[0]) != "\x02\x00\x00\x00a!" {
		t.Errorf("a raw prompt: %v, %v", out, err)
	}
	meta, err := c.ModelMetadata(ctx, &pb.ModelMetadataRequest{Name: "llm"})
	if err != nil || meta.GetInputs()[0].GetName() != "text_input" {
		t.Errorf("metadata: %v, %v", meta, err)
	}
	ready, err := c.ModelReady(ctx, &pb.ModelReadyRequest{Name: "llm"})
	if err != nil || !ready.GetReady() {
		t.Errorf("ready: %v, %v", ready, err)
	}
	if ready, err = c.ModelReady(ctx, &pb.ModelReadyRequest{Name: "v1"}); err != nil || ready.GetReady() {
		t.Errorf("not ready: %v, %v", ready, err)
	}
	if out, err = c.ModelInfer(ctx, asText("v1", "a", false)); err != nil || out.GetOutputs()[0].GetContents().GetInt64Contents()[1] != 2 {
		t.Errorf("over V1: %v, %v", out, err)
	}
	for name, tc := range map[string]struct {
		ask  func() error
		want codes.Code
	}{
		"the engine's own refusal": {func() error { _, err := c.ModelInfer(ctx, asText("v1", "b", false)); return err }, codes.InvalidArgument},
		"bytes that are no text":   {func() error { _, err := c.ModelInfer(ctx, asText("llm", "\xff", true)); return err }, codes.InvalidArgument},
		"a version": {func() error {
			r := asText("llm", "a", false)
			r.ModelVersion = "2"
			_, err := c.ModelInfer(ctx, r)
			return err
		}, codes.Unimplemented},
		"metadata of V1": {func() error { _, err := c.ModelMetadata(ctx, &pb.ModelMetadataRequest{Name: "v1"}); return err }, codes.Unimplemented},
	} {
		if err := tc.ask(); status.Code(err) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
