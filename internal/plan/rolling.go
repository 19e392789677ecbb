package plan

import "slices"

// Rolling says how revisions take turns where Latest takes over all traffic, as a Deployment's
// rollingUpdate says it of pods. The zero Rolling starts all of Latest beside all of the other.
type Rolling struct {
	// Surge is how many replicas may run beyond Component.Replicas, Unavailable how many of those
	// may be missing.
	Surge, Unavailable int
}

// mayRoll reports whether revisions take turns here. Where a share of its own is asked for, or the
// load decides on replicas, those say how many run.
func (r *rollout) mayRoll() bool {
	_, scaled := r.Wants[r.next.RolledOut]
	return r.Rolling != Rolling{} && r.percent == 100 && r.Over <= 0 && r.Guard == nil && r.back == "" && !scaled && r.next.RolledOut != ""
}

// rolls reports whether Latest takes over replica by replica, from the one that was rolled out or,
// where that is Latest itself and an update was taken back half-way, from those set aside.
func (r *rollout) rolls() bool {
	return r.mayRoll() && (r.next.RolledOut != r.Latest || len(r.next.Aside) > 0)
}

// makesRoom reports whether Rolling leaves no way but to stop all of the old revision first.
func (r *rollout) makesRoom() bool {
	return r.rolls() && r.leavesNone()
}

func (r *rollout) leavesNone() bool {
	return r.Rolling.Surge == 0 && r.Rolling.Unavailable >= r.Replicas
}

// turned reports whether as many of Latest are ready as must be, so that it can do without the
// others.
func (r *rollout) turned() bool {
	have := r.ready(r.Latest)
	return have > 0 && have >= r.Replicas-r.Rolling.Unavailable
}

// setAside notes the revision that was Latest before, where it had taken over in part: its ready
// replicas serve on until Latest can do without. Those of which that is true no more drain.
func (r *rollout) setAside() {
	all := r.next.Aside
	if old := r.Last.Latest; old != "" && old != r.Latest && !slices.Contains(all, old) {
		all = append(slices.Clone(all), old)
	}
	var kept []string
	for _, rev := range all {
		needed := r.mayRoll() && !r.turned() && r.ready(rev) > 0
		variant := slices.ContainsFunc(r.Variants, func(v Variant) bool { return v.Revision == rev })
		switch {
		case rev == r.Latest || rev == r.next.RolledOut || variant:
		case needed:
			kept = append(kept, rev)
		default:
			r.drain(rev)
		}
	}
	r.next.Aside = kept
	if len(kept) == 0 {
		return
	}
	_, _, n := r.turns()
	r.next.Aside = nil
	for i, rev := range kept {
		if n[i] > 0 {
			r.next.Aside = append(r.next.Aside, rev)
		} else {
			r.drain(rev)
		}
	}
}

// turns is how many replicas of Latest, of the stable revision and of each one set aside are to run
// now. Those that are about to end count as long as they are there, for they hold their place.
func (r *rollout) turns() (latest, stable int, aside []int) {
	must := r.Replicas - r.Rolling.Unavailable - r.ready(r.Latest)
	if !r.leavesNone() {
		must = max(must, 1)
	}
	gone := r.next.RolledOut == r.Latest
	left, there := must, 0
	if !gone {
		left -= r.ready(r.next.RolledOut)
	}
	for _, rev := range r.next.Aside {
		n := max(min(r.ready(rev), left), 0)
		left, must, there = left-n, must-n, there+max(n, r.count(rev))
		aside = append(aside, n)
	}
	if !gone {
		stable = max(must, 1)
		there += max(stable, r.count(r.next.RolledOut))
	}
	room := r.Replicas + r.Rolling.Surge - there
	return min(max(room, r.count(r.Latest)), r.Replicas), stable, aside
}

// byReady divides the traffic while revisions take turns: each ready replica gets as much as any
// other.
func (r *rollout) byReady() (out []Share) {
	revisions := []string{r.Latest}
	if r.next.RolledOut != r.Latest {
		revisions = append(revisions, r.next.RolledOut)
	}
	for _, rev := range append(revisions, r.next.Aside...) {
		if n := r.ready(rev); n > 0 {
			out = append(out, Share{Component: r.Name, Revision: rev, Percent: n})
		}
	}
	if len(out) > 0 {
		toSum(out, 100)
	}
	return out
}

// count is how many replicas of a revision there are, in whatever phase.
func (r *rollout) count(revision string) int {
	n := 0
	for i := range r.o.Replicas {
		if r.o.Replicas[i].Revision.Name == revision {
			n++
		}
	}
	return n
}
