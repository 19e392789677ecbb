package scale

import "time"

// The most that an HPA remembers of each kind. Beyond it the two oldest become one that lasts
// as long as the younger and is as cautious as the older.
const (
	maxExtremes = 256
	maxChanges  = 128
)

// extremes keeps the greatest or least of the numbers of a window: only those that no later
// number outdoes, so that there are as many as there were different ones, and maxExtremes at
// most.
type extremes struct {
	window   time.Duration
	greatest bool
	kept     []change
}

// change is a number and when it was.
type change struct {
	at time.Time
	n  int
}

// with takes n as of now and returns the greatest, or least, of the window.
func (e *extremes) with(now time.Time, n int) int {
	cutoff := now.Add(-e.window)
	old := 0
	for old < len(e.kept) && !e.kept[old].at.After(cutoff) {
		old++
	}
	e.kept = append(e.kept[:0], e.kept[old:]...)
	for len(e.kept) > 0 && e.outdone(e.kept[len(e.kept)-1].n, n) {
		e.kept = e.kept[:len(e.kept)-1]
	}
	if len(e.kept) == maxExtremes {
		e.kept[1].n = e.kept[0].n
		e.kept = append(e.kept[:0], e.kept[1:]...)
	}
	e.kept = append(e.kept, change{at: now, n: n})
	return e.kept[0].n
}

// outdone reports whether an earlier number no longer matters beside a later one.
func (e *extremes) outdone(earlier, later int) bool {
	if e.greatest {
		return earlier <= later
	}
	return earlier >= later
}

// changes keeps how many replicas were added, or removed, and when.
type changes struct{ kept []change }

// add takes c and forgets what is older than keep.
func (s *changes) add(now time.Time, keep time.Duration, c change) {
	cutoff := now.Add(-keep)
	old := 0
	for old < len(s.kept) && !s.kept[old].at.After(cutoff) {
		old++
	}
	s.kept = append(s.kept[:0], s.kept[old:]...)
	if len(s.kept) == maxChanges {
		s.kept[1].n += s.kept[0].n
		s.kept = append(s.kept[:0], s.kept[1:]...)
	}
	s.kept = append(s.kept, c)
}

// within returns the sum of the changes of the last period.
func (s *changes) within(now time.Time, period time.Duration) int {
	cutoff := now.Add(-period)
	sum := 0
	for i := len(s.kept) - 1; i >= 0 && s.kept[i].at.After(cutoff); i-- {
		sum += s.kept[i].n
	}
	return sum
}
