package catalogue

import (
	"fmt"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// Faults returns for what a selected runtime would be refused if it was applied now, each as a
// sentence that names it, the field and what to do; nil for nothing. A runtime may have faults
// though it is stored: it was there before admission was, or what it is compared with changed.
func Faults(s Selection, namespaced []servingv1alpha1.ServingRuntime, cluster []servingv1alpha1.ClusterServingRuntime) []string {
	var others []manifest.NamedRuntime
	if s.Kind == KindServingRuntime {
		for i := range namespaced {
			others = append(others, manifest.NamedRuntime{Name: namespaced[i].Name, Spec: &namespaced[i].Spec})
		}
	} else {
		for i := range cluster {
			others = append(others, manifest.NamedRuntime{Name: cluster[i].Name, Spec: &cluster[i].Spec})
		}
	}
	var out []string
	for _, fault := range manifest.ValidateRuntime(manifest.NamedRuntime{Name: s.Name, Spec: s.Spec}, others) {
		out = append(out, fmt.Sprintf("%s %s: %v", s.Kind, s.Name, fault))
	}
	return out
}
