package routing_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

// multi is a revision that serves the trained models of its service.
func multi(name string) smv1alpha1.Revision {
	r := revision(name, "predictor")
	r.Spec.ModelName, r.Spec.Models = "", nil
	r.Spec.PodTemplate.Spec.Volumes = []corev1.Volume{{Name: "list", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "modelconfig-iris-0"}},
	}}}
	return r
}

func trained(name string, status corev1.ConditionStatus) v1alpha1.TrainedModel {
	tm := v1alpha1.TrainedModel{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, t := range []v1alpha1.TrainedModelConditionType{v1alpha1.TrainedModelIsMultiModel, v1alpha1.TrainedModelFrameworkSupported} {
		tm.Status.Conditions = append(tm.Status.Conditions, v1alpha1.TrainedModelCondition{Type: t, Status: corev1.ConditionTrue})
	}
	tm.Status.Conditions = append(tm.Status.Conditions, v1alpha1.TrainedModelCondition{Type: v1alpha1.TrainedModelMemoryAvailable, Status: status})
	return tm
}

func TestModelNamesAreThoseThatAreServed(t *testing.T) {
	models := []v1alpha1.TrainedModel{trained("b", "True"), trained("a", "True"), trained("too large", "False"), {ObjectMeta: metav1.ObjectMeta{Name: "new"}}}
	for name, tc := range map[string]struct {
		revisions []smv1alpha1.Revision
		models    []v1alpha1.TrainedModel
		want      []string
	}{
		"of many models":          {[]smv1alpha1.Revision{multi("iris-1")}, models, []string{"a", "b"}},
		"of many, with none":      {[]smv1alpha1.Revision{multi("iris-1")}, nil, []string{}},
		"of one model of its own": {[]smv1alpha1.Revision{revision("iris-1", "predictor")}, models, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tc.want, routing.ModelNames(tc.revisions, tc.models)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestTrainedModelsLeadToTheirServiceUnderTheirOwnNames(t *testing.T) {
	r := multi("iris-1")
	line := routing.Line(routing.Service{
		Key: spec.ServiceKey{Namespace: "team", Name: "iris"}, Domain: "localhost", Revisions: []smv1alpha1.Revision{r}, Models: []string{"a", "b"},
		Components: []routing.Component{{Name: spec.Predictor, Route: routed("predictor", "iris-1", 100)}},
		Observed:   spec.Observed{Replicas: []spec.Replica{replica("iris-1", "r1", spec.Ready)}},
	})
	table := route.Compile([]route.Service{line})
	for _, at := range []struct{ host, path string }{
		{"", "/v2/models/a/infer"}, {"", "/v1/models/b:predict"}, {"iris-team.localhost", "/v2/models/a/infer"}, {"", "/serving/team/iris/v1/models/b:predict"},
	} {
		m, err := table.Match(at.host, at.path)
		if err != nil || m.Service == nil || m.Service.Key.Name != "iris" || len(m.Backend.Targets) != 1 || m.Backend.Targets[0].ModelName != "" {
			t.Errorf("%s%s leads to %+v, %v", at.host, at.path, m, err)
		}
	}
	if _, err := table.Match("", "/v2/models/iris/infer"); err == nil {
		t.Error("the service's name leads to it, though it is no model's")
	}
}
