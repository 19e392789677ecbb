package manifest

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// DirectAnnotation asks with "true" for an HTTPRoute that leads to a service's pods past our
// gateway.
const DirectAnnotation = "stationmaster.dev/direct-route"

// Direct reports whether a service asks for an HTTPRoute past our gateway and can have one: it is
// reached from outside, and a replica is always there, for nobody holds a request at zero.
func Direct(is *v1beta1.InferenceService) bool {
	return is.Annotations[DirectAnnotation] == "true" && noDirect(is) == ""
}

// noDirect says why a service can have none; empty means that it can.
func noDirect(is *v1beta1.InferenceService) string {
	if ClusterLocal(is.Labels) {
		return "the service is cluster-local, and an HTTPRoute leads to it from outside"
	}
	if zero := directAtZero(is); zero != "" {
		return zero + " is 0, and past the gateway nobody holds a request until a replica is there; make it 1, or leave the annotation out"
	}
	return ""
}

// directAtZero returns the path of a minReplicas that lets a component go to zero, or "".
func directAtZero(is *v1beta1.InferenceService) string {
	for _, c := range []string{"predictor", "transformer", "explainer"} {
		if ext := Extension(is, c); ext != nil && ext.MinReplicas != nil && *ext.MinReplicas == 0 {
			return field.NewPath("spec", c, "minReplicas").String()
		}
	}
	return ""
}

// DirectNotInEffect returns what DirectAnnotation does nothing for, and the fields that hold at our
// gateway alone and so not for requests that pass it by. possible says that the operator was told
// a Gateway.
func DirectNotInEffect(is *v1beta1.InferenceService, possible bool) []NotInEffect {
	value, asked := is.Annotations[DirectAnnotation]
	if !asked || value == "false" {
		return nil
	}
	at := field.NewPath("metadata", "annotations").Key(DirectAnnotation).String()
	refused := noDirect(is)
	switch {
	case value != "true":
		return []NotInEffect{{Field: at, Reason: `it counts as "false": write "true" or "false"`}}
	case !possible:
		return []NotInEffect{{Field: at, Reason: "the operator wasn't told of a Gateway (--direct-gateway), which needs a cluster; the gateway serves the service"}}
	case refused != "":
		return []NotInEffect{{Field: at, Reason: refused}}
	}
	var out []NotInEffect
	class := is.Annotations[AutoscalerClassAnnotation]
	for _, c := range []string{"predictor", "transformer", "explainer"} {
		ext := Extension(is, c)
		if ext == nil {
			continue
		}
		if least := ext.MinReplicas; class == "" && least != nil && ext.MaxReplicas > *least {
			out = append(out, NotInEffect{
				Field: "spec." + c + ".maxReplicas", Reason: "replicas follow the requests through the gateway, and " + DirectAnnotation + " leads others past it; choose the class hpa or keda in " + AutoscalerClassAnnotation,
			})
		}
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"logger", ext.Logger != nil},
			{"batcher", ext.Batcher != nil},
			{"containerConcurrency", ext.ContainerConcurrency != nil && *ext.ContainerConcurrency > 0},
		} {
			if f.set {
				out = append(out, NotInEffect{Field: "spec." + c + "." + f.name, Reason: "it holds for requests through the gateway, and " + DirectAnnotation + " leads others past it"})
			}
		}
	}
	for _, key := range []string{MirrorAnnotation, StickyAnnotation} {
		if is.Annotations[key] != "" {
			out = append(out, NotInEffect{
				Field:  field.NewPath("metadata", "annotations").Key(key).String(),
				Reason: "it holds for requests through the gateway, and " + DirectAnnotation + " leads others past it",
			})
		}
	}
	return out
}
