package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
	"stationmaster.dev/stationmaster/test/testkit/llmsim"
)

// outcome is one run's result, in the engines' time.
type outcome struct {
	Load   string  `json:"load"`
	Policy string  `json:"policy"`
	Think  float64 `json:"think_seconds"`
	// Rate is answers a second, TTFTs are in milliseconds.
	Rate     float64 `json:"requests_per_second"`
	Tokens   float64 `json:"output_tokens_per_second"`
	MeanTTFT float64 `json:"ttft_mean_ms"`
	P50TTFT  float64 `json:"ttft_p50_ms"`
	P99TTFT  float64 `json:"ttft_p99_ms"`
	// Hits is the share of the prompts' tokens that were in the engines' caches.
	Hits float64 `json:"cache_hit_ratio"`
	// MaxToMean is the fullest replica's requests over the mean, averaged over time; BusyMaxToMean
	// is the same of the time that engines worked.
	MaxToMean     float64 `json:"max_to_mean_requests"`
	BusyMaxToMean float64 `json:"max_to_mean_busy"`
	// WorkingSet is how many tokens the users' prompts and answers have, together.
	WorkingSet int `json:"working_set_tokens,omitempty"`
	Answers    int `json:"answers"`
	Errors     int `json:"errors"`
}

// sample is one answer.
type sample struct {
	ttft   time.Duration
	tokens int
}

// bench is a gateway with its engines.
type bench struct {
	engines []*llmsim.Engine
	url     string
	client  *http.Client
	stop    func() error
}

func start(policy string, scale float64) (*bench, error) {
	ctx, cancel := context.WithCancel(context.Background())
	b := &bench{}
	var running sync.WaitGroup
	var servers []*http.Server
	target := route.Target{Revision: "llm-1", Weight: 100, ModelName: "sim", OpenAI: "/", Picking: policy}
	for i := range replicas {
		e := llmsim.New(llmsim.Config{
			Blocks: blocks, BlockSize: blockSize, Seed: uint64(i), StreamInterval: 25, Timing: llmsim.Timing{Scale: scale},
		})
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			cancel()
			return nil, err
		}
		server := &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
		servers = append(servers, server)
		running.Go(func() { _ = server.Serve(l) })
		running.Go(func() { _ = e.Run(ctx) })
		b.engines = append(b.engines, e)
		target.Endpoints = append(target.Endpoints, route.Endpoint{Replica: fmt.Sprint("llm-1-", i), HTTP: l.Addr().String()})
	}
	var table state.Topic[route.Table]
	key := spec.ServiceKey{Namespace: "default", Name: "llm"}
	table.Publish(route.Compile([]route.Service{{
		Key: key, BareNames: []string{"llm"}, Entry: spec.Predictor,
		Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{target}}},
	}}))
	front, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return nil, err
	}
	g, err := gateway.New(gateway.Config{HTTP: front, Table: &table, Timeouts: gateway.Timeouts{Response: 10 * time.Minute, Drain: time.Millisecond}})
	if err != nil {
		cancel()
		return nil, err
	}
	running.Go(func() { _ = g.Run(ctx) })
	b.url = "http://" + front.Addr().String() + "/v1/chat/completions"
	b.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000, MaxIdleConns: 1000}}
	b.stop = func() error {
		cancel()
		b.client.CloseIdleConnections()
		for _, s := range servers {
			_ = s.Close()
		}
		running.Wait()
		return nil
	}
	return b, nil
}

// measure runs a load against a policy: users come one after another, and after a time for the caches
// to fill what they ask and get is counted for a window.
func measure(l load, think time.Duration, policy string, scale float64, window time.Duration) (outcome, error) {
	b, err := start(policy, scale)
	if err != nil {
		return outcome{}, err
	}
	real := func(d time.Duration) time.Duration { return time.Duration(float64(d) * scale) }
	warm := max(think, 25*time.Second)
	begin := time.Now().Add(real(warm))
	end := begin.Add(real(window))
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	var (
		mu      sync.Mutex
		samples []sample
		failed  int
		sizes   = make([]int, l.users)
	)
	var users sync.WaitGroup
	for n := range l.users {
		users.Go(func() {
			rnd := rand.New(rand.NewPCG(42, uint64(n))) //nolint:gosec // made to be repeatable
			next := l.user(rnd, n)
			pause := time.Duration(rnd.Float64() * float64(think)) // they don't come together
			answer := ""
			for {
				select {
				case <-time.After(real(pause)):
				case <-ctx.Done():
					return
				}
				q := next(answer)
				at := time.Now()
				got, first, err := b.ask(ctx, q)
				now := time.Now()
				mu.Lock()
				switch {
				case ctx.Err() != nil:
					mu.Unlock()
					return
				case err != nil:
					failed++
				case now.After(begin):
					samples = append(samples, sample{first.Sub(at), len(got) / 4})
				}
				sizes[n] = size(q) + len(got)/4
				mu.Unlock()
				answer = got
				pause = time.Duration(rnd.ExpFloat64() * float64(think))
			}
		})
	}
	time.Sleep(time.Until(begin))
	before := b.stats()
	ratio := b.watch(ctx)
	after := b.stats()
	users.Wait()
	if err := b.stop(); err != nil {
		return outcome{}, err
	}
	if len(samples) == 0 {
		return outcome{}, errors.New("nothing was answered")
	}
	return sum(l, think, policy, samples, failed, sizes, before, after, ratio, scale, window), nil
}

