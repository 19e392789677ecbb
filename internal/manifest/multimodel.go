package manifest

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

// The list of a service's models as a multi-model engine finds it (KServe's names).
const (
	// ModelListDir is where the list is mounted.
	ModelListDir = "/mnt/configs"
	// ModelListKey is its file's name there, and its key in the config map.
	ModelListKey = "models.json"

	modelListVolume = "model-config"
)

// ModelListName returns the name of the config map that holds a service's list of models,
// "modelconfig-<service>-0": KServe numbers shards, of which there is one.
func ModelListName(service string) string { return "modelconfig-" + service + "-0" }

// ReadsModelList reports whether a multiModel runtime takes its models from the list: its server's
// command names ModelListDir.
func ReadsModelList(s *v1alpha1.ServingRuntimeSpec) bool {
	return slices.ContainsFunc(s.Containers, func(c corev1.Container) bool {
		return c.Name == ServerContainer && slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(word string) bool {
			return strings.Contains(word, ModelListDir)
		})
	})
}

// IsMultiModel reports whether a revision serves the models of its service's list.
func IsMultiModel(rev *smv1alpha1.RevisionSpec) bool {
	return slices.ContainsFunc(rev.PodTemplate.Spec.Volumes, func(v corev1.Volume) bool {
		return v.ConfigMap != nil && v.ConfigMap.Name == ModelListName(rev.Service)
	})
}

// mountModelList gives the server of a multi-model runtime its list.
func mountModelList(b *built, service string) {
	b.pod.Volumes = append(slices.Clip(b.pod.Volumes), corev1.Volume{Name: modelListVolume, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: ModelListName(service)}},
	}})
	server := &b.containers[0]
	server.VolumeMounts = append(slices.Clip(server.VolumeMounts), corev1.VolumeMount{Name: modelListVolume, MountPath: ModelListDir, ReadOnly: true})
}

// ModelBudget returns how many bytes of memory a multi-model revision has for models: what
// --memory_budget says, or else three quarters of the server's memory limit. It reports false
// where nothing says it, or not so that it can be read.
func ModelBudget(rev *smv1alpha1.RevisionSpec) (int64, bool) {
	i := slices.IndexFunc(rev.PodTemplate.Spec.Containers, named(ServerContainer))
	if i < 0 {
		return 0, false
	}
	server := rev.PodTemplate.Spec.Containers[i]
	if text := argValue(server, "--memory_budget", "-memory_budget"); text != "" {
		q, err := resource.ParseQuantity(text)
		return q.Value(), err == nil
	}
	limit, ok := server.Resources.Limits[corev1.ResourceMemory]
	return limit.Value() / 4 * 3, ok
}

// ValidateTrainedModel returns what keeps a trained model from being accepted, as KServe's
// admission does; empty means accepted. old is what is stored, nil for a new one.
func ValidateTrainedModel(tm, old *v1alpha1.TrainedModel) field.ErrorList {
	var errs field.ErrorList
	model := field.NewPath("spec", "model")
	if !serviceName.MatchString(tm.Name) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), tm.Name, nameRule))
	}
	if tm.Spec.InferenceService == "" {
		errs = append(errs, field.Required(field.NewPath("spec", "inferenceService"), "name the InferenceService that serves the model"))
	}
	if tm.Spec.Model.StorageURI == "" {
		errs = append(errs, field.Required(model.Child("storageUri"), "say where the model's bytes are"))
	}
	if tm.Spec.Model.Framework == "" {
		errs = append(errs, field.Required(model.Child("framework"), "name the model's format, such as onnx"))
	}
	memory := tm.Spec.Model.Memory
	if memory.Sign() < 0 {
		errs = append(errs, field.Invalid(model.Child("memory"), memory.String(), "must not be negative"))
	}
	if old != nil && old.Spec.Model.Memory.Cmp(memory) != 0 {
		was := old.Spec.Model.Memory
		errs = append(errs, field.Forbidden(model.Child("memory"), fmt.Sprintf(
			"can't be changed from %s to %s; delete the TrainedModel and create it anew", was.String(), memory.String())))
	}
	return errs
}

// CanFetch returns why an engine can't fetch a trained model's bytes itself; empty means that it
// can. On one machine paths and pvc:// name files that it sees.
func CanFetch(uri string, oneMachine bool) string {
	scheme, _, has := strings.Cut(uri, "://")
	if !has {
		scheme = ""
	}
	switch scheme = strings.ToLower(scheme); {
	case scheme == "http", scheme == "https", scheme == "file":
		return ""
	case oneMachine && (scheme == "" || scheme == "pvc"):
		return ""
	case oneMachine:
		return fmt.Sprintf("%s:// isn't fetched for a TrainedModel yet; bring the model to https://, pvc:// or a path", scheme)
	case scheme == "":
		return "a path names nothing on a cluster; use https://, or file:// for what the engine's image holds"
	}
	return fmt.Sprintf("%s:// isn't fetched for a TrainedModel on a cluster; bring the model to https://", scheme)
}
