package demand

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/spec"
)

var (
	iris = spec.ServiceKey{Namespace: "n", Name: "iris"}
	rev  = spec.RevisionKey{Namespace: "n", Name: "iris-2"}
	t0   = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
)

func said(since int64, requests, errors uint64) *Report {
	return &Report{Answers: []Answers{{Service: iris, Revision: rev.Name, Since: since, Counts: evidence.Counts{
		Requests: requests, Errors: errors, Latency: evidence.Histogram{7: requests},
	}}}}
}

func TestLedger(t *testing.T) {
	type report struct {
		from  string
		r     *Report
		after time.Duration
	}
	tests := map[string]struct {
		reports          []report
		requests, errors uint64
	}{
		"nobody spoke": {},
		"what was counted before the first report isn't known to be new": {
			reports: []report{{"a", said(1, 100, 9), 0}},
		},
		"what comes after it is": {
			reports: []report{{"a", said(1, 100, 9), 0}, {"a", said(1, 130, 10), 0}}, requests: 30, errors: 1,
		},
		"a revision that a known gateway speaks of for the first time began at zero": {
			reports: []report{{"a", &Report{}, 0}, {"a", said(1, 3, 3), 0}}, requests: 3, errors: 3,
		},
		"an early report makes no gateway known": {
			reports: []report{{"a", &Report{Early: true}, 0}, {"a", said(1, 100, 9), 0}},
		},
		"an early report takes nothing away": {
			reports: []report{{"a", said(1, 0, 0), 0}, {"a", said(1, 5, 0), 0}, {"a", &Report{Early: true}, 0}, {"a", said(1, 6, 0), 0}}, requests: 6,
		},
		"gateways add up": {
			reports: []report{{"a", said(1, 0, 0), 0}, {"b", said(2, 0, 0), 0}, {"a", said(1, 10, 1), 0}, {"b", said(2, 20, 2), 0}}, requests: 30, errors: 3,
		},
		"a restarted gateway counts from zero": {
			reports: []report{{"a", said(1, 0, 0), 0}, {"a", said(1, 10, 1), 0}, {"a", said(2, 4, 1), 0}, {"a", said(2, 5, 1), 0}}, requests: 15, errors: 2,
		},
		"one that was asked again goes on": {
			reports: []report{{"a", said(1, 0, 0), 0}, {"a", said(1, 10, 1), 0}, {"a", said(1, 40, 1), time.Minute}}, requests: 40, errors: 1,
		},
		"one that was silent for very long is a new one": {
			reports: []report{{"a", said(1, 0, 0), 0}, {"a", said(1, 10, 1), 0}, {"b", said(9, 0, 0), 6 * time.Minute}, {"a", said(1, 40, 1), 6 * time.Minute}, {"a", said(1, 41, 1), 0}}, requests: 11, errors: 1,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var l Ledger
			now := t0
			for _, r := range tc.reports {
				now = now.Add(r.after)
				l.report(r.from, r.r, now)
			}
			got := l.Of(rev)
			if got.Requests != tc.requests || got.Errors != tc.errors || got.Latency.N() != tc.requests {
				t.Errorf("%+v, want %d requests and %d errors", got, tc.requests, tc.errors)
			}
		})
	}
}

func TestALedgerForgetsWhatNobodySpeaksOf(t *testing.T) {
	var l Ledger
	l.report("a", said(1, 0, 0), t0)
	l.report("a", said(1, 5, 0), t0)
	l.report("a", &Report{}, t0.Add(forgotten+time.Second))
	if got := l.Of(rev); got.Requests != 0 {
		t.Errorf("%+v", got)
	}
	if len(l.totals) != 0 || len(l.sources["a"].last) != 0 {
		t.Errorf("kept %v and %v", l.totals, l.sources["a"])
	}
}

// Whatever restarts, the ledger never goes down, and has all that known gateways counted.
func TestALedgerNeverGoesDown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Ledger
		counters, since, all, before := map[string]uint64{}, map[string]int64{}, uint64(0), uint64(0)
		for _, g := range []string{"a", "b"} {
			l.report(g, &Report{}, t0)
		}
		for range rapid.IntRange(1, 50).Draw(t, "reports") {
			g := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "gateway")
			if rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
				counters[g], since[g] = 0, since[g]+1
			}
			n := rapid.Uint64Range(0, 10).Draw(t, "requests")
			counters[g] += n
			all += n
			l.report(g, said(since[g], counters[g], 0), t0)
			got := l.Of(rev).Requests
			if got < before || got != all {
				t.Fatalf("%d after %d, want %d", got, before, all)
			}
			before = got
		}
	})
}
