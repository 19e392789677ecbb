package translate_test

import (
	"errors"
	"testing"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

var completionsOrigin = translate.Origin{ID: "7", Created: 9}

func TestCompletionsOverGenerate(t *testing.T) {
	c, err := translate.NewCompletions([]byte(`{"model":"m","prompt":["Grüße"],"max_tokens":3,"temperature":0.5,"stop":["x"],"user":"u","n":1,"logprobs":null,"echo":false}`), nil, completionsOrigin)
	if err != nil {
		t.Fatal(err)
	}
	if c.Path() != "/generate" {
		t.Errorf("path %s", c.Path())
	}
	same(t, c.Body(), `{"text_input":"Grüße","parameters":{"max_tokens":3,"temperature":0.5,"stop":["x"]}}`)
	got, err := c.Answer([]byte(`{"model_name":"m","text_output":"b","details":{"finish_reason":"stop","prompt_tokens":1,"generated_tokens":2}}`))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, `{"id":"cmpl-7","object":"text_completion","created":9,"model":"m","choices":[{"index":0,"text":"b","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`)
	got, err = c.Answer([]byte(`{"model_name":"m","model_version":"1","text_output":"","sequence_id":0}`))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, `{"id":"cmpl-7","object":"text_completion","created":9,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null}]}`)
	for _, broken := range []string{"", "{}", `{"text_output":1}`, `{"text_output":"a"`} {
		if _, err := c.Answer([]byte(broken)); !errors.Is(err, errdef.ErrInternal) {
			t.Errorf("answer %q: %v", broken, err)
		}
	}
	for name, body := range map[string]string{
		"no prompt":         `{"model":"m"}`,
		"two prompts":       `{"prompt":["a","b"]}`,
		"token ids":         `{"prompt":[1,2]}`,
		"several choices":   `{"prompt":"a","n":2}`,
		"log probabilities": `{"prompt":"a","logprobs":2}`,
		"an echo":           `{"prompt":"a","echo":true}`,
	} {
		if _, err := translate.NewCompletions([]byte(body), nil, completionsOrigin); !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	text := in("text_input", oip.Bytes, 1)
	if !translate.Generates(meta([]oip.TensorMetadata{text, in("stream", oip.Bool, 1)}, []oip.TensorMetadata{in("text_output", oip.Bytes, -1)})) ||
		translate.Generates(meta([]oip.TensorMetadata{text}, []oip.TensorMetadata{in("vector", oip.FP32, -1)})) {
		t.Error("models that make text aren't told from others")
	}
}

func TestParametersGoWhereTheModelTakesThem(t *testing.T) {
	const body = `{"model":"m","prompt":"a","max_tokens":3,"temperature":0.5,"stop":["x"],"stream":true}`
	for name, tc := range map[string]struct {
		inputs []oip.TensorMetadata
		want   string
	}{
		"vLLM's": {
			[]oip.TensorMetadata{in("text_input", oip.Bytes, 1), in("stream", oip.Bool, 1), in("sampling_parameters", oip.Bytes, 1), in("exclude_input_in_output", oip.Bool, 1)},
			`{"text_input":"a","exclude_input_in_output":true,"stream":true,"sampling_parameters":"{\"max_tokens\":3,\"temperature\":0.5,\"stop\":[\"x\"]}"}`,
		},
		"TensorRT-LLM's": {
			[]oip.TensorMetadata{in("text_input", oip.Bytes, 1), in("max_tokens", oip.Int32, 1), in("temperature", oip.FP32, 1), in("stop_words", oip.Bytes, -1)},
			`{"text_input":"a","max_tokens":3,"temperature":0.5,"stop_words":["x"],"parameters":{}}`,
		},
	} {
		c, err := translate.NewCompletions([]byte(body), tc.inputs, completionsOrigin)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		same(t, c.Body(), tc.want)
	}
}

// chunks feeds a stream of generate's frames in pieces of a size and returns the client's.
func chunks(tb testing.TB, body, engine string, size int) string {
	tb.Helper()
	c, err := translate.NewCompletions([]byte(body), nil, completionsOrigin)
	if err != nil {
		tb.Fatal(err)
	}
	var frames openai.Frames
	var out []byte
	s := c.Chunks()
	take := func(frame []byte) error {
		data, _ := openai.Data(frame)
		out = s.Frame(out, data)
		return nil
	}
	for at := 0; at < len(engine); at += size {
		_ = frames.Feed([]byte(engine[at:min(at+size, len(engine))]), take)
	}
	_ = take(frames.Rest())
	out = s.End(out)
	if !s.Ended() {
		tb.Error("the stream hasn't ended")
	}
	return string(s.Frame(s.End(s.Fail(out, "late")), []byte(`{"text_output":"late"}`)))
}

func TestCompletionStreams(t *testing.T) {
	const head = `data: {"id":"cmpl-7","object":"text_completion","created":9,"model":"m","choices":[`
	chunk := func(text, finish string) string {
		return head + `{"index":0,"text":"` + text + `","logprobs":null,"finish_reason":` + finish + "}]}\n\n"
	}
	for name, tc := range map[string]struct{ body, engine, want string }{
		"Triton's": {`{"model":"m","prompt":"a","stream":true}`, "data: {\"text_output\":\"Grü\"}\n\ndata: {\"text_output\":\"ße😀\"}\n\n",
			chunk("Grü", "null") + chunk("ße😀", "null") + chunk("", "null") + "data: [DONE]\n\n"},
		"the draft's": {`{"model":"m","prompt":"a","stream":true,"stream_options":{"include_usage":true}}`,
			"data: {\"text_output\":\"x\",\"done\":false}\n\ndata: {\"text_output\":\"\",\"done\":true,\"details\":{\"finish_reason\":\"length\",\"prompt_tokens\":1,\"generated_tokens\":1}}\n\n",
			chunk("x", "null") + chunk("", `"length"`) + head + `],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}` + "\n\ndata: [DONE]\n\n"},
		"an error": {`{"model":"m","prompt":"a","stream":true}`, "data: {\"text_output\":\"x\"}\n\ndata: {\"error\":\"no memory\"}\n\ndata: {\"text_output\":\"y\"}\n\n",
			chunk("x", "null") + `data: {"error":{"message":"no memory","type":"server_error","param":null,"code":"stream_broken"}}` + "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(tc.engine); size++ {
				if got := chunks(t, tc.body, tc.engine, size); got != tc.want {
					t.Fatalf("pieces of %d:\n got %s\nwant %s", size, got, tc.want)
				}
			}
		})
	}
}
