package routing

import (
	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// GraphLine returns a graph's line of the routing table. domain is the last part of outside
// hosts; inCluster adds the names by which pods reach the graph, <graph>.<namespace> and so on.
func GraphLine(g *v1alpha1.InferenceGraph, domain string, inCluster bool) route.Service {
	line := route.Service{
		Key:        spec.ServiceKey{Namespace: g.Namespace, Name: g.Name},
		Graph:      manifest.CompileGraph(g),
		Hosts:      []route.Host{{Name: manifest.Host(g.Name, g.Namespace, domain)}},
		PathPrefix: manifest.PathPrefix(g.Namespace, g.Name),
		BareNames:  []string{g.Name},
		Created:    g.CreationTimestamp.Time,
	}
	if !inCluster {
		return line
	}
	for _, suffix := range []string{"", ".svc", ".svc.cluster.local"} {
		line.Hosts = append(line.Hosts, route.Host{Name: g.Name + "." + g.Namespace + suffix})
	}
	return Visible(line, g.Labels, domain)
}
