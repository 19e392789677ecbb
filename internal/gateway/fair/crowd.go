package fair

import "container/list"

// Key says whose a request is.
type Key struct {
	Namespace, Service string
	Flow               Flow
}

// levels are those at which places are shared, the outermost first.
const levels = 3

func (k Key) at(level int) string {
	switch level {
	case 0:
		return k.Namespace
	case 1:
		return k.Service
	}
	return string([]byte{byte(k.Flow)})
}

// Crowd is the requests that wait, for whatever reason, in a bounded number of places. While there
// is room everybody gets in, and one alone may take all. When all is taken the newcomer is refused,
// or in its stead the newest of whoever has most, if that is still more than the newcomer's would
// have with it: first of namespaces, then of the services within one, then of the flows within one
// of those. So each has what it asks for up to an even part, and what some leave is for the others
// (max-min fairness): a namespace that stays within its part of the places, of as many as there are
// namespaces with requests, is never refused, nor one of its requests sent away.
//
// H is what the caller keeps of a request. The zero Crowd has no places; use NewCrowd.
type Crowd[H any] struct {
	most, used int
	root       node[H]
}

// NewCrowd returns a crowd of so many places.
func NewCrowd[H any](most int) *Crowd[H] { return &Crowd[H]{most: most} }

// Place is what a request has of the places.
type Place[H any] struct {
	Holder H
	key    Key
	cost   int
	at     *list.Element // nil when it has none any more
}

// node is what a namespace, a service or a flow has.
type node[H any] struct {
	load int
	kids map[string]*node[H]
	// waiting are the places of a flow, the newest last.
	waiting list.List
}

// Used is how many places are taken.
func (c *Crowd[H]) Used() int { return c.used }

// Enter gives a request places, cost of them and 1 at least, and returns whom it sends away for
// that: their places are taken from them already. It returns nil, and nothing has changed, where the
// request is refused itself. The time that it takes when all is taken grows with the number of
// namespaces, and of the services of one.
func (c *Crowd[H]) Enter(k Key, cost int, h H) (*Place[H], []H) {
	cost = max(cost, 1)
	var out []*Place[H]
	for c.used+cost > c.most {
		v := c.over(k, cost)
		if v == nil {
			for i := len(out) - 1; i >= 0; i-- {
				c.put(out[i])
			}
			return nil, nil
		}
		c.Leave(v)
		out = append(out, v)
	}
	p := &Place[H]{Holder: h, key: k, cost: cost}
	c.put(p)
	var holders []H
	for _, v := range out {
		holders = append(holders, v.Holder)
	}
	return p, holders
}

func (c *Crowd[H]) put(p *Place[H]) {
	n := &c.root
	c.used += p.cost
	for level := range levels {
		name := p.key.at(level)
		kid := n.kids[name]
		if kid == nil {
			if n.kids == nil {
				n.kids = map[string]*node[H]{}
			}
			kid = &node[H]{}
			n.kids[name] = kid
		}
		n = kid
		n.load += p.cost
	}
	p.at = n.waiting.PushBack(p)
}

// Leave gives a request's places back; one that has none any more changes nothing.
func (c *Crowd[H]) Leave(p *Place[H]) {
	if p.at == nil {
		return
	}
	c.used -= p.cost
	n := &c.root
	for level := range levels {
		name := p.key.at(level)
		kid := n.kids[name]
		if kid.load -= p.cost; kid.load == 0 {
			delete(n.kids, name)
		}
		n = kid
	}
	n.waiting.Remove(p.at)
	p.at = nil
}

// over returns the newest request of those that have more than the newcomer's would have with it;
// nil where nobody has.
func (c *Crowd[H]) over(k Key, cost int) *Place[H] {
	n, own := &c.root, true
	for level := range levels {
		heaviest := n.heaviest()
		if heaviest == nil {
			return nil
		}
		if own {
			mine, load := n.kids[k.at(level)], cost
			if mine != nil {
				load += mine.load
			}
			if load >= heaviest.load {
				if mine == nil {
					return nil
				}
				n = mine
				continue
			}
			own = false
		}
		n = heaviest
	}
	if own {
		return nil
	}
	p, _ := n.waiting.Back().Value.(*Place[H])
	return p
}

// heaviest is the one within n that has most; of equals, the one whose name comes first.
func (n *node[H]) heaviest() *node[H] {
	var most *node[H]
	var of string
	for name, kid := range n.kids {
		if most == nil || kid.load > most.load || kid.load == most.load && name < of {
			most, of = kid, name
		}
	}
	return most
}
