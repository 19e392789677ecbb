package translate_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// The targets of this file carry what was drawn there and back, and want it unchanged.

// seeds are of no text, of a few, and of bytes that are no text, are escaped, or make extreme numbers.
func seeds(f *testing.F) {
	f.Helper()
	f.Add([]byte(nil))
	f.Add([]byte("\x02\x07Grüße😀\x05\"\\\n\x00\x7f\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c"))
	f.Add([]byte("\x03\xff\xfe\x80\xff\xff\x7f\x7f\x00\x00\x80\x00\x01\x00\x00\x00\xcd\xcc\xcc\x3d\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01"))
}

// asker is what is asked of a model of tensors.
type asker interface {
	Infer() (*oip.InferRequest, error)
	Answer(*oip.InferResponse) ([]byte, error)
}

func asJSON(tb testing.TB, v any) string {
	tb.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

// exactly compares JSON by its meaning, numbers digit by digit of what they are as doubles.
func exactly(tb testing.TB, got []byte, want string) {
	tb.Helper()
	var g, w any
	if err := json.Unmarshal(got, &g); err != nil {
		tb.Fatalf("%s: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		tb.Fatalf("%s: %v", want, err)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		tb.Fatalf("(-want +got)\n%s", diff)
	}
}

// overTensors carries a request of OpenAI's to tensors and back to OpenAI's, and from there to tensors again.
func overTensors(t *testing.T, body, declaration string, read func(body []byte) (asker, error)) (asker, translate.ToOpenAI) {
	t.Helper()
	r, err := read([]byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	infer, err := r.Infer()
	if err != nil {
		t.Fatal(err)
	}
	infer.Outputs = nil
	to, err := translate.NewToOpenAI(infer, declared(t, declaration))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	exactly(t, to.Body("m"), body)
	again, err := read(to.Body("m"))
	if err != nil {
		t.Fatal(err)
	}
	inferred, err := again.Infer()
	if diff := cmp.Diff(infer.Inputs, inferred.Inputs); err != nil || diff != "" {
		t.Fatalf("tensors: %v (-want +got)\n%s", err, diff)
	}
	return r, to
}

// answered carries tensors to OpenAI's answer and back.
func answered(t *testing.T, r asker, to translate.ToOpenAI, want ...oip.Tensor) []byte {
	t.Helper()
	body, err := r.Answer(&oip.InferResponse{Outputs: want})
	if err != nil {
		t.Fatal(err)
	}
	back, err := to.Answer(body)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if diff := cmp.Diff(want, back.Outputs); diff != "" {
		t.Fatalf("%s (-want +got)\n%s", body, diff)
	}
	// And once more: what came out of OpenAI's form goes into the same one.
	again, err := r.Answer(back)
	if err != nil || string(again) != string(body) {
		t.Fatalf("%s became %s, %v", body, again, err)
	}
	return body
}

func FuzzEmbeddingsThereAndBack(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &drawn{data}
		input := d.texts()
		base64 := d.flag()
		read := func(body []byte) (asker, error) { return translate.NewEmbeddings(body, mustModel(t, textMeta, "")) }
		r, to := overTensors(t, asJSON(t, map[string]any{"model": "m", "input": input, "encoding_format": "float"}), "task=embeddings, input=text", read)
		if base64 {
			var err error
			if r, err = read([]byte(asJSON(t, map[string]any{"model": "m", "input": input, "encoding_format": "base64"}))); err != nil {
				t.Fatal(err)
			}
		}
		width := 1 + d.upTo(4)
		answered(t, r, to, tensor("embedding", oip.FP32, d.floats(len(input)*width), int64(len(input)), int64(width)))
	})
}

func FuzzRerankThereAndBack(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &drawn{data}
		docs := d.texts()
		read := func(body []byte) (asker, error) {
			return translate.NewRerank(body, mustModel(t, pairMeta, ""), completionsOrigin)
		}
		r, to := overTensors(t, asJSON(t, map[string]any{"model": "m", "query": d.text(), "documents": docs}), "task=rerank, input=query, pair=document", read)
		answered(t, r, to, tensor("scores", oip.FP32, d.floats(len(docs)), int64(len(docs))))
	})
}

