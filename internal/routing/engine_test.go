package routing

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestWhereAnEngineTellsItsMetrics(t *testing.T) {
	const own = "127.0.0.1:40001"
	for name, tc := range map[string]struct {
		port, path, engine string
		inCluster          bool
		replica            spec.Replica
		want               string
	}{
		"nothing said":                                           {want: "http://127.0.0.1:40001/metrics"},
		"the server's port":                                      {port: "8080", path: "/stats/all", want: "http://127.0.0.1:40001/stats/all"},
		"another port of one machine":                            {port: "8002"},
		"one that is named metrics":                              {port: "8002", replica: spec.Replica{HTTP: own, Metrics: "127.0.0.1:40002"}, want: "http://127.0.0.1:40002/metrics"},
		"another port of a pod":                                  {port: "8002", path: "/metrics", inCluster: true, want: "http://127.0.0.1:8002/metrics"},
		"a pod without another port":                             {inCluster: true, want: "http://127.0.0.1:40001/metrics"},
		"a path without its slash is a path":                     {path: "m", inCluster: true, want: "http://127.0.0.1:40001/m"},
		"an engine with a port of its own, whatever KServe says": {engine: "mlserver", port: "8080", inCluster: true, want: "http://127.0.0.1:8082/metrics"},
		"the same on one machine, where it isn't known":          {engine: "mlserver", port: "8080"},
		"the same under a name that is":                          {engine: "mlserver", port: "8080", replica: spec.Replica{HTTP: own, Metrics: "127.0.0.1:40003"}, want: "http://127.0.0.1:40003/metrics"},
		"an engine with a path of its own":                       {engine: "trtllm", want: "http://127.0.0.1:40001/prometheus/metrics"},
		"an engine without a page":                               {engine: "ollama"},
		"unless somebody says that it has one":                   {engine: "ollama", path: "/metrics", want: "http://127.0.0.1:40001/metrics"},
		"a replica without an address":                           {replica: spec.Replica{GRPC: own}},
	} {
		t.Run(name, func(t *testing.T) {
			rev := &smv1alpha1.Revision{}
			rev.Spec.PodTemplate.Annotations = map[string]string{metricsPort: tc.port, metricsPath: tc.path, engine.Annotation: tc.engine}
			rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Name: "kserve-container", Image: "a", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}
			if tc.replica.HTTP+tc.replica.GRPC == "" {
				tc.replica.HTTP = own
			}
			if got := PagesOf(rev, tc.inCluster).Of(tc.replica); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestWhichEngineARevisionRuns(t *testing.T) {
	rev := &smv1alpha1.Revision{}
	if a := EngineOf(rev); a != nil {
		t.Errorf("nothing is known and it is %s", a.Name)
	}
	rev.Spec.Protocols = []string{"v2"}
	rev.Spec.Runtime = &smv1alpha1.RuntimeIdentity{Name: "mine"}
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, "v2"},
		{func() { rev.Spec.Runtime.Image = "openvino/model_server:latest" }, "openvino"},
		{func() {
			rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Command: []string{"sh", "-c"}, Args: []string{"exec tritonserver"}}}
		}, "triton"},
		{func() { rev.Spec.PodTemplate.Annotations = map[string]string{engine.Annotation: "tgi"} }, "tgi"},
	} {
		step.change()
		if a := EngineOf(rev); a == nil || a.Name != step.want {
			t.Errorf("%+v, want %s", a, step.want)
		}
	}
}
