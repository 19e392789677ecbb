package scale

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// slow is averages the obvious way: all samples, looked through each time.
type slow map[int64]float64

func (s slow) average(sec, first, n int64) float64 {
	last := int64(math.MinInt64)
	for at := range s {
		last = max(last, at)
	}
	if sec-last >= n {
		return 0
	}
	sum, from := 0.0, max(first, max(sec, last)-n+1)
	for at := from; at <= last; at++ {
		sum += s[at]
	}
	return round6(sum / float64(last-from+1))
}

// TestAveragesAreThoseOfASlowOne walks forward with gaps of any length.
func TestAveragesAreThoseOfASlowOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := int64(rapid.IntRange(2, 20).Draw(t, "window"))
		p := int64(rapid.IntRange(1, int(n)).Draw(t, "panic window"))
		a := newAverages(time.Duration(n)*time.Second, time.Duration(p)*time.Second)
		samples := slow{}
		var sec, last, first, panicFirst int64
		for range rapid.IntRange(1, 60).Draw(t, "samples") {
			sec += int64(rapid.IntRange(0, 25).Draw(t, "gap"))
			if len(samples) == 0 || sec-last >= n {
				first = sec
			}
			if len(samples) == 0 || sec-last >= p {
				panicFirst = sec
			}
			last = sec
			v := rapid.Float64Range(0, 100).Draw(t, "value")
			samples[sec] += v
			a.record(sec, v)
			for later := range int64(25) {
				if got, want := a.stable(sec+later, Linear), samples.average(sec+later, first, n); math.Abs(got-want) > 1e-6 {
					t.Fatalf("stable at %d+%d: %v, want %v", sec, later, got, want)
				}
				if got, want := a.panic(sec+later, Linear), samples.average(sec+later, panicFirst, p); math.Abs(got-want) > 1e-6 {
					t.Fatalf("panic at %d+%d: %v, want %v", sec, later, got, want)
				}
				if got, want := a.empty(sec+later), later > n; got != want {
					t.Fatalf("empty at %d+%d: %v", sec, later, got)
				}
			}
		}
	})
}

func TestPeakIsTheGreatestOfTheDelay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ticks := rapid.IntRange(1, 8).Draw(t, "ticks")
		p := newPeak(time.Duration(ticks) * Tick)
		var seen []peakEntry
		sec := int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "values") {
			sec += int64(rapid.IntRange(0, 9).Draw(t, "gap"))
			v := rapid.IntRange(0, 10).Draw(t, "value")
			seen = append(seen, peakEntry{slot: sec / 2, value: v})
			want := 0
			for _, e := range seen {
				if sec/2-e.slot < int64(ticks) {
					want = max(want, e.value)
				}
			}
			if got := p.record(sec, v); got != want {
				t.Fatalf("at %d: %d, want %d of %v", sec, got, want, seen)
			}
		}
	})
}

func TestExtremesAreThoseOfTheWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		greatest := rapid.Bool().Draw(t, "greatest")
		window := rapid.IntRange(0, 20).Draw(t, "window")
		e := extremes{window: time.Duration(window) * time.Second, greatest: greatest}
		var seen []change
		now := time.Unix(0, 0)
		for range rapid.IntRange(1, 60).Draw(t, "values") {
			now = now.Add(time.Duration(rapid.IntRange(1, 9).Draw(t, "gap")) * time.Second)
			n := rapid.IntRange(0, 10).Draw(t, "value")
			seen = append(seen, change{at: now, n: n})
			values := []int{n}
			for _, c := range seen {
				if c.at.After(now.Add(-e.window)) {
					values = append(values, c.n)
				}
			}
			want := slices.Min(values)
			if greatest {
				want = slices.Max(values)
			}
			if got := e.with(now, n); got != want {
				t.Fatalf("%d, want %d of %v", got, want, values)
			}
		}
	})
}

func TestHistoryIsBoundedAndCautious(t *testing.T) {
	e := extremes{window: time.Hour, greatest: true}
	var s changes
	now := time.Unix(0, 0)
	for i := range 1000 {
		now = now.Add(time.Second)
		if got := e.with(now, 5000-i); got != 5000 {
			t.Fatalf("the greatest of the last %d numbers is %d, want 5000", i+1, got)
		}
		s.add(now, time.Hour, change{at: now, n: 1})
		if got := s.within(now, time.Hour); got != i+1 {
			t.Fatalf("the sum of %d changes is %d", i+1, got)
		}
	}
	if len(e.kept) > maxExtremes || len(s.kept) > maxChanges {
		t.Errorf("keeps %d extremes and %d changes, over %d and %d", len(e.kept), len(s.kept), maxExtremes, maxChanges)
	}
}
