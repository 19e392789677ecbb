package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

func TestPathsOfTheAPI(t *testing.T) {
	tests := map[string]struct {
		want openai.Call
		not  bool
	}{
		"/v1/chat/completions":         {want: openai.Call{Op: openai.Chat, Path: "/v1/chat/completions"}},
		"/openai/v1/chat/completions":  {want: openai.Call{Op: openai.Chat, Root: "/openai", Path: "/v1/chat/completions"}},
		"/openai/v1/completions/":      {want: openai.Call{Op: openai.Completions, Root: "/openai", Path: "/v1/completions"}},
		"/v1/embeddings":               {want: openai.Call{Op: openai.Embeddings, Path: "/v1/embeddings"}},
		"/v1/rerank":                   {want: openai.Call{Op: openai.Rerank, Path: "/v1/rerank"}},
		"/v1/score":                    {want: openai.Call{Op: openai.Score, Path: "/v1/score"}},
		"/v1/responses":                {want: openai.Call{Op: openai.Responses, Path: "/v1/responses"}},
		"/v1/moderations":              {want: openai.Call{Op: openai.Moderations, Path: "/v1/moderations"}},
		"/v1/audio/transcriptions":     {want: openai.Call{Op: openai.Audio, Path: "/v1/audio/transcriptions"}},
		"/v1/images/generations":       {want: openai.Call{Op: openai.Images, Path: "/v1/images/generations"}},
		"/openai/v1/models":            {want: openai.Call{Op: openai.Models, Root: "/openai", Path: "/v1/models"}},
		"/openai/v1/models/a%2Fb":      {want: openai.Call{Op: openai.Model, Root: "/openai", Path: "/v1/models/a%2Fb", Model: "a/b"}},
		"/openai/v1/models/ns/m":       {want: openai.Call{Op: openai.Model, Root: "/openai", Path: "/v1/models/ns/m", Model: "ns/m"}},
		"/v1/audio":                    {not: true},
		"/v1/":                         {not: true},
		"/openai":                      {not: true},
		"/v1/timeseries/forecast":      {not: true},
		"/v2/models/m/infer":           {not: true},
		"/x/v1/chat/completions":       {not: true},
		"/openai/openai/v1/embeddings": {not: true},
	}
	for path, tc := range tests {
		got, ok := openai.ParsePath(path, openai.DefaultRoot)
		if ok == tc.not || got != tc.want {
			t.Errorf("%s: %+v %v, want %+v", path, got, ok, tc.want)
		}
	}
	if c, ok := openai.ParsePath("/llm/api/v1/embeddings", "/llm/api"); !ok || c.Root != "/llm/api" || c.Path != "/v1/embeddings" {
		t.Errorf("another root: %+v %v", c, ok)
	}
	if c, ok := openai.ParsePath("/v1/embeddings", ""); !ok || c.Root != "" {
		t.Errorf("no root: %+v %v", c, ok)
	}
	if c, ok := openai.ParsePath("/openai/v1/embeddings", ""); ok {
		t.Errorf("a root that isn't asked for: %+v", c)
	}
}

func TestNamesOfModels(t *testing.T) {
	for model, want := range map[string]openai.Name{
		"iris":              {Name: "iris"},
		"team/iris":         {Namespace: "team", Name: "iris"},
		"iris@iris-00002":   {Name: "iris", Revision: "iris-00002"},
		"team/iris@r":       {Namespace: "team", Name: "iris", Revision: "r"},
		"hub/org/iris":      {Name: "hub/org/iris"},
		"@r":                {Name: "@r"},
		"iris@":             {Name: "iris@"},
		"/iris":             {Name: "/iris"},
		"a:b":               {Name: "a", Revision: "b", Colon: true},
		"n/a:b@c":           {Namespace: "n", Name: "a:b", Revision: "c"},
		"a:":                {Name: "a:"},
		"mail@example.com@": {Name: "mail@example.com@"},
	} {
		if got := openai.ParseName(model); got != want {
			t.Errorf("%s: %+v, want %+v", model, got, want)
		}
	}
}

