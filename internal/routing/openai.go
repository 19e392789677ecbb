package routing

import (
	"strings"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/route"
)

// OpenAIRootAnnotation says under which path before /v1 an engine speaks the OpenAI API: "/openai",
// "/" for none, "-" for one that must be asked as the client asked. It is one of the pod's: of the
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

// translation is what is declared of a revision's translations. An engine that must be asked as the
// client asked gets none.
func translation(rev *smv1alpha1.Revision) string {
	if declared := strings.TrimSpace(rev.Spec.PodTemplate.Annotations[manifest.TranslateAnnotation]); declared != "" {
		return declared
	}
	if rev.Spec.PodTemplate.Annotations[OpenAIRootAnnotation] == "-" {
		return "off"
	}
	return ""
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
