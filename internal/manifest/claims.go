package manifest

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

// InMountedClaim returns the file:// URI under which a multi-model revision's pods see what a pvc://
// URI names. Which claims a pod mounts is fixed when it is made, so one that the predictor doesn't
// mount has no such URI; then it returns why not.
func InMountedClaim(rev *smv1alpha1.RevisionSpec, uri string) (at, why string) {
	rest, _ := strings.CutPrefix(uri, "pvc://")
	claim, sub, _ := strings.Cut(rest, "/")
	sub = strings.TrimPrefix(path.Clean("/"+sub), "/")
	pod := &rev.PodTemplate.Spec
	reader := ServerContainer
	if LoadsAll(rev) {
		reader = AgentContainer
	}
	i := slices.IndexFunc(pod.Containers, named(reader))
	if i < 0 {
		return "", "the service has no container that reads models"
	}
	for _, m := range pod.Containers[i].VolumeMounts {
		if !isClaim(pod.Volumes, m.Name, claim) || m.SubPathExpr != "" {
			continue
		}
		below := strings.Trim(path.Clean("/"+m.SubPath), "/")
		if rest, ok := strings.CutPrefix("/"+sub, "/"+below); ok && (below == "" || rest == "" || rest[0] == '/') {
			return "file://" + path.Join(m.MountPath, rest), ""
		}
	}
	return "", fmt.Sprintf(
		"the service's pods don't mount what %s names, and what a pod mounts is fixed when it is made: give the predictor a volume of the claim %s and its model a volumeMount of it, or bring the model to https://", uri, claim)
}

// isClaim says whether a pod's volume is a claim; an empty name stands for any.
func isClaim(volumes []corev1.Volume, volume, claim string) bool {
	return slices.ContainsFunc(volumes, func(v corev1.Volume) bool {
		return v.Name == volume && v.PersistentVolumeClaim != nil && (claim == "" || v.PersistentVolumeClaim.ClaimName == claim)
	})
}
