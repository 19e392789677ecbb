package pick

import "time"

// Other returns the index of the replica that a request would get if it couldn't have the one at
// index not; -1 where there is none. It counts and notes nothing, so that an answer may be dropped:
// it is what a proxy tries next by itself.
func (g *Group) Other(of []*Replica, ask *Ask, not int, rnd uint64, now time.Time) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	want := Want{Session: ask.Session, Adapter: ask.Adapter != 0}
	if g.policy.Load().ReadsPrompts() {
		want.Prompt = float64(ask.Size) / BytesPerToken
		want.Tokens = want.Prompt + float64(g.expected(ask))
	}
	g.look(of, ask, not, now)
	return g.policy.Load().Choose(g.states, want, rnd, g.turn)
}
