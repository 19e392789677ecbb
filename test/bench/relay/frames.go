package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// frameResult is one way's, with one stream at a time. Times are in microseconds, medians over rounds.
type frameResult struct {
	Proxy string `json:"proxy"`
	// P50 and P99 are to the first frame, and Added what they are above the direct way's.
	P50      float64 `json:"first_p50_us"`
	P99      float64 `json:"first_p99_us"`
	AddedP50 float64 `json:"added_p50_us"`
	AddedP99 float64 `json:"added_p99_us"`
	// PerFrame is a stream's time by its frames, which come as fast as the engine writes.
	PerFrame      float64 `json:"frame_us"`
	AddedPerFrame float64 `json:"added_frame_us"`
	// CPUPerFrame is the proxy's.
	CPUPerFrame float64 `json:"cpu_frame_us"`
}

func measureFrames(m *machine, p plan) ([]frameResult, error) {
	engine, err := m.engines(1)
	if err != nil {
		return nil, err
	}
	defer engine.Stop()
	ways, stop, err := m.startAll([]kind{direct, gatewayOwn, nginx, bare, floor}, engine.Addr)
	defer stop()
	if err != nil {
		return nil, err
	}
	type samples struct{ p50, p99, added50, added99, frame, added, cpu []float64 }
	all := make([]samples, len(ways))
	short, long := make([]*client, len(ways)), make([]*client, len(ways))
	for i, w := range ways {
		if short[i], err = connect(w.Addr, question{frames: 1}); err != nil {
			return nil, err
		}
		defer short[i].close()
		if long[i], err = connect(w.Addr, question{frames: p.Frames}); err != nil {
			return nil, err
		}
		defer long[i].close()
	}
	for round := range p.Rounds + 1 { // the first is to warm up
		p50, p99, frame := make([]float64, len(ways)), make([]float64, len(ways)), make([]float64, len(ways))
		cpu := make([]float64, len(ways))
		for _, i := range rand.Perm(len(ways)) {
			firsts := make([]time.Duration, p.Requests)
			for n := range firsts {
				if firsts[n], err = short[i].ask(1, nil); err != nil {
					return nil, fmt.Errorf("%s: %w", ways[i].Name, err)
				}
			}
			p50[i], p99[i] = us(quantile(firsts, .5)), us(quantile(firsts, .99))
			before, start := ways[i].CPU(), time.Now()
			if _, err := long[i].ask(p.Frames, nil); err != nil {
				return nil, fmt.Errorf("%s: %w", ways[i].Name, err)
			}
			frame[i] = us(time.Since(start)) / float64(p.Frames)
			cpu[i] = us(ways[i].CPU()-before) / float64(p.Frames)
		}
		for i := range ways {
			if round == 0 {
				continue
			}
			s := &all[i]
			s.p50, s.p99, s.frame, s.cpu = append(s.p50, p50[i]), append(s.p99, p99[i]), append(s.frame, frame[i]), append(s.cpu, cpu[i])
			s.added50, s.added99, s.added = append(s.added50, p50[i]-p50[0]), append(s.added99, p99[i]-p99[0]), append(s.added, frame[i]-frame[0])
		}
	}
	out := make([]frameResult, len(ways))
	for i, s := range all {
		out[i] = frameResult{
			Proxy: ways[i].Name, P50: median(s.p50), P99: median(s.p99), AddedP50: median(s.added50), AddedP99: median(s.added99),
			PerFrame: median(s.frame), AddedPerFrame: median(s.added), CPUPerFrame: median(s.cpu),
		}
	}
	return out, nil
}
