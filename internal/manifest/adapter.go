package manifest

import (
	"strings"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
)

// AdapterFramework is the framework of a TrainedModel that is a LoRA adapter for the language model
// of its service.
const AdapterFramework = "lora"

// IsAdapter reports whether a trained model is a LoRA adapter.
func IsAdapter(tm *v1alpha1.TrainedModel) bool {
	return strings.EqualFold(tm.Spec.Model.Framework, AdapterFramework)
}

// HubPrefix begins the URI of an adapter that engines fetch from the Hugging Face hub themselves.
const HubPrefix = "hf://"

// CanFetchAdapter returns why an engine can't get a LoRA adapter's bytes; empty means that it can. On
// one machine the model store brings them, on a cluster the engine has them or fetches them itself.
func CanFetchAdapter(uri string, oneMachine bool) string {
	scheme, rest, has := strings.Cut(uri, "://")
	switch scheme = strings.ToLower(scheme); {
	case has && scheme == "hf":
		if strings.Count(rest, "/") != 1 || strings.HasPrefix(rest, "/") || strings.HasSuffix(rest, "/") {
			return "an adapter on the hub is named hf://<organisation>/<repository>"
		}
		return ""
	case has && scheme == "file":
		return ""
	case oneMachine && (!has || scheme == "pvc" || scheme == "http" || scheme == "https"):
		return ""
	case oneMachine:
		return scheme + ":// isn't fetched for a LoRA adapter; bring it to hf://, https://, pvc:// or a path"
	}
	return "on a cluster an engine gets a LoRA adapter from hf://<organisation>/<repository>, or from file:// in its own image or volumes; other sources aren't brought to running pods"
}
