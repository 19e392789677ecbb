// Package guard judges one step of a guarded rollout by what was counted since it began. It is
// pure; plan asks it and applies what it says.
package guard

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Action is what to do with a step.
type Action uint8

// The actions.
const (
	// Stay where the rollout is.
	Stay Action = iota
	// Advance to the next step.
	Advance
	// RollBack takes all traffic away.
	RollBack
)

// Verdict is what follows from a step's evidence.
type Verdict struct {
	Action Action
	// Why is a sentence without a stop, with the numbers and the limits.
	Why string
	// Numbers are the part of Why that tells what was measured, and against which limits.
	Numbers string
	// Waits says that the bake is over, and what is missing is requests.
	Waits bool
	// Readings are the metrics that are limited, in the order of the limits.
	Readings []Reading
}

// Reading is a limited metric as it was measured.
type Reading struct {
	spec.Limit
	// Value is in the limit's unit; it means nothing where Of is 0.
	Value float64
	// Of is how many requests, streams or comparisons it was measured over.
	Of uint64
	// Exceeds says that the limit is exceeded, or will be whatever comes until there are as many
	// requests as the step needs.
	Exceeds bool
}

// Judge says what to do with a step that began at a time and has lasted until now, by what was
// counted since. No data is no good news: a step without enough requests, or without enough of
// what a limit is about, waits.
func Judge(g *spec.Guard, seen evidence.Counts, began, now time.Time) Verdict {
	least := uint64(max(g.MinRequests, 1))
	var v Verdict
	var exceeded, missing, all []string
	if seen.Requests < least {
		missing = append(missing, needs(least, "requests", seen.Requests))
	}
	for _, l := range g.Limits {
		r := read(l, seen, least)
		v.Readings = append(v.Readings, r)
		all = append(all, r.String())
		switch {
		case r.Exceeds:
			exceeded = append(exceeded, r.String())
		case r.Of < least && r.of() != "requests":
			missing = append(missing, needs(least, r.of(), r.Of))
		}
	}
	left := g.Bake - now.Sub(began)
	numbers := strings.Join(all, ", ")
	v.Numbers = numbers
	switch {
	case len(exceeded) > 0:
		v.Action, v.Why = RollBack, strings.Join(exceeded, ", ")
	case left > 0:
		v.Why = join(fmt.Sprintf("bakes for %v more", left.Round(time.Second)), strings.Join(missing, ", "), numbers)
	case len(missing) > 0:
		v.Waits, v.Why = true, join(strings.Join(missing, ", "), numbers)
	default:
		v.Action, v.Why = Advance, join(fmt.Sprintf("%d requests in %v", seen.Requests, now.Sub(began).Round(time.Second)), numbers)
	}
	return v
}

func join(parts ...string) string {
	var kept []string
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, "; ")
}

func needs(least uint64, what string, has uint64) string {
	return fmt.Sprintf("needs %d %s and has %d", least, what, has)
}

// read measures one metric.
func read(l spec.Limit, seen evidence.Counts, least uint64) Reading {
	r := Reading{Limit: l}
	ratio := func(bad, of uint64) {
		if r.Of = of; of > 0 {
			r.Value = float64(bad) / float64(of)
		}
		r.Exceeds = float64(bad) > l.Max*float64(max(of, least))
	}
	quantile := func(h evidence.Histogram) {
		r.Of, r.Value = h.N(), h.Quantile(.99).Seconds()
		r.Exceeds = r.Of >= least && r.Value > l.Max
	}
	switch l.Metric {
	case spec.ErrorRatio:
		ratio(seen.Errors, seen.Requests)
	case spec.Drift:
		ratio(seen.Differ, seen.Compared)
	case spec.P99:
		quantile(seen.Latency)
	case spec.TTFT:
		quantile(seen.First)
	}
	return r
}

// of names what a metric is measured over.
func (r Reading) of() string {
	switch r.Metric {
	case spec.TTFT:
		return "streams"
	case spec.Drift:
		return "comparisons"
	}
	return "requests"
}

// Amount is the value as a person reads it, "-" where there is none; Maximum is the limit, and
// Over what it was measured over.
func (r Reading) Amount() string {
	if r.Of == 0 {
		return "-"
	}
	return r.format(r.Value)
}

// Maximum is the limit as a person reads it.
func (r Reading) Maximum() string { return r.format(r.Max) }

// Over is what the value was measured over, e.g. "512 requests".
func (r Reading) Over() string { return fmt.Sprintf("%d %s", r.Of, r.of()) }

func (r Reading) format(v float64) string {
	switch r.Metric {
	case spec.P99, spec.TTFT:
		d := time.Duration(v * float64(time.Second))
		unit := time.Microsecond
		for unit < d/1000 {
			unit *= 10
		}
		return d.Round(unit).String()
	}
	return strconv.FormatFloat(v*100, 'g', 3, 64) + " %"
}

// String says the reading with its limit, e.g. "errors 2.5 % of 120 requests (limit 1 %)".
func (r Reading) String() string {
	name := string(r.Metric)
	if r.Metric == spec.TTFT {
		name = "p99 of the time to first token"
	}
	return fmt.Sprintf("%s %s of %s (limit %s)", name, r.Amount(), r.Over(), r.Maximum())
}
