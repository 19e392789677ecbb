package translate

import "stationmaster.dev/stationmaster/internal/wire/oip"

// Tensors reports whether a model's metadata is that of one which takes tensors. Engines that serve both
// kinds tell of others nothing, or datatypes that are none.
func Tensors(meta *oip.ModelMetadata) bool {
	if meta == nil || len(meta.Inputs) == 0 {
		return false
	}
	for i := range meta.Inputs {
		if meta.Inputs[i].Datatype.Size() < 0 {
			return false
		}
	}
	return true
}

// NotTensors refuses a path of the OpenAI API that a model of tensors has no counterpart for, and tells
// what the model can do instead. texts is how it is asked about texts, nil where it can't be.
func NotTensors(path, name string, meta *oip.ModelMetadata, texts *Model) error {
	var ask string
	switch {
	case Generates(meta):
		ask = "ask it for /v1/completions, or over "
	case texts == nil:
		ask = "ask it over "
	case texts.pair != "" || texts.pairs:
		ask = "ask it for /v1/rerank or /v1/score, or over "
	default:
		ask = "ask it for /v1/embeddings, /v1/rerank, /v1/score or /v1/classify, as it was made for, or over "
	}
	return unsupported("%s has no counterpart in V2, which the model's engine speaks: the model takes %s and gives %s; %s/v2/models/%s/infer; an engine that speaks the OpenAI API itself says so by the annotation stationmaster.dev/openai-root",
		path, describe(meta.Inputs), describe(meta.Outputs), ask, name)
}
