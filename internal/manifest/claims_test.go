package manifest_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

func TestAClaimServesTrainedModelsWhereThePodsMountIt(t *testing.T) {
	rev := &smv1alpha1.RevisionSpec{Service: "many"}
	pod := &rev.PodTemplate.Spec
	pod.Volumes = []corev1.Volume{
		{Name: "all", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "models"}}},
		{Name: "part", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "team"}}},
	}
	pod.Containers = []corev1.Container{{Name: manifest.ServerContainer, VolumeMounts: []corev1.VolumeMount{
		{Name: "all", MountPath: "/claims/models"}, {Name: "part", MountPath: "/claims/a", SubPath: "a/b"},
	}}}
	for uri, want := range map[string]string{
		"pvc://models":         "file:///claims/models",
		"pvc://models/":        "file:///claims/models",
		"pvc://models/iris/1":  "file:///claims/models/iris/1",
		"pvc://models/../../x": "file:///claims/models/x",
		"pvc://team/a/b/iris":  "file:///claims/a/iris",
		"pvc://team/a/b":       "file:///claims/a",
		"pvc://team/a/bc":      "",
		"pvc://team":           "",
		"pvc://other/iris":     "",
	} {
		at, why := manifest.InMountedClaim(rev, uri)
		if at != want || (why == "") != (want != "") || want == "" && !strings.Contains(why, uri) {
			t.Errorf("%s: %q, %q; want %q", uri, at, why, want)
		}
	}
	// An agent reads what it mounts itself.
	pod.Containers = append(pod.Containers, corev1.Container{Name: manifest.AgentContainer})
	if at, why := manifest.InMountedClaim(rev, "pvc://models/iris"); at != "" || why == "" {
		t.Errorf("beside an agent: %q, %q", at, why)
	}
}
