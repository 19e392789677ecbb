package kube

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestOurOwnImageCannotWriteToItsRoot(t *testing.T) {
	ours := corev1.Container{Name: "kserve-container", Image: "stationmaster/stationmaster:latest", Command: []string{"stationmaster", "runtime", "onnx"}}
	yes, no := true, false
	with := func(change func(*corev1.Container)) corev1.Container {
		c := *ours.DeepCopy()
		change(&c)
		return c
	}
	temporary := corev1.VolumeMount{Name: "mine", MountPath: "/tmp"}
	for name, tc := range map[string]struct {
		container corev1.Container
		earlier   bool
		want      *bool
		tmp       string
	}{
		"the built-in runtime":                      {container: ours, want: &yes, tmp: scratchVolume},
		"a command of ours without an image":        {container: with(func(c *corev1.Container) { c.Image = "" }), want: &yes, tmp: scratchVolume},
		"one that has a volume there":               {container: with(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{temporary} }), want: &yes, tmp: "mine"},
		"one whose author wants to write":           {container: with(func(c *corev1.Container) { c.SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: &no} }), want: &no},
		"one that runs since before":                {container: ours, earlier: true},
		"another's engine, of whom we know nothing": {container: corev1.Container{Name: "kserve-container", Image: "registry.example/engine:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			rev := &smv1alpha1.Revision{}
			rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{tc.container}
			m := member{revision: rev, writesRoot: tc.earlier, workload: spec.Workload{Containers: []spec.Container{{Name: "kserve-container"}}}}
			c := Config{Image: ownImage}
			made, err := c.podTemplate(m)
			if err != nil {
				t.Fatal(err)
			}
			got := made.Spec.Containers[0]
			if s := got.SecurityContext.ReadOnlyRootFilesystem; (s == nil) != (tc.want == nil) || s != nil && *s != *tc.want {
				t.Errorf("its root is read-only: %v, want %v", s, tc.want)
			}
			tmp := ""
			for _, mount := range got.VolumeMounts {
				if mount.MountPath == "/tmp" {
					tmp += mount.Name
				}
			}
			if tmp != tc.tmp {
				t.Errorf("the volume at /tmp is %q, want %q", tmp, tc.tmp)
			}
			if volumes := len(made.Spec.Volumes); (tc.tmp == scratchVolume) != (volumes == 1) {
				t.Errorf("the pod has %d volumes", volumes)
			}
			if noted := c.notes(m)[annotationReadOnly] != ""; noted != (isBuiltin(&tc.container) && !tc.earlier) {
				t.Errorf("its Deployment says so: %t", noted)
			}
		})
	}
}

func TestAnUpgradeClosesNoRootOfPodsThatRun(t *testing.T) {
	deployment := func(replicas int32, hash, annotation string) *appsv1.Deployment {
		return &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelHash: hash}, Annotations: map[string]string{annotationReadOnly: annotation}},
			Spec:       appsv1.DeploymentSpec{Replicas: &replicas},
		}
	}
	for name, tc := range map[string]struct {
		live *appsv1.Deployment
		want bool
	}{
		"pods of an earlier operator stay as they are": {deployment(1, "a", ""), true},
		"pods that have it keep it":                    {deployment(1, "a", "true"), false},
		"those that start from zero get it":            {deployment(0, "a", ""), false},
		"those of another revision get it":             {deployment(1, "b", ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := writesRoot(tc.live, "a"); got != tc.want {
				t.Errorf("they may write to their root: %t, want %t", got, tc.want)
			}
		})
	}
	if writesRoot(nil, "a") {
		t.Error("those of a new revision may write to their root")
	}
}
