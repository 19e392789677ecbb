package manifest

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/translate"
)

// TranslateAnnotation says how requests of another protocol than the engine's are translated, or "off".
// It is one of the pod's: of the runtime's spec.annotations, the InferenceService or the component.
const TranslateAnnotation = translate.Annotation

// validateTranslation refuses what a translation couldn't be made by, in the annotations at a path.
func validateTranslation(annotations map[string]string, at *field.Path) field.ErrorList {
	text := annotations[TranslateAnnotation]
	if _, err := translate.ParseSettings(text); err != nil {
		return field.ErrorList{field.Invalid(at.Key(TranslateAnnotation), text, err.Error())}
	}
	return nil
}

func validateTranslations(is *v1beta1.InferenceService) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateTranslation(is.Annotations, field.NewPath("metadata", "annotations"))
	errs = append(errs, validateTranslation(is.Spec.Predictor.Annotations, spec.Child("predictor", "annotations"))...)
	if t := is.Spec.Transformer; t != nil {
		errs = append(errs, validateTranslation(t.Annotations, spec.Child("transformer", "annotations"))...)
	}
	return errs
}
