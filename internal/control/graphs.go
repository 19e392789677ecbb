package control

import (
	"reflect"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/graphs"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

// addGraphs adds the reconciler of InferenceGraphs.
func (c *Controller) addGraphs(mgr ctrl.Manager) error {
	return graphs.Add(mgr, graphs.Config{
		Domain: c.cfg.Domain, URL: c.url, InCluster: !c.cfg.OneMachine, GatewayHost: c.cfg.GatewayHost,
		Publish: c.publishGraph, Events: c.events,
	})
}

// expectGraphs takes the graphs of the start into the table. The caller holds mu.
func (c *Controller) expectGraphs(list []v1alpha1.InferenceGraph) {
	for i := range list {
		g := &list[i]
		c.graphs[spec.ServiceKey{Namespace: g.Namespace, Name: g.Name}] = routing.GraphLine(g, c.cfg.Domain, !c.cfg.OneMachine)
	}
}

// publishGraph replaces a graph's line of the routing table, and returns the table. Where that
// changes who holds a bare model name, the services that want it are woken.
func (c *Controller) publishGraph(key spec.ServiceKey, line *route.Service) *route.Table {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, had := c.graphs[key]
	switch {
	case line == nil && !had, line != nil && had && reflect.DeepEqual(old, *line):
		return c.table.Load()
	case line == nil:
		delete(c.graphs, key)
	default:
		c.graphs[key] = *line
	}
	if line == nil || !had {
		for other, r := range c.routes {
			if slices.Contains(r.BareNames, key.Name) {
				c.wake.Notify(other)
			}
		}
	}
	c.publishTable()
	return c.table.Load()
}
