package measure

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/scale"
)

// page returns a page of an engine's adapter.
func page(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../engine/testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestOneRuleScalesAnyEngine(t *testing.T) {
	p := newPages(t)
	for _, name := range []string{"vllm-v0", "vllm-v1", "sglang", "tgi", "llamacpp", "torchserve"} {
		p.set("/"+name, page(t, name))
	}
	p.set("/html", "vllm:num_requests_waiting<br>\n")
	for name, tc := range map[string]struct {
		query, engine string
		pages         []string
		want          scale.Measurement
		problem       string
	}{
		"both generations of vLLM": {"stationmaster_engine_requests_waiting", "vllm", []string{"vllm-v0", "vllm-v1"}, scale.Measurement{Value: 3, Known: true}, ""},
		"SGLang":                   {"stationmaster_engine_requests_waiting", "sglang", []string{"sglang"}, scale.Measurement{Value: 4, Known: true}, ""},
		"TGI":                      {" stationmaster_engine_requests_waiting ", "tgi", []string{"tgi"}, scale.Measurement{Value: 3, Known: true}, ""},
		"llama.cpp":                {"stationmaster_engine_requests_running", "llamacpp", []string{"llamacpp"}, scale.Measurement{Value: 2, Known: true}, ""},
		"an engine without it":     {"stationmaster_engine_requests_waiting", "torchserve", []string{"torchserve"}, scale.Measurement{}, "the engine torchserve doesn't tell stationmaster_engine_requests_waiting"},
		"a release without it": {"stationmaster_engine_kv_cache_usage_ratio", "llamacpp", []string{"llamacpp"}, scale.Measurement{Partial: true},
			"its page doesn't have the metric; start llama-server with --metrics"},
		"an engine that isn't known": {"stationmaster_engine_requests_waiting", "", []string{"vllm-v1"}, scale.Measurement{}, "say so with the annotation stationmaster.dev/engine"},
		"a name that isn't one":      {"stationmaster_engine_mood", "vllm", []string{"vllm-v1"}, scale.Measurement{}, "isn't what is known of all engines"},
		"labels":                     {`stationmaster_engine_requests_waiting{engine="0"}`, "vllm", []string{"vllm-v1"}, scale.Measurement{}, "each without labels"},
		"a histogram":                {"stationmaster_engine_time_to_first_token_seconds", "vllm", []string{"vllm-v1"}, scale.Measurement{}, "isn't what is known"},
		"no page":                    {"stationmaster_engine_requests_waiting", "sglang", []string{"none"}, scale.Measurement{Partial: true}, "it answers with status 404; start it with --enable-metrics"},
		"another page":               {"stationmaster_engine_requests_waiting", "vllm", []string{"html"}, scale.Measurement{Partial: true}, "isn't in Prometheus' text format"},
		"one of two":                 {"stationmaster_engine_requests_waiting", "vllm", []string{"vllm-v0", "none"}, scale.Measurement{Value: 1, Known: true, Partial: true}, "1 of 2 replicas don't tell it"},
	} {
		t.Run(name, func(t *testing.T) {
			m := demand.Metrics{Sources: []demand.Source{engineMetric(tc.query, "")}, Engine: tc.engine}
			for i, path := range tc.pages {
				m.Replicas = append(m.Replicas, demand.Replica{ID: fmt.Sprint(i), Metrics: p.URL + "/" + path})
			}
			got := newWorld(t, nil, m).round(t)
			if got.Values[0] != tc.want {
				t.Errorf("measured %+v, want %+v", got.Values[0], tc.want)
			}
			if tc.problem == "" && got.Problem != "" || !strings.Contains(got.Problem, tc.problem) {
				t.Errorf("problem %q, want %q", got.Problem, tc.problem)
			}
		})
	}
}

func TestTheSizeOfBatchesIsKnownFromTheSecondLookOn(t *testing.T) {
	p := newPages(t)
	batches := func(sum, count int) {
		p.set("/a", fmt.Sprintf("te_queue_size 0\nte_batch_next_size_sum %d\nte_batch_next_size_count %d\n", sum, count))
	}
	batches(100, 50)
	w := newWorld(t, nil, demand.Metrics{
		Sources: []demand.Source{engineMetric("stationmaster_engine_batch_size", "")}, Engine: "tei",
		Replicas: []demand.Replica{{ID: "1", Metrics: p.URL + "/a"}},
	})
	if got := w.round(t); got.Values[0].Known || got.Problem != "" {
		t.Errorf("at first: %+v", got)
	}
	for i, step := range []struct {
		sum, count int
		want       float64
	}{{140, 60, 4}, {140, 60, 0}, {12, 4, 3}} {
		batches(step.sum, step.count)
		if got := w.round(t); got.Values[0] != (scale.Measurement{Value: step.want, Known: true}) || got.Problem != "" {
			t.Errorf("look %d: %+v, want %v", i+2, got, step.want)
		}
	}
}
