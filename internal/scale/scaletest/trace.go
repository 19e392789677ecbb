// Package scaletest reads the recordings of Knative's autoscaler under test/golden/kpa and
// replays them through package scale.
package scaletest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"stationmaster.dev/stationmaster/internal/scale"
)

// Trace is a recording, as tools/kpa-golden writes it. Load and Ready have a value a second;
// At and what follows a value a decision, made half a second after the second in At.
type Trace struct {
	Name                 string            `json:"trace"`
	About                string            `json:"about"`
	Knative              string            `json:"knative"`
	Annotations          map[string]string `json:"annotations"`
	ContainerConcurrency int               `json:"containerConcurrency"`
	StartupSeconds       int               `json:"startupSeconds"`
	InitialReplicas      int               `json:"initialReplicas"`
	// RetiredFrom is the second from which no route leads to the revision; zero is never.
	RetiredFrom int `json:"retiredFrom"`
	// Load is nil in a second in which nothing reported.
	Load  []*float64 `json:"load"`
	Ready []int      `json:"ready"`

	At          []int     `json:"at"`
	Wanted      []int     `json:"wanted"`
	Replicas    []int     `json:"replicas"`
	Panic       []int     `json:"panic"`
	StableValue []float64 `json:"stableValue"`
	PanicValue  []float64 `json:"panicValue"`
	ExcessBurst []int     `json:"excessBurst"`
	Proxy       []int     `json:"proxy"`
}

// Load reads every recording of a folder, in the order of their names.
func Load(dir string) ([]Trace, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no recordings in %s", dir)
	}
	traces := make([]Trace, len(files))
	for i, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(raw, &traces[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return traces, nil
}

// Config returns Knative's defaults with the trace's settings, read by scale.Read. Samples
// grow stale after staleAfter; zero is Knative's rule.
func (t *Trace) Config(staleAfter time.Duration) (scale.Config, error) {
	base := scale.Default()
	base.StaleAfter = staleAfter
	read, err := scale.Read(base, scale.Settings{
		Annotations:          t.Annotations,
		ContainerConcurrency: t.ContainerConcurrency,
	})
	return read.Config, err
}

// start is second 0 of a recording. An even second, so that ticks fall as they were recorded.
var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Replay feeds the recorded load and ready replicas to a scaler and returns its decision at
// each recorded one. What was asked for is its own last decision.
func (t *Trace) Replay(cfg scale.Config) ([]scale.Decision, error) {
	o := scale.Observed{Asked: t.InitialReplicas, Ready: t.Ready[0]}
	s, err := scale.New(cfg, start.Add(500*time.Millisecond), o)
	if err != nil {
		return nil, err
	}
	decisions := make([]scale.Decision, 0, len(t.At))
	for sec := range t.Load {
		now := start.Add(time.Duration(sec) * time.Second)
		if load := t.Load[sec]; load != nil {
			s.Record(now, scale.Sample{Concurrency: *load, RPS: *load})
		}
		if len(decisions) == len(t.At) || t.At[len(decisions)] != sec {
			continue
		}
		o.Ready = t.Ready[sec]
		o.Unreachable = t.RetiredFrom > 0 && sec >= t.RetiredFrom
		d := s.Decide(now.Add(500*time.Millisecond), o)
		o.Asked, o.Initialized = d.Replicas, d.Initialized
		decisions = append(decisions, d)
	}
	return decisions, nil
}
