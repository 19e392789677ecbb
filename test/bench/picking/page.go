package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// bound is the p99 of the time to the first token, in milliseconds, at which throughputs are compared.
const bound = 2000

// writePage writes picking-bench.md and a picture for each load into a folder, from a result.
func writePage(result, docs string) error {
	r, err := read(result)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(docs, "picking-bench.md"))
	if err != nil {
		return err
	}
	const from, to = "<!-- measured -->\n", "<!-- end -->\n"
	head, rest, ok := strings.Cut(string(text), from)
	_, tail, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		return fmt.Errorf("picking-bench.md has no lines %q and %q", strings.TrimSpace(from), strings.TrimSpace(to))
	}
	var page bytes.Buffer
	for _, l := range loads {
		if len(r.of(l.name)) == 0 {
			return fmt.Errorf("%s has no runs of %s", result, l.name)
		}
		section(&page, &r, l)
		name := filepath.Join(docs, "picking-"+l.name+".svg")
		if err := os.WriteFile(name, picture(l, r.of(l.name)), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(docs, "picking-bench.md"), []byte(head+from+page.String()+to+tail), 0o644)
}

func (r *result) of(load string) []outcome {
	return slices.DeleteFunc(slices.Clone(r.Runs), func(o outcome) bool { return o.Load != load })
}

// points are a policy's runs, from few requests to many.
func points(runs []outcome, policy string) []outcome {
	out := slices.DeleteFunc(slices.Clone(runs), func(o outcome) bool { return o.Policy != policy })
	slices.SortFunc(out, func(a, b outcome) int { return cmp.Compare(b.Think, a.Think) })
	return out
}

// rateAt is how many requests a second a policy answers with a p99 of at most most: between two runs
// on a straight line, and no more than it was asked in any. Zero means fewer than in any run.
func rateAt(ps []outcome, most float64) float64 {
	rate := 0.0
	for i, p := range ps {
		if p.P99TTFT <= most {
			rate = max(rate, p.Rate)
			continue
		}
		if i > 0 && ps[i-1].P99TTFT <= most && p.Rate > ps[i-1].Rate {
			part := (most - ps[i-1].P99TTFT) / (p.P99TTFT - ps[i-1].P99TTFT)
			rate = max(rate, ps[i-1].Rate+part*(p.Rate-ps[i-1].Rate))
		}
		break
	}
	return rate
}

func section(b *bytes.Buffer, r *result, l load) {
	runs := r.of(l.name)
	fmt.Fprintf(b, "### %s\n\n%s.\n", strings.ToUpper(l.name[:1])+l.name[1:], strings.ToUpper(l.about[:1])+l.about[1:])
	if set := slices.MaxFunc(runs, func(x, y outcome) int { return cmp.Compare(x.WorkingSet, y.WorkingSet) }).WorkingSet; set > 0 {
		one := r.Blocks * blockSize
		fmt.Fprintf(b, "The working set is about %d tokens: %.1f times one replica's cache, %.0f %% of all of them.\n", set, float64(set)/float64(one), 100*float64(set)/float64(one*r.Replicas))
	}
	fmt.Fprintf(b, "\n![%s](picking-%s.svg)\n\n", l.name, l.name)
	b.WriteString("| think time | policy | requests/s | TTFT mean | p50 | p99 | cache hits | max/mean requests | max/mean work |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, think := range l.thinks {
		for _, o := range runs {
			if o.Think != think.Seconds() {
				continue
			}
			fmt.Fprintf(b, "| %v | %s | %.1f | %s | %s | %s | %.0f %% | %.2f | %.2f |\n", think, called(o.Policy), o.Rate, ms(o.MeanTTFT), ms(o.P50TTFT), ms(o.P99TTFT), 100*o.Hits, o.MaxToMean, o.BusyMaxToMean)
		}
	}
	b.WriteString("\n")
	round, least, prefix := points(runs, policies[0]), points(runs, policies[1]), points(runs, policies[2])
	for i := range prefix {
		fmt.Fprintf(b, "- thinking %v: mean TTFT %.2f times lower than round robin and %.2f times lower than least requests, with %.2f and %.2f times their throughput\n",
			time.Duration(prefix[i].Think*float64(time.Second)), round[i].MeanTTFT/prefix[i].MeanTTFT, least[i].MeanTTFT/prefix[i].MeanTTFT, prefix[i].Rate/round[i].Rate, prefix[i].Rate/least[i].Rate)
	}
	fmt.Fprintf(b, "- with a p99 of at most %s: %s\n\n", ms(bound), strings.Join([]string{at(round), at(least), at(prefix)}, ", "))
}

func at(ps []outcome) string {
	name := called(ps[0].Policy)
	switch rate := rateAt(ps, bound); {
	case rate == 0:
		return fmt.Sprintf("%s fewer than %.1f requests/s", name, ps[0].Rate)
	case ps[len(ps)-1].P99TTFT <= bound:
		return fmt.Sprintf("%s at least %.1f requests/s", name, rate)
	default:
		return fmt.Sprintf("%s %.1f requests/s", name, rate)
	}
}

func called(policy string) string {
	if policy == "default" {
		return "prefix (the default)"
	}
	return strings.ReplaceAll(policy, "-", " ")
}

func ms(v float64) string {
	if v >= 9950 {
		return fmt.Sprintf("%.0f s", v/1000)
	}
	return fmt.Sprintf("%.0f ms", v)
}
