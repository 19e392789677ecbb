package translate_test

import (
	"errors"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// TestVectorsAreNoClasses asks models to classify whose outputs go by a vector's name, and what each is
// offered for.
func TestVectorsAreNoClasses(t *testing.T) {
	out := func(name string, shape ...int64) oip.TensorMetadata {
		return oip.TensorMetadata{Name: name, Datatype: oip.FP32, Shape: shape}
	}
	vector := []float32{-0.5, 0.25}
	for name, tc := range map[string]struct {
		declared string
		told     []oip.TensorMetadata
		answer   []oip.Tensor
		offered  string
		refused  bool
	}{
		"an embedding":                {"", []oip.TensorMetadata{out("embedding", -1, 2)}, nil, "/v1/embeddings, /v1/rerank or /v1/score,", true},
		"one by a longer name":        {"", []oip.TensorMetadata{out("text_embeddings", -1, 2)}, nil, "/v1/embeddings, /v1/rerank or /v1/score,", true},
		"the output is declared":      {"output=pooler_output", []oip.TensorMetadata{out("pooler_output", -1, 2), out("logits", -1, 2)}, nil, "/v1/embeddings, /v1/rerank or /v1/score,", true},
		"vectors of tokens":           {"", []oip.TensorMetadata{out("last_hidden_state", -1, -1, 2)}, nil, "ask it over ", true},
		"only the answer tells":       {"", nil, []oip.Tensor{tensor("sentence_embedding", oip.FP32, vector, 1, 2)}, "/v1/embeddings, /v1/rerank, /v1/score or /v1/classify,", true},
		"labels are declared":         {"labels=no|yes", []oip.TensorMetadata{out("embedding", -1, 2)}, []oip.Tensor{tensor("embedding", oip.FP32, vector, 1, 2)}, "/v1/embeddings, /v1/rerank, /v1/score or /v1/classify,", false},
		"classes beside a vector":     {"", []oip.TensorMetadata{out("embedding", -1, 2), out("kinds", -1, 2)}, []oip.Tensor{tensor("embedding", oip.FP32, vector, 1, 2), tensor("kinds", oip.FP32, []float32{0.25, 0.75}, 1, 2)}, "/v1/embeddings, /v1/rerank, /v1/score or /v1/classify,", false},
		"classes alone":               {"", []oip.TensorMetadata{out("logits", -1, 2)}, []oip.Tensor{tensor("logits", oip.FP32, vector, 1, 2)}, "ask it for /v1/classify,", false},
		"a name that tells of none":   {"", []oip.TensorMetadata{out("y", -1, 2)}, []oip.Tensor{tensor("y", oip.FP32, []float32{0.25, 0.75}, 1, 2)}, "/v1/embeddings, /v1/rerank, /v1/score or /v1/classify,", false},
		"whole numbers are of no use": {"", []oip.TensorMetadata{{Name: "y", Datatype: oip.Int64, Shape: []int64{-1}}, out("embedding", -1, 2)}, nil, "/v1/embeddings, /v1/rerank or /v1/score,", true},
	} {
		t.Run(name, func(t *testing.T) {
			told := meta(textMeta.Inputs, tc.told)
			m := mustModel(t, told, tc.declared)
			r, err := translate.NewClassify([]byte(`{"model":"m","input":"x"}`), m, translate.Origin{ID: "7"})
			if err == nil {
				_, err = r.Answer(&oip.InferResponse{Outputs: tc.answer})
			}
			if tc.refused != errors.Is(err, errdef.ErrUnsupported) || !tc.refused && err != nil {
				t.Errorf("%v", err)
			}
			if err := translate.NotTensors("/v1/chat/completions", "m", told, m); !strings.Contains(err.Error(), tc.offered) {
				t.Errorf("offered: %v", err)
			}
		})
	}
	ids := meta([]oip.TensorMetadata{{Name: "input_ids", Datatype: oip.Int64, Shape: []int64{-1, -1}}}, []oip.TensorMetadata{out("last_hidden_state", -1, -1, 2)})
	if err := translate.NotTensors("/v1/chat/completions", "m", ids, mustModel(t, ids, "")); !strings.Contains(err.Error(), "ask it for /v1/embeddings, as") {
		t.Errorf("token ids: %v", err)
	}
}
