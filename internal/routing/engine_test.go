package routing

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/enginetls"
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

func TestEnginesOverTLS(t *testing.T) {
	rev := &smv1alpha1.Revision{}
	rev.Namespace, rev.Spec.Service, rev.Spec.Component = "team", "iris", "predictor"
	rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Name: "kserve-container", Image: "a", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}
	replica := spec.Replica{HTTP: "10.0.0.1:8080"}
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        enginetls.Security
		page        string
	}{
		"not asked for":          {nil, enginetls.Security{}, "http://10.0.0.1:8080/metrics"},
		"the component's name":   {map[string]string{enginetls.Annotation: "verify"}, enginetls.Of(enginetls.TLS{ServerName: "iris-predictor.team.svc"}), "https://10.0.0.1:8080/metrics"},
		"a page elsewhere":       {map[string]string{enginetls.Annotation: "verify", metricsPort: "9000"}, enginetls.Of(enginetls.TLS{ServerName: "iris-predictor.team.svc"}), "http://10.0.0.1:9000/metrics"},
		"what got past the door": {map[string]string{enginetls.Annotation: "yes"}, enginetls.Of(enginetls.TLS{ServerName: "iris-predictor.team.svc", Roots: "none"}), "https://10.0.0.1:8080/metrics"},
	} {
		t.Run(name, func(t *testing.T) {
			rev.Spec.PodTemplate.Annotations = tc.annotations
			if got := Security(rev); got != tc.want {
				t.Errorf("%+v, want %+v", got.Config(), tc.want.Config())
			}
			if got := PagesOf(rev, true).Of(replica); got != tc.page {
				t.Errorf("%q, want %q", got, tc.page)
			}
			s := Service{Revisions: []smv1alpha1.Revision{*rev}, Observed: spec.Observed{Replicas: []spec.Replica{{ID: "a", Revision: spec.RevisionKey{Namespace: "team"}, Phase: spec.Ready, HTTP: replica.HTTP}}}}
			if got := s.target(rev, PagesOf(rev, true), 100).Endpoints; len(got) != 1 || got[0].Security != tc.want {
				t.Errorf("endpoints %+v", got)
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

// TestAContainerOfAnEngineOfBothKindsSpeaksBoth: nothing in the manifest tells its protocols, but its image does.
func TestAContainerOfAnEngineOfBothKindsSpeaksBoth(t *testing.T) {
	for image, want := range map[string][]spec.Protocol{
		"openvino/model_server:2025.3": {spec.V1, spec.V2, spec.GRPCV2},
		"vllm/vllm-openai:v0.11.0":     nil,
		"mine":                         nil,
	} {
		rev := &smv1alpha1.Revision{}
		rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Image: image}}
		if got := (&Service{}).target(rev, PagesOf(rev, true), 100).Protocols; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", image, got, want)
		}
	}
}
