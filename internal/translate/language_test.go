package translate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

func TestGenerateOverOpenAI(t *testing.T) {
	chat := translate.Settings{Task: translate.TaskChat}
	tests := map[string]struct {
		settings                          translate.Settings
		version, body, path, asks, answer string
		want                              string
	}{
		"a text": {
			body: `{"text_input":"Grüße"}`, path: "/v1/completions", asks: `{"model":"engine's","prompt":"Grüße","max_tokens":20}`,
			answer: `{"choices":[{"index":0,"text":" 😀","finish_reason":"stop"}],"usage":null}`,
			want:   `{"model_name":"m","text_output":" 😀"}`,
		},
		"parameters pass, and details are told": {
			version: "3", body: `{"text_input":"a","stream":false,"parameters":{"temperature":1e-1,"stop":["x"],"max_tokens":7,"details":true,"top_p":null,"vendor":{"x":[1]}}}`,
			path: "/v1/completions", asks: `{"model":"engine's","prompt":"a","temperature":0.1,"stop":["x"],"max_tokens":7,"vendor":{"x":[1]}}`,
			answer: `{"choices":[{"text":"b","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":7}}`,
			want:   `{"model_name":"m","model_version":"3","text_output":"b","details":{"finish_reason":"length","prompt_tokens":1,"generated_tokens":7}}`,
		},
		"as a chat": {
			settings: chat, body: `{"text_input":"a"}`, path: "/v1/chat/completions",
			asks:   `{"model":"engine's","messages":[{"role":"user","content":"a"}],"max_tokens":20}`,
			answer: `{"choices":[{"message":{"role":"assistant","content":"b"}}]}`, want: `{"model_name":"m","text_output":"b"}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g, err := translate.NewGenerate([]byte(tc.body), "m", tc.version, false, tc.settings)
			if err != nil {
				t.Fatal(err)
			}
			if g.Path() != tc.path {
				t.Errorf("path %s", g.Path())
			}
			same(t, g.Body("engine's"), tc.asks)
			got, err := g.Answer([]byte(tc.answer))
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, tc.want)
			for _, broken := range []string{"", "{}", `{"choices":[]}`, `{"choices":[{"index":1,"text":"b"}]}`, `{"choices":[{"text":3}]}`, `[]`} {
				if _, err := g.Answer([]byte(broken)); !errors.Is(err, errdef.ErrInternal) {
					t.Errorf("answer %q: %v", broken, err)
				}
			}
		})
	}
	for name, body := range map[string]string{
		"no text":             `{}`,
		"a number":            `{"text_input":1}`,
		"several choices":     `{"text_input":"a","parameters":{"n":2}}`,
		"tools":               `{"text_input":"a","parameters":{"tools":[]}}`,
		"another path's kind": `{"text_input":"a","stream":true}`,
		"an input of its own": `{"text_input":"a","image":"b"}`,
		"no JSON":             `{"text_input":"a"`,
		"the prompt twice":    `{"text_input":"a","parameters":{"prompt":"b"}}`,
	} {
		if _, err := translate.NewGenerate([]byte(body), "m", "", false, translate.Settings{}); !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := translate.NewGenerate([]byte(`{"text_input":"a"}`), "m", "", false, translate.Settings{Task: translate.TaskEmbeddings}); !errors.Is(err, errdef.ErrUnsupported) {
		t.Errorf("a model of embeddings: %v", err)
	}
}

// stream feeds an engine's stream in pieces of a size and returns the client's.
func stream(tb testing.TB, body, engine string, size int) string {
	tb.Helper()
	g, err := translate.NewGenerate([]byte(body), "m", "", true, translate.Settings{})
	if err != nil {
		tb.Fatal(err)
	}
	var frames openai.Frames
	var out []byte
	s := g.Stream()
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
	return string(s.Frame(s.End(s.Fail(out, "late")), []byte(`{"choices":[{"text":"late"}]}`)))
}

func TestGenerateStreams(t *testing.T) {
	frame := func(data string) string { return "data: " + data + "\n\n" }
	text := func(s string) string { return frame(`{"choices":[{"index":0,"text":` + s + `,"finish_reason":null}]}`) }
	out := func(s string) string { return frame(`{"model_name":"m","text_output":` + s + `,"done":false}`) }
	const (
		last  = `{"choices":[{"index":0,"text":"","finish_reason":"length"}]}`
		used  = `{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}`
		ended = `{"model_name":"m","text_output":"","done":true}`
	)
	tests := map[string]struct{ body, engine, want string }{
		"completions": {
			`{"text_input":"a"}`, text(`"Grü"`) + text(`"ße 世界😀\n"`) + frame(last) + frame(used) + frame("[DONE]"),
			out(`"Grü"`) + out(`"ße 世界😀\n"`) + frame(ended),
		},
		"chat, with comments and CRLF": {
			`{"text_input":"a"}`, ": hello\r\n\r\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\r\n\r\ndata: [DONE]\r\n\r\n",
			out(`"é"`) + frame(ended),
		},
		"details": {
			`{"text_input":"a","parameters":{"details":true}}`, text(`"x"`) + frame(last) + frame(used) + frame("[DONE]"),
			out(`"x"`) + frame(`{"model_name":"m","text_output":"","done":true,"details":{"finish_reason":"length","prompt_tokens":4,"generated_tokens":2}}`),
		},
		"no last line end, nor a last word": {`{"text_input":"a"}`, text(`"x"`) + "data: " + last, out(`"x"`) + frame(ended)},
		"it breaks off":                     {`{"text_input":"a"}`, text(`"x"`), out(`"x"`) + frame(`{"error":"the engine's stream ended before the text did"}`)},
		"an error":                          {`{"text_input":"a"}`, text(`"x"`) + frame(`{"error":{"message":"no memory","type":"x"}}`) + text(`"y"`), out(`"x"`) + frame(`{"error":"no memory"}`)},
		"behind the end":                    {`{"text_input":"a"}`, frame("[DONE]") + text(`"x"`), frame(ended)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(tc.engine); size++ {
				if diff := cmp.Diff(tc.want, stream(t, tc.body, tc.engine, size)); diff != "" {
					t.Fatalf("pieces of %d (-want +got)\n%s", size, diff)
				}
			}
		})
	}
	if got := stream(t, `{"text_input":"a"}`, frame("{nonsense}"), 7); !strings.Contains(got, `"error":"`) || strings.Count(got, "data:") != 1 {
		t.Errorf("what is no chunk: %s", got)
	}
}

func TestPromptsOverOpenAI(t *testing.T) {
	one := func(name string, d oip.Datatype, data any) oip.Tensor { return tensor(name, d, data, 1) }
	tests := map[string]struct {
		declared     string
		request      oip.InferRequest
		asks, answer string
		want         *oip.InferResponse
	}{
		"a prompt with parameters": {
			request: oip.InferRequest{ID: "7", Inputs: []oip.Tensor{one("text_input", oip.Bytes, texts("Grüße"))},
				Parameters: oip.Parameters{"max_tokens": int64(3), "temperature": 0.5, "echo": true, "user": "u", "seed": uint64(1 << 63)}},
			asks:   `{"model":"e","prompt":"Grüße","echo":true,"max_tokens":3,"seed":9223372036854775808,"temperature":0.5,"user":"u"}`,
			answer: `{"choices":[{"text":"b","index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":3}}`,
			want: &oip.InferResponse{ID: "7", Parameters: oip.Parameters{"prompt_tokens": int64(2), "completion_tokens": int64(3)},
				Outputs: []oip.Tensor{one("text_output", oip.Bytes, texts("b"))}},
		},
		"a batch, parameters as tensors, the reason asked for": {
			request: oip.InferRequest{
				Inputs: []oip.Tensor{tensor("text_input", oip.Bytes, texts("a", "b"), 2, 1), one("temperature", oip.FP32, []float32{0.5}),
					tensor("max_tokens", oip.Int32, []int32{4}, 1, 1), tensor("stop", oip.Bytes, texts("x", "y"), 2), one("stream", oip.Bool, []bool{false}),
					one("sampling_parameters", oip.Bytes, texts(`{"top_k": 3}`))},
				Outputs: []oip.RequestedOutput{{Name: "finish_reason"}, {Name: "text_output"}},
			},
			asks:   `{"model":"e","prompt":["a","b"],"temperature":0.5,"max_tokens":4,"stop":["x","y"],"top_k":3}`,
			answer: `{"choices":[{"text":"B","index":1,"finish_reason":"length"},{"text":"A","index":0,"finish_reason":"stop"}]}`,
			want:   &oip.InferResponse{Outputs: []oip.Tensor{tensor("finish_reason", oip.Bytes, texts("stop", "length"), 2), tensor("text_output", oip.Bytes, texts("A", "B"), 2)}},
		},
		"a batch as llama.cpp answers it": {
			request: oip.InferRequest{Inputs: []oip.Tensor{tensor("prompt", oip.Bytes, texts("a", "b"), 2)}},
			asks:    `{"model":"e","prompt":["a","b"]}`,
			answer:  `[{"choices":[{"text":"A","index":0}],"usage":{"prompt_tokens":1,"completion_tokens":2}},{"choices":[{"text":"B","index":0}],"usage":{"prompt_tokens":3,"completion_tokens":4}}]`,
			want: &oip.InferResponse{Parameters: oip.Parameters{"prompt_tokens": int64(4), "completion_tokens": int64(6)},
				Outputs: []oip.Tensor{tensor("text_output", oip.Bytes, texts("A", "B"), 2)}},
		},
		"a chat, from raw bytes": {
			declared: "task=chat",
			request:  oip.InferRequest{Inputs: []oip.Tensor{{Name: "text_input", Datatype: oip.Bytes, Shape: []int64{1}, Raw: []byte("\x01\x00\x00\x00a")}}},
			asks:     `{"model":"e","messages":[{"role":"user","content":"a"}]}`,
			answer:   `{"choices":[{"message":{"content":null},"finish_reason":"stop"}]}`,
			want:     &oip.InferResponse{Outputs: []oip.Tensor{one("text_output", oip.Bytes, [][]byte{nil})}},
		},
		"embeddings": {
			declared: "task=embeddings, input=text",
			request:  oip.InferRequest{Inputs: []oip.Tensor{tensor("text", oip.Bytes, texts("a", "b"), 2)}},
			asks:     `{"model":"e","encoding_format":"float","input":["a","b"]}`,
			answer:   `{"data":[{"index":1,"embedding":[3,4]},{"index":0,"embedding":"AACAPwAAAMA="}]}`,
			want:     &oip.InferResponse{Outputs: []oip.Tensor{tensor("embedding", oip.FP32, []float32{1, -2, 3, 4}, 2, 2)}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := translate.ParseSettings(tc.declared)
			if err != nil {
				t.Fatal(err)
			}
			to, err := translate.NewToOpenAI(&tc.request, s)
			if err != nil {
				t.Fatal(err)
			}
			same(t, to.Body("e"), tc.asks)
			got, err := to.Answer([]byte(tc.answer))
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got)\n%s", err, diff)
			}
			for _, broken := range []string{"", "{}", "[]", `{"choices":[{"text":"A","index":0},{"text":"A","index":0}]}`, `{"data":[{"index":5,"embedding":[1]}]}`} {
				if _, err := to.Answer([]byte(broken)); !errors.Is(err, errdef.ErrInternal) {
					t.Errorf("answer %q: %v", broken, err)
				}
			}
		})
	}
	prompt := one("text_input", oip.Bytes, texts("a"))
	for name, r := range map[string]struct {
		declared string
		oip.InferRequest
	}{
		"no prompt":            {"", oip.InferRequest{Inputs: []oip.Tensor{one("max_tokens", oip.Int32, []int32{1})}}},
		"two prompts":          {"", oip.InferRequest{Inputs: []oip.Tensor{prompt, one("prompt", oip.Bytes, texts("b"))}}},
		"bytes that aren't":    {"", oip.InferRequest{Inputs: []oip.Tensor{one("text_input", oip.Bytes, texts("\xff"))}}},
		"a picture":            {"", oip.InferRequest{Inputs: []oip.Tensor{prompt, tensor("image", oip.Uint8, []uint8{1, 2}, 2)}}},
		"streaming":            {"", oip.InferRequest{Inputs: []oip.Tensor{prompt, one("stream", oip.Bool, []bool{true})}}},
		"an unknown output":    {"", oip.InferRequest{Inputs: []oip.Tensor{prompt}, Outputs: []oip.RequestedOutput{{Name: "logits"}}}},
		"a table of texts":     {"", oip.InferRequest{Inputs: []oip.Tensor{tensor("text_input", oip.Bytes, texts("a", "b"), 1, 2)}}},
		"a parameter twice":    {"", oip.InferRequest{Inputs: []oip.Tensor{prompt, one("top_k", oip.Int32, []int32{1})}, Parameters: oip.Parameters{"top_k": int64(2)}}},
		"a chat with two":      {"task=chat", oip.InferRequest{Inputs: []oip.Tensor{tensor("text_input", oip.Bytes, texts("a", "b"), 2)}}},
		"options, embeddings":  {"task=embeddings", oip.InferRequest{Inputs: []oip.Tensor{prompt}, Parameters: oip.Parameters{"x": true}}},
		"an output of another": {"task=embeddings", oip.InferRequest{Inputs: []oip.Tensor{prompt}, Outputs: []oip.RequestedOutput{{Name: "text_output"}}}},
	} {
		s, err := translate.ParseSettings(r.declared)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := translate.NewToOpenAI(&r.InferRequest, s); !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPredictOverTensorsAndBack(t *testing.T) {
	m := meta([]oip.TensorMetadata{in("a", oip.FP32, -1, 2), in("b", oip.Bytes, -1)}, nil)
	r, err := translate.PredictToV2([]byte(`{"instances":[{"a":[1,2],"b":"x"},{"a":[3,4.5],"b":"y"}]}`), m)
	if err != nil {
		t.Fatal(err)
	}
	want := []oip.Tensor{tensor("a", oip.FP32, []float32{1, 2, 3, 4.5}, 2, 2), tensor("b", oip.Bytes, texts("x", "y"), 2)}
	if diff := cmp.Diff(want, r.Inputs); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	back, err := translate.InferToV1(r)
	if err != nil {
		t.Fatal(err)
	}
	same(t, back, `{"instances":[{"a":[1,2],"b":"x"},{"a":[3,4.5],"b":"y"}]}`)
	r, err = translate.PredictToV2([]byte(`{"parameters":{"n":3,"t":0.5,"s":"x","b":true},"instances":["a"],"signature_name":"x"}`), textMeta)
	if diff := cmp.Diff(oip.Parameters{"n": int64(3), "t": 0.5, "s": "x", "b": true}, r.Parameters); err != nil || diff != "" {
		t.Errorf("parameters: %v (-want +got)\n%s", err, diff)
	}
	if _, err := translate.PredictToV2([]byte(`{"instances":[1]}`), meta(nil, nil)); !errors.Is(err, errdef.ErrUnsupported) {
		t.Errorf("a model that tells no inputs: %v", err)
	}
	for name, r := range map[string]*oip.InferRequest{
		"nothing":        {},
		"a parameter":    {Inputs: want, Parameters: oip.Parameters{"x": true}},
		"different rows": {Inputs: []oip.Tensor{want[0], tensor("b", oip.Bytes, texts("x"), 1)}},
		"a scalar":       {Inputs: []oip.Tensor{{Name: "a", Datatype: oip.FP32, Data: []float32{1}}}},
	} {
		if _, err := translate.InferToV1(r); !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPredictionsAsTensors(t *testing.T) {
	named := &oip.InferRequest{ID: "7", Outputs: []oip.RequestedOutput{{Name: "y"}}}
	for name, tc := range map[string]struct {
		asked *oip.InferRequest
		body  string
		want  []oip.Tensor
	}{
		"classes":               {&oip.InferRequest{}, `{"predictions":[1,0,2]}`, []oip.Tensor{tensor("predictions", oip.Int64, []int64{1, 0, 2}, 3)}},
		"numbers, under a name": {named, `{"predictions":[[1,2.5],[3,4]]}`, []oip.Tensor{tensor("y", oip.FP64, []float64{1, 2.5, 3, 4}, 2, 2)}},
		"numbers too large":     {&oip.InferRequest{}, `{"predictions":[18446744073709551616]}`, []oip.Tensor{tensor("predictions", oip.FP64, []float64{18446744073709551616}, 1)}},
		"texts":                 {&oip.InferRequest{}, `{"predictions":["a.b"]}`, []oip.Tensor{tensor("predictions", oip.Bytes, texts("a.b"), 1)}},
		"words":                 {&oip.InferRequest{}, `{"predictions":[true,false]}`, []oip.Tensor{tensor("predictions", oip.Bool, []bool{true, false}, 2)}},
		"objects, one of them":  {named, `{"predictions":[{"x":1,"y":[1.5]},{"x":2,"y":[2.5]}]}`, []oip.Tensor{tensor("y", oip.FP64, []float64{1.5, 2.5}, 2, 1)}},
		"objects":               {&oip.InferRequest{}, `{"predictions":[{"x":1},{"x":2}]}`, []oip.Tensor{tensor("x", oip.Int64, []int64{1, 2}, 2)}},
		"an object":             {&oip.InferRequest{}, `{"predictions":{"x":[1,2],"z":["a"]}}`, []oip.Tensor{tensor("x", oip.Int64, []int64{1, 2}, 2), tensor("z", oip.Bytes, texts("a"), 1)}},
	} {
		out, err := translate.InferFromV1(tc.asked, []byte(tc.body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(tc.want, out.Outputs); diff != "" || out.ID != tc.asked.ID {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	for _, body := range []string{`{}`, `{"predictions":[1,"a"]}`, `{"predictions":[[1],[2,3]]}`, `{"predictions":[{"x":1},{"y":1}]}`, `{"predictions":[{"x":1,"y":2},{"x":1}]}`} {
		if _, err := translate.InferFromV1(&oip.InferRequest{}, []byte(body)); !errors.Is(err, errdef.ErrInternal) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if _, err := translate.InferFromV1(named, []byte(`{"predictions":[{"x":1}]}`)); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("an output that isn't there: %v", err)
	}
}

// FuzzGenerateStream: whatever the cuts, a stream comes out the same, its texts are the engine's, and
// each frame is JSON.
func FuzzGenerateStream(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"text\":\"é😀\"}]}\n\ndata: [DONE]\n\n"), uint8(3))
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\r\n\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, engine []byte, size uint8) {
		const body = `{"text_input":"a"}`
		whole := stream(t, body, string(engine), max(len(engine), 1))
		if !strings.Contains(string(engine), "\r") { // a cut within CRLF may make an empty frame
			if cut := stream(t, body, string(engine), max(int(size), 1)); cut != whole {
				t.Fatalf("%q became %q in one piece and %q in pieces of %d", engine, whole, cut, size)
			}
		}
		for _, frame := range strings.SplitAfter(whole, "\n\n") {
			if frame == "" {
				continue
			}
			data, ok := strings.CutPrefix(frame, "data: ")
			if !ok || !json.Valid([]byte(data)) {
				t.Fatalf("%q became %q", engine, whole)
			}
		}
	})
}

// FuzzReaders: nothing that clients or engines send makes a reader panic.
func FuzzReaders(f *testing.F) {
	for _, s := range []string{`{"input":["a"],"model":"m"}`, `{"query":"a","documents":["b"]}`, `{"text_1":"a","text_2":["b"]}`, `{"text_input":"a","parameters":{"x":1}}`,
		`{"instances":[{"a":1}]}`, `{"predictions":[{"a":1},{"a":2}]}`, `[{"choices":[{"text":"a"}]}]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m := mustModel(t, textMeta, "")
		_, _ = translate.NewEmbeddings(body, m)
		_, _ = translate.NewEmbeddings(body, mustModel(t, tokenMeta, ""))
		_, _ = translate.NewRerank(body, m, translate.Origin{})
		_, _ = translate.NewScore(body, m, translate.Origin{})
		_, _ = translate.NewClassify(body, m, translate.Origin{})
		if g, err := translate.NewGenerate(body, "m", "", false, translate.Settings{}); err == nil && !json.Valid(g.Body("m")) && json.Valid(body) {
			t.Fatalf("%q became %q", body, g.Body("m"))
		}
		_, _ = translate.PredictToV2(body, textMeta)
		_, _ = translate.InferFromV1(&oip.InferRequest{}, body)
		for _, task := range []string{translate.TaskChat, translate.TaskEmbeddings} {
			to, err := translate.NewToOpenAI(&oip.InferRequest{Inputs: []oip.Tensor{tensor("text_input", oip.Bytes, texts("a"), 1)}}, translate.Settings{Task: task})
			if err != nil {
				t.Fatal(err)
			}
			_, _ = to.Answer(body)
		}
		_, _ = translate.ParseSettings(string(body))
	})
}

func BenchmarkEmbeddingsAnswer(b *testing.B) {
	const rows, width = 1000, 384
	raw := make([]byte, 0, 4*rows*width)
	for i := range rows * width {
		raw = append(raw, byte(i), byte(i>>8), byte(i>>3)&0x7f, 0x3d)
	}
	out := &oip.InferResponse{Outputs: []oip.Tensor{{Name: "vector", Datatype: oip.FP32, Shape: []int64{rows, width}, Raw: raw}}}
	input, err := json.Marshal(strings.Split(strings.Repeat("a ", rows-1)+"a", " "))
	if err != nil {
		b.Fatal(err)
	}
	for _, format := range []string{"base64", "float"} {
		b.Run(format, func(b *testing.B) {
			model := mustModel(b, meta(textMeta.Inputs, nil), "")
			r, err := translate.NewEmbeddings(fmt.Appendf(nil, `{"model":"m","encoding_format":%q,"input":%s}`, format, input), model)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Answer(out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGenerateFrame(b *testing.B) {
	g, err := translate.NewGenerate([]byte(`{"text_input":"a"}`), "m", "", true, translate.Settings{})
	if err != nil {
		b.Fatal(err)
	}
	chunk := []byte(`{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}`)
	s := g.Stream()
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		out = s.Frame(out[:0], chunk)
	}
}
