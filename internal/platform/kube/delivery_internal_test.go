package kube

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/internal/errdef"
)

func TestAClusterWithoutImageVolumesIsToldWhatToDo(t *testing.T) {
	volumes := func(source corev1.VolumeSource) *appsv1.Deployment {
		d := &appsv1.Deployment{}
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "m", VolumeSource: source}}
		return d
	}
	image := volumes(corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "m:1"}})
	for name, tc := range map[string]struct {
		o    *appsv1.Deployment
		says string
		want bool
	}{
		"it has the feature off":                  {image, `spec.template.spec.volumes[0]: Required value: must specify a volume type`, true},
		"it doesn't know the field":               {image, `.spec.template.spec.volumes[name="m"].image: field not declared in schema`, true},
		"it refuses something else":               {image, `spec.template.spec.containers[0].name: Invalid value: "A"`, false},
		"the volume without a kind isn't of ours": {volumes(corev1.VolumeSource{}), `must specify a volume type`, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := withoutImageVolumes(tc.o, &refusedError{errdef.ErrInvalid, errors.New(tc.says), true})
			if told := strings.Contains(err.Error(), "--oci-delivery"); told != tc.want || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("it says %v", err)
			}
			if r := asRefusal(err); r == nil || !r.terminal || !errors.Is(err, errdef.ErrInvalid) {
				t.Errorf("%v is no refusal any more", err)
			}
		})
	}
	if err := errors.New("not reached"); !errors.Is(withoutImageVolumes(image, err), err) {
		t.Error("what isn't a refusal was changed")
	}
}
