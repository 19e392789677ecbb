package manifest

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/spec"
)

// PickingAnnotation says how the replica that gets a request is chosen, as pick.Parse reads it, e.g.
// "prefix=3, least-tokens". It is the component's, the InferenceService's or, in its
// spec.annotations, the runtime's, in that order.
const PickingAnnotation = "stationmaster.dev/picking"

// PickingOf returns what a service's manifest says of how a component's replicas are picked; empty
// where it says nothing.
func PickingOf(is *v1beta1.InferenceService, c spec.Component) string {
	if ext := extensionOf(is, c); ext != nil {
		if text, own := ext.Annotations[PickingAnnotation]; own {
			return strings.TrimSpace(text)
		}
	}
	return strings.TrimSpace(is.Annotations[PickingAnnotation])
}

// validatePicking refuses what no replica could be chosen by, in the annotations at a path.
func validatePicking(annotations map[string]string, at *field.Path) field.ErrorList {
	text := annotations[PickingAnnotation]
	if _, err := pick.Parse(text, false); err != nil {
		return field.ErrorList{field.Invalid(at.Key(PickingAnnotation), text, err.Error())}
	}
	return nil
}

// onlyRuntimesPicking keeps a pod's annotations free of what a service says of picking and prefills: that is the
// gateway's business, and a change of it starts no pod anew. What a runtime says stays, for the
// revision is where gateways find it.
func onlyRuntimesPicking(pod map[string]string, runtime string) {
	delete(pod, PrefillAnnotation)
	if delete(pod, PickingAnnotation); runtime != "" {
		pod[PickingAnnotation] = runtime
	}
}
