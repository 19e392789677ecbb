package llmsim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// heard is a response with the times of its frames of text, since the request.
type heard struct {
	*httptest.ResponseRecorder
	began time.Time
	at    []time.Duration
}

func (h *heard) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(`"content":"`)) && !bytes.Contains(p, []byte(`"role"`)) && !bytes.Contains(p, []byte(`"content":""`)) {
		h.at = append(h.at, time.Since(h.began))
	}
	return h.ResponseRecorder.Write(p)
}

// cached is how many tokens of the prompt were in the cache.
func (h *heard) cached(t *testing.T) int {
	t.Helper()
	for line := range strings.Lines(h.Body.String()) {
		var frame struct {
			Usage *struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		data, ok := strings.CutPrefix(line, "data: {")
		if ok && json.Unmarshal([]byte("{"+data), &frame) == nil && frame.Usage != nil {
			return frame.Usage.Details.Cached
		}
	}
	t.Fatalf("no usage in %s", h.Body)
	return 0
}

func (h *heard) text() string {
	var out strings.Builder
	for line := range strings.Lines(h.Body.String()) {
		var frame struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok && json.Unmarshal([]byte(data), &frame) == nil && len(frame.Choices) > 0 {
			out.WriteString(frame.Choices[0].Delta.Content)
		}
	}
	return out.String()
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func ask(e *Engine, model string, most int, messages ...message) (h *heard) {
	body, err := json.Marshal(map[string]any{
		"model": model, "messages": messages, "max_tokens": most, "ignore_eos": true, "stream": true,
		"stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		panic(err)
	}
	h = &heard{ResponseRecorder: httptest.NewRecorder(), began: time.Now()}
	defer func() {
		r := recover()
		if err, ok := r.(error); r != nil && !(ok && errors.Is(err, http.ErrAbortHandler)) {
			panic(r)
		}
	}()
	e.ServeHTTP(h, httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/v1/chat/completions", bytes.NewReader(body)))
	return h
}

// user is a message that makes a prompt of so many tokens, alone.
func user(tokens int, seed string) message {
	around := len("<|user|>\n\n<|assistant|>\n")
	return message{"user", strings.Repeat(seed, tokens*bytesPerToken)[:tokens*bytesPerToken-around]}
}

// inBubble runs an engine in a bubble of synctest, where the model's times pass at once.
func inBubble(t *testing.T, cfg Config, f func(t *testing.T, e *Engine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := e.Run(ctx); err != nil && !errors.Is(err, ErrCrashed) {
				t.Error(err)
			}
		})
		f(t, e)
		cancel()
		wg.Wait()
	})
}

func TestALoneRequestTakesWhatTheModelSays(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, e *Engine) {
		got := ask(e, "sim", 4, user(1000, "a"))
		// 30 ms, and one step of 12 ms that computes 1,000 tokens at 250 µs each; then 12 ms a token.
		first := 30*ms + 12*ms + 250*ms
		want := []time.Duration{first, first + 12*ms, first + 24*ms, first + 36*ms}
		if fmt.Sprint(got.at) != fmt.Sprint(want) {
			t.Errorf("tokens came after %v, want %v", got.at, want)
		}
	})
}

func TestScaleMultipliesAllTimes(t *testing.T) {
	inBubble(t, Config{Timing: Timing{Scale: 0.5}}, func(t *testing.T, e *Engine) {
		got := ask(e, "sim", 2, user(1000, "a"))
		if want := []time.Duration{146 * ms, 152 * ms}; fmt.Sprint(got.at) != fmt.Sprint(want) {
			t.Errorf("tokens came after %v, want %v", got.at, want)
		}
	})
}

