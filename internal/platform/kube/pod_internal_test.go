package kube

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/internal/spec"
)

func TestOurImageStandsInForTheBuiltInRuntime(t *testing.T) {
	run := []string{"stationmaster", "runtime", "onnx"}
	for name, tc := range map[string]struct {
		own       string
		container corev1.Container
		wantImage string
		wantArgs  []string
		wantError string
	}{
		"the catalogue's placeholder":             {ownImage, corev1.Container{Image: "stationmaster/stationmaster:latest", Command: run, Args: []string{"--x"}}, ownImage, []string{"runtime", "onnx", "--x"}, ""},
		"no image at all":                         {ownImage, corev1.Container{Command: run}, ownImage, []string{"runtime", "onnx"}, ""},
		"a runtimeVersion":                        {"host:5000/own@sha256:00", corev1.Container{Image: "stationmaster/stationmaster:v7", Command: run}, "host:5000/own:v7", []string{"runtime", "onnx"}, ""},
		"another's image":                         {ownImage, corev1.Container{Image: "registry.example/engine:1", Args: []string{"--x"}}, "registry.example/engine:1", []string{"--x"}, ""},
		"another's command, without an image":     {ownImage, corev1.Container{Command: []string{"mlserver"}}, "", nil, "has no image"},
		"an operator that doesn't know its image": {"", corev1.Container{Image: "stationmaster/stationmaster:latest", Command: run}, "", nil, "wasn't told the image"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{Image: tc.own}
			got := tc.container
			got.Name = "kserve-container"
			err := c.fillIn(&got, &spec.Workload{})
			if tc.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantError) {
					t.Errorf("error %v, want one that says %q", err, tc.wantError)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Image != tc.wantImage || len(got.Command) > 0 {
				t.Errorf("image %s with command %v, want %s with none", got.Image, got.Command, tc.wantImage)
			}
			if d := cmp.Diff(tc.wantArgs, got.Args); d != "" {
				t.Errorf("args (-want +got):\n%s", d)
			}
		})
	}
}

func TestDrainingTakesAtMostHalfOfTheGrace(t *testing.T) {
	seconds := func(n int64) *int64 { return &n }
	for name, tc := range map[string]struct {
		grace *int64
		want  int64
	}{
		"Kubernetes' default":   {nil, 5},
		"long":                  {seconds(600), 5},
		"short":                 {seconds(4), 2},
		"too short for waiting": {seconds(1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			pod := corev1.PodSpec{TerminationGracePeriodSeconds: tc.grace, Containers: []corev1.Container{{Name: "kserve-container"}}}
			drain(&pod)
			var got int64
			if l := pod.Containers[0].Lifecycle; l != nil {
				got = l.PreStop.Sleep.Seconds
			}
			if got != tc.want {
				t.Errorf("drains for %d s, want %d", got, tc.want)
			}
		})
	}
}

func TestRestrictionsYieldToWhatTheTemplateSays(t *testing.T) {
	yes := true
	pod := corev1.PodSpec{
		ServiceAccountName: "reader",
		SecurityContext:    &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}},
		Containers: []corev1.Container{
			{Name: "privileged", SecurityContext: &corev1.SecurityContext{Privileged: &yes}},
			{Name: "admin", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}},
			{Name: "escalates", SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &yes}},
		},
	}
	before := pod.DeepCopy()
	restrict(&pod)
	for i := range pod.Containers {
		pod.Containers[i].TerminationMessagePolicy = ""
	}
	before.Containers[2].SecurityContext.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
	if d := cmp.Diff(*before, pod); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestModelsComeByTheirScheme(t *testing.T) {
	for uri, want := range map[string]source{
		"https://models.example/m": pulled, "s3://bucket/m": pulled, "hf://org/m": pulled, "/mnt/m": pulled, "oci+fetch://registry.example/m": pulled,
		"pvc://claim/m": fromClaim, "oci://registry.example/m": fromImage, "oci+native://registry.example/m": fromImage, "oci+modelcar://registry.example/m": fromCar,
	} {
		if got, _ := (&Config{}).sourceOf(uri); got != want {
			t.Errorf("%s comes by %d, want %d", uri, got, want)
		}
	}
}

