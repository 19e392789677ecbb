package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Labels of what the platform makes. The first three are KServe's.
const (
	labelApp       = "app"
	labelService   = "serving.kserve.io/inferenceservice"
	labelComponent = "component"
	labelRevision  = "stationmaster.dev/revision"
	labelHash      = "stationmaster.dev/hash"
	labelManagedBy = "app.kubernetes.io/managed-by"

	manager = "stationmaster"
)

// Annotations that tell an observer of pods what it can't see of the pod itself.
const (
	// annotationServer names the container that takes the traffic.
	annotationServer = "stationmaster.dev/server"
	// annotationHTTP and annotationGRPC are its ports.
	annotationHTTP = "stationmaster.dev/http-port"
	annotationGRPC = "stationmaster.dev/grpc-port"
	// annotationModels is the port on which a container beside it tells of its models.
	annotationModels = "stationmaster.dev/models-port"
	// annotationImages maps image volumes, and the init containers that bring images of modelcars to
	// their node, to the URIs of the models in them, as JSON.
	annotationImages = "stationmaster.dev/image-models"
)

// annotationImage holds on a Deployment or a LeaderWorkerSet the image of ours that its pods are made with.
const annotationImage = "stationmaster.dev/image"

// annotationDelivery holds on a Deployment or a LeaderWorkerSet how models of
// oci:// reach its pods. Those of earlier versions, which lack it, have image volumes.
const annotationDelivery = "stationmaster.dev/oci-delivery"

// builtinImage is the repository that stands for our own image in the catalogue.
const builtinImage = "stationmaster/stationmaster"

// drainSeconds is how long an engine goes on before it is told to end, for gateways that hear
// late that it will.
const drainSeconds = 5

// podTemplate makes the pods of a revision: its own template with models, our labels, and
// restricted defaults where it says nothing. An error means that it can't run on a cluster.
func (c *Config) podTemplate(m member) (corev1.PodTemplateSpec, error) {
	t := *m.revision.Spec.PodTemplate.DeepCopy()
	w := &m.workload
	t.Labels = merged(t.Labels, podLabels(w))
	t.Annotations = merged(t.Annotations, serverAnnotations(w))
	if i := slices.IndexFunc(t.Spec.Containers, func(c corev1.Container) bool { return c.Name == w.Server().Name }); i >= 0 && m.startup > 0 {
		grant(&t.Spec.Containers[i], m.startup)
	}
	return t, c.complete(&t, m)
}

// Template returns the pods that are made of a revision, and the labels by which its Deployment
// knows them. An error means that the revision can't run on a cluster.
func (c *Config) Template(rev *smv1alpha1.Revision) (corev1.PodTemplateSpec, map[string]string, error) {
	w, err := manifest.WorkloadOf(rev.Namespace, rev.Name, &rev.Spec)
	if err != nil {
		return corev1.PodTemplateSpec{}, nil, err
	}
	t, err := c.podTemplate(member{revision: rev, workload: w})
	return t, selector(&w), err
}

// workerTemplate makes the other pods of a replica over several nodes. They are of the service
// and the revision, but not of the app, whose pods take requests.
func (c *Config) workerTemplate(m member) (corev1.PodTemplateSpec, error) {
	t := *m.revision.Spec.Workers.PodTemplate.DeepCopy()
	labels := podLabels(&m.workload)
	delete(labels, labelApp)
	t.Labels = merged(t.Labels, labels)
	t.Annotations = merged(t.Annotations, nil)
	return t, c.complete(&t, m)
}

func (c *Config) complete(t *corev1.PodTemplateSpec, m member) error {
	w := &m.workload
	delete(t.Annotations, manifest.LocalAnnotation)
	pod := &t.Spec
	var builtin []string
	for i := range pod.Containers {
		if isBuiltin(&pod.Containers[i]) && !m.writesRoot {
			builtin = append(builtin, pod.Containers[i].Name)
		}
		if err := c.fillIn(&pod.Containers[i], w); err != nil {
			return err
		}
	}
	if err := c.mountModels(t, m); err != nil {
		return err
	}
	closeRoots(pod, builtin)
	drain(pod)
	restrict(pod)
	return nil
}

func merged(base, over map[string]string) map[string]string {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, over)
	return out
}

// serviceLabels are those of every object of a service.
func serviceLabels(key spec.ServiceKey) map[string]string {
	return map[string]string{labelService: key.Name, labelManagedBy: manager}
}

// selector picks the pods of one revision.
func selector(w *spec.Workload) map[string]string {
	return map[string]string{
		labelApp: manifest.AppLabel(w.Service.Name, w.Component), labelService: w.Service.Name,
		labelComponent: string(w.Component), labelRevision: w.Revision.Name,
	}
}

func podLabels(w *spec.Workload) map[string]string {
	return merged(selector(w), map[string]string{labelHash: w.Hash})
}

