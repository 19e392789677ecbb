package translate

import (
	"strings"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

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
	ask := "ask it over "
	if Generates(meta) {
		ask = "ask it for /v1/completions, or over "
	} else if texts != nil {
		if paths := texts.paths(); len(paths) > 0 {
			ask = "ask it for " + orList(paths) + ", as it was made for, or over "
		}
	}
	return unsupported("%s has no counterpart in V2, which the model's engine speaks: the model takes %s and gives %s; %s/v2/models/%s/infer; an engine that speaks the OpenAI API itself says so by the annotation stationmaster.dev/openai-root",
		path, describe(meta.Inputs), describe(meta.Outputs), ask, name)
}

// orList is a list in words.
func orList(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
