package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// annotationReadOnly is on a Deployment or a LeaderWorkerSet whose containers of our own image can't
// write to their root. Those of earlier versions, which lack it, can.
const annotationReadOnly = "stationmaster.dev/read-only-root"

// isBuiltin reports whether a container is written to have our own image.
func isBuiltin(c *corev1.Container) bool {
	repository, _ := splitTag(c.Image)
	return repository == builtinImage || c.Image == "" && runsManager(c)
}

// runsManager reports whether a container's command is our binary.
func runsManager(c *corev1.Container) bool { return len(c.Command) > 0 && c.Command[0] == manager }

// hasBuiltin reports whether pods of a member have a container of our own image.
func (m *member) hasBuiltin() bool {
	has := func(t *corev1.PodTemplateSpec) bool {
		return slices.ContainsFunc(t.Spec.Containers, func(c corev1.Container) bool { return isBuiltin(&c) })
	}
	rev := &m.revision.Spec
	return has(&rev.PodTemplate) || rev.Workers != nil && has(&rev.Workers.PodTemplate)
}

// writesRoot reports whether the containers of our own image may write to their root: where an earlier
// operator made the pods that live runs, so that an upgrade restarts none of them.
func writesRoot(live client.Object, hash string) bool {
	return runs(live, hash) && live.GetAnnotations()[annotationReadOnly] == ""
}

// closeRoots keeps containers of our own image, by name, from writing to their root where nobody said
// otherwise. What they put into files for a while goes to a volume at /tmp.
func closeRoots(pod *corev1.PodSpec, builtin []string) {
	for i := range pod.Containers {
		c := &pod.Containers[i]
		if !slices.Contains(builtin, c.Name) || c.SecurityContext != nil && c.SecurityContext.ReadOnlyRootFilesystem != nil {
			continue
		}
		if c.SecurityContext == nil {
			c.SecurityContext = &corev1.SecurityContext{}
		}
		yes := true
		c.SecurityContext.ReadOnlyRootFilesystem = &yes
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/tmp" }) {
			continue
		}
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == scratchVolume }) {
			pod.Volumes = append(pod.Volumes, corev1.Volume{Name: scratchVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: scratchVolume, MountPath: "/tmp"})
	}
}
