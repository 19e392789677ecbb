package pick

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Sample is what an engine told of itself at a time.
type Sample struct {
	At time.Time
	// KVUse is the share of the key-value cache in use, 0 to 1; negative where it isn't told.
	KVUse float64
	// Running and Waiting are the engine's requests, whoever sent them; negative where that isn't
	// told.
	Running, Waiting float64
	// Adapters are the LoRA adapters that are loaded, and MaxAdapters how many can be; 0 means that
	// the engine tells nothing of adapters.
	Adapters    []string
	MaxAdapters int
}

// Samples are what engines told of themselves last, by the addresses ("host:port") for HTTP of their
// replicas.
type Samples map[string]Sample

const (
	// stale is the age from which on a sample isn't believed.
	stale = 20 * time.Second
	// firstOutput is how many tokens an answer is taken to have before any was seen.
	firstOutput = 256
	// BytesPerToken is about what tokenizers make of text.
	BytesPerToken = 4
)

// Name tells a replica from others: by its ID, and by where it answers, for one that was started
// again has nothing of what it had.
type Name struct{ ID, Address string }

// Replica is one replica of a group, with what is counted of it.
type Replica struct {
	id               uint64
	requests, tokens atomic.Int64

	// The group's mu guards what follows.
	slot int // in the index; -1 for none
	// until is when the sample is too old, in nanoseconds of Unix time.
	until int64
	// most is how many requests were under way at most since the last sample, and others how many
	// more the engine had than that: for the sample is of some moment in between.
	most   int64
	others float64
	health health
	sample Sample
	// adapters are the hashes of the names of those in the sample.
	adapters []uint64
}

// Requests returns how many requests are under way.
func (r *Replica) Requests() int64 { return r.requests.Load() }

// Tokens returns how many tokens are in flight.
func (r *Replica) Tokens() int64 { return r.tokens.Load() }

// Group is the replicas of one revision and what is known of them. It is safe for concurrent use.
type Group struct {
	policy atomic.Pointer[Policy]

	mu       sync.Mutex
	index    *Index // nil where the policy asks nothing of it
	replicas map[Name]*Replica
	// kept are those that Keep returned last, and names what it was asked for.
	kept  []*Replica
	names []Name
	// states is scratch: what is looked at.
	states []State
	// bySlot is the index of each slot's replica among those of slotsOf; -1 where it isn't one.
	bySlot  []int32
	slotsOf []*Replica
	turn    uint64
	// ejected is how many replicas were taken out and not let in again, those that the group no
	// longer has included.
	ejected int
	// output is the mean of the answers' tokens.
	output float64
}

// NewGroup makes a group without replicas.
func NewGroup(p Policy) *Group {
	g := &Group{replicas: map[Name]*Replica{}, output: firstOutput}
	g.SetPolicy(p)
	return g
}

// Policy returns the group's policy, which the caller must not change.
func (g *Group) Policy() *Policy { return g.policy.Load() }

// SetPolicy has the next requests chosen by another policy.
func (g *Group) SetPolicy(p Policy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policy.Store(&p)
	g.slotsOf = nil
	switch indexed := p.uses(Prefix) || p.uses(LoRA); {
	case !indexed:
		g.index = nil
		for _, r := range g.replicas {
			r.slot = -1
		}
	case g.index == nil:
		g.index = NewIndex(DefaultIndexBytes, DefaultAge)
		for _, r := range g.replicas {
			g.enter(r)
		}
	}
}

// Keep makes n replicas with these names the group's, forgets all others, and returns them in their
// order. Those that were known keep what is known of them. The caller must not change the slice.
func (g *Group) Keep(n int, name func(i int) Name) []*Replica {
	g.mu.Lock()
	defer g.mu.Unlock()
	same := n == len(g.names)
	for i := 0; same && i < n; i++ {
		same = g.names[i] == name(i)
	}
	if same {
		return g.kept
	}
	kept := make(map[Name]*Replica, n)
	g.kept, g.names = make([]*Replica, n), make([]Name, n)
	for i := range n {
		name := name(i)
		r := g.replicas[name]
		if r == nil {
			r = kept[name]
		}
		if r == nil {
			r = &Replica{id: Hash(cmp.Or(name.ID, name.Address)), slot: -1}
		}
		g.kept[i], g.names[i], kept[name] = r, name, r
	}
	for name, r := range g.replicas {
		if kept[name] == nil && r.slot >= 0 {
			g.index.Remove(r.slot)
			r.slot = -1
		}
	}
	g.replicas, g.slotsOf = kept, nil
	for _, r := range g.kept {
		if g.index != nil && r.slot < 0 {
			g.enter(r)
		}
	}
	return g.kept
}