func size(q ask) int {
	n := 0
	for _, m := range q.messages {
		n += len(m.Content) / 4
	}
	return n
}

func sum(l load, think time.Duration, policy string, samples []sample, failed int, sizes []int, before, after []llmsim.Stats, ratio, scale float64, window time.Duration) outcome {
	o := outcome{Load: l.name, Policy: policy, Think: think.Seconds(), Answers: len(samples), Errors: failed, MaxToMean: ratio}
	var ttfts []float64
	tokens := 0
	for _, s := range samples {
		ttfts = append(ttfts, s.ttft.Seconds()*1000/scale)
		o.MeanTTFT += ttfts[len(ttfts)-1] / float64(len(samples))
		tokens += s.tokens
	}
	slices.Sort(ttfts)
	o.P50TTFT, o.P99TTFT = ttfts[len(ttfts)/2], ttfts[min(len(ttfts)*99/100, len(ttfts)-1)]
	o.Rate, o.Tokens = float64(len(samples))/window.Seconds(), float64(tokens)/window.Seconds()
	var cached, prompt int
	var most, all time.Duration
	for i := range after {
		cached += after[i].CachedTokens - before[i].CachedTokens
		prompt += after[i].PromptTokens - before[i].PromptTokens
		busy := after[i].Busy - before[i].Busy
		most, all = max(most, busy), all+busy
	}
	o.Hits = float64(cached) / float64(max(prompt, 1))
	o.BusyMaxToMean = float64(most) * float64(len(after)) / float64(max(all, 1))
	switch l.name {
	case "multi-turn":
		for _, n := range sizes {
			o.WorkingSet += n
		}
	case "shared":
		o.WorkingSet = groups * systemTokens
	}
	return o
}

func (b *bench) stats() []llmsim.Stats {
	out := make([]llmsim.Stats, len(b.engines))
	for i, e := range b.engines {
		out[i] = e.Stats()
	}
	return out
}

// watch looks at the replicas' requests until ctx ends, and returns the greatest mean over the mean of
// all.
func (b *bench) watch(ctx context.Context) float64 {
	sums := make([]int, len(b.engines))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for i, e := range b.engines {
				running, waiting := e.Load()
				sums[i] += running + waiting
			}
		case <-ctx.Done():
			total := 0
			for _, n := range sums {
				total += n
			}
			return float64(slices.Max(sums)) * float64(len(sums)) / float64(max(total, 1))
		}
	}
}

// ask sends one request and returns the answer, and when its first token came.
func (b *bench) ask(ctx context.Context, q ask) (text string, first time.Time, err error) {
	body, err := json.Marshal(map[string]any{
		"model": "llm", "messages": q.messages, "max_tokens": q.tokens, "ignore_eos": true, "stream": true,
	})
	if err != nil {
		return "", first, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url, bytes.NewReader(body))
	if err != nil {
		return "", first, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := b.client.Do(req)
	if err != nil {
		return "", first, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return "", first, fmt.Errorf("status %d: %s", resp.StatusCode, said)
	}
	var out strings.Builder
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var frame struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(data), &frame); err != nil {
			return "", first, err
		}
		if len(frame.Choices) > 0 && frame.Choices[0].Delta.Content != "" {
			if first.IsZero() {
				first = time.Now()
			}
			out.WriteString(frame.Choices[0].Delta.Content)
		}
	}
	if first.IsZero() {
		return "", first, cmpErr(lines.Err())
	}
	return out.String(), first, lines.Err()
}

func cmpErr(err error) error {
	if err == nil {
		err = errors.New("a stream without a token")
	}
	return err
}
