package routing

import (
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/route"
)

// VisibilityLabel with the value ClusterLocal keeps a service from clients outside the cluster
// (KServe: pkg/constants).
const (
	VisibilityLabel = "networking.kserve.io/visibility"
	ClusterLocal    = "cluster-local"
)

// Inside takes from a service's line the ways that clients outside have: hosts of the domain, the
// path prefix and the bare model name. What is left are the names that pods use.
func Inside(line route.Service, domain string) route.Service {
	line.Hosts = slices.DeleteFunc(slices.Clone(line.Hosts), func(h route.Host) bool {
		return strings.HasSuffix(h.Name, "."+domain)
	})
	line.PathPrefix, line.BareNames = "", nil
	return line
}
