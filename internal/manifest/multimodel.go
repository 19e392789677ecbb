package manifest

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/spec"
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

// The agent that keeps the models of an engine to the list where the engine doesn't do so itself.
const (
	// AgentContainer is KServe's name for the container beside an engine.
	AgentContainer = "agent"
	agentPort      = 9081
	// repositoryVolume holds the engine's model repository, at DefaultModelPath.
	repositoryVolume = "model-repository"
)

// Engines whose models an agent can load and unload, by their server type, and how models lie in
// their repositories.
var repositoryLayouts = map[string]string{"mlserver": "mlserver", "tritonserver": "triton"}

// repositoryOf returns the server type of a multiModel runtime whose models an agent loads and
// unloads, which its image or its command tells; empty for others.
func repositoryOf(s *v1alpha1.ServingRuntimeSpec) string {
	if !isTrue(s.MultiModel) || ReadsModelList(s) {
		return ""
	}
	for _, c := range s.Containers {
		if c.Name != ServerContainer {
			continue
		}
		for _, words := range [][]string{{path.Base(c.Image)}, c.Command, c.Args} {
			for kind := range repositoryLayouts {
				if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(path.Base(w), kind) }) {
					return kind
				}
			}
		}
	}
	return ""
}

// addAgent puts the agent beside the server, and gives both the model repository. class is MLServer's
// for the service's format.
func addAgent(b *built, serverType, class string) {
	server := &b.containers[0]
	volume := repositoryVolume
	if i := slices.IndexFunc(server.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == DefaultModelPath }); i >= 0 {
		volume = server.VolumeMounts[i].Name
	} else {
		b.pod.Volumes = append(slices.Clip(b.pod.Volumes), corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		server.VolumeMounts = append(slices.Clip(server.VolumeMounts), corev1.VolumeMount{Name: volume, MountPath: DefaultModelPath})
	}
	args := []string{
		"--models_config=" + ModelListDir + "/" + ModelListKey, "--repository=" + DefaultModelPath, "--layout=" + repositoryLayouts[serverType],
		"--engine=127.0.0.1:" + strconv.Itoa(httpPort(*server, b.local)), "--host=$(POD_IP)", "--http_port=" + strconv.Itoa(agentPort),
	}
	if class != "" && serverType == "mlserver" {
		args = append(args, "--implementation="+class)
	}
	mounts := []corev1.VolumeMount{
		{Name: volume, MountPath: DefaultModelPath}, {Name: modelListVolume, MountPath: ModelListDir, ReadOnly: true},
	}
	for _, m := range server.VolumeMounts { // models may lie in them
		if m.MountPath != DefaultModelPath && isClaim(b.pod.Volumes, m.Name, "") {
			m.ReadOnly = true
			mounts = append(mounts, m)
		}
	}
	yes, no := true, false
	b.containers = append(b.containers, corev1.Container{
		Name: AgentContainer, Image: "stationmaster/stationmaster:latest", Command: []string{"stationmaster", "runtime", "agent"}, Args: args,
		Env:          []corev1.EnvVar{{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}},
		Ports:        []corev1.ContainerPort{{Name: spec.ModelsPortName, ContainerPort: agentPort, Protocol: corev1.ProtocolTCP}},
		VolumeMounts: mounts,
		// An engine that was started anew has no model: the replica isn't ready before it has.
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(agentPort)}},
			PeriodSeconds: 1, TimeoutSeconds: 5, SuccessThreshold: 1, FailureThreshold: 1,
		},
		// KServe's defaults for its agent.
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("100Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Privileged: &no,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	})
}

// httpPort is the port on which an engine of the Open Inference Protocol has its repository API.
func httpPort(server corev1.Container, local *LocalRuntime) int {
	for _, p := range portsOf(server, local) {
		if p.Scheme == spec.HTTP {
			return p.Number
		}
	}
	return DefaultHTTPPort
}

// LoadsAll reports whether a multi-model revision's engine has all of its models in memory at once:
// one that an agent keeps to the list, and that frees none to make room.
func LoadsAll(rev *smv1alpha1.RevisionSpec) bool {
	return slices.ContainsFunc(rev.PodTemplate.Spec.Containers, named(AgentContainer))
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
// can. On one machine paths and pvc:// name files that it sees; on a cluster a claim's depend on its
// pods.
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
	case scheme == "pvc":
		return "" // where the pods mount the claim: see InMountedClaim
	case scheme == "":
		return "a path names nothing on a cluster; use https://, or file:// for what the engine's image holds"
	}
	return fmt.Sprintf("%s:// isn't fetched for a TrainedModel on a cluster; bring the model to https://", scheme)
}
