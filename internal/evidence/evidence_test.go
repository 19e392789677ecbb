package evidence_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/evidence"
)

func TestABucketHoldsItsDurationToSixPercent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		us := rapid.Int64Range(0, 1<<32-1).Draw(t, "microseconds")
		d := time.Duration(us) * time.Microsecond
		b := evidence.Bucket(d)
		if b >= evidence.Buckets {
			t.Fatalf("%v is in bucket %d", d, b)
		}
		got := evidence.Histogram{b: 1}.Quantile(1)
		if off := (got - d).Abs(); off > d/16+time.Microsecond {
			t.Errorf("%v is told as %v", d, got)
		}
		if next := evidence.Bucket(d + time.Microsecond); next < b {
			t.Errorf("a longer duration than %v is in the lower bucket %d", d, next)
		}
	})
}

func TestWhatIsBeyondTheBucketsSharesTheOuterOnes(t *testing.T) {
	if b := evidence.Bucket(-time.Second); b != 0 {
		t.Errorf("a negative duration is in bucket %d", b)
	}
	if b := evidence.Bucket(1000 * time.Hour); b != evidence.Buckets-1 {
		t.Errorf("1000 hours are in bucket %d", b)
	}
}

func TestQuantile(t *testing.T) {
	ms := func(n ...int) evidence.Histogram {
		h := evidence.Histogram{}
		for _, v := range n {
			h[evidence.Bucket(time.Duration(v)*time.Millisecond)]++
		}
		return h
	}
	many := ms()
	for range 99 {
		many[evidence.Bucket(10*time.Millisecond)]++
	}
	withOne, withTwo := evidence.Histogram{}, evidence.Histogram{}
	for b, n := range many {
		withOne[b], withTwo[b] = n, n
	}
	withOne[evidence.Bucket(time.Second)]++
	withTwo[evidence.Bucket(time.Second)] += 2
	tests := map[string]struct {
		h    evidence.Histogram
		q    float64
		want time.Duration
	}{
		"of nothing":                         {h: nil, q: .99},
		"of one":                             {h: ms(100), q: .99, want: 100 * time.Millisecond},
		"one slow request of a hundred":      {h: withOne, q: .99, want: 10 * time.Millisecond},
		"two slow requests of a hundred one": {h: withTwo, q: .99, want: time.Second},
		"the median":                         {h: ms(1, 50, 1000), q: .5, want: 50 * time.Millisecond},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.h.Quantile(tc.q); (got - tc.want).Abs() > tc.want/16 {
				t.Errorf("%v, want about %v", got, tc.want)
			}
		})
	}
}

func draw(t *rapid.T, name string) evidence.Counts {
	n := func(what string) uint64 { return rapid.Uint64Range(0, 100).Draw(t, name+what) }
	h := func(what string) evidence.Histogram {
		return rapid.MapOfN(rapid.Uint16Range(0, evidence.Buckets-1), rapid.Uint64Range(1, 100), 1, 5).Draw(t, name+what)
	}
	return evidence.Counts{Requests: n("r"), Errors: n("e"), Latency: h("l"), First: h("f"), Compared: n("c"), Differ: n("d")}
}

func TestWhatIsAddedIsWhatCameSince(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		if diff := cmp.Diff(b, a.Plus(b).Since(a)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(a.Plus(b), b.Plus(a)); diff != "" {
			t.Errorf("order matters:\n%s", diff)
		}
	})
}

func TestLessThanBeforeCountsAsNothing(t *testing.T) {
	was := evidence.Counts{Requests: 5, Latency: evidence.Histogram{3: 5}}
	if got := (evidence.Counts{Requests: 2, Latency: evidence.Histogram{3: 2}}).Since(was); got.Requests != 0 || got.Latency.N() != 0 {
		t.Errorf("%+v", got)
	}
}

func TestCountsSurviveTheirWayOverTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := draw(t, "a")
		raw, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got evidence.Counts
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
