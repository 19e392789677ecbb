package pick

// State is what is known of one replica when a request's is chosen.
type State struct {
	// ID tells the replica from others, the same in every gateway.
	ID uint64
	// Requests and Tokens are in flight, what others gave it included as far as that is known.
	Requests, Tokens float64
	// Matched is the share of the prompt that the replica has, 0 to 1.
	Matched float64
	// KVUse is the share of the key-value cache in use, and Waiting how many requests wait in the
	// engine; negative means that it isn't known.
	KVUse, Waiting float64
	// Adapter is 1 where the replica has the adapter, 0.5 where it has room for it or where that
	// isn't known, 0 where it has neither.
	Adapter float64
	// Health says whether the replica was ejected.
	Health Health
	// Skip leaves the replica out altogether.
	Skip bool
}

// Health is how a replica answered lately.
type Health uint8

// The states of health.
const (
	// In: it gets requests.
	In Health = iota
	// Failing: it answered with errors, and gets none while at least half of the replicas do.
	Failing
	// Unreachable: it couldn't be reached, and gets none while there is another.
	Unreachable
)

// Want is what of a request its replica is chosen by.
type Want struct {
	// Tokens is the load that the request is, in tokens, and Prompt those of them that are its
	// prompt's: less, for a replica that has a part of it.
	Tokens, Prompt float64
	// Session is the hash of what tells the client's session; 0 for none.
	Session uint64
	// Adapter says that the request is for a LoRA adapter, so that State.Adapter is read.
	Adapter bool
}

// Choose returns the index of the replica with the greatest weighted score, of several as good any
// one by rnd, which must be uniform; -1 when there is none. turn counts decisions, for round robin.
// It is a function of its arguments, keeps and changes nothing, and allocates nothing.
func (p *Policy) Choose(states []State, want Want, rnd, turn uint64) int {
	c := choice{p: p, states: states, want: want, session: -1}
	if !c.add() {
		return -1
	}
	if c.n == 1 {
		return c.first
	}
	if p.draws() {
		c.limit()
	}
	if p.uses(RoundRobin) {
		c.turn = int(turn % uint64(c.allowed()))
	}
	if p.uses(Session) && want.Session != 0 {
		c.rank()
	}
	return c.best(rnd)
}

// eligible returns the worst health with which replicas get requests, of numbers by health.
func eligible(of *[Unreachable + 1]int) Health {
	switch {
	case of[In] > 0 && 2*of[In] >= of[In]+of[Failing]:
		return In
	case of[In]+of[Failing] > 0:
		return Failing
	}
	return Unreachable
}

// choice is one decision under way.
type choice struct {
	p      *Policy
	states []State
	want   Want
	worst  Health
	// n are eligible, first is the first of them.
	n, first         int
	requests, tokens float64
	// kvUse and waiting are sums over those of which it is known.
	kvUse, waiting     float64
	toldUse, toldQueue int
	// bounded says that a replica may be chosen up to a bound only; full that all are over it, and
	// least is then the least load that there is.
	bounded, full bool
	least         float64
	// byTokens says that load is tokens; total is that of all, of which times is the bound.
	byTokens     bool
	total, times float64
	// session is the replica that the session falls to, turn how many allowed ones come before
	// the one whose turn it is.
	session, turn int
}

func (c *choice) in(s *State) bool { return !s.Skip && s.Health <= c.worst }

// add sums up those that get requests, and reports whether there are any.
func (c *choice) add() bool {
	c.worst = Unreachable
	of := c.sum()
	if c.n == 0 {
		return false
	}
	if of[In] < c.n {
		if c.worst = eligible(&of); c.worst < Unreachable {
			c.sum()
		}
	}
	return true
}

func (c *choice) sum() (of [Unreachable + 1]int) {
	c.n, c.first = 0, -1
	c.kvUse, c.waiting, c.toldUse, c.toldQueue = 0, 0, 0, 0
	requests, tokens := 0., 0. // a sum in a register is ready sooner than one in memory
	for i := range c.states {
		s := &c.states[i]
		if !c.in(s) {
			continue
		}
		if c.first < 0 {
			c.first = i
		}
		of[s.Health]++
		requests += s.Requests
		tokens += s.Tokens
		if s.KVUse >= 0 {
			c.toldUse++
			c.kvUse += s.KVUse
		}
		if s.Waiting >= 0 {
			c.toldQueue++
			c.waiting += s.Waiting
		}
	}
	c.n, c.requests, c.tokens = of[In]+of[Failing]+of[Unreachable], requests, tokens
	return of
}

// load is what the bound is about.
func (c *choice) load(s *State) float64 {
	if c.p.ReadsPrompts() {
		return s.Tokens
	}
	return s.Requests
}

