package routing

import (
	"slices"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// AdapterNames returns the names of the LoRA adapters among the trained models of a service, sorted.
func AdapterNames(models []v1alpha1.TrainedModel) []string {
	var names []string
	for i := range models {
		if tm := &models[i]; tm.DeletionTimestamp.IsZero() && manifest.IsAdapter(tm) {
			names = append(names, tm.Name)
		}
	}
	slices.Sort(names)
	return names
}