func TestStepsTakeLongerAsTheBatchGrows(t *testing.T) {
	cfg := Config{MaxSeqs: 16}
	for _, tc := range []struct {
		seqs, prefill int
		want          time.Duration
	}{
		{1, 0, 12 * ms}, {16, 0, 24 * ms}, {4, 0, 14400 * time.Microsecond}, {1, 400, 112 * ms}, {16, 2048, 536 * ms},
	} {
		if got := cfg.Step(tc.seqs, tc.prefill); got != tc.want {
			t.Errorf("a step of %d sequences and %d prompt tokens takes %v, want %v", tc.seqs, tc.prefill, got, tc.want)
		}
	}
}

func TestAPromptsCachedBeginningCostsNothing(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, e *Engine) {
		first := ask(e, "sim", 40, message{"user", strings.Repeat("q", 4000)})
		if n := first.cached(t); n != 0 {
			t.Errorf("a new prompt found %d tokens", n)
		}
		// The next turn has the first, its answer and something new.
		next := ask(e, "sim", 1, message{"user", strings.Repeat("q", 4000)}, message{"assistant", first.text()}, message{"user", strings.Repeat("n", 400)})
		whole := 4000 + 40*bytesPerToken
		if n := next.cached(t); n < whole/bytesPerToken-16 || n > whole/bytesPerToken+16 {
			t.Errorf("the second turn found %d tokens, want those of the first and its answer, about %d", n, whole/bytesPerToken)
		}
		if next.at[0] > 90*ms {
			t.Errorf("the second turn's first token came after %v", next.at[0])
		}
		other := ask(e, "sim", 1, message{"user", strings.Repeat("q", 2000) + strings.Repeat("z", 2000)})
		if n := other.cached(t); n < 480 || n > 512 {
			t.Errorf("a prompt with half of the text in common found %d tokens", n)
		}
	})
}

func TestTheCacheForgetsWhatWasUsedLongestAgo(t *testing.T) {
	// Room for three prompts of 1,000 tokens.
	inBubble(t, Config{Blocks: 200}, func(t *testing.T, e *Engine) {
		for _, seed := range []string{"a", "b", "a", "c", "d"} {
			ask(e, "sim", 1, user(1000, seed))
		}
		for _, tc := range []struct {
			seed string
			most int
		}{{"d", 1000}, {"a", 1000}} {
			if n := ask(e, "sim", 1, user(1000, tc.seed)).cached(t); n < 900 {
				t.Errorf("prompt %s found %d tokens", tc.seed, n)
			}
		}
		if n := ask(e, "sim", 1, user(1000, "b")).cached(t); n > 500 {
			t.Errorf("the prompt used longest ago found %d tokens", n)
		}
	})
}

// together asks n things at once.
func together(n int, f func(i int) *heard) []*heard {
	out := make([]*heard, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { out[i] = f(i) })
	}
	wg.Wait()
	return out
}

func TestWhatDoesntFitInTheBatchWaits(t *testing.T) {
	inBubble(t, Config{MaxSeqs: 2}, func(t *testing.T, e *Engine) {
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(200 * ms)
			if running, waiting := e.Load(); running != 2 || waiting != 1 {
				t.Errorf("%d run and %d wait, want 2 and 1", running, waiting)
			}
		})
		got := together(3, func(i int) *heard { return ask(e, "sim", 10, user(100, string(rune('a'+i)))) })
		wg.Wait()
		late := 0
		for _, h := range got {
			if h.at[0] > 250*ms {
				late++
			}
		}
		if late != 1 {
			t.Errorf("%d of three requests waited for a place, want 1", late)
		}
	})
}

func TestASequenceWithoutBlocksIsComputedAnew(t *testing.T) {
	// Two prompts of 600 tokens that grow to 1,000 each don't fit in 1,600 together.
	inBubble(t, Config{Blocks: 100}, func(t *testing.T, e *Engine) {
		got := together(2, func(i int) *heard { return ask(e, "sim", 400, user(600, string(rune('a'+i)))) })
		for i, h := range got {
			if n := len(h.text()); n != 400*bytesPerToken {
				t.Errorf("answer %d has %d bytes", i, n)
			}
		}
		if e.Stats().Preempted == 0 {
			t.Error("none was preempted")
		}
	})
}