func FuzzScoreThereAndBack(f *testing.F) {
	seeds(f)
	rows := meta([]oip.TensorMetadata{in("pairs", oip.Bytes, -1, 2)}, nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &drawn{data}
		second := d.texts()
		var first any = d.text()
		if d.flag() && len(second) > 1 { // each with its own
			all := make([]string, len(second))
			for i := range all {
				all[i] = d.text() + string(rune('a'+i))
			}
			first = all
		}
		m, declaration := pairMeta, "task=score, input=query, pair=document"
		if d.flag() {
			m, declaration = rows, "task=score, input=pairs"
		}
		read := func(body []byte) (asker, error) {
			return translate.NewScore(body, mustModel(t, m, ""), completionsOrigin)
		}
		r, to := overTensors(t, asJSON(t, map[string]any{"model": "m", "text_1": first, "text_2": second}), declaration, read)
		answered(t, r, to, tensor("scores", oip.FP32, d.floats(len(second)), int64(len(second))))
	})
}

func FuzzClassifyThereAndBack(f *testing.F) {
	seeds(f)
	m := meta(textMeta.Inputs, nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &drawn{data}
		input := d.texts()
		read := func(body []byte) (asker, error) {
			return translate.NewClassify(body, mustModel(t, m, ""), completionsOrigin)
		}
		r, to := overTensors(t, asJSON(t, map[string]any{"model": "m", "input": input}), "task=classify, input=text", read)
		n, width := int64(len(input)), 1+d.upTo(4)
		labels := make([]string, len(input))
		for i := range labels {
			labels[i] = d.text()
		}
		out := []oip.Tensor{tensor("labels", oip.Bytes, texts(labels...), n)}
		if d.flag() {
			out = append(out, tensor("probabilities", oip.FP32, d.floats(len(input)*width), n, int64(width)))
		}
		answered(t, r, to, out...)
	})
}

