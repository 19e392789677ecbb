package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"stationmaster.dev/stationmaster/test/bench/proc"
)

// promptEngines is how many engines share the long prompts.
const promptEngines = 4

// promptResult is one way's at one number of clients, each of which sends its next prompt when it has
// its answer. Medians over rounds.
type promptResult struct {
	Proxy   string  `json:"proxy"`
	Clients int     `json:"clients"`
	Rate    float64 `json:"requests_per_second"`
	// P50 and P99 are to the first frame, in milliseconds, and Added what they are above the direct
	// way's.
	P50      float64 `json:"ttft_p50_ms"`
	P99      float64 `json:"ttft_p99_ms"`
	AddedP50 float64 `json:"added_p50_ms"`
	AddedP99 float64 `json:"added_p99_ms"`
	// CPU is the proxy's for a request, in microseconds.
	CPU float64 `json:"cpu_us_per_request"`
}

// prompt is one client's: nothing in it is another's, and its requests differ in their ends.
func prompt(client, size int) []byte {
	rnd := rand.New(rand.NewPCG(7, uint64(client))) //nolint:gosec // made to be repeatable
	out := make([]byte, 0, size+8)
	for len(out) < size {
		out = fmt.Appendf(out, "%x ", rnd.Uint32())
	}
	return out[:size]
}

func measurePrompts(m *machine, p plan) ([]promptResult, error) {
	engines, err := m.engines(promptEngines)
	if err != nil {
		return nil, err
	}
	defer engines.Stop()
	ways, stop, err := m.startAll([]kind{direct, gatewayOwn, gatewayPlain, nginx, bare}, engines.Addr)
	defer stop()
	if err != nil {
		return nil, err
	}
	var out []promptResult
	for _, clients := range p.Clients {
		r, err := compareAt(ways, clients, p)
		if err != nil {
			return nil, err
		}
		out = append(out, r...)
	}
	return out, nil
}

// compareAt measures all ways in turns with one number of clients.
func compareAt(ways []*proc.Process, clients int, p plan) ([]promptResult, error) {
	crowds := make([][]*client, len(ways))
	defer func() {
		for _, crowd := range crowds {
			for _, c := range crowd {
				c.close()
			}
		}
	}()
	for n := range clients {
		q := question{frames: 1, prompt: prompt(n, p.Prompt)}
		for i, w := range ways {
			addrs := strings.Fields(w.Addr)
			c, err := connect(addrs[n%len(addrs)], q)
			if err != nil {
				return nil, err
			}
			crowds[i] = append(crowds[i], c)
		}
	}
	type samples struct{ rate, p50, p99, added50, added99, cpu []float64 }
	all := make([]samples, len(ways))
	for range p.Rounds {
		p50, p99 := make([]float64, len(ways)), make([]float64, len(ways))
		for _, i := range rand.Perm(len(ways)) {
			if _, _, err := rush(crowds[i], p.Window/4); err != nil { // to warm up
				return nil, fmt.Errorf("%s: %w", ways[i].Name, err)
			}
			before := ways[i].CPU()
			firsts, took, err := rush(crowds[i], p.Window)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", ways[i].Name, err)
			}
			s := &all[i]
			s.cpu = append(s.cpu, us(ways[i].CPU()-before)/float64(len(firsts)))
			s.rate = append(s.rate, float64(len(firsts))/took.Seconds())
			p50[i], p99[i] = ms(quantile(firsts, .5)), ms(quantile(firsts, .99))
		}
		for i := range ways {
			s := &all[i]
			s.p50, s.p99 = append(s.p50, p50[i]), append(s.p99, p99[i])
			s.added50, s.added99 = append(s.added50, p50[i]-p50[0]), append(s.added99, p99[i]-p99[0])
		}
	}
	out := make([]promptResult, len(ways))
	for i, s := range all {
		out[i] = promptResult{
			Proxy: ways[i].Name, Clients: clients, Rate: median(s.rate), P50: median(s.p50), P99: median(s.p99),
			AddedP50: median(s.added50), AddedP99: median(s.added99), CPU: median(s.cpu),
		}
	}
	return out, nil
}

// rush has each client ask, one request after another, and returns the times to their first frames
// and the time that all of it took. Each client asks once at least.
func rush(clients []*client, window time.Duration) (firsts []time.Duration, took time.Duration, err error) {
	var mu sync.Mutex
	var serial atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for _, c := range clients {
		all.Go(func() {
			var mine []time.Duration
			for ok := true; ok; ok = time.Since(start) < window {
				c.mark(int(serial.Add(1)))
				first, e := c.ask(1, nil)
				if e != nil {
					mu.Lock()
					err = e
					mu.Unlock()
					return
				}
				mine = append(mine, first)
			}
			mu.Lock()
			firsts = append(firsts, mine...)
			mu.Unlock()
		})
	}
	all.Wait()
	return firsts, time.Since(start), err
}
