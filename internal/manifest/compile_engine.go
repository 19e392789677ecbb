package manifest

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/internal/spec"
)

// serverTypeAnnotation tells on a runtime which engine it runs, and with it which defaults
// KServe adds.
const serverTypeAnnotation = "serving.kserve.io/server-type"

// serverTypes are the engines of runtimes that carry no annotation, by name (KServe's
// fallback).
var serverTypes = map[string]string{
	"kserve-mlserver":           "mlserver",
	"kserve-torchserve":         "torchserve",
	"kserve-tritonserver":       "tritonserver",
	"kserve-tensorflow-serving": "tensorflow-serving",
	"kserve-huggingfaceserver":  "huggingfaceserver",
	"kserve-vllmserver":         "vllmserver",
}

// modelClasses are MLServer's implementations by model format (KServe: pkg/constants).
var modelClasses = map[string]string{
	"sklearn":  "mlserver_sklearn.SKLearnModel",
	"xgboost":  "mlserver_xgboost.XGBoostModel",
	"lightgbm": "mlserver_lightgbm.LightGBMModel",
	"mlflow":   "mlserver_mlflow.MLflowRuntime",
}

// engine is what a runtime's server type adds to a model's container, beside the runtime's
// own container.
type engine struct {
	serverType string
	format     string
	// hasModel is whether the manifest brings model bytes.
	hasModel bool
	// protocol is the one chosen; empty means none.
	protocol spec.Protocol
}

func serverType(runtimeName string, annotations map[string]string) string {
	if t := annotations[serverTypeAnnotation]; t != "" {
		return t
	}
	return serverTypes[runtimeName]
}

// defaults adds KServe's settings for the engine to the model's container fields, unless the
// manifest has them, and to the labels that placeholders and the pod see. It returns the
// protocol that counts then.
func (e engine) defaults(over *corev1.Container, dot *subject) spec.Protocol {
	switch e.serverType {
	case "mlserver":
		setEnv(over, "MLSERVER_MODEL_NAME", dot.Name)
		if e.hasModel {
			setEnv(over, "MLSERVER_MODEL_URI", DefaultModelPath)
		} else {
			setEnv(over, "MLSERVER_LOAD_MODELS_AT_STARTUP", "false")
		}
		if class, ok := modelClasses[e.format]; ok && dot.Labels["modelClass"] == "" {
			dot.Labels["modelClass"] = class
		}
		return orProtocol(e.protocol, spec.V2)
	case "torchserve":
		p := orProtocol(e.protocol, spec.V1)
		if dot.Labels["serviceEnvelope"] == "" {
			dot.Labels["serviceEnvelope"] = "kserve"
			if p == spec.V2 || p == spec.GRPCV2 {
				dot.Labels["serviceEnvelope"] = "kservev2"
			}
		}
		setEnv(over, "PROTOCOL_VERSION", string(p))
		return p
	case "tritonserver":
		if !e.hasModel && !hasArg(*over, "--model-control-mode") {
			over.Args = append(over.Args, "--model-control-mode=explicit")
		}
		if !e.hasModel && !hasArg(*over, "--strict-readiness") {
			// Else one model that can't be loaded, or is being loaded, takes the others out of service.
			over.Args = append(over.Args, "--strict-readiness=false")
		}
		return orProtocol(e.protocol, spec.V2)
	}
	return e.protocol
}

func orProtocol(p, otherwise spec.Protocol) spec.Protocol {
	if p == "" {
		return otherwise
	}
	return p
}

// image returns the image of the merged server container. runtimeVersion replaces its tag,
// unless a digest pins it; otherwise a GPU request takes the -gpu tag of the engines that have
// one. vLLM's own image has a sibling repository for machines without a GPU, which is taken
// where the manifest names no image itself.
func (e engine) image(merged corev1.Container, runtimeVersion *string, ownImage bool, annotations map[string]string) string {
	image, pinned := merged.Image, strings.Contains(merged.Image, "@sha256:")
	gpu := asksForGPU(merged.Resources, annotations)
	switch {
	case pinned || image == "":
	case runtimeVersion != nil && *runtimeVersion != "":
		repo, _ := splitTag(image)
		image = repo + ":" + *runtimeVersion
	case gpu && slices.Contains([]string{"tensorflow-serving", "torchserve", "huggingfaceserver"}, e.serverType):
		if _, tag := splitTag(image); tag != "" && !strings.HasSuffix(tag, "-gpu") {
			image += "-gpu"
		}
	}
	if e.serverType == "vllmserver" && !gpu && !ownImage && !pinned && image != "" {
		repo, tag := splitTag(image)
		if !strings.HasSuffix(repo, "-cpu") {
			image = repo + "-cpu"
			if tag != "" {
				image += ":" + tag
			}
		}
	}
	return image
}

var tagAtEnd = regexp.MustCompile(`:([\w][\w.-]*)$`)

// splitTag parts an image from its tag; a port of the registry is no tag.
func splitTag(image string) (repo, tag string) {
	m := tagAtEnd.FindStringSubmatchIndex(image)
	if m == nil {
		return image, ""
	}
	return image[:m[0]], image[m[2]:m[3]]
}

// gpuResources are the resource names that mean a GPU (KServe: pkg/constants).
var gpuResources = []string{"nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu", "habana.ai/gaudi"}

// asksForGPU says whether the resources hold a GPU; the annotation
// serving.kserve.io/gpu-resource-types adds names, as a JSON list or with commas.
func asksForGPU(r corev1.ResourceRequirements, annotations map[string]string) bool {
	kinds := gpuResources
	if extra := annotations["serving.kserve.io/gpu-resource-types"]; extra != "" {
		var list []string
		if json.Unmarshal([]byte(extra), &list) != nil {
			list = strings.Split(extra, ",")
		}
		for _, n := range list {
			kinds = append(slices.Clip(kinds), strings.TrimSpace(n))
		}
	}
	for _, resources := range []corev1.ResourceList{r.Limits, r.Requests} {
		for name, q := range resources {
			if !q.IsZero() && (slices.Contains(kinds, string(name)) || strings.HasPrefix(string(name), "nvidia.com/mig")) {
				return true
			}
		}
	}
	return false
}

// setEnv sets a variable that the container doesn't have yet.
func setEnv(c *corev1.Container, name, value string) {
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
}

func envValue(c corev1.Container, name string) string {
	for _, e := range slices.Backward(c.Env) {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// hasArg says whether a flag stands in a container's command or args, alone or with "=".
func hasArg(c corev1.Container, flag string) bool {
	for _, a := range slices.Concat(c.Command, c.Args) {
		if a == flag || strings.HasPrefix(a, flag+"=") {
			return true
		}
	}
	return false
}

// argValue returns the last value that the command line gives one of the flags.
func argValue(c corev1.Container, flags ...string) string {
	words := slices.Concat(c.Command, c.Args)
	value := ""
	for i, a := range words {
		for _, f := range flags {
			if v, ok := strings.CutPrefix(a, f+"="); ok {
				value = v
			} else if a == f && i+1 < len(words) {
				value = words[i+1]
			}
		}
	}
	return value
}