// FuzzGenerateThereAndBack: a prompt with parameters goes from OpenAI's completions to V2's generate and on to
// completions, and the text and its end come back the same way, in one piece and as a stream.
func FuzzGenerateThereAndBack(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &drawn{data}
		body := asJSON(t, map[string]any{"model": "m", "prompt": d.text(), "temperature": d.float(), "max_tokens": d.int(), "stop": d.texts(), "vendor": map[string]any{"x": d.text()}})
		c, err := translate.NewCompletions([]byte(body), nil, completionsOrigin)
		if err != nil {
			t.Fatal(err)
		}
		g, err := translate.NewGenerate(c.Body(), "m", "", false, translate.Settings{})
		if err != nil {
			t.Fatalf("%s: %v", c.Body(), err)
		}
		exactly(t, g.Body("m"), body)

		text := d.text()
		made, err := g.Answer([]byte(`{"choices":[{"index":0,"text":` + asJSON(t, text) + `,"finish_reason":"stop"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		back, err := c.Answer(made)
		if err != nil {
			t.Fatalf("%s: %v", made, err)
		}
		if got := onlyText(t, back); got != text {
			t.Fatalf("%q became %s", text, back)
		}

		frames := stream(t, `{"text_input":"a"}`, `data: {"choices":[{"text":`+asJSON(t, text)+`}]}`+"\n\ndata: [DONE]\n\n", 1+d.upTo(9))
		all := ""
		for _, frame := range strings.SplitAfter(chunks(t, `{"model":"m","prompt":"a","stream":true}`, frames, 1+d.upTo(9)), "\n\n") {
			if data, _ := openai.Data([]byte(frame)); len(data) > 0 && string(data) != openai.Done {
				all += onlyText(t, data)
			}
		}
		if all != text {
			t.Fatalf("%q became %q", text, all)
		}
	})
}

// onlyText is the text of a completion's one choice.
func onlyText(tb testing.TB, answer []byte) string {
	tb.Helper()
	var got struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal(answer, &got); err != nil || len(got.Choices) != 1 {
		tb.Fatalf("%s: %v", answer, err)
	}
	return got.Choices[0].Text
}

// FuzzPromptsThereAndBack: a prompt as a tensor with parameters goes over OpenAI's completions to V2's generate,
// which has the same names and values, and its text comes back.
func FuzzPromptsThereAndBack(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &drawn{data}
		prompt := d.text()
		asked := oip.Parameters{"temperature": d.float(), "seed": d.int(), "guided": d.text(), "flag": d.flag()}
		to, err := translate.NewToOpenAI(&oip.InferRequest{Inputs: []oip.Tensor{tensor("text_input", oip.Bytes, texts(prompt), 1)}, Parameters: asked}, translate.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := translate.NewCompletions(to.Body("m"), nil, completionsOrigin)
		if err != nil {
			t.Fatalf("%s: %v", to.Body("m"), err)
		}
		exactly(t, c.Body(), asJSON(t, map[string]any{"text_input": prompt, "parameters": asked}))

		text := d.text()
		answer, err := c.Answer([]byte(`{"text_output":` + asJSON(t, text) + `,"details":{"finish_reason":"stop","prompt_tokens":3,"generated_tokens":4}}`))
		if err != nil {
			t.Fatal(err)
		}
		out, err := to.Answer(answer)
		want := &oip.InferResponse{Parameters: oip.Parameters{"prompt_tokens": int64(3), "completion_tokens": int64(4)}, Outputs: []oip.Tensor{tensor("text_output", oip.Bytes, texts(text), 1)}}
		if diff := cmp.Diff(want, out); err != nil || diff != "" {
			t.Fatalf("%v (-want +got)\n%s", err, diff)
		}
	})
}

// FuzzPredictThereAndBack: tensors go from V2 to V1 and on to V2, V1's rows the other way, and predictions of
// datatypes that V1's values tell come back.
func FuzzPredictThereAndBack(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &drawn{data}
		words := d.texts()
		n := len(words)
		doubles, whole, flags := make([]float64, n), make([]int64, n), make([]bool, n)
		for i := range n {
			doubles[i], whole[i], flags[i] = d.float(), d.int(), d.flag()
		}
		rows := int64(n)
		inputs := []oip.Tensor{
			tensor("s", oip.Bytes, texts(words...), rows), tensor("x", oip.FP32, d.floats(2*n), rows, 2), tensor("d", oip.FP64, doubles, rows),
			tensor("n", oip.Int64, whole, rows, 1), tensor("b", oip.Bool, flags, rows),
		}[:1+d.upTo(5)]
		m := meta(nil, nil)
		for _, t := range inputs {
			shape := append([]int64{-1}, t.Shape[1:]...)
			m.Inputs = append(m.Inputs, in(t.Name, t.Datatype, shape...))
		}
		body, err := translate.InferToV1(&oip.InferRequest{Inputs: inputs})
		if err != nil {
			t.Fatal(err)
		}
		r, err := translate.PredictToV2(body, m)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if diff := cmp.Diff(inputs, r.Inputs); diff != "" {
			t.Fatalf("%s (-want +got)\n%s", body, diff)
		}
		again, err := translate.InferToV1(r)
		if err != nil || string(again) != string(body) {
			t.Fatalf("%s became %s, %v", body, again, err)
		}

		doubles[0] = math.Trunc(math.Mod(doubles[0], 1<<40)) + 0.5 // whole numbers alone were INT64
		outputs := []oip.Tensor{tensor("predictions", oip.FP64, doubles, rows), tensor("n", oip.Int64, whole, rows), tensor("s", oip.Bytes, texts(words...), rows), tensor("b", oip.Bool, flags, rows)}[:1+d.upTo(4)]
		predictions, err := translate.PredictFromV2(&oip.InferResponse{Outputs: outputs})
		if err != nil {
			t.Fatal(err)
		}
		out, err := translate.InferFromV1(&oip.InferRequest{}, predictions)
		if err != nil {
			t.Fatalf("%s: %v", predictions, err)
		}
		if diff := cmp.Diff(outputs, out.Outputs); diff != "" {
			t.Fatalf("%s (-want +got)\n%s", predictions, diff)
		}
	})
}

// FuzzV1OverOpenAIThereAndBack: V1's rows of texts go by way of tensors to OpenAI, and vectors come back as
// predictions.
func FuzzV1OverOpenAIThereAndBack(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &drawn{data}
		words, s := d.texts(), declared(t, "task=embeddings")
		r, err := translate.PredictToV2([]byte(asJSON(t, map[string]any{"instances": words})), translate.LanguageMetadata("m", s))
		if err != nil {
			t.Fatal(err)
		}
		to, err := translate.NewToOpenAI(r, s)
		if err != nil {
			t.Fatal(err)
		}
		exactly(t, to.Body("m"), asJSON(t, map[string]any{"model": "m", "encoding_format": "float", "input": words}))
		vectors, entries := make([][]float32, len(words)), make([]any, len(words))
		for i := range words {
			vectors[i] = d.floats(2)
			entries[i] = map[string]any{"index": i, "embedding": vectors[i]}
		}
		out, err := to.Answer([]byte(asJSON(t, map[string]any{"data": entries})))
		if err != nil {
			t.Fatal(err)
		}
		got, err := translate.PredictFromV2(out)
		if err != nil {
			t.Fatal(err)
		}
		var back struct{ Predictions [][]float32 }
		if err := json.Unmarshal(got, &back); err != nil || !cmp.Equal(back.Predictions, vectors) {
			t.Fatalf("%v became %s, %v", vectors, got, err)
		}
	})
}
