package kube

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Names that KServe gives the parts by which models reach a pod (kserve.md 1.7).
const (
	pullContainer     = "storage-initializer"
	pulledVolume      = "kserve-provision-location"
	claimVolume       = "kserve-pvc-source"
	imageVolume       = "kserve-image-source"
	linkVolume        = "kserve-modelcar-link"
	readOnlyOptOut    = "storage.kserve.io/readonly"
	scratchVolume     = "stationmaster-tmp"
	terminationReport = "/dev/termination-log"
)

// nonRoot is the user of our own image.
const nonRoot = 65532

// source is how a model reaches its pods.
type source int

const (
	pulled source = iota
	fromClaim
	fromImage
	fromCar
)

// sourceOf parts a model's URI: how it comes, and what is behind its scheme.
func (c *Config) sourceOf(uri string) (source, string) {
	if how, image, ok := oci.Of(uri, c.Images); ok {
		switch how {
		case oci.ImageVolume:
			return fromImage, image
		case oci.Modelcar:
			return fromCar, image
		case oci.Fetch:
			return pulled, uri
		}
	}
	if scheme, rest, _ := strings.Cut(uri, "://"); scheme == "pvc" {
		return fromClaim, rest
	}
	return pulled, uri
}

// mountModels puts the revision's models at their paths in the containers that work on them.
func (c *Config) mountModels(t *corev1.PodTemplateSpec, m member) error {
	pod := &t.Spec
	readOnly := t.Annotations[readOnlyOptOut] != "false"
	var mounts []corev1.VolumeMount
	var fetched []string
	images := map[string]string{}
	claims := map[string]string{}
	var pulls []corev1.Container
	var cars []oci.Car
	for i, model := range m.workload.Models {
		switch kind, rest := c.sourceOf(model.URI); kind {
		case fromClaim:
			claim, sub, _ := strings.Cut(rest, "/")
			if claim == "" {
				return fmt.Errorf("model %s names no claim: write pvc://claim or pvc://claim/path", model.URI)
			}
			name, ok := claims[claim]
			if !ok {
				name = numbered(claimVolume, len(claims))
				claims[claim] = name
				pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
				}})
			}
			mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: model.MountPath, SubPath: strings.Trim(sub, "/"), ReadOnly: readOnly})
		case fromImage:
			name := numbered(imageVolume, len(images))
			images[name] = model.URI
			pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: rest},
			}})
			// An image volume can't be written to, whatever the annotation says.
			mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: model.MountPath, SubPath: "models", ReadOnly: true})
		case fromCar:
			car := oci.Car{Image: rest, MountPath: path.Clean(model.MountPath), Number: len(cars)}
			images[car.Prefetcher()] = model.URI
			cars = append(cars, car)
		default:
			if c.Image == "" {
				return fmt.Errorf("model %s has to be pulled, and the operator wasn't told the image that does it: set it", model.URI)
			}
			puller := c.pull(numbered(pullContainer, len(pulls)), model.URI, model.MountPath, pinsName(m.revision.Name), pinKey(i))
			switch {
			case inImage(model.URI):
				m.credentials.giveRegistries(pod, &puller)
			case withCredentials(model.URI):
				m.credentials.give(pod, &puller)
			}
			pulls = append(pulls, puller)
			fetched = append(fetched, path.Clean(model.MountPath))
		}
	}
	if len(images) > 0 {
		text, err := imageModels(images)
		if err != nil {
			return err
		}
		t.Annotations[annotationImages] = text
	}
	if len(pulls) > 0 {
		// One volume holds all, mounted where the paths part (KServe does so too).
		at := commonDir(fetched)
		if at == "/" {
			return fmt.Errorf("models at %s share no directory: use paths such as /mnt/models/a and /mnt/models/b", strings.Join(fetched, ", "))
		}
		mounts = append([]corev1.VolumeMount{{Name: pulledVolume, MountPath: at, ReadOnly: readOnly}}, mounts...)
		for i := range pulls {
			pulls[i].VolumeMounts = append(pulls[i].VolumeMounts, corev1.VolumeMount{Name: pulledVolume, MountPath: at})
		}
		pod.Volumes = append(pod.Volumes,
			corev1.Volume{Name: pulledVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			corev1.Volume{Name: scratchVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		// They go first, as on one machine, where the manifest's own find the models there.
		pod.InitContainers = append(pulls, pod.InitContainers...)
	}
	shared := ""
	if len(fetched) > 0 {
		shared = commonDir(fetched)
	}
	links, err := c.board(pod, &m.workload, cars, shared)
	if err != nil {
		return err
	}
	// Those that hold others come first.
	mounts = append(links, mounts...)
	for i := range pod.Containers {
		container := &pod.Containers[i]
		if !serves(&m.workload, container) {
			continue
		}
		for _, mount := range mounts {
			taken := slices.ContainsFunc(container.VolumeMounts, func(have corev1.VolumeMount) bool { return have.MountPath == mount.MountPath })
			if !taken {
				container.VolumeMounts = append(container.VolumeMounts, mount)
			}
		}
	}
	return nil
}

// board adds the modelcars of a pod, and returns the mounts of the directories that hold their links.
// Those that see a modelcar's files run as the same user as it. A link may be where the models are that
// were pulled, which shared is; empty means there are none.
func (c *Config) board(pod *corev1.PodSpec, w *spec.Workload, cars []oci.Car, shared string) ([]corev1.VolumeMount, error) {
	if len(cars) == 0 {
		return nil, nil
	}
	parents, err := oci.Park(cars, pathsOf(w.Models), shared)
	if err != nil {
		return nil, err
	}
	var as oci.Identity
	for i := range pod.Containers {
		container := &pod.Containers[i]
		if !serves(w, container) {
			continue
		}
		var known oci.Identity
		if own, _ := splitTag(c.Image); own != "" {
			if repository, _ := splitTag(container.Image); repository == own {
				user := int64(nonRoot)
				known = oci.Identity{User: &user, Group: &user}
			}
		}
		if id := oci.Settle(pod, container, known); as.User == nil || container.Name == w.Server().Name {
			as = id
		}
		oci.Tell(container)
	}
	var mounts []corev1.VolumeMount
	for i, car := range cars {
		mount := corev1.VolumeMount{Name: pulledVolume, MountPath: parents[i]}
		if parents[i] != shared {
			at := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == parents[i] })
			if at < 0 {
				at = len(mounts)
				name := numbered(linkVolume, at)
				mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: parents[i]})
				pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			}
			mount = mounts[at]
		}
		car.Board(pod, as, mount)
	}
	return mounts, nil
}

