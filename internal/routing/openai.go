package routing

import (
	"slices"
	"strings"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/route"
)

// OpenAIRootAnnotation says under which path before /v1 an engine speaks the OpenAI API: "/openai",
// "/" for none, "-" for one that must be asked as the client asked. A path that ends in a version of its
// own, as /v3, takes the place of /v1. It is one of the pod's: of the
// runtime's spec.annotations, the InferenceService or the component.
const OpenAIRootAnnotation = "stationmaster.dev/openai-root"

// credentials is whether a revision's engine gets what clients prove themselves by.
func credentials(rev *smv1alpha1.Revision) route.Credentials {
	switch rev.Spec.PodTemplate.Annotations[manifest.CredentialsAnnotation] {
	case manifest.CredentialsForward:
		return route.CredentialsForwarded
	case manifest.CredentialsWithhold:
		return route.CredentialsWithheld
	}
	return route.CredentialsByProtocol
}

// translation is what is declared of a revision's translations, behind what is known of its engine: of two
// settings of one name the latter counts. An engine that must be asked as the client asked gets none.
func translation(rev *smv1alpha1.Revision) string {
	declared := strings.TrimSpace(rev.Spec.PodTemplate.Annotations[manifest.TranslateAnnotation])
	switch {
	case declared == "off":
		return declared
	case declared == "" && rev.Spec.PodTemplate.Annotations[OpenAIRootAnnotation] == "-":
		return "off"
	}
	var all []string
	if a := EngineOf(rev); a != nil {
		all = append(all, a.Translate, taskOf(rev, a))
	}
	all = slices.DeleteFunc(append(all, declared), func(s string) bool { return s == "" })
	return strings.Join(all, ", ")
}

// taskOf is what a revision's model is for, as its engine's command line says; empty where it says nothing.
func taskOf(rev *smv1alpha1.Revision, a *adapter.Adapter) string {
	cs := rev.Spec.PodTemplate.Spec.Containers
	if len(cs) == 0 || len(a.Tasks) == 0 {
		return ""
	}
	task := ""
	words := strings.Fields(strings.Join(append(slices.Clone(cs[0].Command), cs[0].Args...), " "))
	for i, word := range words {
		flag, value, joined := strings.Cut(word, "=")
		if !joined && i+1 < len(words) {
			value = words[i+1]
		}
		for _, t := range a.Tasks {
			if t.Flag == flag && (t.Value == value || t.Value == "" && !joined) {
				task = "task=" + t.Is
			}
		}
	}
	return task
}

// prefixVariable is how KServe's own servers are told their root.
const prefixVariable = "KSERVE_OPENAI_ROUTE_PREFIX"

// openAIRoot is the path before /v1 under which a revision's engine speaks the OpenAI API; empty
// means not known.
func openAIRoot(rev *smv1alpha1.Revision) string {
	if root, ok := rev.Spec.PodTemplate.Annotations[OpenAIRootAnnotation]; ok {
		if !strings.HasPrefix(root, "/") {
			return ""
		}
		return "/" + strings.Trim(root, "/")
	}
	if cs := rev.Spec.PodTemplate.Spec.Containers; len(cs) > 0 {
		for _, v := range cs[0].Env {
			if v.Name == prefixVariable && v.ValueFrom == nil {
				return "/" + strings.Trim(v.Value, "/")
			}
		}
	}
	if a := EngineOf(rev); a != nil {
		return a.OpenAI
	}
	return ""
}
