package engine_test

import (
	"bytes"
	stdcmp "cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/spec"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestHowAnEngineIsRecognised(t *testing.T) {
	for name, tc := range map[string]struct {
		facts engine.Facts
		want  string
	}{
		"what is declared counts":        {engine.Facts{Declared: "sglang", Runtime: "kserve-vllmserver"}, "sglang"},
		"what is declared wrongly":       {engine.Facts{Declared: "abacus", Runtime: "kserve-vllmserver"}, ""},
		"an executable":                  {engine.Facts{Command: []string{"/usr/bin/tritonserver", "--model-store=/mnt/models"}}, "triton"},
		"a Python module":                {engine.Facts{Command: []string{"python3", "-m", "sglang.launch_server", "--model-path", "vllm"}}, "sglang"},
		"a shell's script":               {engine.Facts{Command: []string{"/bin/sh", "-c", "model=x\nexec /app/llama-server --model $model", "llama-server"}}, "llamacpp"},
		"a subcommand":                   {engine.Facts{Command: []string{"vllm", "serve", "/mnt/models"}}, "vllm"},
		"a value isn't a command":        {engine.Facts{Command: []string{"serve", "--alias", "vllm"}, Protocols: []spec.Protocol{spec.V2}}, "v2"},
		"KServe's name of a runtime":     {engine.Facts{Runtime: "kserve-vllmserver"}, "vllm"},
		"one that holds two names":       {engine.Facts{Images: []string{"kserve/huggingfaceserver:vllm"}}, "huggingface"},
		"an image":                       {engine.Facts{Runtime: "mine", Images: []string{"", "ghcr.io/huggingface/text-generation-inference:3"}}, "tgi"},
		"a short name as a word":         {engine.Facts{Runtime: "my-tei-cpu"}, "tei"},
		"a short name in another word":   {engine.Facts{Runtime: "protein", Protocols: []spec.Protocol{spec.V1}}, "v1"},
		"the command before the image":   {engine.Facts{Command: []string{"ollama", "serve"}, Images: []string{"vllm/vllm-openai"}}, "ollama"},
		"our own server":                 {engine.Facts{Command: []string{"stationmaster", "runtime", "onnx"}, Protocols: []spec.Protocol{spec.V2}}, "stationmaster"},
		"any server that speaks V2":      {engine.Facts{Protocols: []spec.Protocol{spec.V1, spec.V2}}, "v2"},
		"any server with gRPC alone":     {engine.Facts{Protocols: []spec.Protocol{spec.GRPCV2}}, "v2"},
		"any server that speaks V1":      {engine.Facts{Runtime: "kserve-sklearnserver", Protocols: []spec.Protocol{spec.V1}}, "v1"},
		"nothing is known":               {engine.Facts{Images: []string{"busybox"}}, ""},
		"OpenVINO's image by its folder": {engine.Facts{Images: []string{"openvino/model_server:latest"}}, "openvino"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if a := engine.Of(tc.facts); a != nil {
				got = a.Name
			}
			if got != tc.want {
				t.Errorf("recognised %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAdaptersAreWhole(t *testing.T) {
	if n := slices.Sorted(slices.Values(engine.Names())); len(slices.Compact(n)) != len(engine.All()) {
		t.Errorf("names %v aren't of one adapter each", n)
	}
	for _, a := range engine.All() {
		t.Run(a.Name, func(t *testing.T) {
			if engine.ByName(a.Name) != a {
				t.Error("it isn't found by its name")
			}
			if !strings.HasPrefix(a.Ready, "/") {
				t.Errorf("readiness at %q", a.Ready)
			}
			if a.OpenAI == "" && len(a.Protocols) == 0 {
				t.Error("it speaks nothing")
			}
			tells := a.Metrics.Any()
			if tells && a.Page.Path == "" {
				t.Error("it has metrics and no page")
			}
		})
	}
}

// golden is a page, and the adapter that reads it.
var golden = map[string]string{
	"vllm-v0": "vllm", "vllm-v1": "vllm", "sglang": "sglang", "trtllm": "trtllm", "triton": "triton", "triton-trtllm": "triton",
	"tgi": "tgi", "tei": "tei", "llamacpp": "llamacpp", "mlserver": "mlserver", "openvino": "openvino", "torchserve": "torchserve",
	"stationmaster": "stationmaster",
}

func TestPagesMeanTheSame(t *testing.T) {
	for page, name := range golden {
		t.Run(page, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join("testdata", page+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			reading, err := engine.ByName(name).Metrics.Read(bytes.NewReader(raw))
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(reading, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata", page+".golden")
			if *update {
				if err := os.WriteFile(file, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), string(got)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestAServerThatWasntAskedYetRunsNothing(t *testing.T) {
	r, err := engine.ByName("mlserver").Metrics.Read(strings.NewReader("process_open_fds 26.0\n"))
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := r.Value(adapter.Running, nil); !ok || v != 0 {
		t.Errorf("%v, %v run", v, ok)
	}
}

func TestEveryAdapterWithMetricsHasAPage(t *testing.T) {
	for _, a := range engine.All() {
		tells := a.Metrics.Any()
		if tells && a.Name != "huggingface" && !slices.Contains(slices.Collect(maps.Values(golden)), a.Name) {
			t.Errorf("no page of %s in testdata", a.Name)
		}
	}
}

func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, page []byte) {
		for _, a := range engine.All() {
			r, err := a.Metrics.Read(bytes.NewReader(page))
			if err != nil {
				continue
			}
			for n, v := range r.Values {
				if v-v != 0 {
					t.Errorf("%s tells %s as %v", a.Name, n, v)
				}
			}
			for _, h := range []*adapter.Counts{r.FirstToken, r.PerToken} {
				if h != nil && (len(h.Buckets) == 0 || !slices.IsSortedFunc(h.Buckets, func(x, y adapter.Bucket) int {
					return stdcmp.Compare(x.Bound, y.Bound)
				})) {
					t.Errorf("%s: buckets %v", a.Name, h.Buckets)
				}
			}
		}
	})
}

// BenchmarkRead reads a page of vLLM's with what others have on it besides, about 100 KB.
func BenchmarkRead(b *testing.B) {
	raw, err := os.ReadFile("testdata/vllm-v1.txt")
	if err != nil {
		b.Fatal(err)
	}
	var page bytes.Buffer
	page.Write(raw)
	for i := 0; page.Len() < 100<<10; i++ {
		fmt.Fprintf(&page, "vllm:request_decode_time_seconds_bucket{engine=\"0\",le=\"%d\",model_name=\"llama\"} 12.0\n", i)
	}
	m := engine.ByName("vllm").Metrics
	b.SetBytes(int64(page.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Read(bytes.NewReader(page.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
}
