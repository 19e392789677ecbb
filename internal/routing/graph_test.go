package routing_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
)

func TestAGraphHasTheNamesThatAServiceHas(t *testing.T) {
	host := func(names ...string) (out []route.Host) {
		for _, n := range names {
			out = append(out, route.Host{Name: n})
		}
		return out
	}
	for title, tc := range map[string]struct {
		inCluster bool
		labels    map[string]string
		hosts     []route.Host
		prefix    string
		names     []string
	}{
		"on one machine": {hosts: host("chain-team.example.com"), prefix: "/serving/team/chain", names: []string{"chain"}},
		"on a cluster": {
			inCluster: true, hosts: host("chain-team.example.com", "chain.team", "chain.team.svc", "chain.team.svc.cluster.local"),
			prefix: "/serving/team/chain", names: []string{"chain"},
		},
		"for the cluster only": {
			inCluster: true, labels: map[string]string{"networking.kserve.io/visibility": "cluster-local"},
			hosts: host("chain.team", "chain.team.svc", "chain.team.svc.cluster.local"),
		},
		"for the cluster only, in Knative's words": {
			inCluster: true, labels: map[string]string{"networking.knative.dev/visibility": "cluster-local"},
			hosts: host("chain.team", "chain.team.svc", "chain.team.svc.cluster.local"),
		},
	} {
		t.Run(title, func(t *testing.T) {
			g := &v1alpha1.InferenceGraph{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "chain", Labels: tc.labels}}
			line := routing.GraphLine(g, "example.com", tc.inCluster)
			if diff := cmp.Diff(tc.hosts, line.Hosts); diff != "" {
				t.Errorf("hosts (-want +got):\n%s", diff)
			}
			if line.PathPrefix != tc.prefix || !cmp.Equal(line.BareNames, tc.names) || line.Graph == nil || len(line.Components) > 0 {
				t.Errorf("line %+v", line)
			}
		})
	}
}