func pathsOf(models []spec.Model) []string {
	var out []string
	for _, model := range models {
		out = append(out, path.Clean(model.MountPath))
	}
	return out
}

// pull makes the init container that fetches one model. The digest that it has to have comes
// from a config map: it is known after the first pull only, and a pod template that changed
// with it would replace all pods. No digest there means any.
func (c *Config) pull(name, uri, to, pins, key string) corev1.Container {
	yes, no, user := true, false, int64(nonRoot)
	return corev1.Container{
		Name: name, Image: c.Image,
		Args: []string{
			"model", "pull", "--to", to, "--report", terminationReport, "--digest=$(MODEL_DIGEST)",
			// A reference to a variable isn't meant in a URI.
			strings.ReplaceAll(uri, "$(", "$$("),
		},
		Env: []corev1.EnvVar{
			{Name: "HOME", Value: "/tmp"},
			{Name: "MODEL_DIGEST", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: pins}, Key: key,
			}}},
		},
		// KServe's defaults.
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("100Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
		TerminationMessagePath:   terminationReport,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts:             []corev1.VolumeMount{{Name: scratchVolume, MountPath: "/tmp"}},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Privileged: &no,
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

// numbered returns name for the first, name-2 for the second, and so on.
func numbered(name string, before int) string {
	if before == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, before+1)
}

// commonDir returns the deepest directory that is, or holds, each of the paths.
func commonDir(paths []string) string {
	dir := paths[0]
	for _, p := range paths[1:] {
		for dir != "/" && p != dir && !strings.HasPrefix(p, dir+"/") {
			dir = path.Dir(dir)
		}
	}
	return dir
}

// isPull says whether an init container fetches a model.
func isPull(name string) bool {
	return name == pullContainer || strings.HasPrefix(name, pullContainer+"-")
}

func pinsName(revision string) string { return revision }

func pinKey(model int) string { return fmt.Sprintf("digest-%d", model+1) }
