package manifest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/spec"
)

// PrefillAnnotation names the InferenceService of the same namespace whose replicas read the prompts
// for a service's predictor, as ParsePrefill reads it. It is the predictor's or the InferenceService's.
const PrefillAnnotation = "stationmaster.dev/prefill"

// defaultPrefillTokens is the least prompt whose key-value cache is worth its way.
const defaultPrefillTokens = 256

// PrefillPicking is how replicas are picked that get their prompts read, where nobody says how.
const PrefillPicking = "least-tokens, lora=2"

var errPrefill = errors.New("must be <name of an InferenceService of this namespace>, and behind it, each after a comma, " +
	"protocol=kv-transfer (the default) or protocol=header, and min-tokens=<a number, 0 or more> (256)")

// ParsePrefill reads a value such as "llama-prefill, protocol=header, min-tokens=512"; an empty one
// gives nil.
func ParsePrefill(text string) (*spec.Prefill, error) {
	if text = strings.TrimSpace(text); text == "" {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	name, rest, more := strings.Cut(text, ",")
	p := &spec.Prefill{Service: strings.TrimSpace(name), MinTokens: defaultPrefillTokens}
	if len(validation.IsDNS1035Label(p.Service)) > 0 {
		return nil, errPrefill
	}
	said := map[string]bool{}
	for more {
		var option string
		option, rest, more = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(strings.TrimSpace(option), "=")
		if said[key] {
			return nil, fmt.Errorf("says %s twice", key)
		}
		said[key] = true
		switch {
		case key == "protocol" && (value == "kv-transfer" || value == "header"):
			p.Header = value == "header"
		case key == "min-tokens":
			n, err := strconv.ParseUint(value, 10, 31)
			if err != nil {
				return nil, errPrefill
			}
			p.MinTokens = int(n)
		default:
			return nil, errPrefill
		}
	}
	return p, nil
}

// PrefillOf returns who reads the prompts for a component of a service, nil for itself.
func PrefillOf(is *v1beta1.InferenceService, c spec.Component) *spec.Prefill {
	if c != spec.Predictor {
		return nil
	}
	text, own := is.Spec.Predictor.Annotations[PrefillAnnotation]
	if !own {
		text = is.Annotations[PrefillAnnotation]
	}
	p, err := ParsePrefill(text)
	if err != nil { // it was refused when it was applied; what is stored otherwise has no effect
		return nil
	}
	return p
}

// validatePrefill refuses what names nobody who could read prompts, in the annotations at a path.
func validatePrefill(name string, annotations map[string]string, at *field.Path) field.ErrorList {
	text := annotations[PrefillAnnotation]
	p, err := ParsePrefill(text)
	if err == nil && p != nil && p.Service == name {
		err = errors.New("is the service itself: name another one, or leave this out")
	}
	if err != nil {
		return field.ErrorList{field.Invalid(at.Key(PrefillAnnotation), text, err.Error())}
	}
	return nil
}

// forbidPrefill refuses the annotation where nobody looks for it.
func forbidPrefill(annotations map[string]string, at *field.Path) field.ErrorList {
	if _, has := annotations[PrefillAnnotation]; !has {
		return nil
	}
	return field.ErrorList{field.Forbidden(at.Key(PrefillAnnotation), "it is the InferenceService's or its predictor's")}
}
