package routing

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// ModelNames returns the names of the trained models of a service that its engines serve, as their
// status says, sorted; nil where no revision serves many models.
func ModelNames(revisions []smv1alpha1.Revision, models []v1alpha1.TrainedModel) []string {
	if !slices.ContainsFunc(revisions, func(r smv1alpha1.Revision) bool { return manifest.IsMultiModel(&r.Spec) }) {
		return nil
	}
	names := []string{}
	for i := range models {
		if tm := &models[i]; tm.DeletionTimestamp.IsZero() && served(tm) {
			names = append(names, tm.Name)
		}
	}
	slices.Sort(names)
	return names
}

// served reports whether nothing is wrong with the model itself; that its service isn't ready is
// told by the service.
func served(tm *v1alpha1.TrainedModel) bool {
	want := []v1alpha1.TrainedModelConditionType{
		v1alpha1.TrainedModelIsMultiModel, v1alpha1.TrainedModelFrameworkSupported, v1alpha1.TrainedModelMemoryAvailable,
	}
	for _, c := range tm.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			want = slices.DeleteFunc(want, func(t v1alpha1.TrainedModelConditionType) bool { return t == c.Type })
		}
	}
	return len(want) == 0
}
