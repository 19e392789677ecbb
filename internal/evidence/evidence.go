// Package evidence holds what was counted of a revision's answers, in a form that can be added up
// over gateways and taken apart over time. It is pure.
package evidence

import (
	"math/bits"
	"time"
)

// Counts is what was counted of one revision's answers since some beginning. The zero Counts is
// nothing. A Counts is immutable once it is shared.
type Counts struct {
	// Requests are those that were answered, whose clients stayed to the end.
	Requests uint64 `json:"requests,omitempty"`
	// Errors are those of Requests that failed on this side: an HTTP status of 500 and above, or a
	// code of gRPC that blames the server.
	Errors uint64 `json:"errors,omitempty"`
	// Latency has the times of Requests, from their heads to the ends of their answers.
	Latency Histogram `json:"latency,omitempty"`
	// First has the times of streams from their requests' heads to their first data.
	First Histogram `json:"first,omitempty"`
	// Compared are answers to copies of requests that could be compared with those of the revision
	// that clients heard, and Differ those of them that say something else.
	Compared uint64 `json:"compared,omitempty"`
	Differ   uint64 `json:"differ,omitempty"`
}

// Plus returns the sum of two.
func (c Counts) Plus(o Counts) Counts {
	return Counts{
		Requests: c.Requests + o.Requests, Errors: c.Errors + o.Errors,
		Latency: c.Latency.plus(o.Latency), First: c.First.plus(o.First),
		Compared: c.Compared + o.Compared, Differ: c.Differ + o.Differ,
	}
}

// Since returns what was counted since an earlier state of the same counters. What is less than it
// was counts as nothing.
func (c Counts) Since(o Counts) Counts {
	return Counts{
		Requests: minus(c.Requests, o.Requests), Errors: minus(c.Errors, o.Errors),
		Latency: c.Latency.since(o.Latency), First: c.First.since(o.First),
		Compared: minus(c.Compared, o.Compared), Differ: minus(c.Differ, o.Differ),
	}
}

func minus(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

// Buckets is how many there are of a Histogram.
const Buckets = 464

// Histogram counts durations by Bucket; nil is empty. Buckets are a sixteenth of a power of two
// wide, so that a quantile is known to 6 %.
type Histogram map[uint16]uint64

// Bucket returns the bucket of a duration. Beyond 71 minutes all share the last.
func Bucket(d time.Duration) uint16 {
	v := uint64(min(max(d.Microseconds(), 0), 1<<32-1))
	if v < 16 {
		return uint16(v)
	}
	e := bits.Len64(v) - 1
	return uint16((e-3)*16 + int(v>>(e-4))&15)
}

// middle returns the duration in the middle of a bucket.
func middle(b uint16) time.Duration {
	if b < 16 {
		return time.Duration(b) * time.Microsecond
	}
	e := int(b)/16 + 3
	width := uint64(1) << (e - 4)
	from := (16 + uint64(b)%16) * width
	return time.Duration(from+width/2) * time.Microsecond
}

// N returns how many durations were counted.
func (h Histogram) N() uint64 {
	var n uint64
	for _, c := range h {
		n += c
	}
	return n
}

// Quantile returns the least duration that at least the share q, above 0 and up to 1, of all
// durations don't exceed, to within half a bucket; 0 for an empty histogram.
func (h Histogram) Quantile(q float64) time.Duration {
	n := h.N()
	if n == 0 {
		return 0
	}
	rank := uint64(q * float64(n))
	if float64(rank) < q*float64(n) {
		rank++
	}
	var seen uint64
	for b := range uint16(Buckets) {
		if seen += h[b]; seen >= max(rank, 1) {
			return middle(b)
		}
	}
	return middle(Buckets - 1)
}

func (h Histogram) plus(o Histogram) Histogram {
	if len(h) == 0 {
		return o
	}
	out := make(Histogram, max(len(h), len(o)))
	for b, n := range h {
		out[b] = n
	}
	for b, n := range o {
		out[b] += n
	}
	return out
}

func (h Histogram) since(o Histogram) Histogram {
	if len(o) == 0 {
		return h
	}
	out := Histogram{}
	for b, n := range h {
		if n > o[b] {
			out[b] = n - o[b]
		}
	}
	return out
}
