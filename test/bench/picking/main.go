// Command picking measures what picking a replica by the prefix of a prompt brings, against round
// robin and least requests: eight simulated LLM engines (test/testkit/llmsim) behind the real gateway,
// asked by users who think between their requests. It writes JSON, and from that a page and pictures.
//
// All times that it tells are those of the simulated engines' clock, which runs -scale times as long.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// policies are measured in this order, by their text in the annotation stationmaster.dev/picking.
var policies = []string{"round-robin", "least-requests", "default"}

// result is what is written.
type result struct {
	Machine  string    `json:"machine"`
	Commit   string    `json:"commit,omitempty"`
	Scale    float64   `json:"scale"`
	Replicas int       `json:"replicas"`
	Blocks   int       `json:"blocks"`
	Runs     []outcome `json:"runs"`
}

func main() {
	out := flag.String("out", "bench/results/picking.json", "where the result goes")
	docs := flag.String("docs", "", "write the page and its pictures of the result in -out into this folder, and measure nothing")
	only := flag.String("only", "", "measure this load only, and keep the others' results in -out")
	scale := flag.Float64("scale", 0.2, "how long the engines' second takes, in seconds")
	window := flag.Duration("window", 40*time.Second, "how long each run is measured, by the engines' clock")
	flag.Parse()
	if err := run(*out, *docs, *only, *scale, *window); err != nil {
		fmt.Fprintln(os.Stderr, "picking:", err)
		os.Exit(1)
	}
}

func run(out, docs, only string, scale float64, window time.Duration) error {
	if docs != "" {
		return writePage(out, docs)
	}
	r := result{Machine: fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version()), Scale: scale, Replicas: replicas, Blocks: blocks}
	if only != "" {
		if old, err := read(out); err == nil {
			for _, o := range old.Runs {
				if o.Load != only {
					r.Runs = append(r.Runs, o)
				}
			}
		}
	}
	for _, l := range loads {
		if only != "" && l.name != only {
			continue
		}
		for _, think := range l.thinks {
			for _, policy := range policies {
				o, err := measure(l, think, policy, scale, window)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", l.name, policy, err)
				}
				fmt.Fprintf(os.Stderr, "%-10s think %5v %-15s %6.1f req/s  TTFT mean %7.0f ms p99 %7.0f ms  hits %3.0f %%  max/mean %.2f (busy %.2f) errors %d\n",
					o.Load, think, policy, o.Rate, o.MeanTTFT, o.P99TTFT, 100*o.Hits, o.MaxToMean, o.BusyMaxToMean, o.Errors)
				r.Runs = append(r.Runs, o)
			}
		}
		if err := write(out, r); err != nil {
			return err
		}
	}
	return nil
}

func write(out string, r result) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(b, '\n'), 0o644)
}

func read(path string) (result, error) {
	var r result
	b, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	return r, json.NewDecoder(strings.NewReader(string(b))).Decode(&r)
}