func serverAnnotations(w *spec.Workload) map[string]string {
	server := w.Server()
	out := map[string]string{annotationServer: server.Name}
	if p, ok := server.HTTPPort(); ok {
		out[annotationHTTP] = strconv.Itoa(p.Number)
	}
	if p, ok := server.GRPCPort(); ok {
		out[annotationGRPC] = strconv.Itoa(p.Number)
	}
	if p, ok := w.ModelsPort(); ok {
		out[annotationModels] = strconv.Itoa(p.Number)
	}
	return out
}

// fillIn gives a container our own image where it stands for the built-in runtime, and the
// ports that are known of its engine.
func (c *Config) fillIn(container *corev1.Container, w *spec.Workload) error {
	i := slices.IndexFunc(w.Containers, func(k spec.Container) bool { return k.Name == container.Name })
	if i >= 0 {
		declare(container, w.Containers[i].Ports)
	}
	ours := runsManager(container)
	repository, tag := splitTag(container.Image)
	switch {
	case container.Image == "" && !ours:
		return fmt.Errorf("container %s has no image: on a cluster it needs one", container.Name)
	case container.Image != "" && repository != builtinImage:
		return nil
	case c.Image == "":
		return fmt.Errorf("container %s is the built-in runtime, and the operator wasn't told the image of it: set it", container.Name)
	}
	container.Image = c.Image
	if tag != "" && tag != "latest" {
		// runtimeVersion replaces the tag, as it does with other runtimes.
		own, _ := splitTag(c.Image)
		container.Image = own + ":" + tag
	}
	if ours {
		// The image's entrypoint is the binary, wherever it lies.
		container.Args = slices.Concat(container.Command[1:], container.Args)
		container.Command = nil
	}
	return nil
}

// splitTag parts an image from its tag; a digest and the port of a registry are no tags.
func splitTag(image string) (repository, tag string) {
	repository, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		return repository[:i], repository[i+1:]
	}
	return repository, ""
}

// declare adds the ports that the engine has and the manifest doesn't tell, so that probes may
// name them.
func declare(c *corev1.Container, ports []spec.Port) {
	for _, p := range ports {
		if slices.ContainsFunc(c.Ports, func(have corev1.ContainerPort) bool { return int(have.ContainerPort) == p.Number }) {
			continue
		}
		port := corev1.ContainerPort{Name: p.Name, ContainerPort: int32(p.Number), Protocol: corev1.ProtocolTCP}
		if slices.ContainsFunc(c.Ports, func(have corev1.ContainerPort) bool { return have.Name == p.Name }) {
			port.Name = ""
		}
		c.Ports = append(c.Ports, port)
	}
}

// drain lets containers run on for a few seconds after their pod was told to end, at most half
// of the time that it has.
func drain(pod *corev1.PodSpec) {
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if s := pod.TerminationGracePeriodSeconds; s != nil {
		grace = *s
	}
	seconds := min(drainSeconds, grace/2)
	if seconds < 1 {
		return
	}
	for i := range pod.Containers {
		c := &pod.Containers[i]
		if c.Lifecycle == nil {
			c.Lifecycle = &corev1.Lifecycle{}
		}
		if c.Lifecycle.PreStop == nil {
			c.Lifecycle.PreStop = &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}
		}
	}
}

// restrict fills in what the restricted Pod Security profile asks for where the template says
// nothing. Whether an image can run as another user than root only its author knows.
func restrict(pod *corev1.PodSpec) {
	no := false
	if pod.AutomountServiceAccountToken == nil && pod.ServiceAccountName == "" {
		pod.AutomountServiceAccountToken = &no
	}
	if pod.SecurityContext == nil {
		pod.SecurityContext = &corev1.PodSecurityContext{}
	}
	if pod.SecurityContext.SeccompProfile == nil {
		pod.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			c := &containers[i]
			if c.TerminationMessagePolicy == "" {
				c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
			}
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			s := c.SecurityContext
			if s.AllowPrivilegeEscalation == nil && !escalates(s) {
				s.AllowPrivilegeEscalation = &no
			}
			if s.Capabilities == nil && !isTrue(s.Privileged) {
				s.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
			}
		}
	}
}

// escalates says whether a security context holds what Kubernetes refuses to combine with
// allowPrivilegeEscalation: false.
func escalates(s *corev1.SecurityContext) bool {
	return isTrue(s.Privileged) || (s.Capabilities != nil &&
		(slices.Contains(s.Capabilities.Add, "SYS_ADMIN") || slices.Contains(s.Capabilities.Add, "CAP_SYS_ADMIN")))
}

func isTrue(b *bool) bool { return b != nil && *b }

// imageModels encodes annotationImages.
func imageModels(byVolume map[string]string) (string, error) {
	text, err := json.Marshal(byVolume)
	if err != nil {
		return "", fmt.Errorf("encode image volumes: %w", err)
	}
	return string(text), nil
}

// serves says whether a container of a service works on the model: the engine, a transformer
// beside it, or one that was told where the model is.
func serves(w *spec.Workload, c *corev1.Container) bool {
	return c.Name == cmp.Or(w.Server().Name, manifest.ServerContainer) || c.Name == manifest.ServerContainer || c.Name == manifest.TransformerContainer || c.Name == manifest.WorkerContainer ||
		slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "STORAGE_URI" })
}
