package manifest

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/translate"
)

// TranslateAnnotation says how requests of another protocol than the engine's are translated, or "off".
// It is one of the pod's: of the runtime's spec.annotations, the InferenceService or the component.
const TranslateAnnotation = translate.Annotation

// openAIRootAnnotation is the path before /v1 at which an engine speaks the OpenAI API.
const openAIRootAnnotation = "stationmaster.dev/openai-root"

// CredentialsAnnotation says whether an engine gets what its clients prove themselves by (the header
// fields Authorization, Cookie, X-Api-Key and Api-Key): CredentialsForward or CredentialsWithhold.
// Without it those of the OpenAI API's clients are withheld and all others forwarded. It is one of
// the pod's, as TranslateAnnotation is.
const (
	CredentialsAnnotation = "stationmaster.dev/client-credentials"
	CredentialsForward    = "forward"
	CredentialsWithhold   = "withhold"
)

func validateCredentials(annotations map[string]string, at *field.Path) field.ErrorList {
	switch v, ok := annotations[CredentialsAnnotation]; {
	case !ok, v == CredentialsForward, v == CredentialsWithhold:
		return nil
	default:
		return field.ErrorList{field.NotSupported(at.Key(CredentialsAnnotation), v, []string{CredentialsForward, CredentialsWithhold})}
	}
}

// validateEngineTLS refuses what no engine could be reached over TLS by, in the annotations at a path.
func validateEngineTLS(annotations map[string]string, at *field.Path) field.ErrorList {
	if err := enginetls.Check(annotations); err != nil {
		return field.ErrorList{field.Invalid(at.Key(enginetls.Annotation), annotations[enginetls.Annotation], err.Error())}
	}
	return nil
}

// validateTranslation refuses what a translation couldn't be made by, in the annotations at a path.
func validateTranslation(annotations map[string]string, at *field.Path) field.ErrorList {
	text := annotations[TranslateAnnotation]
	if _, err := translate.ParseSettings(text); err != nil {
		return field.ErrorList{field.Invalid(at.Key(TranslateAnnotation), text, err.Error())}
	}
	const key = openAIRootAnnotation
	if root, ok := annotations[key]; ok && root != "-" && !strings.HasPrefix(root, "/") {
		return field.ErrorList{field.Invalid(at.Key(key), root, "must be the path before /v1, which begins with a slash (/ for none; one like /v3 takes the place of /v1), or - to leave paths alone")}
	}
	return nil
}

// validatePodAnnotations refuses what an engine's pod can't be asked by, or picked by, in the annotations at a path.
func validatePodAnnotations(annotations map[string]string, at *field.Path) field.ErrorList {
	errs := append(validateTranslation(annotations, at), validateCredentials(annotations, at)...)
	errs = append(errs, validatePicking(annotations, at)...)
	errs = append(errs, validateEngineTLS(annotations, at)...)
	return append(errs, validateEngine(annotations, at)...)
}

// validateEveryPodAnnotations does so wherever a service may write them.
func validateEveryPodAnnotations(is *v1beta1.InferenceService) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validatePodAnnotations(is.Annotations, field.NewPath("metadata", "annotations"))
	errs = append(errs, validatePodAnnotations(is.Spec.Predictor.Annotations, spec.Child("predictor", "annotations"))...)
	errs = append(errs, validatePrefill(is.Name, is.Annotations, field.NewPath("metadata", "annotations"))...)
	errs = append(errs, validatePrefill(is.Name, is.Spec.Predictor.Annotations, spec.Child("predictor", "annotations"))...)
	if t := is.Spec.Transformer; t != nil {
		errs = append(errs, validatePodAnnotations(t.Annotations, spec.Child("transformer", "annotations"))...)
		errs = append(errs, forbidPrefill(t.Annotations, spec.Child("transformer", "annotations"))...)
	}
	if e := is.Spec.Explainer; e != nil {
		errs = append(errs, validatePodAnnotations(e.Annotations, spec.Child("explainer", "annotations"))...)
		errs = append(errs, forbidPrefill(e.Annotations, spec.Child("explainer", "annotations"))...)
	}
	return errs
}
