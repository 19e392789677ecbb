package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"stationmaster.dev/stationmaster/test/bench/proc"
)

// streamResult is one way's with many streams at once; of several rounds the medians, but for Clean,
// which is the fewest.
type streamResult struct {
	Proxy string `json:"proxy"`
	// Clean streams had every frame, in order, and [DONE].
	Clean int `json:"clean"`
	// AtOnce is the most that were under way at one time.
	AtOnce int `json:"at_once"`
	// KBPerStream is what the proxy's resident memory grew by at its most, by the streams, in units of
	// 1,000 bytes.
	KBPerStream float64 `json:"kb_per_stream"`
	// CPUPerFrame is the proxy's in microseconds while all streams were under way; each frame comes
	// alone. 0 where they never were.
	CPUPerFrame float64 `json:"cpu_frame_us"`
	// CPUPerStream is the proxy's for a whole stream and its connection, in microseconds.
	CPUPerStream float64 `json:"cpu_stream_us"`
	// Problem is what the first stream that wasn't clean met.
	Problem string `json:"problem,omitempty"`
}

func measureStreams(m *machine, p plan) ([]streamResult, error) {
	kinds := []kind{direct, gatewayOwn, nginx, bare}
	rounds := make([][]streamResult, len(kinds))
	for range p.StreamRounds {
		for _, i := range rand.Perm(len(kinds)) {
			r, err := crowd(m, kinds[i], p)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", kinds[i].name, err)
			}
			rounds[i] = append(rounds[i], r)
		}
	}
	out := make([]streamResult, len(kinds))
	for i, rs := range rounds {
		o := streamResult{Proxy: kinds[i].name, Clean: p.Streams}
		var once, kb, perFrame, perStream []float64
		for _, r := range rs {
			o.Clean = min(o.Clean, r.Clean)
			if o.Problem == "" {
				o.Problem = r.Problem
			}
			once, kb = append(once, float64(r.AtOnce)), append(kb, r.KBPerStream)
			perStream = append(perStream, r.CPUPerStream)
			if r.CPUPerFrame > 0 {
				perFrame = append(perFrame, r.CPUPerFrame)
			}
		}
		o.AtOnce, o.KBPerStream, o.CPUPerFrame, o.CPUPerStream = int(median(once)), median(kb), median(perFrame), median(perStream)
		out[i] = o
	}
	return out, nil
}

// crowd sends streams through a proxy that has done nothing else but to warm up, so that what its
// memory grows by is theirs.
func crowd(m *machine, k kind, p plan) (streamResult, error) {
	engine, err := m.engines(1)
	if err != nil {
		return streamResult{}, err
	}
	defer engine.Stop()
	way, err := m.start(k, engine.Addr)
	if err != nil {
		return streamResult{}, err
	}
	defer way.Stop()
	warm, err := connect(way.Addr, question{frames: 10})
	if err != nil {
		return streamResult{}, err
	}
	defer warm.close()
	for range 100 {
		if _, err := warm.ask(10, nil); err != nil {
			return streamResult{}, err
		}
	}
	c := counts{}
	rss, cpu := way.RSS(), way.CPU()
	var streams sync.WaitGroup
	start := time.Now()
	for i := range p.Streams {
		streams.Go(func() {
			time.Sleep(time.Until(start.Add(p.Ramp * time.Duration(i) / time.Duration(p.Streams))))
			c.one(way.Addr, question{frames: p.Paced, pace: p.Pace})
		})
	}
	finished := make(chan struct{})
	go func() { streams.Wait(); close(finished) }()
	seen := c.watch(way, int64(p.Streams), finished)
	problem, _ := c.problem.Load().(string)
	if problem != "" {
		fmt.Fprintf(os.Stderr, "%s: %s\n", k.name, problem)
	}
	return streamResult{
		Clean: int(c.clean.Load()), AtOnce: int(seen.atOnce), Problem: problem,
		KBPerStream:  float64(max(seen.rss-rss, 0)) / 1000 / float64(p.Streams),
		CPUPerFrame:  seen.cpuPerFrame,
		CPUPerStream: us(way.CPU()-cpu) / float64(p.Streams),
	}, nil
}

// counts are of streams that run.
type counts struct {
	begun, ended, clean, frames atomic.Int64
	problem                     atomic.Value
}

// one opens a connection, has its stream, and closes it.
func (c *counts) one(addr string, q question) {
	defer c.ended.Add(1)
	conn, err := connect(addr, q)
	if err == nil {
		defer conn.close()
		c.begun.Add(1)
		_ = conn.conn.SetDeadline(time.Now().Add(time.Minute))
		_, err = conn.ask(q.frames, &c.frames)
	}
	if err != nil {
		c.problem.CompareAndSwap(nil, err.Error())
		return
	}
	c.clean.Add(1)
}

// seen is what was found while streams ran.
type seen struct {
	atOnce      int64
	rss         int
	cpuPerFrame float64
}

// watch looks at a proxy until its streams have finished.
func (c *counts) watch(way *proc.Process, streams int64, finished <-chan struct{}) (s seen) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var cpu time.Duration // when all were there, and then their frames
	var frames int64
	full := false
	for {
		select {
		case <-finished:
			return s
		case <-tick.C:
		}
		ended := c.ended.Load()
		s.atOnce = max(s.atOnce, c.begun.Load()-ended)
		s.rss = max(s.rss, way.RSS())
		if c.begun.Load() < streams || ended > 0 {
			continue
		}
		now, got := way.CPU(), c.frames.Load()
		if !full {
			full, cpu, frames = true, now, got
		} else if got > frames {
			s.cpuPerFrame = us(now-cpu) / float64(got-frames)
		}
	}
}
