package measure

import (
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
)

// window is how far back values over time look.
const window = time.Minute

// series is what one replica told during the window, oldest first.
type series struct {
	points []point
	// reading is the last of its engine's page, where it was read by an adapter.
	reading *adapter.Reading
}

type point struct {
	at time.Time
	v  float64
}

// add takes a value and forgets what has left the window. One that isn't later than the last
// takes its place.
func (s *series) add(at time.Time, v float64) {
	if n := len(s.points); n > 0 && !at.After(s.points[n-1].at) {
		s.points = s.points[:n-1]
	}
	old := 0
	for old < len(s.points) && at.Sub(s.points[old].at) > window {
		old++
	}
	s.points = append(s.points[:0], s.points[old:]...)
	s.points = append(s.points, point{at, v})
}

// over puts the values together. A rate needs two of them; everything else one.
func (s *series) over(how demand.Over) (float64, bool) {
	n := len(s.points)
	if n == 0 {
		return 0, false
	}
	last := s.points[n-1].v
	sum, least, most := 0.0, last, last
	for _, p := range s.points {
		sum += p.v
		least, most = min(least, p.v), max(most, p.v)
	}
	switch how {
	case demand.OverAvg:
		return sum / float64(n), true
	case demand.OverMin:
		return least, true
	case demand.OverMax:
		return most, true
	case demand.OverSum:
		return sum, true
	case demand.OverCount:
		return float64(n), true
	case demand.OverRate:
		return s.rate()
	}
	return last, true
}

// rate is the increase in a second. A counter that fell began anew at zero.
func (s *series) rate() (float64, bool) {
	n := len(s.points)
	if n < 2 {
		return 0, false
	}
	grown := 0.0
	for i := 1; i < n; i++ {
		step := s.points[i].v - s.points[i-1].v
		if step < 0 {
			step = s.points[i].v
		}
		grown += step
	}
	return grown / s.points[n-1].at.Sub(s.points[0].at).Seconds(), true
}
