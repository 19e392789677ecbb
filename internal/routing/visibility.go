package routing

import (
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/route"
)

// Visible takes from the line of what has these labels, where they keep it from clients outside
// the cluster, the ways that those have: hosts of the domain, the path prefix and the bare model
// name. What is left are the names that pods use.
func Visible(line route.Service, labels map[string]string, domain string) route.Service {
	if !manifest.ClusterLocal(labels) {
		return line
	}
	line.Hosts = slices.DeleteFunc(slices.Clone(line.Hosts), func(h route.Host) bool {
		return strings.HasSuffix(h.Name, "."+domain)
	})
	line.PathPrefix, line.BareNames = "", nil
	return line
}
