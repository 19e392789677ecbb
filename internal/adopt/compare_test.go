package adopt_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"stationmaster.dev/stationmaster/internal/adopt"
)

// theirs is a pod of KServe's, ours the one that would be made of the same manifest.
func theirs() *corev1.PodSpec {
	return &corev1.PodSpec{
		ServiceAccountName: "default",
		InitContainers:     []corev1.Container{{Name: "storage-initializer", Image: "kserve/storage-initializer:v0.15.0", Args: []string{"s3://b/m", "/mnt/models"}}},
		Containers: []corev1.Container{{
			Name: "kserve-container", Image: "engine:1", Args: []string{"--port=8080"},
			Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "INFERENCE_SERVICE_NAME", Value: "iris"}},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "kserve-provision-location", MountPath: "/mnt/models", ReadOnly: true},
				{Name: "kube-api-access-x7k2p", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
			},
		}},
		Volumes: []corev1.Volume{
			{Name: "kserve-provision-location", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "kube-api-access-x7k2p"},
		},
		NodeName: "node1",
	}
}

func ours() *corev1.PodSpec {
	p := theirs()
	p.NodeName = ""
	p.InitContainers[0] = corev1.Container{Name: "storage-initializer", Image: "stationmaster:1", Args: []string{"model", "pull", "s3://b/m"}}
	c := &p.Containers[0]
	slices.Reverse(c.Env)
	c.VolumeMounts = []corev1.VolumeMount{{Name: "models", MountPath: "/mnt/models", ReadOnly: true}}
	p.Volumes = []corev1.Volume{{Name: "models", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	return p
}

func TestCompare(t *testing.T) {
	models := map[string]string{"s3://b/m": "/mnt/models"}
	fetch := "initContainer storage-initializer"
	for name, tc := range map[string]struct {
		change         func(theirs, ours *corev1.PodSpec)
		restart, later []string
	}{
		"what fetches the model, the order of variables, names of volumes and the token don't count": {later: []string{fetch}},
		"another image": {
			change:  func(_, o *corev1.PodSpec) { o.Containers[0].Image = "engine:2" },
			restart: []string{"kserve-container.image"}, later: []string{fetch},
		},
		"another variable": {
			change:  func(_, o *corev1.PodSpec) { o.Containers[0].Env[0].Value = "fraud" },
			restart: []string{"kserve-container.env"}, later: []string{fetch},
		},
		"the variable that earlier versions of KServe don't set": {
			change: func(p, _ *corev1.PodSpec) { p.Containers[0].Env = p.Containers[0].Env[:1] },
			later:  []string{fetch, "kserve-container.env INFERENCE_SERVICE_NAME"},
		},
		"another model": {
			change:  func(p, _ *corev1.PodSpec) { p.InitContainers[0].Args[0] = "s3://b/old" },
			restart: []string{"model (the pod has s3://b/old at /mnt/models; ours has s3://b/m at /mnt/models)"}, later: []string{fetch},
		},
		"an init container that fetches in a way of its own": {
			change:  func(p, _ *corev1.PodSpec) { p.InitContainers[0].Args = []string{"--quiet", "s3://b/m", "/mnt/models"} },
			restart: []string{"model (the pod has --quiet at s3://b/m and /mnt/models at /mnt/models; ours has s3://b/m at /mnt/models)"}, later: []string{fetch},
		},
		"no model": {
			change:  func(p, _ *corev1.PodSpec) { p.InitContainers = nil },
			restart: []string{"model (the pod has none; ours has s3://b/m at /mnt/models)"}, later: []string{fetch},
		},
		"a model from elsewhere": {
			change: func(p, _ *corev1.PodSpec) {
				p.Volumes[0].VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
			},
			restart: []string{"kserve-container.volumeMounts"}, later: []string{fetch},
		},
		"a sidecar of KServe's": {
			change:  func(p, _ *corev1.PodSpec) { p.Containers = append(p.Containers, corev1.Container{Name: "agent"}) },
			restart: []string{"container agent"}, later: []string{fetch},
		},
		"an init container of the manifest's own": {
			change: func(_, o *corev1.PodSpec) {
				o.InitContainers = append(o.InitContainers, corev1.Container{Name: "check"})
			},
			restart: []string{"initContainer check"}, later: []string{fetch},
		},
		"another account, and more memory": {
			change: func(_, o *corev1.PodSpec) {
				o.ServiceAccountName = "reader"
				o.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("1Gi")}
			},
			restart: []string{"kserve-container.resources", "serviceAccountName"}, later: []string{fetch},
		},
		"how it starts and ends": {
			change: func(_, o *corev1.PodSpec) {
				o.Containers[0].ReadinessProbe, o.Containers[0].Lifecycle = &corev1.Probe{}, &corev1.Lifecycle{}
				o.SecurityContext = &corev1.PodSecurityContext{}
			},
			later: []string{fetch, "kserve-container.lifecycle", "kserve-container.readinessProbe", "securityContext"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := theirs(), ours()
			if tc.change != nil {
				tc.change(a, b)
			}
			restart, later := adopt.Compare(a, b, models)
			if !slices.Equal(restart, tc.restart) || !slices.Equal(later, tc.later) {
				t.Errorf("restarts for %q, later %q", restart, later)
			}
		})
	}
}
