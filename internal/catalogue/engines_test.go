package catalogue_test

import (
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// engineOf are the engines of the shipped runtimes, those that have an adapter of their own.
var engineOf = map[string]string{
	"kserve-huggingfaceserver": "huggingface", "kserve-huggingfaceserver-multinode": "huggingface", "kserve-vllmserver": "vllm",
	"kserve-mlserver": "mlserver", "kserve-openvino": "openvino", "kserve-torchserve": "torchserve", "kserve-tritonserver": "triton",
	"stationmaster-llamacpp": "llamacpp", "stationmaster-onnx": "stationmaster", "stationmaster-onnx-multi": "stationmaster",
	"stationmaster-sglang": "sglang", "stationmaster-trtllm": "trtllm", "stationmaster-tgi": "tgi", "stationmaster-tei": "tei",
	"stationmaster-ollama": "ollama",
}

func TestTheShippedRuntimesRunTheEnginesThatAreKnown(t *testing.T) {
	runtimes, err := catalogue.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range runtimes {
		want := engineOf[r.Name]
		if want == "" {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			server := r.Spec.Containers[0]
			command := append(append([]string{}, server.Command...), server.Args...)
			for what, facts := range map[string]engine.Facts{
				"all":               {Runtime: r.Name, Images: []string{server.Image}, Command: command},
				"the name alone":    {Runtime: r.Name},
				"under another one": {Runtime: "mine", Images: []string{server.Image}, Command: command},
			} {
				if a := engine.Of(facts); a == nil || a.Name != want {
					t.Errorf("%s: it is taken for %v, want %s", what, a, want)
				}
			}
			a := engine.ByName(want)
			seen[want] = true
			local := r.Annotations[manifest.LocalAnnotation]
			text := strings.Join(command, " ") + " " + local
			for what, flag := range map[string]string{"model": a.Start.Model, "port": a.Start.Port} {
				env := a.Start.Env[what]
				if strings.Contains(r.Name, "multi") {
					continue // many models, and a leader that is told elsewhere
				}
				if flag != "" && !strings.Contains(text, flag) && (env == "" || !strings.Contains(text, env)) {
					t.Errorf("it doesn't have %s for its %s", flag, what)
				}
			}
			if p := server.ReadinessProbe; p != nil && p.HTTPGet != nil && want != "vllm" && want != "huggingface" && p.HTTPGet.Path != a.Ready {
				t.Errorf("it is ready at %s, the adapter says %s", p.HTTPGet.Path, a.Ready)
			}
			if path := r.Spec.Annotations["prometheus.kserve.io/path"]; path != "" && path != a.Page.Path {
				t.Errorf("its metrics are at %s, the adapter says %s", path, a.Page.Path)
			}
		})
	}
	for _, a := range engine.All() {
		if len(a.Known.Runtimes) > 0 && !seen[a.Name] {
			t.Errorf("no runtime ships for the engine %s", a.Name)
		}
	}
}