// enter gives a replica a slot of the index; the caller holds mu.
func (g *Group) enter(r *Replica) {
	moved := make(map[*Replica]int)
	slot := g.index.Add(func(from, to int) {
		for _, other := range g.replicas {
			if _, done := moved[other]; !done && other.slot == from {
				moved[other] = to
				return
			}
		}
	})
	for other, to := range moved {
		other.slot = to
	}
	r.slot = slot
}

// Ask is what a request asks a replica for. The zero Ask is that of a request of which nothing is
// known.
type Ask struct {
	// Blocks are the hashes of the prompt's blocks, and Size its bytes.
	Blocks []uint64
	Size   int
	// Output is how many tokens the answer may have; 0 means that nothing was said.
	Output int64
	// Session is what Policy.SessionOf returned, Adapter the hash of the LoRA adapter's name; 0
	// means none.
	Session, Adapter uint64
}

// Charge is what a request counts for at a replica. Its methods aren't safe for concurrent use.
type Charge struct {
	g              *Group
	r              *Replica
	prompt, output int64
	probe          bool
}

// Pick chooses one of some of the group's replicas, counts the request there, and notes that the
// replica has its prompt from now on. not is the index of one that isn't chosen, or -1. It returns
// -1 where there is no other. The Charge must be released.
func (g *Group) Pick(of []*Replica, ask *Ask, not int, rnd uint64, now time.Time) (int, Charge) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, probe := g.due(of, not, now)
	c := Charge{g: g, probe: probe}
	if g.policy.Load().ReadsPrompts() {
		c.prompt = int64(ask.Size) / BytesPerToken
		c.output = g.expected(ask)
	}
	if at < 0 {
		g.look(of, ask, not, now)
		want := Want{Tokens: float64(c.prompt + c.output), Prompt: float64(c.prompt), Session: ask.Session, Adapter: ask.Adapter != 0}
		at = g.policy.Load().Choose(g.states, want, rnd, g.turn)
		if at < 0 {
			return -1, Charge{}
		}
		// What the replica has of the prompt is no work for it.
		c.prompt -= int64(float64(c.prompt) * g.states[at].Matched)
	}
	g.turn++
	c.r = of[at]
	c.take()
	g.routed(c.r, ask, now)
	return at, c
}

// Take counts the request at a replica that was chosen otherwise.
func (g *Group) Take(r *Replica, ask *Ask, now time.Time) Charge {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := Charge{g: g, r: r}
	if g.policy.Load().ReadsPrompts() {
		c.prompt = int64(ask.Size) / BytesPerToken
		c.output = g.expected(ask)
	}
	c.take()
	g.routed(r, ask, now)
	return c
}

func (c *Charge) take() {
	c.r.most = max(c.r.most, c.r.requests.Add(1))
	if n := c.prompt + c.output; n > 0 {
		c.r.tokens.Add(n)
	}
}

// due finds a replica that it is time to try with a request. One that was passed over isn't tried
// by the same request.
func (g *Group) due(of []*Replica, not int, now time.Time) (int, bool) {
	if not >= 0 || len(of) == 1 || g.ejected == 0 {
		return -1, false
	}
	for i, r := range of {
		if r.health.due(now) {
			r.health.tried = true
			return i, true
		}
	}
	return -1, false
}

// expected is how many tokens an answer is taken to have.
func (g *Group) expected(ask *Ask) int64 {
	n := int64(g.output)
	if ask.Output > 0 {
		n = min(n, ask.Output)
	}
	return max(n, 1)
}

// look fills the states.
func (g *Group) look(of []*Replica, ask *Ask, not int, now time.Time) {
	if cap(g.states) < len(of) {
		g.states = make([]State, len(of))
	}
	g.states = g.states[:len(of)]
	perRequest := g.output + float64(ask.Size)/BytesPerToken
	p, at := g.policy.Load(), now.UnixNano()
	for i, r := range of {
		s := &g.states[i]
		s.ID, s.Requests, s.Tokens = r.id, float64(r.requests.Load()), float64(r.tokens.Load())
		s.Matched, s.Adapter, s.KVUse, s.Waiting = 0, 0, -1, -1
		s.Health, s.Skip = r.health.why, i == not
		if at < r.until {
			s.KVUse, s.Waiting = r.sample.KVUse, r.sample.Waiting
			s.Requests += r.others
			s.Tokens += r.others * perRequest
		}
	}
	if g.index == nil {
		return
	}
	g.numberSlots(of)
	if p.uses(Prefix) && len(ask.Blocks) > 0 && ask.Size > 0 {
		known, share := 0, 0.
		g.index.Match(ask.Blocks, now, func(slot, blocks int) {
			if blocks != known {
				known, share = blocks, min(float64(blockEnd(blocks-1))/float64(ask.Size), 1)
			}
			if slot == Rest {
				g.restMatched(share)
			} else if i := g.at(slot); i >= 0 {
				g.states[i].Matched = share
			}
		})
	}
	if p.uses(LoRA) && ask.Adapter != 0 {
		g.lookForAdapter(of, ask, now)
	}
}