// limit finds out which replicas may be chosen (V. Mirrokni, M. Thorup, M. Zadimoghaddam,
// "Consistent Hashing with Bounded Loads", 2018): a replica's load with this request is at most
// the bound times the mean with this request, and a replica with no more than one other such
// request always may. Where none may it is those with the least load.
func (c *choice) limit() {
	c.bounded, c.byTokens, c.total = true, c.p.ReadsPrompts(), c.requests
	if c.byTokens {
		c.total = c.tokens
	}
	c.times = max(c.p.Bound, 1) / float64(c.n)
	lowest := -1.
	for i := range c.states {
		s := &c.states[i]
		if !c.in(s) {
			continue
		}
		if c.may(s) {
			return
		}
		if l := c.load(s); lowest < 0 || l < lowest {
			lowest = l
		}
	}
	c.least, c.full = lowest, true
}

// may reports whether a replica may be chosen.
func (c *choice) may(s *State) bool {
	switch {
	case !c.in(s):
		return false
	case !c.bounded:
		return true
	case c.full:
		return c.load(s) <= c.least
	case c.byTokens:
		return c.fits(s.Tokens, c.want.own(s))
	}
	return c.fits(s.Requests, 1)
}

// own is the load that the request is for a replica, in tokens.
func (w *Want) own(s *State) float64 {
	own := w.Tokens - s.Matched*w.Prompt
	if own < 1 {
		return 1
	}
	return own
}

// fits reports whether a load with the request's own is within the bound.
func (c *choice) fits(load, own float64) bool {
	return load <= own || load+own <= c.times*(c.total+own)
}

// allowed counts those that may be chosen.
func (c *choice) allowed() int {
	n := 0
	for i := range c.states {
		if c.may(&c.states[i]) {
			n++
		}
	}
	return n
}

// rank finds the replica that the session falls to (D. Thaler, C. Ravishankar, "Using Name-Based
// Mappings to Increase Hit Rates", 1998): the same one as long as it is there and has room.
func (c *choice) rank() {
	most := uint64(0)
	for i := range c.states {
		s := &c.states[i]
		if !c.may(s) {
			continue
		}
		if r := mix(c.want.Session ^ s.ID); c.session < 0 || r > most {
			c.session, most = i, r
		}
	}
}

func (c *choice) best(rnd uint64) int {
	w := &c.p.Weights
	matched, requests, tokens := w[Prefix], w[LeastRequests], w[LeastTokens]
	request, token := step(c.requests, c.n), step(c.tokens, c.n)
	more := c.session >= 0 || c.want.Adapter || w[RoundRobin] > 0 || w[KVCache] > 0 || w[Queue] > 0
	want, usual := c.want, c.byTokens && !c.full // the usual bound is asked for in this loop, without a call
	best, top, ties, nth := -1, -1., uint64(0), 0
	for i := range c.states {
		s := &c.states[i]
		if usual {
			if !c.in(s) || !c.fits(s.Tokens, want.own(s)) {
				continue
			}
		} else if !c.may(s) {
			continue
		}
		score := matched * s.Matched
		if requests > 0 {
			score += requests * below(s.Requests, request)
		}
		if tokens > 0 {
			score += tokens * below(s.Tokens, token)
		}
		if more {
			score += c.more(i, s, nth)
		}
		nth++
		switch {
		case score > top:
			best, top, ties = i, score, 1
		case score == top:
			// Each of those that tie is as likely in the end.
			ties++
			rnd = rnd*6364136223846793005 + 1442695040888963407
			if (rnd>>32)*ties>>32 == 0 {
				best = i
			}
		}
	}
	return best
}

// more is what the scorers add that few policies have; nth counts the replicas that may be chosen.
func (c *choice) more(i int, s *State, nth int) float64 {
	w, score := &c.p.Weights, 0.
	if w[RoundRobin] > 0 && nth == c.turn {
		score += w[RoundRobin]
	}
	if i == c.session {
		score += w[Session]
	}
	if w[KVCache] > 0 && c.toldUse > 0 {
		score += w[KVCache] * (1 - min(orMean(s.KVUse, c.kvUse, c.toldUse), 1))
	}
	if w[Queue] > 0 && c.toldQueue > 0 {
		score += w[Queue] * below(orMean(s.Waiting, c.waiting, c.toldQueue), step(c.waiting, c.toldQueue))
	}
	if c.want.Adapter {
		score += w[LoRA] * s.Adapter
	}
	return score
}

// orMean is a value, or the mean of n that sum to a total where it isn't known.
func orMean(v, total float64, n int) float64 {
	if v < 0 {
		return total / float64(n)
	}
	return v
}

// step is how much of a score each of n values takes that sum to a total: below makes of the mean 1/2.
func step(total float64, n int) float64 {
	if total <= 0 {
		return 0
	}
	return float64(n) / (2 * total)
}

// below says how far a value is below twice the mean of all, by their step: 1 for nothing, 1/2 for the
// mean, 0 from twice the mean on. Of any values the lowest is at most the mean, so that it has the
// greatest score.
func below(v, step float64) float64 {
	if b := 1 - v*step; b > 0 {
		return b
	}
	return 0
}
