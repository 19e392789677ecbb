package manifest_test

import (
	"slices"
	"strings"
	"testing"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestAnAgentKeepsTritonAndMLServerToTheListOfModels(t *testing.T) {
	shipped, err := catalogue.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	for runtime, tc := range map[string]struct{ format, layout, class string }{
		"stationmaster-mlserver-multi":     {"sklearn", "--layout=mlserver", "--implementation=mlserver_sklearn.SKLearnModel"},
		"stationmaster-tritonserver-multi": {"triton", "--layout=triton", ""},
	} {
		t.Run(runtime, func(t *testing.T) {
			i := slices.IndexFunc(shipped, func(r *servingv1alpha1.ClusterServingRuntime) bool { return r.Name == runtime })
			c := compiled(t, manifest.Input{
				Service: service(t, "predictor: {model: {modelFormat: {name: "+tc.format+"}}}"), Component: spec.Predictor, Runtime: &shipped[i].Spec,
				RuntimeName: runtime, RuntimeKind: catalogue.KindClusterServingRuntime, RuntimeAnnotations: shipped[i].Annotations,
			})
			rev := c.RevisionSpec()
			if !manifest.IsMultiModel(&rev) || !manifest.LoadsAll(&rev) || rev.ModelName != "" {
				t.Errorf("multi-model %v, all loaded %v, model %q", manifest.IsMultiModel(&rev), manifest.LoadsAll(&rev), rev.ModelName)
			}
			server, j := c.Workload.Server(), slices.IndexFunc(c.Workload.Containers, func(c spec.Container) bool { return c.Name == manifest.AgentContainer })
			if server.Name != manifest.ServerContainer || j < 1 {
				t.Fatalf("containers %+v", c.Workload.Containers)
			}
			agent := c.Workload.Containers[j]
			for _, want := range []string{tc.layout, tc.class, "--engine=127.0.0.1:8080", "--repository=/mnt/models", "--models_config=/mnt/configs/models.json"} {
				if want != "" && !slices.Contains(agent.Args, want) {
					t.Errorf("args %q lack %s", agent.Args, want)
				}
			}
			if p, ok := c.Workload.ModelsPort(); !ok || agent.Readiness == nil || agent.Readiness.Action.HTTP.Port != p.Number {
				t.Errorf("port %+v, readiness %+v", p, agent.Readiness)
			}
			for _, one := range []spec.Container{*server, agent} {
				if !slices.ContainsFunc(one.Mounts, func(m spec.Mount) bool {
					return m.Path == manifest.DefaultModelPath && m.Volume == agent.Mounts[0].Volume && !m.ReadOnly
				}) {
					t.Errorf("%s has the mounts %+v", one.Name, one.Mounts)
				}
			}
			words := strings.Join(append(slices.Clone(server.Args), server.Local.Command...), " ")
			env := envOf(*server)
			if runtime == "stationmaster-tritonserver-multi" && strings.Count(words, "--model-control-mode=explicit") != 2 {
				t.Errorf("Triton isn't told to wait for what it has to load: %s", words)
			}
			if runtime == "stationmaster-tritonserver-multi" && strings.Count(words, "--strict-readiness=false") != 2 {
				t.Errorf("one model that Triton can't load takes the others out of service: %s", words)
			}
			if runtime == "stationmaster-mlserver-multi" && env["MLSERVER_LOAD_MODELS_AT_STARTUP"] != "false" {
				t.Errorf("MLServer loads at its start: %v", env)
			}
		})
	}
}
