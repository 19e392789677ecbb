package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/platform/local/launch"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestExpandFollowsKubernetes(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)"}
	lookup := func(n string) (string, bool) { v, ok := vars[n]; return v, ok }
	for in, want := range map[string]string{
		"$(A)": "1", "x$(A)y$(A)": "x1y1", "$(NO)": "$(NO)", "$$(A)": "$(A)", "$$$(A)": "$1", "$": "$", "$A": "$A",
		"$(A": "$(A", "$(B)": "$(A)", "$()": "$()", "a$$": "a$", "": "",
	} {
		if got := expand(in, lookup); got != want {
			t.Errorf("expand(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestPortsAreReplacedWhereTheyArePorts(t *testing.T) {
	ports := map[int]int{8080: 20001, 9000: 20002}
	for in, want := range map[string]string{
		"8080": "20001", "--http_port=8080": "--http_port=20001", "0.0.0.0:8080": "0.0.0.0:20001", ":9000": ":20002",
		"http://localhost:8080/v1": "http://localhost:20001/v1", "serve --port 8080 --grpc=9000": "serve --port 20001 --grpc=20002",
		"18080": "18080", "80801": "80801", "model-8080": "model-8080", "/m/8080": "/m/8080", "other.host:8080": "other.host:8080",
		"http://10.0.0.8:8080": "http://10.0.0.8:8080", "a=8080x": "a=8080x", "08080": "08080", "[::]:8080": "[::]:20001", "": "",
		`--addr "127.0.0.1:8080"`: `--addr "127.0.0.1:20001"`,
	} {
		if got := swapPorts(in, ports); got != want {
			t.Errorf("swapPorts(%q) = %q, want %q", in, got, want)
		}
	}
	in := []string{"--predictor_host", "127.0.0.1:8080", "--predictor_host=127.0.0.1:8080", "--port", "8080"}
	want := []string{"--predictor_host", "127.0.0.1:8080", "--predictor_host=127.0.0.1:8080", "--port", "20001"}
	if got := argPorts(in, ports, nil); !slices.Equal(got, want) {
		t.Errorf("arguments %q, want %q: another server's address keeps its port", got, want)
	}

	// A transformer in the predictor's pod calls its neighbour localhost.
	transformer := spec.Container{Name: "transformer-container", Ports: []spec.Port{{Number: 8080}}}
	engine := spec.Container{Name: "kserve-container", Ports: []spec.Port{{Number: 9000}, {Number: 8080}}}
	next := neighbours(&transformer, []spec.Container{transformer, engine}, ports)
	in = []string{"--predictor_host=localhost:9000", "--predictor_host", "localhost:8080", "--predictor_host=127.64.0.1:9000", "--http_port=8080"}
	want = []string{"--predictor_host=localhost:20002", "--predictor_host", "localhost:8080", "--predictor_host=127.64.0.1:9000", "--http_port=20001"}
	if got := argPorts(in, ports, next); !slices.Equal(got, want) {
		t.Errorf("arguments %q, want %q: a neighbour's port is replaced", got, want)
	}
}

func TestPathsAreReplacedWhole(t *testing.T) {
	binds := []launch.Mount{{Source: "/s/m", Target: "/mnt/models"}, {Source: "/s/x", Target: "/mnt/models/extra"}}
	for in, want := range map[string]string{
		"/mnt/models": "/s/m", "--dir=/mnt/models/a": "--dir=/s/m/a", "/mnt/models/extra/k": "/s/x/k", "/mnt/models2": "/mnt/models2",
		"/data/mnt/models": "/data/mnt/models", "a:/mnt/models:b": "a:/s/m:b", "file:///mnt/models/x": "file:///s/m/x", "": "",
		"/mnt/models/extras": "/s/m/extras", `{"p":"/mnt/models"}`: `{"p":"/s/m"}`,
	} {
		if got := swapPaths(in, binds); got != want {
			t.Errorf("swapPaths(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzRewriting(f *testing.F) {
	for _, s := range []string{"$(A)$$(", "http://[::]:8080/=8080", "/mnt/models//mnt/models", "$", "::8080"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := swapPorts(s, nil); got != s {
			t.Errorf("without ports %q became %q", s, got)
		}
		if got := swapPaths(s, []launch.Mount{{Source: "/mnt/models", Target: "/mnt/models"}}); got != s {
			t.Errorf("a path replaced by itself made %q of %q", got, s)
		}
		if got := expand(s, func(string) (string, bool) { return "", false }); !strings.Contains(s, "$$") && got != s {
			t.Errorf("without variables %q became %q", s, got)
		}
	})
}

func TestALogIsBoundedAndItsTailIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.log")
	log, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.WriteString(strings.Repeat("0123456789abcde\n", 1000)); err != nil {
		t.Fatal(err)
	}
	if err := rotate(path, 1600); err != nil {
		t.Fatal(err)
	}
	if _, err := log.WriteString("after\n"); err != nil {
		t.Fatal(err)
	}
	now, _ := os.ReadFile(path)
	kept, _ := os.ReadFile(path + ".1")
	if string(now) != "after\n" || len(kept) != 1600 {
		t.Errorf("the log holds %q and %d bytes are kept, want what came after and 1600", now, len(kept))
	}
	var lines []string
	for i := range 50 {
		lines = append(lines, strings.Repeat("x", i*20))
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := logTail(path); !slices.Equal(got, lines[30:]) {
		t.Errorf("tail of %d lines, want the last 20", len(got))
	}
}

func TestOnlyNamedVariablesAreInherited(t *testing.T) {
	got := baseEnviron([]string{"PATH=/bin", "LC_ALL=C", "HF_TOKEN=secret", "AWS_SECRET_ACCESS_KEY=k", "LANG=C", "KUBECONFIG=/k"}, []string{"/venv/bin"})
	if got["PATH"] != "/venv/bin:/bin" || got["LC_ALL"] != "C" || got["LANG"] != "C" || len(got) != 3 {
		t.Errorf("inherited %v", got)
	}
}
