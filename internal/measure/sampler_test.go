package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// served is a table with one service whose replicas have pages.
func served(engine string, pages map[string]string) *route.Table {
	target := route.Target{Revision: "llm-1", Weight: 100, Engine: engine}
	for _, id := range []string{"a", "b", "c"} {
		if page, ok := pages[id]; ok {
			target.Endpoints = append(target.Endpoints, route.Endpoint{Replica: id, HTTP: id + ":8080", Metrics: page})
		}
	}
	return route.Compile([]route.Service{{
		Key: spec.ServiceKey{Namespace: "n", Name: "llm"}, Entry: spec.Predictor,
		Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{target}}},
	}})
}

// watch runs a sampler of a table until the test ends; tell is what pages say.
func watch(t *testing.T, table *route.Table, tell func(page string) (*adapter.Reading, error)) (*Sampler, *state.Topic[route.Table]) {
	t.Helper()
	topic := &state.Topic[route.Table]{}
	topic.Publish(table)
	s := NewSampler(topic, nil)
	s.look = func(_ context.Context, page string, _ *adapter.Adapter) (*adapter.Reading, error) { return tell(page) }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, topic
}

func waiting(n float64) *adapter.Reading {
	return &adapter.Reading{Values: map[adapter.Name]float64{adapter.Waiting: n}}
}

func TestEnginesAreLookedAtSeldomAndEachInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := map[string][]time.Time{}
		var mu sync.Mutex
		s, _ := watch(t, served("vllm", map[string]string{"a": "/a", "b": "/b"}), func(page string) (*adapter.Reading, error) {
			mu.Lock()
			defer mu.Unlock()
			looks[page] = append(looks[page], time.Now())
			return waiting(float64(len(looks[page]))), nil
		})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for page, at := range looks {
			if n := len(at); n < 100 || n > 150 {
				t.Errorf("%s was looked at %d times in ten minutes", page, n)
			}
			least, most := time.Hour, time.Duration(0)
			for i := 1; i < len(at); i++ {
				least, most = min(least, at[i].Sub(at[i-1])), max(most, at[i].Sub(at[i-1]))
			}
			if least < 4*time.Second || most > 7*time.Second || most-least < time.Second {
				t.Errorf("%s: pauses from %v to %v", page, least, most)
			}
		}
		if v, ok := s.Samples().At("a:8080").Value(adapter.Waiting); !ok || v < 100 {
			t.Errorf("the last is %v", v)
		}
		if all := s.Samples().All(); len(all) != 2 || all[0].Replica != "a" || all[1].Replica != "b" {
			t.Errorf("samples %v", all)
		}
	})
}

func TestAnEngineThatDoesntAnswerIsAskedEverMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		n, down := 0, true
		s, topic := watch(t, served("vllm", map[string]string{"a": "/a"}), func(string) (*adapter.Reading, error) {
			mu.Lock()
			defer mu.Unlock()
			if n++; down {
				return nil, errors.New("no answer")
			}
			return waiting(1), nil
		})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		mu.Lock()
		if n < 8 || n > 20 {
			t.Errorf("%d looks in ten minutes", n)
		}
		down = false
		mu.Unlock()
		if got := s.Samples().At("a:8080"); got == nil || got.Problem != "no answer" || got.Reading != nil {
			t.Errorf("sample %+v", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := s.Samples().At("a:8080"); got.Problem != "" || got.Reading == nil {
			t.Errorf("it answers again: %+v", got)
		}
		topic.Publish(served("vllm", nil))
		time.Sleep(time.Second)
		synctest.Wait()
		if all := s.Samples().All(); len(all) != 0 {
			t.Errorf("it is gone, and there is %v", all)
		}
	})
}