func TestOneDirectoryHoldsAllPulledModels(t *testing.T) {
	for name, tc := range map[string]struct {
		paths []string
		want  string
	}{
		"one":               {[]string{"/mnt/models"}, "/mnt/models"},
		"side by side":      {[]string{"/mnt/models/a", "/mnt/models/b"}, "/mnt/models"},
		"one in the other":  {[]string{"/mnt/models/lora", "/mnt/models"}, "/mnt/models"},
		"of like beginning": {[]string{"/mnt/models", "/mnt/models-2"}, "/mnt"},
		"apart":             {[]string{"/a", "/b"}, "/"},
	} {
		if got := commonDir(tc.paths); got != tc.want {
			t.Errorf("%s: %v are in %s, want %s", name, tc.paths, got, tc.want)
		}
	}
}

func TestWhatIsWantedIsFoundAmongWhatOthersAdded(t *testing.T) {
	type object = map[string]any
	type list = []any
	for name, tc := range map[string]struct {
		have, want any
		covered    bool
	}{
		"equal":                             {object{"a": int64(1)}, object{"a": int64(1)}, true},
		"with defaults beside":              {object{"a": int64(1), "b": "x"}, object{"a": int64(1)}, true},
		"another value":                     {object{"a": int64(2)}, object{"a": int64(1)}, false},
		"nothing there":                     {object{}, object{"a": int64(1)}, false},
		"an empty map that isn't stored":    {object{}, object{"resources": object{}}, true},
		"a sidecar that somebody added":     {object{"cs": list{object{"name": "proxy"}, object{"name": "c", "image": "i"}}}, object{"cs": list{object{"name": "c"}}}, true},
		"a container that somebody took":    {object{"cs": list{object{"name": "proxy"}}}, object{"cs": list{object{"name": "c"}}}, false},
		"an argument more":                  {object{"args": list{"a", "b"}}, object{"args": list{"a"}}, false},
		"another order of arguments":        {object{"args": list{"b", "a"}}, object{"args": list{"a", "b"}}, false},
		"a list that became something else": {object{"args": "a"}, object{"args": list{"a"}}, false},
	} {
		if got := covers(tc.have, tc.want); got != tc.covered {
			t.Errorf("%s: covered is %v, want %v", name, got, tc.covered)
		}
	}
}

func TestTheKubeletsBackOffIsRead(t *testing.T) {
	for message, want := range map[string]time.Duration{
		"back-off 5m0s restarting failed container=c pod=p": 5 * time.Minute,
		"back-off soon restarting failed container=c":       0,
		"": 0,
	} {
		if got := backOff(message); got != want {
			t.Errorf("%q means %v, want %v", message, got, want)
		}
	}
}

func TestOnlyTheLastLinesAreKept(t *testing.T) {
	if got := tail(strings.Repeat("line\n", 30) + "end\n\n"); len(got) != tailLines || got[tailLines-1] != "end" {
		t.Errorf("kept %d lines that end in %q, want %d that end in \"end\"", len(got), got[len(got)-1], tailLines)
	}
	if got := tail("\n"); got != nil {
		t.Errorf("no output gives the lines %q", got)
	}
}

func TestAStatusKeepsSecretsOfAURI(t *testing.T) {
	for uri, want := range map[string]string{
		"https://models.example/m.onnx":               "https://models.example/m.onnx",
		"https://models.example/m.onnx?signature=s3c": "https://models.example/m.onnx?…",
		"https://me:s3c@models.example/m":             "https://…@models.example/m",
		"/mnt/a@b/m":                                  "/mnt/a@b/m",
	} {
		if got := openURI(uri); got != want {
			t.Errorf("%s is told as %s, want %s", uri, got, want)
		}
	}
}