// TestRequestsChangeOnlyWhereTheyMust renames the model and asks for usage, and compares bytes.
func TestRequestsChangeOnlyWhereTheyMust(t *testing.T) {
	tests := map[string]struct{ body, want string }{
		"spaces, big numbers and unknown fields stay": {
			`{ "seed" : 12345678901234567890, "temperature":1.0e-1,"model" : "a" , "x":{"model":"b"}}`,
			`{ "seed" : 12345678901234567890, "temperature":1.0e-1,"model" : "served" , "x":{"model":"b"}}`,
		},
		"a stream asks for usage": {
			`{"model":"a","stream":true,"messages":[]}`,
			`{"model":"served","stream":true,"stream_options":{"include_usage":true},"messages":[]}`,
		},
		"no stream, no usage":   {`{"model":"a","stream":false}`, `{"model":"served","stream":false}`},
		"the client asked":      {`{"stream":true,"stream_options":{"include_usage":true},"model":"a"}`, `{"stream":true,"stream_options":{"include_usage":true},"model":"served"}`},
		"the client declined":   {`{"stream":true,"stream_options":{"include_usage":false},"model":"a"}`, `{"stream":true,"stream_options":{"include_usage":true},"model":"served"}`},
		"other options":         {`{"stream":true,"stream_options":{"x":1},"model":"a"}`, `{"stream":true,"stream_options":{"include_usage":true,"x":1},"model":"served"}`},
		"empty options":         {`{"stream_options":{},"model":"a","stream":true}`, `{"stream_options":{"include_usage":true},"model":"served","stream":true}`},
		"no options":            {`{"stream":true,"stream_options":null,"model":"a"}`, `{"stream":true,"stream_options":{"include_usage":true},"model":"served"}`},
		"an escaped name":       {`{"\u006dodel":"\u0061","messages":["é😀\n"]}`, `{"\u006dodel":"served","messages":["é😀\n"]}`},
		"the model comes last":  {`{"messages":[{"role":"user","content":"model"}],"model":"a"}`, `{"messages":[{"role":"user","content":"model"}],"model":"served"}`},
		"the usage before name": {`{"stream":true,"model":"a"}`, `{"stream":true,"stream_options":{"include_usage":true},"model":"served"}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := openai.ReadRequest([]byte(tc.body), true)
			if err != nil || r.Model != "a" || !r.Whole {
				t.Fatalf("read %+v, %v", r, err)
			}
			edits := []openai.Edit{r.Renamed("served")}
			if e, ok := r.WithUsage(); ok {
				edits = append(edits, e)
			}
			got := openai.Apply([]byte(tc.body), edits...)
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if !json.Valid(got) {
				t.Errorf("%s isn't JSON", got)
			}
		})
	}
}

func TestRequestsThatCantBeRead(t *testing.T) {
	for name, body := range map[string]string{
		"two models":          `{"model":"a","model":"b"}`,
		"a model that isn't":  `{"model":3}`,
		"no object":           `["model"]`,
		"broken":              `{"model":`,
		"text behind":         `{"model":"a"} x`,
		"nothing":             ``,
		"another key, broken": `{"a":tru,"model":"a"}`,
	} {
		if _, err := openai.ReadRequest([]byte(body), true); !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestTheBeginningIsEnough reads what each beginning of a body tells, and never more.
func TestTheBeginningIsEnough(t *testing.T) {
	body := `{"stream":true,"model":"abc","messages":["x"]}`
	found := strings.Index(body, `,"messages`)
	for n := range body {
		r, err := openai.ReadRequest([]byte(body[:n]), false)
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if (r.Model != "") != (n >= found) || r.Model != "" && r.Model != "abc" || r.Whole {
			t.Errorf("%d bytes: %+v", n, r)
		}
	}
	if _, err := openai.ReadRequest([]byte(`{"model":"a","model":"b","me`), false); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("two models in a beginning: %v", err)
	}
}

// TestFramesOfAnyShapeAndCut feeds streams in pieces of each size and puts them together again.
func TestFramesOfAnyShapeAndCut(t *testing.T) {
	large := "data: " + strings.Repeat("long ", 300_000) + "\n\n"
	tests := map[string]struct {
		stream string
		frames []string
		rest   string
	}{
		"LF":                {"data: a\n\ndata: b\n\n", []string{"data: a\n\n", "data: b\n\n"}, ""},
		"CRLF":              {"data: a\r\n\r\ndata: b\r\n\r\n", []string{"data: a\r\n\r\n", "data: b\r\n\r\n"}, ""},
		"comments":          {": ping\n\nevent: x\ndata: é😀\n\n", []string{": ping\n\n", "event: x\ndata: é😀\n\n"}, ""},
		"no final new line": {"data: a\n\ndata: [DONE]\n", []string{"data: a\n\n"}, "data: [DONE]\n"},
		"no final line":     {"data: a\n\ndata: [DONE]", []string{"data: a\n\n"}, "data: [DONE]"},
		"lines":             {"data: a\ndata: b\nid: 1\n\n", []string{"data: a\ndata: b\nid: 1\n\n"}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(tc.stream); size++ {
				var f openai.Frames
				var got []string
				for at := 0; at < len(tc.stream); at += size {
					_ = f.Feed([]byte(tc.stream[at:min(at+size, len(tc.stream))]), func(frame []byte) error {
						got = append(got, string(frame))
						return nil
					})
				}
				whole := strings.Join(got, "")
				// Between CR and LF of an empty line a cut may make a frame of the LF alone.
				if !strings.Contains(tc.stream, "\r") {
					if diff := cmp.Diff(tc.frames, got); diff != "" {
						t.Errorf("pieces of %d (-want +got)\n%s", size, diff)
					}
				}
				if rest := string(f.Rest()); rest != tc.rest || whole+rest != tc.stream {
					t.Errorf("pieces of %d: %q and %q", size, whole, rest)
				}
			}
		})
	}
	var f openai.Frames
	n := 0
	for at := 0; at < len(large); at += 4096 {
		_ = f.Feed([]byte(large[at:min(at+4096, len(large))]), func(frame []byte) error { n += len(frame); return nil })
	}
	if n != len(large) || f.Pending() != 0 {
		t.Errorf("a large frame: %d of %d bytes", n, len(large))
	}
}

func TestDataOfFrames(t *testing.T) {
	for frame, want := range map[string]string{
		"data: {}\n\n":             "{}",
		"data:{}\r\n\r\n":          "{}",
		": comment\n\n":            "",
		"event: a\ndata: x\n\n":    "x",
		"data: a\ndata: b\n\n":     "a\nb",
		"data:  two spaces\n\n":    " two spaces",
		"datum: x\n\n":             "",
		"data: [DONE]":             "[DONE]",
		"data: a\r\ndata: b\r\n\r": "a\nb",
	} {
		got, span := openai.Data([]byte(frame))
		if string(got) != want {
			t.Errorf("%q: %q, want %q", frame, got, want)
		}
		if span.Found() && frame[span.From:span.To] != want {
			t.Errorf("%q: the data lies at %v", frame, span)
		}
	}
}

func TestAnswersTellTheirUsage(t *testing.T) {
	tests := map[string]struct {
		text    string
		want    openai.Usage
		told    bool
		empty   bool
		without string
	}{
		"the last chunk":    {`{"id":"1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}`, openai.Usage{Prompt: 5, Completion: 7}, true, true, `{"id":"1","choices":[]}`},
		"a chunk before":    {`{"choices":[{"delta":{}}],"usage":null,"x":1}`, openai.Usage{}, false, false, `{"choices":[{"delta":{}}],"x":1}`},
		"usage comes first": {`{ "usage" : null , "x":1}`, openai.Usage{}, false, false, `{ "x":1}`},
		"usage alone":       {`{"usage":null}`, openai.Usage{}, false, false, `{}`},
		"embeddings":        {`{"data":[],"usage":{"prompt_tokens":3,"total_tokens":3}}`, openai.Usage{Prompt: 3}, true, false, `{"data":[]}`},
		"responses":         {`{"type":"response.completed","response":{"usage":{"input_tokens":1,"output_tokens":2}}}`, openai.Usage{Prompt: 1, Completion: 2}, true, false, ``},
		"details":           {`{"usage":{"prompt_tokens_details":{"cached_tokens":1},"prompt_tokens":1,"completion_tokens":null}}`, openai.Usage{Prompt: 1}, true, false, `{}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a, ok := openai.ReadAnswer([]byte(tc.text))
			if !ok || a.Usage != tc.want || a.Told != tc.told || a.Empty != tc.empty {
				t.Fatalf("%v %+v", ok, a)
			}
			e, has := a.WithoutUsage()
			if has != (tc.without != "") {
				t.Fatalf("usage found: %v", has)
			}
			if has {
				got := string(openai.Apply([]byte(tc.text), e))
				var want, have any
				if json.Unmarshal([]byte(tc.without), &want) != nil || json.Unmarshal([]byte(got), &have) != nil || !cmp.Equal(want, have) {
					t.Errorf("without: %s, want %s", got, tc.without)
				}
			}
		})
	}
	if _, ok := openai.ReadAnswer([]byte(`{"usage":{"prompt_tokens":-1}}`)); ok {
		t.Error("a negative count was taken")
	}
}

func TestAnswersAreRenamed(t *testing.T) {
	text := `{"id":"x","model":"served","object":"o"}`
	a, _ := openai.ReadAnswer([]byte(text))
	e, ok := a.Renamed("asked")
	if got := string(openai.Apply([]byte(text), e)); !ok || got != `{"id":"x","model":"asked","object":"o"}` {
		t.Errorf("%v %s", ok, got)
	}
	a, _ = openai.ReadAnswer([]byte(`{"id":"x"}`))
	if _, ok := a.Renamed("asked"); ok {
		t.Error("there is no model to rename")
	}
}

func TestAnswersTellWhatMadeThem(t *testing.T) {
	for text, want := range map[string]string{
		`{"id":"x","choices":[]}`:                         `{"system_fingerprint":"llm-2@4f2b","id":"x","choices":[]}`,
		` { "choices":[{"text":"é"}] }`:                   ` {"system_fingerprint":"llm-2@4f2b", "choices":[{"text":"é"}] }`,
		`{"choices":[],"system_fingerprint":null}`:        `{"choices":[],"system_fingerprint":"llm-2@4f2b"}`,
		`{"choices":[],"system_fingerprint":"b7"}`:        `{"choices":[],"system_fingerprint":"llm-2@4f2b/b7"}`,
		`{"choices":[{"system_fingerprint":1}]}`:          `{"system_fingerprint":"llm-2@4f2b","choices":[{"system_fingerprint":1}]}`,
		`{"error":{"message":"no \"choices\""}}`:          `{"error":{"message":"no \"choices\""}}`,
		`{"choices":[{"text":"\"system_fingerprint\""}]}`: `{"system_fingerprint":"llm-2@4f2b","choices":[{"text":"\"system_fingerprint\""}]}`,
		`["choices"]`:                         `["choices"]`,
		`{"choices":[],"system_fingerprint":`: `{"choices":[],"system_fingerprint":`,
	} {
		got := text
		if e, ok := openai.NewStamp("llm-2@4f2b").On([]byte(text)); ok {
			got = string(openai.Apply([]byte(text), e))
		}
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}

func TestErrorsHaveTheirShape(t *testing.T) {
	got := string(openai.Error{Message: `no "<x>"`, Type: "invalid_request_error", Code: "model_not_found"}.JSON())
	if want := `{"error":{"message":"no \"<x>\"","type":"invalid_request_error","param":null,"code":"model_not_found"}}` + "\n"; got != want {
		t.Errorf("%s", got)
	}
	other := openai.Error{Message: "engine", Type: "server_error"}
	if got := string(openai.InStream([]byte("{\n \"error\": {\"message\":\"m\"}}"), other)); got != `{"error":{"message":"m"}}` {
		t.Errorf("%s", got)
	}
	for _, body := range []string{"oops", `{"error":"oops"}`, ``, `[]`} {
		if got := openai.InStream([]byte(body), other); !bytes.Equal(got, other.JSON()) {
			t.Errorf("%s: %s", body, got)
		}
	}
	if got := string(openai.Frame(other.JSON())); !strings.HasSuffix(got, "}\n\n") || strings.Count(got, "\n") != 2 {
		t.Errorf("%q", got)
	}
}

// FuzzFrames: whatever the cuts, no byte is lost or changed, and the data lies where it is said.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("data: a\r\n\r\n: c\n\ndata: é\n\n"), uint8(3))
	f.Add([]byte("data: a\rdata: b\r\r\n\n"), uint8(1))
	f.Add([]byte("data: 世\n\ndata: [DONE]"), uint8(2))
	f.Add(append(bytes.Repeat([]byte("data: é\n"), 200_000), '\n'), uint8(255))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		var frames openai.Frames
		var got []byte
		for at, n := 0, max(int(size), 1); at < len(stream); at += n {
			_ = frames.Feed(stream[at:min(at+n, len(stream))], func(frame []byte) error {
				if data, span := openai.Data(frame); span.Found() && !bytes.Equal(data, frame[span.From:span.To]) {
					t.Fatalf("%q: %q isn't at %v", frame, data, span)
				}
				got = append(got, frame...)
				return nil
			})
		}
		if got = append(got, frames.Rest()...); !bytes.Equal(got, stream) {
			t.Fatalf("%q became %q", stream, got)
		}
	})
}

// FuzzRequest: what is read agrees with encoding/json, and an edited request is JSON that says
// the same but for what was changed.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"model":"a","stream":true,"stream_options":{"x":1},"messages":["é"]}`))
	f.Add([]byte(`{"stream":true,"stream_options":null,"model":"\u0061"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := openai.ReadRequest(body, true)
		if err != nil || r.Model == "" || !json.Valid(body) {
			return
		}
		var before, after map[string]any
		if json.Unmarshal(body, &before) != nil {
			t.Fatalf("%q isn't an object", body)
		}
		if before["model"] != r.Model {
			t.Fatalf("model %q, want %q", r.Model, before["model"])
		}
		edits := []openai.Edit{r.Renamed("served")}
		usage, asks := r.WithUsage()
		if asks {
			edits = append(edits, usage)
		}
		out := openai.Apply(body, edits...)
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatalf("%q became %q: %v", body, out, err)
		}
		if after["model"] != "served" {
			t.Fatalf("%q became %q", body, out)
		}
		delete(before, "model")
		delete(after, "model")
		if asks {
			delete(before, "stream_options")
			delete(after, "stream_options")
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("%q became %q (-want +got)\n%s", body, out, diff)
		}
	})
}

// FuzzStamped: a stamped answer is JSON that tells what made it, and else the same.
func FuzzStamped(f *testing.F) {
	f.Add([]byte(`{"choices":[],"system_fingerprint":null,"model":"m"}`))
	f.Add([]byte(` {"id":"\"choices\"","choices":[{}]}`))
	f.Add([]byte(`{"system_fingerprint":"b1/2","choices":[]}`))
	f.Add([]byte(`{"choices":[],"system_fingerprint":"\\\"é"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, ok := openai.NewStamp("rev@1").On(text)
		var before, after map[string]any
		if !ok || json.Unmarshal(text, &before) != nil || bytes.Contains(text, []byte(`\u`)) {
			return
		}
		out := openai.Apply(text, e)
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatalf("%q became %q: %v", text, out, err)
		}
		want := "rev@1"
		if own, _ := before["system_fingerprint"].(string); own != "" {
			want += "/" + own
		}
		if after["system_fingerprint"] != want {
			t.Fatalf("%q became %q", text, out)
		}
		delete(before, "system_fingerprint")
		delete(after, "system_fingerprint")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("%q became %q (-want +got)\n%s", text, out, diff)
		}
	})
}

// FuzzAnswer: an answer without its usage is JSON without it, and else the same.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"choices":[],"usage":null,"model":"m"}`))
	f.Add([]byte(`{"usage":{"prompt_tokens":1},"a":[{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, ok := openai.ReadAnswer(text)
		if !ok || !json.Valid(text) || bytes.Count(text, []byte("usage")) > 1 || bytes.Contains(text, []byte(`\u`)) {
			return
		}
		e, ok := a.WithoutUsage()
		if !ok {
			return
		}
		var before, after map[string]any
		out := openai.Apply(text, e)
		if json.Unmarshal(text, &before) != nil || json.Unmarshal(out, &after) != nil {
			t.Fatalf("%q became %q", text, out)
		}
		delete(before, "usage")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("%q became %q (-want +got)\n%s", text, out, diff)
		}
	})
}

// BenchmarkStamp is what telling the revision adds to a chunk of a stream.
func BenchmarkStamp(b *testing.B) {
	chunk := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}`)
	stamp := openai.NewStamp("llm-predictor-00002@4f2b1c9d0e3a")
	b.ReportAllocs()
	for b.Loop() {
		if e, ok := stamp.On(chunk); ok {
			_ = openai.Apply(chunk, e)
		}
	}
}

// What is written in pieces is what is written in one.
func TestPiecesAreWhatApplyMakes(t *testing.T) {
	text := []byte(`{"model":"a","stream":true}`)
	for name, edits := range map[string][]openai.Edit{
		"none":          nil,
		"one":           {{Span: openai.Span{From: 9, To: 12}, With: `"long name"`}},
		"at both ends":  {{Span: openai.Span{From: 0, To: 1}, With: "["}, {Span: openai.Span{From: 26, To: 27}, With: "]"}},
		"out of order":  {{Span: openai.Span{From: 26, To: 26}, With: `,"x":1`}, {Span: openai.Span{From: 9, To: 12}, With: ""}},
		"at one place":  {{Span: openai.Span{From: 9, To: 12}, With: `"b"`}, {Span: openai.Span{From: 9, To: 9}, With: " "}},
		"all of it":     {{Span: openai.Span{From: 0, To: 27}, With: "null"}},
		"a part of two": {{Span: openai.Span{From: 1, To: 8}, With: "k"}, {Span: openai.Span{From: 8, To: 12}, With: "v"}},
	} {
		if got, want := bytes.Join(openai.Pieces(text, edits...), nil), openai.Apply(text, edits...); !bytes.Equal(got, want) {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
}