func TestAnEngineThatFailsOnceIsNotLogged(t *testing.T) {
	var log strings.Builder
	s := NewSampler(&state.Topic[route.Table]{}, slog.New(slog.NewTextHandler(&log, nil)))
	w := &watched{}
	for i, step := range []struct {
		err  error
		want int // lines so far
	}{
		{errors.New("refused"), 0}, {nil, 0}, // as a replica that ends, or is busy
		{errors.New("refused"), 0}, {errors.New("refused"), 1}, {errors.New("refused"), 1},
		{errors.New("404"), 2}, {nil, 2}, {errors.New("404"), 2}, {errors.New("404"), 3},
	} {
		s.took(found{of: w, err: step.err})
		if got := strings.Count(log.String(), "doesn't tell its metrics"); got != step.want {
			t.Errorf("after look %d %d lines, want %d:\n%s", i+1, got, step.want, log.String())
		}
	}
}

func TestASlowEngineDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := &state.Topic[route.Table]{}
		topic.Publish(served("vllm", map[string]string{"a": "/a", "b": "/b"}))
		s := NewSampler(topic, nil)
		s.look = func(ctx context.Context, page string, _ *adapter.Adapter) (*adapter.Reading, error) {
			if page == "/a" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return waiting(2), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if v, ok := s.Samples().At("b:8080").Value(adapter.Waiting); !ok || v != 2 {
			t.Errorf("b tells %v, %v", v, ok)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := s.Samples().At("a:8080").Problem; got == "" {
			t.Error("a has no problem")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestWhoIsntLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, engine := range []string{"", "torchserve", "v2", "ollama"} {
			s, _ := watch(t, served(engine, map[string]string{"a": "/a"}), func(string) (*adapter.Reading, error) {
				t.Errorf("%q was looked at", engine)
				return nil, errors.New("no")
			})
			time.Sleep(time.Minute)
			if len(s.Samples().All()) != 0 {
				t.Errorf("%q has samples", engine)
			}
		}
	})
}

func TestMetricsUnderOneSetOfNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reading := &adapter.Reading{
			Values: map[adapter.Name]float64{
				adapter.Running: 3, adapter.Waiting: 2, adapter.KVCacheUsage: 0.5, adapter.PromptTokens: 1000,
			},
			FirstToken: &adapter.Counts{Buckets: []adapter.Bucket{{Bound: 0.1, Count: 5}, {Bound: 1, Count: 9}}, Sum: 4.5, Count: 10},
			Batches:    1,
		}
		var mu sync.Mutex
		down := false
		s, _ := watch(t, served("vllm", map[string]string{"a": "/a", "b": "/b"}), func(page string) (*adapter.Reading, error) {
			mu.Lock()
			defer mu.Unlock()
			if down || page == "/b" {
				return nil, errors.New("no answer")
			}
			return reading, nil
		})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(s)
		labels := `engine="vllm",namespace="n",replica="a",revision="llm-1",service="llm"`
		want := strings.NewReader(strings.ReplaceAll(`
# HELP stationmaster_engine_kv_cache_usage_ratio The used part of an engine's cache of keys and values, 0 to 1.
# TYPE stationmaster_engine_kv_cache_usage_ratio gauge
stationmaster_engine_kv_cache_usage_ratio{LABELS} 0.5
# HELP stationmaster_engine_prompt_tokens_total Tokens of the prompts that an engine took.
# TYPE stationmaster_engine_prompt_tokens_total counter
stationmaster_engine_prompt_tokens_total{LABELS} 1000
# HELP stationmaster_engine_replicas_left_out Replicas of which no metrics are told, since there are too many.
# TYPE stationmaster_engine_replicas_left_out gauge
stationmaster_engine_replicas_left_out 0
# HELP stationmaster_engine_requests_running Requests that an engine computes, as it tells.
# TYPE stationmaster_engine_requests_running gauge
stationmaster_engine_requests_running{LABELS} 3
# HELP stationmaster_engine_requests_waiting Requests that wait in an engine, as it tells.
# TYPE stationmaster_engine_requests_waiting gauge
stationmaster_engine_requests_waiting{LABELS} 2
# HELP stationmaster_engine_time_to_first_token_seconds Time from a request's arrival at an engine to its first token.
# TYPE stationmaster_engine_time_to_first_token_seconds histogram
stationmaster_engine_time_to_first_token_seconds_bucket{LABELS,le="0.1"} 5
stationmaster_engine_time_to_first_token_seconds_bucket{LABELS,le="1"} 9
stationmaster_engine_time_to_first_token_seconds_bucket{LABELS,le="+Inf"} 10
stationmaster_engine_time_to_first_token_seconds_sum{LABELS} 4.5
stationmaster_engine_time_to_first_token_seconds_count{LABELS} 10
# HELP stationmaster_engine_up 1 if the last look at an engine's page of metrics succeeded.
# TYPE stationmaster_engine_up gauge
stationmaster_engine_up{LABELS} 1
stationmaster_engine_up{OTHER} 0
`, "LABELS", labels))
		text, _ := io.ReadAll(want)
		if err := testutil.GatherAndCompare(registry, strings.NewReader(strings.ReplaceAll(string(text), "OTHER", strings.ReplaceAll(labels, `"a"`, `"b"`)))); err != nil {
			t.Error(err)
		}
		mu.Lock()
		down = true
		mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, err := testutil.GatherAndCount(registry, "stationmaster_engine_requests_running"); err != nil || n != 0 {
			t.Errorf("%d, %v of what was said a minute ago", n, err)
		}
	})
}

