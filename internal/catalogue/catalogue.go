// Package catalogue is the room of serving runtimes: those that ship in the binary, and the
// choice of the one that serves a model.
package catalogue

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
)

//go:embed runtimes/*.yaml
var files embed.FS

// Runtimes returns the runtimes that ship in the binary, sorted by name: KServe's under their
// own names, with KServe's formats, protocols and images, and Stationmaster's own. Each call
// returns fresh copies, which the caller may change. How an engine runs without its image
// stands in the annotation stationmaster.dev/local (manifest.LocalAnnotation).
func Runtimes() ([]*servingv1alpha1.ClusterServingRuntime, error) {
	names, err := fs.Glob(files, "runtimes/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list shipped runtimes: %w", err)
	}
	out := make([]*servingv1alpha1.ClusterServingRuntime, 0, len(names))
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read shipped runtime: %w", err)
		}
		r := &servingv1alpha1.ClusterServingRuntime{}
		if err := yaml.UnmarshalStrict(text, r); err != nil {
			return nil, fmt.Errorf("decode shipped runtime %s: %w", name, err)
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *servingv1alpha1.ClusterServingRuntime) int {
		return strings.Compare(a.Name, b.Name)
	})
	return out, nil
}
