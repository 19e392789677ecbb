package translate_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

func declared(tb testing.TB, text string) translate.Settings {
	tb.Helper()
	s, err := translate.ParseSettings(text)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestComparisonsAndClassesOverOpenAI(t *testing.T) {
	two := func(first, second string) *oip.InferRequest {
		return &oip.InferRequest{Inputs: []oip.Tensor{tensor(first, oip.Bytes, texts("q", "q"), 2), tensor(second, oip.Bytes, texts("a", "ß"), 2, 1)}}
	}
	scores := []oip.Tensor{tensor("scores", oip.FP32, []float32{0.25, 0.75}, 2)}
	classes := []oip.Tensor{tensor("labels", oip.Bytes, texts("no", "yes"), 2), tensor("probabilities", oip.FP32, []float32{0.75, 0.25, 0.25, 0.75}, 2, 2)}
	kinds := &oip.InferRequest{Inputs: []oip.Tensor{tensor("text_input", oip.Bytes, texts("x", "y"), 2)}}
	tests := map[string]struct {
		declared           string
		asked              *oip.InferRequest
		path, asks, answer string
		want               []oip.Tensor
	}{
		"rerank, sorted by the engine": {
			"task=rerank", two("query", "document"), "/v1/rerank", `{"model":"e","query":"q","documents":["a","ß"]}`,
			`{"id":"rerank-1","results":[{"index":1,"document":{"text":"ß"},"relevance_score":0.75},{"index":0,"relevance_score":0.25}],"usage":{"total_tokens":3}}`, scores,
		},
		"rerank as SGLang answers it, the inputs the other way round": {
			"task=rerank", &oip.InferRequest{Inputs: []oip.Tensor{tensor("passage", oip.Bytes, texts("a", "b"), 2), tensor("question", oip.Bytes, texts("q", "q"), 2)}},
			"/v1/rerank", `{"model":"e","query":"q","documents":["a","b"]}`, `[{"score":0.75,"document":"b","index":1},{"score":0.25,"index":0,"meta_info":{}}]`, scores,
		},
		"score of one with each": {
			"task=score", two("text_1", "text_2"), "/v1/score", `{"model":"e","text_1":"q","text_2":["a","ß"]}`,
			`{"object":"list","data":[{"index":0,"object":"score","score":0.25},{"index":1,"score":7.5e-1}]}`, scores,
		},
		"score of pairs in rows": {
			"task=score, input=pairs", &oip.InferRequest{Inputs: []oip.Tensor{tensor("pairs", oip.Bytes, texts("p", "a", "q", "b"), 2, 2)}},
			"/v1/score", `{"model":"e","text_1":["p","q"],"text_2":["a","b"]}`, `{"data":[{"score":0.25},{"score":0.75}]}`, scores,
		},
		"declared inputs": {
			"task=score, input=left, pair=right", two("right", "left"), "/v1/score", `{"model":"e","text_1":["a","ß"],"text_2":["q","q"]}`,
			`{"data":[{"score":0.25},{"score":0.75}]}`, scores,
		},
		"TEI's rerank": {
			"task=rerank, dialect=tei", two("query", "document"), "/rerank", `{"query":"q","texts":["a","ß"]}`,
			`[{"index":1,"score":0.75},{"index":0,"score":0.25}]`, scores,
		},
		"TEI's score is its rerank": {
			"task=score, dialect=tei", two("text_1", "text_2"), "/rerank", `{"query":"q","texts":["a","ß"]}`,
			`[{"index":1,"score":0.75},{"index":0,"score":0.25}]`, scores,
		},
		"classify": {
			"task=classify", kinds, "/v1/classify", `{"model":"e","input":["x","y"]}`,
			`{"data":[{"index":1,"label":"yes","probs":[0.25,0.75],"num_classes":2},{"index":0,"label":"no","probs":[0.75,0.25],"num_classes":2}]}`, classes,
		},
		"vLLM's classify, without labels": {
			"task=classify, dialect=vllm", kinds, "/classify", `{"model":"e","input":["x","y"]}`,
			`{"data":[{"index":0,"label":null,"probs":[0.75,0.25]},{"index":1,"label":null,"probs":[0.25,0.75]}]}`, classes[1:],
		},
		"a label alone": {
			"task=classify", kinds, "/v1/classify", `{"model":"e","input":["x","y"]}`,
			`{"data":[{"index":0,"label":"no","probs":[]},{"index":1,"label":"yes","probs":[]}]}`, classes[:1],
		},
		"TEI's predict tells the best first, in the order of the names here": {
			"task=classify, dialect=tei", kinds, "/predict", `{"inputs":[["x"],["y"]]}`,
			`[[{"score":0.75,"label":"no"},{"score":0.25,"label":"yes"}],[{"score":0.75,"label":"yes"},{"score":0.25,"label":"no"}]]`, classes,
		},
		"in the order of declared labels": {
			"task=classify, dialect=tei, labels=yes|no", kinds, "/predict", `{"inputs":[["x"],["y"]]}`,
			`[[{"score":0.75,"label":"no"},{"score":0.25,"label":"yes"}],[{"score":0.75,"label":"yes"},{"score":0.25,"label":"no"}]]`,
			[]oip.Tensor{classes[0], tensor("probabilities", oip.FP32, []float32{0.25, 0.75, 0.75, 0.25}, 2, 2)},
		},
		"one output, and numbered labels": {
			"task=classify, dialect=tei", &oip.InferRequest{Inputs: []oip.Tensor{tensor("text_input", oip.Bytes, texts("x"), 1)}, Outputs: []oip.RequestedOutput{{Name: "probabilities"}}},
			"/predict", `{"inputs":[["x"]]}`, `[[{"label":"LABEL_10","score":0.5},{"label":"LABEL_2","score":0.25}]]`,
			[]oip.Tensor{tensor("probabilities", oip.FP32, []float32{0.25, 0.5}, 1, 2)},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			to, err := translate.NewToOpenAI(tc.asked, declared(t, tc.declared))
			if err != nil {
				t.Fatal(err)
			}
			if to.Path() != tc.path {
				t.Errorf("path %s", to.Path())
			}
			same(t, to.Body("e"), tc.asks)
			got, err := to.Answer([]byte(tc.answer))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Outputs); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for _, broken := range []string{"", "{}", "[]", `[{}]`, `{"results":[{"index":0,"score":1},{"index":0,"score":1}]}`, `{"data":[{"index":7,"score":1,"label":"a"}]}`, `{"data":[[],[{}]]}`} {
				if _, err := to.Answer([]byte(broken)); !errors.Is(err, errdef.ErrInternal) {
					t.Errorf("answer %q: %v", broken, err)
				}
			}
		})
	}
}

