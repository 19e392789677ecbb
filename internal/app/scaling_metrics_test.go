package app

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestDecisionsAreTold(t *testing.T) {
	var board demand.Board
	board.Subjects.Store(spec.ServiceKey{Namespace: "n", Name: "iris"}, []demand.Subject{
		{Revision: "iris-1", Asked: 1, Ready: 1, Metrics: &demand.Metrics{}}, {Revision: "iris-2", Asked: 2, Ready: 1},
	})
	board.Wants.Store(spec.RevisionKey{Namespace: "n", Name: "iris-1"}, demand.Want{Replicas: 3, Missing: "queue: no answer"})
	err := testutil.CollectAndCompare(scalingMetrics{board: &board}, strings.NewReader(`
# HELP stationmaster_scaling_metric_missing 1 while a metric that a revision scales on isn't known, so that its replicas may not follow.
# TYPE stationmaster_scaling_metric_missing gauge
stationmaster_scaling_metric_missing{namespace="n",revision="iris-1",service="iris"} 1
# HELP stationmaster_scaling_replicas Replicas of a revision that scales by itself: those that are wanted, asked of the platform, and ready.
# TYPE stationmaster_scaling_replicas gauge
stationmaster_scaling_replicas{namespace="n",revision="iris-1",service="iris",state="asked"} 1
stationmaster_scaling_replicas{namespace="n",revision="iris-1",service="iris",state="ready"} 1
stationmaster_scaling_replicas{namespace="n",revision="iris-1",service="iris",state="wanted"} 3
stationmaster_scaling_replicas{namespace="n",revision="iris-2",service="iris",state="asked"} 2
stationmaster_scaling_replicas{namespace="n",revision="iris-2",service="iris",state="ready"} 1
`))
	if err != nil {
		t.Error(err)
	}
}