// restMatched gives those a share of which nothing was found yet.
func (g *Group) restMatched(share float64) {
	for i := range g.states {
		if s := &g.states[i]; s.Matched == 0 {
			s.Matched = share
		}
	}
}

// numberSlots fills bySlot.
func (g *Group) numberSlots(of []*Replica) {
	if len(of) == len(g.slotsOf) && &of[0] == &g.slotsOf[0] {
		return
	}
	g.slotsOf, g.bySlot = of, g.bySlot[:0]
	for i, r := range of {
		if r.slot < 0 {
			continue
		}
		for len(g.bySlot) <= r.slot {
			g.bySlot = append(g.bySlot, -1)
		}
		g.bySlot[r.slot] = int32(i)
	}
}

// at is the index, within those that are looked at, of the replica with a slot; -1 if it isn't one
// of them.
func (g *Group) at(slot int) int {
	if slot >= len(g.bySlot) {
		return -1
	}
	return int(g.bySlot[slot])
}

func (g *Group) lookForAdapter(of []*Replica, ask *Ask, now time.Time) {
	for i, r := range of {
		s := &g.states[i]
		s.Adapter = .5
		if r.sample.MaxAdapters == 0 || now.UnixNano() >= r.until {
			continue
		}
		if len(r.sample.Adapters) >= r.sample.MaxAdapters {
			s.Adapter = 0
		}
		if slices.Contains(r.adapters, ask.Adapter) {
			s.Adapter = 1
		}
	}
	block := [1]uint64{adapterBlock(ask.Adapter)}
	g.index.Match(block[:], now, func(slot, _ int) {
		for i, r := range of {
			if s := &g.states[i]; (slot == Rest || r.slot == slot) && s.Adapter > 0 {
				s.Adapter = 1
			}
		}
	})
}

// adapterBlock stands for an adapter among the blocks.
func adapterBlock(adapter uint64) uint64 { return max(mix(adapter), 1) }

// routed notes what a replica has from now on; the caller holds mu.
func (g *Group) routed(r *Replica, ask *Ask, now time.Time) {
	if g.index == nil || r.slot < 0 {
		return
	}
	if g.policy.Load().uses(Prefix) {
		g.index.Put(ask.Blocks, r.slot, now)
	}
	if g.policy.Load().uses(LoRA) && ask.Adapter != 0 {
		block := [1]uint64{adapterBlock(ask.Adapter)}
		g.index.Put(block[:], r.slot, now)
	}
}

// Told takes what an engine told of itself. One that was taken already has no effect.
func (g *Group) Told(r *Replica, s Sample) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.At.Equal(r.sample.At) {
		return
	}
	r.sample, r.until = s, s.At.Add(stale).UnixNano()
	r.adapters = r.adapters[:0]
	for _, name := range s.Adapters {
		r.adapters = append(r.adapters, Hash(name))
	}
	r.others = max(max(s.Running, 0)+max(s.Waiting, 0)-float64(r.most), 0)
	r.most = r.requests.Load()
}

// Streamed gives back what an answer's next tokens were counted for: with the first ones those of
// the prompt, which the engine has read by then. Nothing happens on a zero Charge.
func (c *Charge) Streamed(tokens int64) {
	if c.r == nil || tokens <= 0 {
		return
	}
	done := min(tokens, c.output) + c.prompt
	c.output -= min(tokens, c.output)
	c.prompt = 0
	if done > 0 {
		c.r.tokens.Add(-done)
	}
}

// Release gives back all that is left, and notes how the request ended at the replica. produced is
// how many tokens the answer had, 0 where that isn't known. A Charge that was released, and a zero
// one, has nothing to give back.
func (c *Charge) Release(o Outcome, produced int64, rnd uint64, now time.Time) {
	if c.r == nil {
		return
	}
	c.r.requests.Add(-1)
	if n := c.prompt + c.output; n > 0 {
		c.r.tokens.Add(-n)
	}
	c.g.ended(c, o, produced, rnd, now)
	*c = Charge{}
}

func (g *Group) ended(c *Charge, o Outcome, produced int64, rnd uint64, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if produced > 0 {
		g.output += (float64(produced) - g.output) / 16
	}
	h := &c.r.health
	was := h.why
	h.note(o, c.probe, now, rnd)
	switch {
	case was == In && h.why != In:
		g.ejected++
	case was != In && h.why == In:
		g.ejected--
	}
}
