// Command autoscaling draws what Knative's autoscaler and ours decide over the recorded traces:
// docs/autoscaling/<trace>.svg and the table in docs/autoscaling.md. Run it from the root of the
// repository; tools/kpa-golden makes the recordings.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/scale/scaletest"
)

func main() {
	files, err := render("test/golden/kpa")
	if err == nil {
		err = write("docs", files)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "autoscaling:", err)
		os.Exit(1)
	}
}

func write(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(filepath.Join(dir, "autoscaling"), 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// run is one scaler's replicas over a trace: a number for each second.
type run struct {
	replicas []int
	// peakAt is the second of the first decision for the peak; zeroAfter is how many seconds
	// after the last demand it went to zero for the first time, or -1.
	peak, peakAt, zeroAfter int
}

// render makes every file from the recordings in dir; names are relative to docs.
func render(dir string) (map[string][]byte, error) {
	traces, err := scaletest.Load(dir)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	var table bytes.Buffer
	for i := range traces {
		t := &traces[i]
		cfg, err := t.Config(scale.Default().StaleAfter)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		decisions, err := t.Replay(cfg)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		decided := make([]int, len(decisions))
		equal := 0
		for k, d := range decisions {
			decided[k] = d.Replicas
			if d.Replicas == t.Replicas[k] {
				equal++
			}
		}
		theirs, ours := newRun(t, t.Replicas), newRun(t, decided)
		files["autoscaling/"+t.Name+".svg"] = picture(t, theirs, ours)
		fmt.Fprintf(&table, "| [%s](autoscaling/%s.svg) | %s | %s | %s | %s | %d of %d |\n", t.Name, t.Name, t.About,
			pair(fmt.Sprint(theirs.peak), fmt.Sprint(ours.peak)), pair(clock(theirs.peakAt), clock(ours.peakAt)),
			pair(span(theirs.zeroAfter), span(ours.zeroAfter)), equal, len(decisions))
	}
	files["autoscaling.md"] = []byte(strings.Replace(page, "TABLE\n", table.String(), 1) + gallery(traces))
	return files, nil
}

func newRun(t *scaletest.Trace, decided []int) run {
	r := run{zeroAfter: -1}
	now, k, demand := t.InitialReplicas, 0, 0
	for sec := range t.Load {
		if t.Load[sec] != nil && *t.Load[sec] > 0 {
			demand = sec
		}
		if k < len(t.At) && t.At[k] == sec {
			if decided[k] == 0 && now > 0 && r.zeroAfter < 0 {
				r.zeroAfter = sec - demand
			}
			now = decided[k]
			k++
		}
		if now > r.peak {
			r.peak, r.peakAt = now, sec
		}
		r.replicas = append(r.replicas, now)
	}
	return r
}

// pair gives one value where both agree.
func pair(theirs, ours string) string {
	if theirs == ours {
		return ours
	}
	return "Knative " + theirs + ", ours " + ours
}

func clock(sec int) string { return fmt.Sprintf("%d:%02d", sec/60, sec%60) }

func span(sec int) string {
	if sec < 0 {
		return "–"
	}
	return fmt.Sprintf("%d s", sec)
}

func gallery(traces []scaletest.Trace) string {
	var b strings.Builder
	for _, t := range traces {
		fmt.Fprintf(&b, "\n### %s\n\n![replicas over time: %s](autoscaling/%s.svg)\n", t.Name, t.About, t.Name)
		if t.ContainerConcurrency > 0 || len(t.Annotations) > 0 {
			fmt.Fprintf(&b, "\n%s; replicas start in %d s.\n", strings.Join(settings(&t), ", "), t.StartupSeconds)
		} else {
			fmt.Fprintf(&b, "\nDefaults; replicas start in %d s.\n", t.StartupSeconds)
		}
	}
	return b.String()
}