func TestTheSameSeedGivesTheSame(t *testing.T) {
	var runs [2]string
	for i := range runs {
		inBubble(t, Config{Seed: 7, Timing: Timing{Jitter: 0.2}}, func(t *testing.T, e *Engine) {
			h := ask(e, "sim", 20, user(100, "a"))
			runs[i] = h.text() + fmt.Sprint(h.at)
		})
	}
	if runs[0] != runs[1] {
		t.Errorf("two runs differ:\n%s\n%s", runs[0], runs[1])
	}
}

func TestAClientThatLeavesFreesItsPlace(t *testing.T) {
	inBubble(t, Config{MaxSeqs: 1}, func(t *testing.T, e *Engine) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*ms)
		defer cancel()
		func() {
			defer func() { _ = recover() }()
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"sim","prompt":"x","max_tokens":9999,"ignore_eos":true}`))
			e.ServeHTTP(httptest.NewRecorder(), r)
		}()
		if got := ask(e, "sim", 1, user(100, "a")); len(got.at) != 1 || got.at[0] > 100*ms {
			t.Errorf("the next request's token came after %v", got.at)
		}
	})
}

func post(e *Engine, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	method := http.MethodPost
	if path == "/sim/fault" {
		method = http.MethodPut
	}
	e.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body)))
	return w
}

func TestAdaptersComeAndGo(t *testing.T) {
	for name, tc := range map[string]struct {
		sglang bool
		prefix string
		say    string
	}{
		"by vLLM's calls":   {false, "/v1", "Success: LoRA adapter 'sql' added successfully."},
		"by SGLang's calls": {true, "", `"success":true`},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{LoRA: LoRA{Slots: 1, SGLang: tc.sglang, Load: 100 * ms}}, func(t *testing.T, e *Engine) {
				if w := ask(e, "sql", 1, user(100, "a")); w.Code != http.StatusNotFound {
					t.Errorf("an adapter that isn't loaded answers %d", w.Code)
				}
				load := func() *httptest.ResponseRecorder {
					return post(e, tc.prefix+"/load_lora_adapter", `{"lora_name":"sql","lora_path":"/mnt/lora/sql"}`)
				}
				if w := load(); w.Code != 200 || !strings.Contains(w.Body.String(), tc.say) {
					t.Fatalf("load: %d %s", w.Code, w.Body)
				}
				if w := load(); w.Code != http.StatusBadRequest {
					t.Errorf("load again: %d %s", w.Code, w.Body)
				}
				w := httptest.NewRecorder()
				e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/models", http.NoBody))
				if !strings.Contains(w.Body.String(), `"id":"sql","object":"model"`) || !strings.Contains(w.Body.String(), `"root":"/mnt/lora/sql","parent":"sim"`) {
					t.Errorf("models: %s", w.Body)
				}
				ask(e, "sim", 1, user(1000, "a"))
				if n := ask(e, "sql", 1, user(1000, "a")).cached(t); n != 0 {
					t.Errorf("the adapter found %d tokens that the base model computed", n)
				}
				if w := post(e, tc.prefix+"/unload_lora_adapter", `{"lora_name":"sql"}`); w.Code != 200 {
					t.Errorf("unload: %d %s", w.Code, w.Body)
				}
				if w := ask(e, "sql", 1, user(100, "a")); w.Code != http.StatusNotFound {
					t.Errorf("an adapter that was unloaded answers %d", w.Code)
				}
			})
		})
	}
}

func TestAdaptersShareTheSlots(t *testing.T) {
	inBubble(t, Config{LoRA: LoRA{Slots: 1}}, func(t *testing.T, e *Engine) {
		for _, name := range []string{"a", "b"} {
			if err := e.LoadAdapter(name, "/mnt/lora/"+name); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(100 * ms)
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
			a := strings.Contains(w.Body.String(), `running_lora_adapters="a",waiting_lora_adapters="b"`)
			if b := strings.Contains(w.Body.String(), `running_lora_adapters="b",waiting_lora_adapters="a"`); a == b {
				t.Errorf("metrics: %s", w.Body)
			}
		})
		together(2, func(i int) *heard { return ask(e, string(rune('a'+i)), 20, user(100, "x")) })
		wg.Wait()
	})
}

func TestMetricsHaveTheNamesOfTheirGeneration(t *testing.T) {
	for name, tc := range map[string]struct {
		old  bool
		want []string
	}{
		"V1": {false, []string{"vllm:kv_cache_usage_perc", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "vllm:inter_token_latency_seconds_count"}},
		"V0": {true, []string{"vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total", "vllm:time_per_output_token_seconds_count"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{OldMetrics: tc.old}, func(t *testing.T, e *Engine) {
				ask(e, "sim", 5, user(1000, "a"))
				ask(e, "sim", 5, user(1000, "a"))
				w := httptest.NewRecorder()
				e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
				labels := `{engine="0",model_name="sim"} `
				for _, want := range append(tc.want, "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:time_to_first_token_seconds_count") {
					if !strings.Contains(w.Body.String(), want+labels) {
						t.Errorf("no %s", want)
					}
				}
				for _, want := range []string{tc.want[1] + labels + "992", tc.want[2] + labels + "2000", tc.want[3] + labels + "8", "vllm:generation_tokens_total" + labels + "10"} {
					if !strings.Contains(w.Body.String(), want) {
						t.Errorf("no %q in %s", want, w.Body)
					}
				}
			})
		})
	}
}

func TestFaults(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, e *Engine) {
		post(e, "/sim/fault", `{"status":500,"times":1}`)
		if w := ask(e, "sim", 1, user(100, "a")); w.Code != http.StatusInternalServerError {
			t.Errorf("told to fail, it answers %d", w.Code)
		}
		if w := ask(e, "sim", 1, user(100, "a")); w.Code != http.StatusOK {
			t.Errorf("told to fail once, it answers %d the second time", w.Code)
		}
		post(e, "/sim/fault", `{"slow":3}`)
		if w := ask(e, "sim", 2, user(100, "a")); w.at[1]-w.at[0] != 36*ms {
			t.Errorf("three times as slow, a token takes %v", w.at[1]-w.at[0])
		}
		post(e, "/sim/fault", `{"cut_after":3}`)
		if w := ask(e, "sim", 9, user(100, "a")); len(w.at) != 2 || strings.Contains(w.Body.String(), "[DONE]") {
			t.Errorf("a stream that is cut has %d tokens", len(w.at))
		}
		post(e, "/sim/fault", `{"hang":true}`)
		done := make(chan struct{})
		go func() {
			ask(e, "sim", 1, user(100, "a"))
			close(done)
		}()
		time.Sleep(time.Hour)
		select {
		case <-done:
			t.Error("an engine that hangs answered")
		default:
		}
		e.Break(Fault{})
		<-done
		e.Break(Fault{Crash: true})
		if w := ask(e, "sim", 1, user(100, "a")); w.Body.Len() > 0 {
			t.Errorf("an engine that crashed answers %s", w.Body)
		}
	})
}

func TestWhatCantBeServedIsRefused(t *testing.T) {
	inBubble(t, Config{MaxLen: 2000}, func(t *testing.T, e *Engine) {
		for body, want := range map[string]int{
			`{"model":"sim","messages":[]}`:                                                                  http.StatusBadRequest,
			`{"model":"other","messages":[{"role":"user","content":"x"}]}`:                                   http.StatusNotFound,
			`{"model":"sim","max_tokens":2000,"ignore_eos":true,"messages":[{"role":"user","content":"x"}]}`: http.StatusBadRequest,
			`{`: http.StatusBadRequest,
			`{"model":"sim","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`: http.StatusOK,
		} {
			if w := post(e, "/v1/chat/completions", body); w.Code != want {
				t.Errorf("%s: %d %s, want %d", body, w.Code, w.Body, want)
			}
		}
	})
}