func TestWhatComparisonsCantCarryIsRefused(t *testing.T) {
	text := func(name string, words ...string) oip.Tensor {
		return tensor(name, oip.Bytes, texts(words...), int64(len(words)))
	}
	for name, tc := range map[string]struct {
		declared string
		asked    oip.InferRequest
	}{
		"several queries":           {"task=rerank", oip.InferRequest{Inputs: []oip.Tensor{text("query", "p", "q"), text("document", "a", "b")}}},
		"several first texts, TEI":  {"task=score, dialect=tei", oip.InferRequest{Inputs: []oip.Tensor{text("text_1", "p", "q"), text("text_2", "a", "b")}}},
		"two with one":              {"task=score", oip.InferRequest{Inputs: []oip.Tensor{text("text_1", "p", "q"), text("text_2", "a")}}},
		"one input of single texts": {"task=score", oip.InferRequest{Inputs: []oip.Tensor{text("text_1", "p", "q")}}},
		"three inputs":              {"task=score", oip.InferRequest{Inputs: []oip.Tensor{text("a", "p"), text("b", "p"), text("c", "p")}}},
		"numbers":                   {"task=score", oip.InferRequest{Inputs: []oip.Tensor{text("a", "p"), tensor("b", oip.Int64, []int64{1}, 1)}}},
		"other names":               {"task=score, input=a, pair=b", oip.InferRequest{Inputs: []oip.Tensor{text("a", "p"), text("c", "p")}}},
		"another name for rows":     {"task=score, input=a", oip.InferRequest{Inputs: []oip.Tensor{tensor("b", oip.Bytes, texts("p", "q"), 1, 2)}}},
		"a parameter":               {"task=rerank", oip.InferRequest{Inputs: []oip.Tensor{text("query", "p"), text("document", "a")}, Parameters: oip.Parameters{"top_n": int64(1)}}},
		"another output":            {"task=rerank", oip.InferRequest{Inputs: []oip.Tensor{text("query", "p"), text("document", "a")}, Outputs: []oip.RequestedOutput{{Name: "labels"}}}},
		"two texts to classify":     {"task=classify", oip.InferRequest{Inputs: []oip.Tensor{text("text_input", "p"), text("document", "a")}}},
		"bytes that aren't text":    {"task=classify", oip.InferRequest{Inputs: []oip.Tensor{text("text_input", "\xff")}}},
	} {
		if _, err := translate.NewToOpenAI(&tc.asked, declared(t, tc.declared)); !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, task := range []string{"rerank", "score", "classify"} {
		if _, err := translate.NewGenerate([]byte(`{"text_input":"a"}`), "m", "", false, declared(t, "task="+task)); !errors.Is(err, errdef.ErrUnsupported) {
			t.Errorf("generate of a model for %s: %v", task, err)
		}
	}
}

func TestMetadataOfWhatAnEngineIsDeclaredFor(t *testing.T) {
	text := func(name string, shape ...int64) oip.TensorMetadata { return in(name, oip.Bytes, shape...) }
	scores := []oip.TensorMetadata{in("scores", oip.FP32, -1)}
	for words, want := range map[string]*oip.ModelMetadata{
		"task=rerank":                  meta([]oip.TensorMetadata{text("query", -1), text("document", -1)}, scores),
		"task=score":                   meta([]oip.TensorMetadata{text("text_1", -1), text("text_2", -1)}, scores),
		"task=score, input=p":          meta([]oip.TensorMetadata{text("p", -1, 2)}, scores),
		"task=score, input=p, pair=q":  meta([]oip.TensorMetadata{text("p", -1), text("q", -1)}, scores),
		"task=classify, input=t":       meta([]oip.TensorMetadata{text("t", -1)}, []oip.TensorMetadata{text("labels", -1), in("probabilities", oip.FP32, -1, -1)}),
		"dialect=tei, task=embeddings": meta([]oip.TensorMetadata{text("text_input", -1)}, []oip.TensorMetadata{in("embedding", oip.FP32, -1, -1)}),
	} {
		want.Platform = "openai"
		if diff := cmp.Diff(want, translate.LanguageMetadata("m", declared(t, words))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", words, diff)
		}
	}
}

func TestByAnEnginesOwnPath(t *testing.T) {
	tei := declared(t, "task=embeddings, dialect=tei")
	for name, tc := range map[string]struct{ path, body, ownPath, asks, answer, want string }{
		"rerank": {
			"/v1/rerank", `{"model":"m","query":"q","documents":["a",{"text":"b"}],"top_n":1}`, "/rerank", `{"query":"q","texts":["a","b"]}`,
			`[{"index":1,"score":0.75},{"index":0,"score":0.25}]`,
			`{"id":"rerank-7","model":"m","results":[{"index":1,"document":{"text":"b"},"relevance_score":0.75}],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
		},
		"score": {
			"/v1/score", `{"model":"m","text_1":"q","text_2":["a","b"]}`, "/rerank", `{"query":"q","texts":["a","b"]}`,
			`[{"index":1,"score":0.75},{"index":0,"score":0.25}]`,
			`{"id":"score-7","object":"list","created":9,"model":"m","data":[{"index":0,"object":"score","score":0.25},{"index":1,"object":"score","score":0.75}],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
		},
		"classify": {
			"/v1/classify", `{"model":"m","input":"x"}`, "/predict", `{"inputs":[["x"]]}`,
			`[[{"score":0.75,"label":"yes"},{"score":0.25,"label":"no"}]]`,
			`{"id":"classify-7","object":"list","created":9,"model":"m","data":[{"index":0,"label":"yes","probs":[0.25,0.75],"num_classes":2}],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			to, back, err := translate.NewByOwnPath(tc.path, []byte(tc.body), tei, completionsOrigin)
			if err != nil {
				t.Fatal(err)
			}
			if to.Path() != tc.ownPath {
				t.Errorf("path %s", to.Path())
			}
			same(t, to.Body("e"), tc.asks)
			out, err := to.Answer([]byte(tc.answer))
			if err != nil {
				t.Fatal(err)
			}
			got, err := back(out)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, tc.want)
		})
	}
	if _, _, err := translate.NewByOwnPath("/v1/score", []byte(`{"text_1":["a","b"],"text_2":["c","d"]}`), tei, completionsOrigin); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("pairs that TEI can't compare at once: %v", err)
	}
	if to, _, err := translate.NewByOwnPath("/v1/embeddings", nil, tei, completionsOrigin); to != nil || err != nil {
		t.Errorf("what it has as OpenAI does: %v, %v", to, err)
	}
}
