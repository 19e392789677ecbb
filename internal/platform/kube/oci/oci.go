// Package oci says how models that come as images reach pods, and makes the parts of a pod in
// which a model's image runs beside the engine (KServe's modelcar). It is pure.
package oci

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Delivery is a way in which the files of a model's image reach a pod.
type Delivery string

const (
	// ImageVolume mounts the image; nodes and API server have to know image volumes.
	ImageVolume Delivery = "image-volume"
	// Modelcar runs the image beside the engine, which sees its files through their shared processes.
	Modelcar Delivery = "modelcar"
	// Fetch has an init container of ours read the image from its registry.
	Fetch Delivery = "fetch"
)

// Deliveries are all there are, the usual one first.
func Deliveries() []Delivery { return []Delivery{ImageVolume, Modelcar, Fetch} }

// Parse reads the name of a delivery; empty means ImageVolume. Another name is an error that says
// which there are.
func Parse(name string) (Delivery, error) {
	if name == "" {
		return ImageVolume, nil
	}
	if d := Delivery(name); slices.Contains(Deliveries(), d) {
		return d, nil
	}
	return "", fmt.Errorf("%q is no way to deliver oci:// models: want %s, %s or %s", name, ImageVolume, Modelcar, Fetch)
}

// explicit are the schemes that say by themselves how a model comes. The first two are KServe's.
var explicit = map[string]Delivery{"oci+native": ImageVolume, "oci+fetch": Fetch, "oci+modelcar": Modelcar}

// Of returns how a model comes and the image that its URI names; ok is false for one that isn't in an
// image. A scheme that says how goes before what is usual.
func Of(uri string, usual Delivery) (how Delivery, image string, ok bool) {
	scheme, image, _ := strings.Cut(uri, "://")
	if scheme == "oci" {
		if usual == "" {
			usual = ImageVolume
		}
		return usual, image, true
	}
	how, ok = explicit[scheme]
	return how, image, ok
}

// Names that KServe gives the parts of a modelcar.
const (
	carContainer  = "modelcar"
	initContainer = "modelcar-init"
	asyncVariable = "MODEL_INIT_MODE"
	// modelsDir holds the model in its image.
	modelsDir = "/models"
)

// Prefetch reports whether an init container of this name brings a modelcar's image to the node.
func Prefetch(name string) bool {
	return name == initContainer || strings.HasPrefix(name, initContainer+"-")
}

// carUser is who engine and modelcar run as where nobody says it (KServe's default): an engine sees the
// files of another container only as the same user. Group 0 is what a user gets that its image doesn't know.
const (
	carUser  = 1010
	carGroup = 0
)

// Car is a model whose image runs beside an engine.
type Car struct {
	// Image holds the model below /models, and a shell with ln, sleep and test.
	Image string
	// MountPath is where the engine finds the model: a link below a directory that they share.
	MountPath string
	// Number tells several in a pod apart; the first is 0.
	Number int
}

// Identity is whom a process of a pod runs as; nil means what its image says.
type Identity struct{ User, Group *int64 }

// IdentityOf is whom a container runs as by what its pod says.
func IdentityOf(pod *corev1.PodSpec, c *corev1.Container) Identity {
	var id Identity
	if s := pod.SecurityContext; s != nil {
		id = Identity{s.RunAsUser, s.RunAsGroup}
	}
	if s := c.SecurityContext; s != nil {
		if s.RunAsUser != nil {
			id.User = s.RunAsUser
		}
		if s.RunAsGroup != nil {
			id.Group = s.RunAsGroup
		}
	}
	return id
}

// Settle has a container that is to see a modelcar's files run as somebody who is known, and returns
// who that is: whom it says, else known, which is whom its image is known to run as, else KServe's.
func Settle(pod *corev1.PodSpec, c *corev1.Container, known Identity) Identity {
	id := IdentityOf(pod, c)
	if id.User != nil {
		return id
	}
	if known.User == nil {
		user, group := int64(carUser), int64(carGroup)
		known.User = &user
		if known.Group = id.Group; known.Group == nil {
			known.Group = &group
		}
	}
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = known.User, known.Group
	return known
}

