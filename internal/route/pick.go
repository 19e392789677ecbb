package route

import "slices"

// Pick chooses a revision by weight among those with a ready endpoint, then one of its
// endpoints: of two taken at random the one with less load (M. Mitzenmacher, "The Power of
// Two Choices in Randomized Load Balancing", 2001). rnd must be uniform; load may be nil and
// is called only where there is a choice. Both results are nil when nothing with a weight is
// ready. A revision that lost its endpoints gives its share to the others.
func (b *Backend) Pick(rnd uint64, load func(*Endpoint) int64) (*Target, *Endpoint) {
	return b.PickExcept(rnd, load, nil)
}

// PickExcept is Pick without the endpoint not; it prefers another endpoint of the same
// revision, so that trying again doesn't shift the shares of traffic.
func (b *Backend) PickExcept(rnd uint64, load func(*Endpoint) int64, not *Endpoint) (*Target, *Endpoint) {
	return b.choose(uint32(rnd>>32), not, func(t *Target) *Endpoint { return t.pick(uint32(rnd), load, not) })
}

// choose takes the revision at high of all weights, and the endpoint that pick takes of it.
func (b *Backend) choose(high uint32, not *Endpoint, pick func(*Target) *Endpoint) (*Target, *Endpoint) {
	if not != nil {
		for i := range b.Targets {
			t := &b.Targets[i]
			if t.holds(not) && t.Weight > 0 {
				if e := pick(t); e != nil {
					return t, e
				}
			}
		}
	}
	total := 0
	for i := range b.Targets {
		if t := &b.Targets[i]; t.Weight > 0 && t.ready(not) > 0 {
			total += t.Weight
		}
	}
	if total == 0 {
		return nil, nil
	}
	// The high word scaled to [0, total) without a division's bias that would matter.
	at := int(uint64(high) * uint64(total) >> 32)
	for i := range b.Targets {
		t := &b.Targets[i]
		if t.Weight <= 0 || t.ready(not) == 0 {
			continue
		}
		if at -= t.Weight; at < 0 {
			return t, pick(t)
		}
	}
	panic("BUG: weights changed while a target was picked")
}

// Ready reports whether any revision with a share of the traffic has an endpoint.
func (b *Backend) Ready() bool {
	return slices.ContainsFunc(b.Targets, func(t Target) bool {
		return t.Weight > 0 && len(t.Endpoints) > 0
	})
}

func (t *Target) holds(e *Endpoint) bool {
	for i := range t.Endpoints {
		if &t.Endpoints[i] == e {
			return true
		}
	}
	return false
}

func (t *Target) ready(not *Endpoint) int {
	n := len(t.Endpoints)
	if not != nil && t.holds(not) {
		n--
	}
	return n
}

func (t *Target) pick(rnd uint32, load func(*Endpoint) int64, not *Endpoint) *Endpoint {
	n := t.ready(not)
	if n == 0 {
		return nil
	}
	if n == 1 && not == nil {
		return &t.Endpoints[0]
	}
	first := t.at(int(uint64(rnd&0xffff)*uint64(n)>>16), not)
	if n == 1 || load == nil {
		return first
	}
	i := int(uint64(rnd&0xffff) * uint64(n) >> 16)
	step := 1 + int(uint64(rnd>>16)*uint64(n-1)>>16)
	second := t.at((i+step)%n, not)
	if load(second) < load(first) {
		return second
	}
	return first
}

// at returns the i-th endpoint, not counted the excluded one.
func (t *Target) at(i int, not *Endpoint) *Endpoint {
	for j := range t.Endpoints {
		if e := &t.Endpoints[j]; e != not {
			if i == 0 {
				return e
			}
			i--
		}
	}
	panic("BUG: endpoint index out of range")
}
