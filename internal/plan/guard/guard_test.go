package guard_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/plan/guard"
	"stationmaster.dev/stationmaster/internal/spec"
)

var t0 = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func times(n int, d time.Duration) evidence.Histogram {
	return evidence.Histogram{evidence.Bucket(d): uint64(n)}
}

func both(a, b evidence.Histogram) evidence.Histogram {
	return evidence.Counts{Latency: a}.Plus(evidence.Counts{Latency: b}).Latency
}

func TestJudge(t *testing.T) {
	limits := []spec.Limit{{Metric: spec.ErrorRatio, Max: .01}}
	with := func(m spec.Metric, maximum float64) []spec.Limit {
		return append(limits[:1:1], spec.Limit{Metric: m, Max: maximum})
	}
	tests := map[string]struct {
		limits []spec.Limit
		seen   evidence.Counts
		after  time.Duration
		want   guard.Action
		waits  bool
		why    string
	}{
		"good numbers bake": {
			seen: evidence.Counts{Requests: 500, Errors: 1}, after: 2 * time.Minute,
			why: "bakes for 3m0s more; errors 0.2 % of 500 requests (limit 1 %)",
		},
		"good numbers advance when the bake is over": {
			seen: evidence.Counts{Requests: 500, Errors: 5}, after: 5 * time.Minute, want: guard.Advance,
			why: "500 requests in 5m0s; errors 1 % of 500 requests (limit 1 %)",
		},
		"silence is no good news": {
			after: time.Hour, waits: true, why: "needs 100 requests and has 0; errors - of 0 requests (limit 1 %)",
		},
		"too few requests wait": {
			seen: evidence.Counts{Requests: 99, Errors: 1}, after: time.Hour, waits: true, why: "needs 100 requests and has 99",
		},
		"errors beyond the limit roll back before the bake is over": {
			seen: evidence.Counts{Requests: 400, Errors: 10}, after: time.Second, want: guard.RollBack,
			why: "errors 2.5 % of 400 requests (limit 1 %)",
		},
		"errors that no luck can make good roll back before there are enough requests": {
			seen: evidence.Counts{Requests: 4, Errors: 2}, after: time.Second, want: guard.RollBack,
			why: "errors 50 % of 4 requests (limit 1 %)",
		},
		"an early error that luck can make good doesn't": {
			seen: evidence.Counts{Requests: 4, Errors: 1}, after: time.Second, why: "needs 100 requests and has 4; errors 25 % of 4 requests",
		},
		"slow requests roll back": {
			limits: with(spec.P99, .5), after: time.Second, want: guard.RollBack, why: "p99 999ms of 200 requests (limit 500ms)",
			seen: evidence.Counts{Requests: 200, Latency: both(times(190, 10*time.Millisecond), times(10, time.Second))},
		},
		"one slow request of a hundred is none too many": {
			limits: with(spec.P99, .5), after: 5 * time.Minute, want: guard.Advance, why: "p99 9.98ms of 100 requests (limit 500ms)",
			seen: evidence.Counts{Requests: 100, Latency: both(times(99, 10*time.Millisecond), times(1, time.Second))},
		},
		"a few slow requests are no quantile yet": {
			limits: with(spec.P99, .5), after: time.Second, why: "needs 100 requests and has 50",
			seen: evidence.Counts{Requests: 50, Latency: times(50, time.Second)},
		},
		"a limit on streams needs streams": {
			limits: with(spec.TTFT, 1), after: time.Hour, waits: true, why: "needs 100 streams and has 3",
			seen: evidence.Counts{Requests: 500, First: times(3, time.Second)},
		},
		"slow streams roll back": {
			limits: with(spec.TTFT, 1), after: time.Second, want: guard.RollBack, why: "p99 of the time to first token",
			seen: evidence.Counts{Requests: 500, First: times(100, 2*time.Second)},
		},
		"a limit on drift needs comparisons": {
			limits: with(spec.Drift, .02), after: time.Hour, waits: true, why: "needs 100 comparisons and has 99",
			seen: evidence.Counts{Requests: 500, Compared: 99, Differ: 1},
		},
		"other classes roll back": {
			limits: with(spec.Drift, .02), after: time.Second, want: guard.RollBack, why: "drift 15 % of 20 comparisons (limit 2 %)",
			seen: evidence.Counts{Requests: 20, Compared: 20, Differ: 3},
		},
		"all that is exceeded is told": {
			limits: with(spec.Drift, .02), after: time.Second, want: guard.RollBack, why: "errors 10 % of 100 requests (limit 1 %), drift 15 % of 20 comparisons (limit 2 %)",
			seen: evidence.Counts{Requests: 100, Errors: 10, Compared: 20, Differ: 3},
		},
		"a limit of nothing allows nothing": {
			limits: []spec.Limit{{Metric: spec.ErrorRatio}}, seen: evidence.Counts{Requests: 10, Errors: 1}, after: time.Second, want: guard.RollBack,
			why: "errors 10 % of 10 requests (limit 0 %)",
		},
		"without limits time and requests decide": {
			limits: []spec.Limit{}, seen: evidence.Counts{Requests: 100, Errors: 100}, after: 5 * time.Minute, want: guard.Advance, why: "100 requests in 5m0s",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := &spec.Guard{Bake: 5 * time.Minute, MinRequests: 100, Limits: limits}
			if tc.limits != nil {
				g.Limits = tc.limits
			}
			got := guard.Judge(g, tc.seen, t0, t0.Add(tc.after))
			if got.Action != tc.want || got.Waits != tc.waits {
				t.Errorf("action %d, waits %v; want %d, %v", got.Action, got.Waits, tc.want, tc.waits)
			}
			if !strings.Contains(got.Why, tc.why) {
				t.Errorf("why %q, want %q in it", got.Why, tc.why)
			}
			if len(got.Readings) != len(g.Limits) {
				t.Errorf("%d readings of %d limits", len(got.Readings), len(g.Limits))
			}
		})
	}
}