func TestLabelsDontGrowWithoutBound(t *testing.T) {
	s := NewSampler(&state.Topic[route.Table]{}, nil)
	all := map[ReplicaKey]*watched{}
	for i := range maxTold + 7 {
		key := ReplicaKey{Service: spec.ServiceKey{Namespace: "n", Name: "llm"}, Revision: "llm-1", Replica: fmt.Sprint(i)}
		all[key] = &watched{sample: Sample{ReplicaKey: key, Engine: "vllm", At: time.Now(), Reading: waiting(1)}}
	}
	s.samples.Publish(published(all))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s)
	if n, err := testutil.GatherAndCount(registry, "stationmaster_engine_up"); err != nil || n != maxTold {
		t.Errorf("%d, %v", n, err)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP stationmaster_engine_replicas_left_out Replicas of which no metrics are told, since there are too many.
# TYPE stationmaster_engine_replicas_left_out gauge
stationmaster_engine_replicas_left_out 7
`), "stationmaster_engine_replicas_left_out"); err != nil {
		t.Error(err)
	}
}

func TestEnginesOwnPagesAreReachedBesides(t *testing.T) {
	p := newPages(t)
	p.set("/a", "vllm:num_requests_running 1\n")
	topic := &state.Topic[route.Table]{}
	s := NewSampler(topic, nil)
	defer s.client.CloseIdleConnections()
	admin := httptest.NewServer(s.Pages())
	defer admin.Close()
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get(admin.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if status, body := get("/engines/targets"); status != http.StatusOK || strings.TrimSpace(body) != "[]" {
		t.Errorf("nothing runs: %d %q", status, body)
	}
	topic.Publish(served("torchserve", map[string]string{"a": p.URL + "/a", "b": p.URL + "/none", "c": ""}))
	status, body := get("/engines/targets")
	var groups []struct {
		Targets []string
		Labels  map[string]string
	}
	if err := json.Unmarshal([]byte(body), &groups); err != nil || status != http.StatusOK || len(groups) != 2 {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	labels := groups[0].Labels
	if "http://"+groups[0].Targets[0] != admin.URL || labels["replica"] != "a" || labels["service"] != "llm" || labels["engine"] != "torchserve" {
		t.Errorf("target %+v", groups[0])
	}
	if status, body := get(labels["__metrics_path__"]); status != http.StatusOK || body != "vllm:num_requests_running 1\n" {
		t.Errorf("its page: %d %q", status, body)
	}
	if status, body := get(groups[1].Labels["__metrics_path__"]); status != http.StatusBadGateway || !strings.Contains(body, "status 404") {
		t.Errorf("one that isn't there: %d %q", status, body)
	}
	if status, _ := get("/engines/n/llm/z/metrics"); status != http.StatusNotFound {
		t.Errorf("a replica that isn't: %d", status)
	}
}
