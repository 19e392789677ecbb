package plan

// Rolling says how two revisions take turns where Latest takes over all traffic, as a Deployment's
// rollingUpdate says it of pods. The zero Rolling starts all of Latest beside all of the other.
type Rolling struct {
	// Surge is how many replicas may run beyond Component.Replicas, Unavailable how many of those
	// may be missing.
	Surge, Unavailable int
}

// rolls reports whether Latest takes over replica by replica. Where a share of its own is asked
// for, or the load decides on replicas, those say how many run.
func (r *rollout) rolls() bool {
	stable := r.next.RolledOut
	_, scaled := r.Wants[stable]
	return r.Rolling != Rolling{} && r.percent == 100 && r.Over <= 0 && r.Guard == nil && r.back == "" && !scaled &&
		stable != "" && stable != r.Latest
}

// makesRoom reports whether Rolling leaves no way but to stop all of the old revision first.
func (r *rollout) makesRoom() bool {
	return r.rolls() && r.Rolling.Surge == 0 && r.Rolling.Unavailable >= r.Replicas
}

// turned reports whether as many of Latest are ready as must be, so that it can do without the
// others.
func (r *rollout) turned() bool {
	have := r.ready(r.Latest)
	return have > 0 && have >= r.Replicas-r.Rolling.Unavailable
}

// turns is how many replicas of Latest and of the stable revision are to run now. Those that are
// about to end count as long as they are there, for they hold their place.
func (r *rollout) turns() (latest, stable int) {
	stable = max(r.Replicas-r.Rolling.Unavailable-r.ready(r.Latest), 1)
	room := r.Replicas + r.Rolling.Surge - max(stable, r.count(r.next.RolledOut))
	return min(max(room, r.count(r.Latest)), r.Replicas), stable
}

// turnShare is Latest's percent while it takes over: each ready replica gets as much as any other.
func (r *rollout) turnShare() int {
	have := r.ready(r.Latest)
	if have == 0 {
		return 0
	}
	return have * 100 / (have + r.ready(r.next.RolledOut))
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
