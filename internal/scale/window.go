package scale

import (
	"math"
	"time"
)

// averages keeps one value for each second of a window. Values of the same second add up,
// seconds without one count as zero between two that have one, and before the first nothing
// counts at all: a short history is averaged over its own length. (Knative:
// TimedFloat64Buckets. One ring serves both windows here, since the panic window is the
// later part of the stable one; sums are made when asked for, so that none drifts.)
type averages struct {
	ring []float64
	// last is the second of the latest value. first and panicFirst are those of the first
	// value after the stable and the panic window were empty. All are Unix times.
	last, first, panicFirst int64
	panicLen                int64
	any                     bool
}

func newAverages(window, panicWindow time.Duration) averages {
	return averages{
		ring:     make([]float64, window/time.Second),
		panicLen: int64(panicWindow / time.Second),
	}
}

// record adds v to the second of sec. A value from before the window is dropped.
func (a *averages) record(sec int64, v float64) {
	n := int64(len(a.ring))
	switch {
	case !a.any:
		a.any = true
		a.last, a.first, a.panicFirst = sec, sec, sec
	case sec <= a.last-n:
		return
	case sec <= a.last:
		a.first = min(a.first, sec)
		if sec > a.last-a.panicLen {
			a.panicFirst = min(a.panicFirst, sec)
		}
	default:
		gap := sec - a.last
		if gap >= n {
			clear(a.ring)
			a.first = sec
		} else {
			for s := a.last + 1; s <= sec; s++ {
				a.ring[a.slot(s)] = 0
			}
		}
		if gap >= a.panicLen {
			a.panicFirst = sec
		}
		a.last = sec
	}
	a.ring[a.slot(sec)] += v
}

// ahead reports whether the latest value is from more than a window after sec: then the clock
// was set back, and nothing would count until it caught up.
func (a *averages) ahead(sec int64) bool {
	return a.any && a.last-sec > int64(len(a.ring))
}

// empty reports whether nothing was recorded for longer than the window.
func (a *averages) empty(sec int64) bool {
	return !a.any || sec-a.last > int64(len(a.ring))
}

// latest returns the value of sec, or of the second before where sec has none yet.
func (a *averages) latest(sec int64) float64 {
	if !a.any || sec-a.last > 1 {
		return 0
	}
	return a.ring[a.slot(a.last)]
}

// stable and panic return a window's value as of sec.
func (a *averages) stable(sec int64, by Aggregation) float64 {
	return a.value(sec, a.first, int64(len(a.ring)), by)
}

func (a *averages) panic(sec int64, by Aggregation) float64 {
	return a.value(sec, a.panicFirst, a.panicLen, by)
}

func (a *averages) value(sec, first, n int64, by Aggregation) float64 {
	idle := max(sec-a.last, 0)
	if !a.any {
		return 0
	}
	if by == WeightedExponential {
		return a.weighted(idle, n)
	}
	if idle >= n {
		return 0
	}
	// The window that ends at sec holds the last n-idle seconds up to the latest value.
	sum := 0.0
	older, newer := a.latestOnes(n - idle)
	for _, v := range older {
		sum += v
	}
	for _, v := range newer {
		sum += v
	}
	known := min(a.last-first+1, n-idle)
	return round6(sum / float64(known))
}

// The weights of weighted: those of a window sum to weightSum at least, and none decays by
// less than minDecay a second. (Knative: WeightedFloat64Buckets.)
const (
	minDecay  = 0.2
	weightSum = 0.9999
)

// weighted returns the average in which each second counts less than the next by a factor.
func (a *averages) weighted(idle, n int64) float64 {
	if idle > n {
		return 0
	}
	decay := max(1-math.Pow(1-weightSum, 1/float64(n)), minDecay)
	weight := decay * math.Pow(1-decay, float64(idle))
	sum := 0.0
	for i := range n - idle {
		sum += a.ring[a.slot(a.last-i)] * weight
		weight *= 1 - decay
	}
	return sum
}

// latestOnes returns the n seconds up to the latest value, the oldest first, in the two parts
// in which they lie in the ring.
func (a *averages) latestOnes(n int64) (older, newer []float64) {
	end := a.slot(a.last) + 1
	if n <= end {
		return nil, a.ring[end-n : end]
	}
	return a.ring[int64(len(a.ring))-(n-end):], a.ring[:end]
}

func (a *averages) slot(sec int64) int64 {
	n := int64(len(a.ring))
	return ((sec % n) + n) % n
}

// resized returns a copy with other windows that holds what fits of the values in a.
func (a *averages) resized(window, panicWindow time.Duration) averages {
	b := newAverages(window, panicWindow)
	if !a.any {
		return b
	}
	keep := int64(min(len(a.ring), len(b.ring)))
	for s := max(a.last-keep+1, a.first); s <= a.last; s++ {
		b.record(s, a.ring[a.slot(s)])
	}
	return b
}

// round6 rounds to six digits after the point, so that sums of the same numbers in another
// order don't ask for one more replica. (Knative: roundToNDigits.)
func round6(f float64) float64 { return math.Round(f*1e6) / 1e6 }

// peak keeps the greatest of the values of the last slots, in descending order from the
// oldest. (The ascending minima algorithm, turned over; Knative: aggregation/max.)
type peak struct {
	ring  []peakEntry
	first int
	len   int
}

type peakEntry struct {
	slot  int64
	value int
}

func newPeak(delay time.Duration) peak {
	return peak{ring: make([]peakEntry, (delay+Tick-1)/Tick)}
}

// record takes v for the tick of sec and returns the greatest value of the window. Of two
// values in one tick the greater counts.
func (p *peak) record(sec int64, v int) int {
	slot := sec / int64(Tick/time.Second)
	if p.len > 0 && p.at(p.len-1).slot-slot > int64(len(p.ring)) {
		p.len = 0 // the clock was set back
	}
	if p.len > 0 {
		last := p.at(p.len - 1)
		slot = max(slot, last.slot)
		if last.slot == slot {
			v = max(v, last.value)
		}
	}
	for p.len > 0 && (p.at(p.len-1).value <= v || p.at(p.len-1).slot == slot) {
		p.len--
	}
	for p.len > 0 && slot-p.at(0).slot >= int64(len(p.ring)) {
		p.first = (p.first + 1) % len(p.ring)
		p.len--
	}
	*p.at(p.len) = peakEntry{slot: slot, value: v}
	p.len++
	return p.at(0).value
}

func (p *peak) at(i int) *peakEntry { return &p.ring[(p.first+i)%len(p.ring)] }
