package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/test/bench/proc"
)

// idleResult is what the gateway uses while nobody asks anything of it.
type idleResult struct {
	Replicas int `json:"replicas"`
	// Millicores are thousandths of a core.
	Millicores float64 `json:"millicores"`
	// MB is its resident memory in units of 1,000,000 bytes.
	MB float64 `json:"rss_mb"`
	// Looks is how many pages of metrics it read meanwhile.
	Looks int `json:"looks"`
}

func measureIdle(_ *machine, p plan) (*idleResult, error) {
	pages, err := proc.Spawn("pages", back, os.Args[0], "-role", "pages", "-count", strconv.Itoa(p.Replicas))
	if err != nil {
		return nil, err
	}
	defer pages.Stop()
	gateway, err := proc.Spawn("gateway", front, os.Args[0], "-role", "gateway", "-addr", pages.Addr, "-pages")
	if err != nil {
		return nil, err
	}
	defer gateway.Stop()
	first, _, _ := strings.Cut(pages.Addr, " ")
	before := 0
	for deadline := time.Now().Add(15 * time.Second); before < p.Replicas; { // each replica is looked at once, first
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the gateway looked at %d of %d replicas", before, p.Replicas)
		}
		time.Sleep(100 * time.Millisecond)
		if before, err = looks(first); err != nil {
			return nil, err
		}
	}
	cpu, start := gateway.CPU(), time.Now()
	time.Sleep(p.Idle)
	used, took := gateway.CPU()-cpu, time.Since(start)
	after, err := looks(first)
	if err != nil {
		return nil, err
	}
	if after == before {
		return nil, errors.New("the gateway looked at no replica")
	}
	return &idleResult{
		Replicas: p.Replicas, Millicores: 1000 * used.Seconds() / took.Seconds(), MB: float64(gateway.RSS()) / 1e6, Looks: after - before,
	}, nil
}

// looks is how often pages were read.
func looks(addr string) (int, error) {
	resp, err := http.Get("http://" + addr + looksPath) //nolint:noctx // it answers at once
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(b))
}
