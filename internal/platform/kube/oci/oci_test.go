package oci_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
)

func TestASchemeThatSaysHowGoesBeforeTheUsual(t *testing.T) {
	for uri, want := range map[string]struct {
		how   oci.Delivery
		image string
		none  bool
	}{
		"oci://registry.example/m:1":          {how: oci.Fetch, image: "registry.example/m:1"},
		"oci+native://registry.example/m:1":   {how: oci.ImageVolume, image: "registry.example/m:1"},
		"oci+modelcar://registry.example/m:1": {how: oci.Modelcar, image: "registry.example/m:1"},
		"oci+fetch://registry.example/m:1":    {how: oci.Fetch, image: "registry.example/m:1"},
		"https://registry.example/m":          {none: true},
		"/models/m":                           {none: true},
	} {
		how, image, ok := oci.Of(uri, oci.Fetch)
		if ok == want.none || ok && (how != want.how || image != want.image) {
			t.Errorf("%s comes by %q as %q (%v), want %q as %q", uri, how, image, ok, want.how, want.image)
		}
	}
	if how, _, _ := oci.Of("oci://m", ""); how != oci.ImageVolume {
		t.Errorf("where nobody said how it comes by %q", how)
	}
}

func TestDeliveriesAreNamed(t *testing.T) {
	for _, d := range append(oci.Deliveries(), "") {
		if _, err := oci.Parse(string(d)); err != nil {
			t.Error(err)
		}
	}
	if _, err := oci.Parse("sidecar"); err == nil || !strings.Contains(err.Error(), "image-volume, modelcar or fetch") {
		t.Errorf("an unknown one: %v", err)
	}
}

func TestLinksNeedAPlaceOfTheirOwn(t *testing.T) {
	for name, tc := range map[string]struct {
		path   string
		others []string
		shared string
		want   string
		says   string
	}{
		"alone":                                  {path: "/mnt/models", want: "/mnt"},
		"beside another":                         {path: "/mnt/models/b", others: []string{"/mnt/models/a"}, want: "/mnt/models"},
		"in the folder of one that is pulled":    {path: "/mnt/models/b", others: []string{"/mnt/models"}, shared: "/mnt/models", want: "/mnt/models"},
		"in the folder of one that is mounted":   {path: "/mnt/models/b", others: []string{"/mnt/models"}, says: "/mnt/models can be in its way"},
		"deep in one that is pulled":             {path: "/mnt/models/a/b", others: []string{"/mnt/models"}, shared: "/mnt/models", says: "in its way"},
		"above another":                          {path: "/mnt/models", others: []string{"/mnt/models/a"}, says: "/mnt/models/a can be in its way"},
		"at the top, where no directory is free": {path: "/models", says: "such as /mnt/models"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := oci.Park([]oci.Car{{MountPath: tc.path}}, append(tc.others, tc.path), tc.shared)
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("error %v, want one that says %q", err, tc.says)
				}
				return
			}
			if d := cmp.Diff([]string{tc.want}, got); err != nil || d != "" {
				t.Errorf("error %v (-want +got):\n%s", err, d)
			}
		})
	}
}

func TestEngineAndModelcarRunAsTheSame(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	for name, tc := range map[string]struct {
		pod       *corev1.PodSecurityContext
		container *corev1.SecurityContext
		known     oci.Identity
		want      oci.Identity
	}{
		"as the container says":                 {container: &corev1.SecurityContext{RunAsUser: id(7), RunAsGroup: id(8)}, want: oci.Identity{User: id(7), Group: id(8)}},
		"as the pod says":                       {pod: &corev1.PodSecurityContext{RunAsUser: id(7)}, known: oci.Identity{User: id(9)}, want: oci.Identity{User: id(7)}},
		"the container goes before the pod":     {pod: &corev1.PodSecurityContext{RunAsUser: id(7), RunAsGroup: id(5)}, container: &corev1.SecurityContext{RunAsUser: id(6)}, want: oci.Identity{User: id(6), Group: id(5)}},
		"as its image is known to":              {known: oci.Identity{User: id(9), Group: id(9)}, want: oci.Identity{User: id(9), Group: id(9)}},
		"as KServe has it where nobody says it": {want: oci.Identity{User: id(1010), Group: id(0)}},
		"with the pod's group":                  {pod: &corev1.PodSecurityContext{RunAsGroup: id(5)}, want: oci.Identity{User: id(1010), Group: id(5)}},
	} {
		t.Run(name, func(t *testing.T) {
			container := corev1.Container{Name: "engine", SecurityContext: tc.container}
			pod := &corev1.PodSpec{SecurityContext: tc.pod, Containers: []corev1.Container{container}}
			got := oci.Settle(pod, &pod.Containers[0], tc.known)
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.want, oci.IdentityOf(pod, &pod.Containers[0])); d != "" {
				t.Errorf("what the engine runs as (-want +got):\n%s", d)
			}
			oci.Car{Image: "m", MountPath: "/mnt/models"}.Board(pod, got, corev1.VolumeMount{Name: "v", MountPath: "/mnt"})
			for _, c := range pod.InitContainers {
				if s := c.SecurityContext; *s.RunAsUser != *got.User || (s.RunAsNonRoot != nil) != (*got.User != 0) {
					t.Errorf("%s runs as %d", c.Name, *s.RunAsUser)
				}
			}
		})
	}
}