// Park returns for each modelcar the directory that its link is in, which engine and modelcar share.
// Paths are those of all models of the pod, and shared is the directory of those that are pulled. An
// error means that a link can't be there: it has no directory above it, or another model in its way.
func Park(cars []Car, paths []string, shared string) ([]string, error) {
	parents := make([]string, len(cars))
	for i, c := range cars {
		parents[i] = path.Dir(c.MountPath)
		if parents[i] == "/" || parents[i] == "." {
			return nil, fmt.Errorf("a model at %s can't be linked from a modelcar: use a path below another, such as /mnt/models", c.MountPath)
		}
		for _, p := range paths {
			if strings.HasPrefix(p, c.MountPath+"/") || strings.HasPrefix(c.MountPath, p+"/") && parents[i] != shared {
				return nil, fmt.Errorf("the model at %s comes by modelcar, and none at %s can be in its way: use paths beside each other, or oci+native://", c.MountPath, p)
			}
		}
	}
	return parents, nil
}

// Board adds a modelcar to a pod, which has the mount's volume. The image comes first by an init
// container, so that a pull that fails, or an image without the directory, shows early. The modelcar
// itself is an init container that runs on: Kubernetes starts the engine when the link is there, and
// ends the modelcar after the engine.
func (c Car) Board(pod *corev1.PodSpec, as Identity, mount corev1.VolumeMount) {
	yes, always := true, corev1.ContainerRestartPolicyAlways
	before, beside := c.names()
	prefetch := c.container(before, as,
		`test -d "$1" || { echo "the image has no directory $1" >&2; exit 1; }`)
	// The shell's number is that of the process which sleep takes over.
	car := c.container(beside, as, `ln -sfn "/proc/$$/root$1" "$0" && exec sleep infinity`)
	car.VolumeMounts = []corev1.VolumeMount{mount}
	car.RestartPolicy = &always
	car.StartupProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: shell(`test -d "$0/."`, c.MountPath)}},
		PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: 60,
	}
	pod.InitContainers = slices.Concat([]corev1.Container{prefetch, car}, pod.InitContainers)
	pod.ShareProcessNamespace = &yes
}

// Tell lets an engine know that its model may come after it (KServe's variable).
func Tell(c *corev1.Container) {
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == asyncVariable }) {
		c.Env = append(c.Env, corev1.EnvVar{Name: asyncVariable, Value: "async"})
	}
}

// names returns those of the containers that Board adds.
func (c Car) names() (prefetch, car string) {
	if c.Number == 0 {
		return initContainer, carContainer
	}
	return fmt.Sprintf("%s-%d", initContainer, c.Number+1), fmt.Sprintf("%s-%d", carContainer, c.Number+1)
}

// Prefetcher is the name of the init container that brings the image to the node.
func (c Car) Prefetcher() string {
	name, _ := c.names()
	return name
}

// container makes one of the model's image that runs a script. Its root stays as the image has it.
func (c Car) container(name string, as Identity, script string) corev1.Container {
	yes, no := true, false
	// KServe's 10m and 15Mi are asked for; but a probe's shell starts within the limits, too.
	small := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("15Mi")}
	most := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	out := corev1.Container{
		Name: name, Image: c.Image, Command: escaped(shell(script, c.MountPath, modelsDir)),
		Resources:                corev1.ResourceRequirements{Requests: small, Limits: most},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: as.User, RunAsGroup: as.Group, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if as.User != nil && *as.User != 0 {
		out.SecurityContext.RunAsNonRoot = &yes
	}
	return out
}

// shell is a command that runs a script with arguments, of which the first is $0.
func shell(script string, arguments ...string) []string {
	return append([]string{"sh", "-c", script}, arguments...)
}

// escaped keeps Kubernetes from reading references to variables in a command.
func escaped(command []string) []string {
	out := make([]string, len(command))
	for i, word := range command {
		out[i] = strings.ReplaceAll(word, "$", "$$")
	}
	return out
}
