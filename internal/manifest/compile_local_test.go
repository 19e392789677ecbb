package manifest_test

import (
	"strconv"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestLocalCommandsAreReadStrictly(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"an unknown field":           {"{command: [a], comand: [b]}", "comand"},
		"no document":                {"[a, b]", "cannot unmarshal"},
		"broken YAML":                {"{command: [", "yaml"},
		"an unnamed variable":        {"{command: [a], env: [{value: x}]}", "has no name"},
		"a port out of range":        {"{command: [a], ports: [{name: http, containerPort: 70000}]}", "70000"},
		"a check without a command":  {"{check: [a]}", "without a command"},
		"an alternative without one": {"{command: [a], alternatives: [{args: [x]}]}", "alternative has no command"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := manifest.ParseLocal(tc.text); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestEveryShippedRuntimeSaysHowItRunsLocally(t *testing.T) {
	shipped, err := catalogue.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	// These run in their image only, or not on one machine at all.
	hintOnly := map[string]bool{"kserve-torchserve": true, "kserve-huggingfaceserver-multinode": true}
	for _, r := range shipped {
		t.Run(r.Name, func(t *testing.T) {
			l, err := manifest.ParseLocal(r.Annotations[manifest.LocalAnnotation])
			if err != nil {
				t.Fatal(err)
			}
			if l.Install == "" || (len(l.Command) == 0) != hintOnly[r.Name] {
				t.Errorf("command %q, install %q", l.Command, l.Install)
			}
			format := r.Spec.SupportedModelFormats[0].Name
			storage := ", storageUri: 'file:///m'"
			if m := r.Spec.MultiModel; m != nil && *m {
				storage = ""
			}
			is := service(t, "predictor: {model: {modelFormat: {name: "+format+"}"+storage+"}}")
			c := compiled(t, manifest.Input{
				Service: is, Component: spec.Predictor, Runtime: &r.Spec, RuntimeName: r.Name,
				RuntimeKind: catalogue.KindClusterServingRuntime, RuntimeAnnotations: r.Annotations,
			})
			if len(c.Unset) > 0 || len(c.Unsupported) > 0 {
				t.Errorf("unset %v, unsupported %v", c.Unset, c.Unsupported)
			}
			server := c.Workload.Server()
			if hintOnly[r.Name] {
				return
			}
			// Every port that is declared has to stand literally in the command or environment,
			// since that is where the local platform puts the allocated one.
			text := strings.Join(server.Local.Command, " ")
			for _, e := range server.Env {
				text += " " + e.Value
			}
			for _, e := range server.Local.Env {
				text += " " + e.Value
			}
			for _, p := range l.Ports {
				if !strings.Contains(text, strconv.Itoa(int(p.ContainerPort))) {
					t.Errorf("port %d isn't in %s", p.ContainerPort, text)
				}
			}
			if strings.Contains(text, "{{") {
				t.Errorf("a placeholder was left in %s", text)
			}
			if p, ok := server.HTTPPort(); !ok || p.Number != 8080 || server.Readiness == nil {
				t.Errorf("HTTP port %v, readiness %v", p, server.Readiness)
			}
		})
	}
}

func FuzzParseLocal(f *testing.F) {
	shipped, err := catalogue.Runtimes()
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range shipped {
		f.Add(r.Annotations[manifest.LocalAnnotation])
	}
	for _, s := range []string{"", "{}", "{command: [a], alternatives: [{command: [b]}]}", "command: {a: b}", "ports: [{containerPort: 1}]", "\x00", "a: &a [*a]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := manifest.ParseLocal(text)
		if (l == nil) != (err != nil) {
			t.Fatalf("got %v and %v", l, err)
		}
		if err != nil {
			return
		}
		// What was read is a document again when a service carries it through compiling.
		is := service(t, "predictor: {containers: [{image: x}]}")
		is.Annotations[manifest.LocalAnnotation] = text
		c, err := manifest.Compile(manifest.Input{Service: is, Component: spec.Predictor})
		if err != nil {
			t.Fatalf("read, but not compiled: %v", err)
		}
		rev := c.RevisionSpec()
		if _, err := manifest.WorkloadOf("default", "r", &rev); err != nil {
			t.Fatalf("compiled, but not read back: %v", err)
		}
	})
}