func drawCounts(t *rapid.T) evidence.Counts {
	c := evidence.Counts{Requests: rapid.Uint64Range(0, 300).Draw(t, "requests")}
	c.Errors = rapid.Uint64Range(0, c.Requests).Draw(t, "errors")
	c.Latency = times(int(c.Requests), time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms"))*time.Millisecond)
	c.Compared = rapid.Uint64Range(0, 300).Draw(t, "compared")
	c.Differ = rapid.Uint64Range(0, c.Compared).Draw(t, "differ")
	return c
}

// A step advances only after its bake, with enough requests and no limit exceeded; what rolls back
// early would have been rolled back whatever good requests had come until there were enough.
func TestJudgeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &spec.Guard{Bake: time.Minute, MinRequests: rapid.IntRange(1, 200).Draw(t, "least"), Limits: []spec.Limit{
			{Metric: spec.ErrorRatio, Max: rapid.Float64Range(0, 1).Draw(t, "error ratio")},
			{Metric: spec.P99, Max: rapid.Float64Range(0, 2).Draw(t, "p99")},
			{Metric: spec.Drift, Max: rapid.Float64Range(0, 1).Draw(t, "drift")},
		}}
		seen, after := drawCounts(t), time.Duration(rapid.IntRange(0, 120).Draw(t, "after"))*time.Second
		least := uint64(g.MinRequests)
		v := guard.Judge(g, seen, t0, t0.Add(after))
		if v.Why == "" {
			t.Fatal("no reason")
		}
		errors, drift := g.Limits[0].Max, g.Limits[2].Max
		slow := seen.Requests >= least && seen.Latency.Quantile(.99).Seconds() > g.Limits[1].Max
		switch v.Action {
		case guard.Advance:
			if after < g.Bake || seen.Requests < least || seen.Compared < least || slow ||
				float64(seen.Errors) > errors*float64(seen.Requests) || float64(seen.Differ) > drift*float64(seen.Compared) {
				t.Fatalf("advances: %s", v.Why)
			}
		case guard.RollBack:
			good := seen
			good.Requests, good.Compared = max(good.Requests, least), max(good.Compared, least)
			if !slow && float64(good.Errors) <= errors*float64(good.Requests) && float64(good.Differ) <= drift*float64(good.Compared) {
				t.Fatalf("rolls back what may turn out well: %s", v.Why)
			}
		case guard.Stay:
			if seen.Requests >= least && float64(seen.Errors) > errors*float64(seen.Requests) || slow {
				t.Fatalf("stays with a limit exceeded: %s", v.Why)
			}
		}
	})
}
