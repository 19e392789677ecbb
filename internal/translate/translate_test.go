package translate_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// meta is a model's metadata.
func meta(inputs, outputs []oip.TensorMetadata) *oip.ModelMetadata {
	return &oip.ModelMetadata{Name: "m", Inputs: inputs, Outputs: outputs}
}

func in(name string, d oip.Datatype, shape ...int64) oip.TensorMetadata {
	return oip.TensorMetadata{Name: name, Datatype: d, Shape: shape}
}

func tensor(name string, d oip.Datatype, data any, shape ...int64) oip.Tensor {
	return oip.Tensor{Name: name, Datatype: d, Shape: shape, Data: data}
}

func texts(words ...string) [][]byte {
	out := make([][]byte, len(words))
	for i, w := range words {
		out[i] = []byte(w)
	}
	return out
}

// mustModel is a model that can be asked about texts.
func mustModel(tb testing.TB, m *oip.ModelMetadata, declared string) *translate.Model {
	tb.Helper()
	s, err := translate.ParseSettings(declared)
	if err != nil {
		tb.Fatal(err)
	}
	model, err := translate.NewModel(m, s)
	if err != nil {
		tb.Fatal(err)
	}
	return model
}

// same compares JSON by its meaning.
func same(tb testing.TB, got []byte, want string) {
	tb.Helper()
	var g, w any
	if err := json.Unmarshal(got, &g); err != nil {
		tb.Fatalf("%s: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		tb.Fatalf("%s: %v", want, err)
	}
	if diff := cmp.Diff(w, g, cmpopts.EquateApprox(1e-6, 0)); diff != "" {
		tb.Errorf("(-want +got)\n%s", diff)
	}
}

var (
	textMeta  = meta([]oip.TensorMetadata{in("text", oip.Bytes, -1)}, []oip.TensorMetadata{in("vector", oip.FP32, -1, 3)})
	tokenMeta = meta([]oip.TensorMetadata{in("input_ids", oip.Int64, -1, -1), in("attention_mask", oip.Int64, -1, -1), in("token_type_ids", oip.Int32, -1, -1)},
		[]oip.TensorMetadata{in("last_hidden_state", oip.FP32, -1, -1, 2)})
	pairMeta = meta([]oip.TensorMetadata{in("document", oip.Bytes, -1, 1), in("query", oip.Bytes, -1, 1)}, []oip.TensorMetadata{in("scores", oip.FP32, -1, 1)})
)

func TestEmbeddingsOverTensors(t *testing.T) {
	tests := map[string]struct {
		meta       *oip.ModelMetadata
		declared   string
		body       string
		wantInputs []oip.Tensor
		outputs    []oip.Tensor
		want       string
	}{
		"a text": {
			meta: textMeta, body: `{"model":"m@1","input":"Grüße","user":"u","dimensions":null}`,
			wantInputs: []oip.Tensor{tensor("text", oip.Bytes, texts("Grüße"), 1)},
			outputs:    []oip.Tensor{tensor("vector", oip.FP32, []float32{1, -0.5, 3e-9}, 1, 3)},
			want:       `{"object":"list","model":"m@1","data":[{"object":"embedding","index":0,"embedding":[1,-0.5,3e-9]}],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
		},
		"texts, in a column, half floats, base64": {
			meta: meta([]oip.TensorMetadata{in("t", oip.Bytes, -1, 1)}, nil), body: `{"model":"m","input":["a","b"],"encoding_format":"base64"}`,
			wantInputs: []oip.Tensor{tensor("t", oip.Bytes, texts("a", "b"), 2, 1)},
			outputs:    []oip.Tensor{tensor("v", oip.FP16, []uint16{0x3c00, 0xc000, 0x0001, 0x7bff}, 2, 2)},
			want:       `{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":"AACAPwAAAMA="},{"object":"embedding","index":1,"embedding":"AACAMwDgf0c="}],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
		},
		"token ids are filled up and pooled without what fills": {
			meta: tokenMeta, body: `{"model":"m","input":[[101,7],[102]]}`,
			wantInputs: []oip.Tensor{tensor("input_ids", oip.Int64, []int64{101, 7, 102, 0}, 2, 2), tensor("attention_mask", oip.Int64, []int64{1, 1, 1, 0}, 2, 2), tensor("token_type_ids", oip.Int32, make([]int32, 4), 2, 2)},
			outputs:    []oip.Tensor{tensor("last_hidden_state", oip.FP32, []float32{3, 0, 3, 8, 0, 5, 9, 9}, 2, 2, 2)},
			want:       `{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[0.6,0.8]},{"object":"embedding","index":1,"embedding":[0,1]}],"usage":{"prompt_tokens":3,"total_tokens":3}}`,
		},
		"one list of ids, the first token's vector as it is": {
			meta: tokenMeta, declared: "pooling=cls, normalize=false", body: `{"model":"m","input":[5,6]}`,
			wantInputs: []oip.Tensor{tensor("input_ids", oip.Int64, []int64{5, 6}, 1, 2), tensor("attention_mask", oip.Int64, []int64{1, 1}, 1, 2), tensor("token_type_ids", oip.Int32, make([]int32, 2), 1, 2)},
			outputs:    []oip.Tensor{tensor("last_hidden_state", oip.FP64, []float64{3, 4, 1, 1}, 1, 2, 2)},
			want:       `{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[3,4]}],"usage":{"prompt_tokens":2,"total_tokens":2}}`,
		},
		"fewer dimensions where that is declared, and one output of several": {
			meta: textMeta, declared: "dimensions=truncate, output=b", body: `{"model":"m","input":"x","dimensions":2}`,
			wantInputs: []oip.Tensor{tensor("text", oip.Bytes, texts("x"), 1)},
			outputs:    []oip.Tensor{tensor("a", oip.FP32, []float32{1}, 1, 1), tensor("b", oip.FP32, []float32{3, 4, 12}, 1, 3)},
			want:       `{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[0.6,0.8]}],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := tc.meta
			if strings.Contains(tc.declared, "output=b") {
				m = meta(tc.meta.Inputs, nil)
			}
			r, err := translate.NewEmbeddings([]byte(tc.body), mustModel(t, m, tc.declared))
			if err != nil {
				t.Fatal(err)
			}
			infer, err := r.Infer()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.wantInputs, infer.Inputs); diff != "" {
				t.Errorf("inputs (-want +got)\n%s", diff)
			}
			got, err := r.Answer(&oip.InferResponse{Outputs: tc.outputs})
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, tc.want)
		})
	}
}

func TestWhatEmbeddingsCantCarryIsRefused(t *testing.T) {
	tests := map[string]struct {
		meta *oip.ModelMetadata
		body string
		kind error
		want string
	}{
		"ids for a model of texts":  {textMeta, `{"input":[[1]]}`, errdef.ErrInvalid, "takes texts"},
		"texts for a model of ids":  {tokenMeta, `{"input":"a"}`, errdef.ErrInvalid, "takes token ids"},
		"dimensions":                {textMeta, `{"input":"a","dimensions":2}`, errdef.ErrInvalid, "dimensions=truncate"},
		"another format":            {textMeta, `{"input":"a","encoding_format":"int8"}`, errdef.ErrInvalid, "float or base64"},
		"no input":                  {textMeta, `{"model":"m"}`, errdef.ErrInvalid, `no "input"`},
		"an empty list":             {textMeta, `{"input":[]}`, errdef.ErrInvalid, "empty"},
		"a mixed list":              {textMeta, `{"input":["a",1]}`, errdef.ErrInvalid, "must be"},
		"a field without a meaning": {textMeta, `{"input":"a","task":"query"}`, errdef.ErrInvalid, `"task" has no counterpart`},
		"a field twice":             {textMeta, `{"input":"a","input":"b"}`, errdef.ErrInvalid, "twice"},
		"a model of pairs":          {pairMeta, `{"input":"a"}`, errdef.ErrUnsupported, "rerank"},
		"text behind":               {textMeta, `{"input":"a"}{}`, errdef.ErrInvalid, "JSON"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := translate.NewEmbeddings([]byte(tc.body), mustModel(t, tc.meta, ""))
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestModelsThatTakeNoTexts(t *testing.T) {
	for name, inputs := range map[string][]oip.TensorMetadata{
		"an image":         {in("image", oip.FP32, -1, 3, 224, 224)},
		"a text and more":  {in("text", oip.Bytes, -1), in("top_k", oip.Int32, 1)},
		"ids of one row":   {in("input_ids", oip.Int64, -1)},
		"nothing told":     nil,
		"three texts":      {in("a", oip.Bytes, -1), in("b", oip.Bytes, -1), in("c", oip.Bytes, -1)},
		"ids under a name": {in("tokens", oip.Int64, -1, -1)},
	} {
		if _, err := translate.NewModel(meta(inputs, nil), translate.Settings{}); !errors.Is(err, errdef.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := translate.NewModel(meta([]oip.TensorMetadata{in("text", oip.Bytes, -1), in("top_k", oip.Int32, 1)}, nil), translate.Settings{Text: "text"}); err != nil {
		t.Errorf("a declared input: %v", err)
	}
	if _, err := translate.NewModel(textMeta, translate.Settings{Text: "texts"}); !errors.Is(err, errdef.ErrUnsupported) {
		t.Errorf("a declared input that isn't there: %v", err)
	}
}

func TestEnginesAnswersThatAreNone(t *testing.T) {
	r, err := translate.NewEmbeddings([]byte(`{"input":["a","b"]}`), mustModel(t, meta(textMeta.Inputs, nil), ""))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		outputs []oip.Tensor
		kind    error
	}{
		"too few vectors":    {[]oip.Tensor{tensor("v", oip.FP32, []float32{1}, 1, 1)}, errdef.ErrInternal},
		"elements missing":   {[]oip.Tensor{tensor("v", oip.FP32, []float32{1}, 2, 1)}, errdef.ErrInternal},
		"raw bytes missing":  {[]oip.Tensor{{Name: "v", Datatype: oip.FP32, Shape: []int64{2, 1}, Raw: []byte{1, 2}}}, errdef.ErrInternal},
		"no vectors":         {[]oip.Tensor{tensor("v", oip.Int64, []int64{1, 2}, 2, 1)}, errdef.ErrUnsupported},
		"two outputs":        {[]oip.Tensor{tensor("v", oip.FP32, []float32{1, 2}, 2, 1), tensor("w", oip.FP32, []float32{1, 2}, 2, 1)}, errdef.ErrUnsupported},
		"vectors for tokens": {[]oip.Tensor{tensor("v", oip.FP32, make([]float32, 8), 2, 2, 2)}, errdef.ErrUnsupported},
		"classes":            {[]oip.Tensor{tensor("probabilities", oip.FP32, make([]float32, 6), 2, 3)}, errdef.ErrUnsupported},
	} {
		if _, err := r.Answer(&oip.InferResponse{Outputs: tc.outputs}); !errors.Is(err, tc.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRerankAndScore(t *testing.T) {
	origin := translate.Origin{ID: "7", Created: 9}
	scores := []oip.Tensor{tensor("scores", oip.FP32, []float32{0.25, 0.75}, 2, 1)}
	vectors := []oip.Tensor{tensor("vector", oip.FP32, []float32{1, 0, 0, 2, 0, 0, 0, 1, 0}, 3, 3)}
	type asks interface {
		Infer() (*oip.InferRequest, error)
		Answer(*oip.InferResponse) ([]byte, error)
	}
	rerank := func(body string) func(*translate.Model) (asks, error) {
		return func(m *translate.Model) (asks, error) { return translate.NewRerank([]byte(body), m, origin) }
	}
	score := func(body string) func(*translate.Model) (asks, error) {
		return func(m *translate.Model) (asks, error) { return translate.NewScore([]byte(body), m, origin) }
	}
	tests := map[string]struct {
		meta       *oip.ModelMetadata
		ask        func(*translate.Model) (asks, error)
		wantInputs []oip.Tensor
		outputs    []oip.Tensor
		want       string
	}{
		"rerank by a model of pairs": {
			pairMeta, rerank(`{"model":"m","query":"q","documents":["a",{"text":"b"}]}`),
			[]oip.Tensor{tensor("query", oip.Bytes, texts("q", "q"), 2, 1), tensor("document", oip.Bytes, texts("a", "b"), 2, 1)}, scores,
			`{"id":"rerank-7","model":"m","results":[{"index":1,"document":{"text":"b"},"relevance_score":0.75},{"index":0,"document":{"text":"a"},"relevance_score":0.25}],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
		},
		"rerank by vectors, the best alone": {
			textMeta, rerank(`{"model":"m","query":"q","documents":["a","b"],"top_n":1,"return_documents":false}`),
			[]oip.Tensor{tensor("text", oip.Bytes, texts("q", "a", "b"), 3)}, vectors,
			`{"id":"rerank-7","model":"m","results":[{"index":0,"relevance_score":1}],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
		},
		"score of one with each, in rows of two": {
			meta([]oip.TensorMetadata{in("pair", oip.Bytes, -1, 2)}, nil), score(`{"model":"m","text_1":"q","text_2":["a","b"]}`),
			[]oip.Tensor{tensor("pair", oip.Bytes, texts("q", "a", "q", "b"), 2, 2)}, scores,
			`{"id":"score-7","object":"list","created":9,"model":"m","data":[{"index":0,"object":"score","score":0.25},{"index":1,"object":"score","score":0.75}],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
		},
		"score of each with its own": {
			pairMeta, score(`{"model":"m","queries":["p","q"],"documents":["a","b"]}`),
			[]oip.Tensor{tensor("query", oip.Bytes, texts("p", "q"), 2, 1), tensor("document", oip.Bytes, texts("a", "b"), 2, 1)}, scores,
			`{"id":"score-7","object":"list","created":9,"model":"m","data":[{"index":0,"object":"score","score":0.25},{"index":1,"object":"score","score":0.75}],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := tc.ask(mustModel(t, tc.meta, ""))
			if err != nil {
				t.Fatal(err)
			}
			infer, err := r.Infer()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.wantInputs, infer.Inputs); diff != "" {
				t.Errorf("inputs (-want +got)\n%s", diff)
			}
			got, err := r.Answer(&oip.InferResponse{Outputs: tc.outputs})
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, tc.want)
		})
	}
	for name, ask := range map[string]func(*translate.Model) (asks, error){
		"no query":            rerank(`{"documents":["a"]}`),
		"no documents":        rerank(`{"query":"a","documents":[]}`),
		"a picture":           rerank(`{"query":"a","documents":[{"image":"b"}]}`),
		"two with three":      score(`{"text_1":["a","b"],"text_2":["a","b","c"]}`),
		"the same name twice": score(`{"text_1":"a","queries":"b","text_2":"c"}`),
	} {
		if _, err := ask(mustModel(t, pairMeta, "")); !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClassify(t *testing.T) {
	origin := translate.Origin{ID: "7", Created: 9}
	for name, tc := range map[string]struct {
		declared string
		outputs  []oip.Tensor
		want     string
	}{
		"probabilities": {"labels=no|yes", []oip.Tensor{tensor("probs", oip.FP32, []float32{0.25, 0.75}, 1, 2)}, `{"index":0,"label":"yes","probs":[0.25,0.75],"num_classes":2}`},
		"logits":        {"", []oip.Tensor{tensor("logits", oip.FP32, []float32{1, 1}, 1, 2)}, `{"index":0,"label":"LABEL_0","probs":[0.5,0.5],"num_classes":2}`},
		"named":         {"", []oip.Tensor{tensor("label", oip.Bytes, texts("spam"), 1), tensor("p", oip.FP64, []float64{0.5, 0.5}, 1, 2)}, `{"index":0,"label":"spam","probs":[0.5,0.5],"num_classes":2}`},
		"a name alone":  {"", []oip.Tensor{tensor("label", oip.Bytes, texts("spam"), 1)}, `{"index":0,"label":"spam","probs":[],"num_classes":0}`},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := translate.NewClassify([]byte(`{"model":"m","input":"x"}`), mustModel(t, meta(textMeta.Inputs, nil), tc.declared), origin)
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Answer(&oip.InferResponse{Outputs: tc.outputs})
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, `{"id":"classify-7","object":"list","created":9,"model":"m","data":[`+tc.want+`],"usage":{"prompt_tokens":0,"total_tokens":0}}`)
		})
	}
}

func TestSettings(t *testing.T) {
	yes := true
	for text, want := range map[string]translate.Settings{
		"":      {},
		" off ": {Off: true},
		"input=a, pair=b,output=c , pooling=last, normalize=true, dimensions=truncate, labels=x|y z, task=chat": {
			Text: "a", Pair: "b", Output: "c", Pooling: "last", Normalize: &yes, Truncate: true, Labels: []string{"x", "y z"}, Task: "chat"},
	} {
		got, err := translate.ParseSettings(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v %s", text, err, diff)
		}
	}
	for _, text := range []string{"on", "task=poetry", "colour=red", "input=", "normalize=maybe", "pooling=max", "dimensions=3"} {
		if _, err := translate.ParseSettings(text); !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
