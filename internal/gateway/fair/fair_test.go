package fair

import (
	"hash/maphash"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestAFlowIsOfACredentialElseOfANetwork(t *testing.T) {
	seed := maphash.MakeSeed()
	same := func(what string, a, b Flow, want bool) {
		t.Helper()
		if (a == b) != want {
			t.Errorf("%s: %d and %d", what, a, b)
		}
	}
	of := func(credential, address string) Flow { return FlowOf(seed, credential, address) }
	same("one credential from two places", of("Bearer x", "10.0.0.1:1"), of("Bearer x", "10.0.0.2:1"), true)
	same("two ports of a host", of("", "10.0.0.1:1"), of("", "10.0.0.1:2"), true)
	same("an address with and without port", of("", "10.0.0.1:1"), of("", "10.0.0.1"), true)
	same("a host over IPv4 and as IPv4 in IPv6", of("", "10.0.0.1:1"), of("", "[::ffff:10.0.0.1]:9"), true)
	same("two addresses of a network", of("", "[2001:db8::1]:1"), of("", "[2001:db8::ffff:2]:2"), true)
	different := 0
	for i := range 256 {
		if of("Bearer "+string(rune('a'+i)), "") != of("Bearer x", "") {
			different++
		}
	}
	if different < 240 { // one in 256 is the same by chance
		t.Errorf("%d of 256 credentials have flows of their own", different)
	}
}

// load is what each namespace has.
func (c *Crowd[H]) loads() map[string]int {
	out := map[string]int{}
	for name, n := range c.root.kids {
		out[name] = n.load
	}
	return out
}

func drawKey(t *rapid.T) Key {
	return Key{
		Namespace: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "namespace"),
		Service:   rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "service"),
		Flow:      Flow(rapid.IntRange(0, 3).Draw(t, "flow")),
	}
}

// Whoever comes and goes: the places are never more than there are; a namespace within its even part
// is never refused and loses nobody; the same holds of the services of a namespace that is at its
// part, and of the flows of such a service; and who is refused changes nothing.
func TestPlacesAreSharedByMaxMin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 40).Draw(t, "places")
		c := NewCrowd[int](most)
		in := map[int]*Place[int]{}
		for id := range rapid.IntRange(1, 120).Draw(t, "steps") {
			if len(in) > 0 && rapid.IntRange(0, 3).Draw(t, "leave") == 0 {
				ids := []int{}
				for have := range in {
					ids = append(ids, have)
				}
				slices.Sort(ids)
				who := rapid.SampledFrom(ids).Draw(t, "who")
				c.Leave(in[who])
				c.Leave(in[who]) // again changes nothing
				delete(in, who)
			}
			k, cost := drawKey(t), rapid.IntRange(1, 5).Draw(t, "cost")
			before, used := c.loads(), c.Used()
			part := func(loads map[string]int, mine string) int {
				n := len(loads)
				if loads[mine] == 0 {
					n++
				}
				return n
			}
			n := part(before, k.Namespace)
			p, out := c.Enter(k, cost, id)
			switch {
			case p == nil && (len(out) > 0 || c.Used() != used):
				t.Fatalf("a refused one changed the crowd: %v after %v", c.loads(), before)
			case p == nil && n*(before[k.Namespace]+cost) <= most:
				t.Fatalf("%s has %d of %d places, of %d namespaces, and can't have %d more", k.Namespace, before[k.Namespace], most, n, cost)
			case p == nil && used+cost <= most:
				t.Fatalf("refused though %d of %d places are free", most-used, most)
			case p != nil:
				in[id] = p
			}
			lost := map[string]int{}
			for _, who := range out {
				v := in[who]
				delete(in, who)
				lost[v.key.Namespace] += v.cost
				if v.at != nil {
					t.Fatalf("%d was sent away and has its place", who)
				}
				if v.key.Namespace != k.Namespace && n*(before[v.key.Namespace]) <= most {
					t.Fatalf("%s had %d of %d places, of %d namespaces, and lost one to %s", v.key.Namespace, before[v.key.Namespace], most, n, k.Namespace)
				}
				if v.key == k {
					t.Fatalf("%v lost one to itself", k)
				}
			}
			sum := 0
			for _, p := range in {
				sum += p.cost
			}
			if c.Used() != sum || sum > most {
				t.Fatalf("%d places are said to be taken, %d are, of %d", c.Used(), sum, most)
			}
		}
		for _, p := range in {
			c.Leave(p)
		}
		if c.Used() != 0 || len(c.root.kids) != 0 {
			t.Fatalf("after all left: %d, %v", c.Used(), c.loads())
		}
	})
}

func TestAStampedeLeavesToOthersWhatTheyNeed(t *testing.T) {
	c := NewCrowd[string](100)
	hot := Key{Namespace: "hot", Service: "x"}
	for range 100 {
		if p, _ := c.Enter(hot, 1, "hot"); p == nil {
			t.Fatal("refused though there is room")
		}
	}
	if p, _ := c.Enter(hot, 1, "more"); p != nil {
		t.Error("one more of the same took a place")
	}
	sent := 0
	for i := range 80 {
		p, out := c.Enter(Key{Namespace: "calm", Service: "y"}, 1, "calm")
		sent += len(out)
		if (p != nil) != (i < 50) {
			t.Fatalf("request %d of another namespace: %v", i, p != nil)
		}
	}
	// Within the namespace another service gets its part, and within the service another caller.
	for i := range 40 {
		if p, _ := c.Enter(Key{Namespace: "calm", Service: "z"}, 1, "calm"); (p != nil) != (i < 25) {
			t.Fatalf("request %d of another service: %v", i, p != nil)
		}
	}
	for i := range 40 {
		if p, _ := c.Enter(Key{Namespace: "hot", Service: "x", Flow: 1}, 1, "other"); (p != nil) != (i < 25) {
			t.Fatalf("request %d of another caller: %v", i, p != nil)
		}
	}
	if sent != 50 {
		t.Errorf("%d of the hot namespace were sent away", sent)
	}
}

func TestFlowsTakeTurns(t *testing.T) {
	var l Line[string]
	for _, v := range []string{"a1", "a2", "a3", "a4"} {
		l.Push(1, v)
	}
	l.Push(2, "b1")
	b2 := l.Push(2, "b2")
	l.Push(3, "c1")
	var got []string
	for l.Len() > 0 {
		i := l.Pop()
		if i.Value == "b1" && got[len(got)-1] != "b1" { // its turn brings it nothing, once
			l.Return(i)
		}
		got = append(got, i.Value)
		if i.Value == "c1" {
			l.Remove(b2)
			l.Remove(b2)
		}
	}
	if want := []string{"a1", "b1", "b1", "c1", "a2", "a3", "a4"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if l.Front() != nil || l.Pop() != nil || len(l.flows) != 0 || l.order.Len() != 0 {
		t.Error("the empty line isn't empty")
	}
}

// model is a Line in the plainest words: who waits by flow, and the order of flows.
type model struct {
	waiting map[Flow][]int
	order   []Flow
}

func (m *model) push(f Flow, v int, front bool) {
	if len(m.waiting[f]) == 0 {
		m.order = append(m.order, f)
	}
	if front {
		m.waiting[f] = append([]int{v}, m.waiting[f]...)
		m.order = slices.DeleteFunc(m.order, func(o Flow) bool { return o == f })
		m.order = append([]Flow{f}, m.order...)
		return
	}
	m.waiting[f] = append(m.waiting[f], v)
}

func (m *model) remove(f Flow, v int) {
	m.waiting[f] = slices.DeleteFunc(m.waiting[f], func(o int) bool { return o == v })
	if len(m.waiting[f]) == 0 {
		m.order = slices.DeleteFunc(m.order, func(o Flow) bool { return o == f })
	}
}

func (m *model) pop() int {
	if len(m.order) == 0 {
		return -1
	}
	f := m.order[0]
	m.order = append(m.order[1:], f)
	v := m.waiting[f][0]
	m.remove(f, v)
	return v
}

// FuzzLine plays a program of operations, two bytes each, on a Line and on its model.
func FuzzLine(f *testing.F) {
	f.Add([]byte{0, 1, 0, 1, 0, 2, 1, 0, 2, 0, 3, 1, 1, 0})
	f.Add([]byte{0, 1, 1, 0, 2, 0, 0, 2, 3, 0, 1, 0, 1, 0})
	f.Fuzz(func(t *testing.T, program []byte) {
		var l Line[int]
		m := model{waiting: map[Flow][]int{}}
		var all []*Item[int]
		var popped *Item[int]
		for len(program) >= 2 {
			op, arg := program[0]%4, program[1]
			program = program[2:]
			switch op {
			case 0:
				m.push(Flow(arg%5), len(all), false)
				all = append(all, l.Push(Flow(arg%5), len(all)))
			case 1:
				want := m.pop()
				popped = l.Pop()
				if got := -1; popped == nil && want != got || popped != nil && popped.Value != want {
					t.Fatalf("popped %v, want %d", popped, want)
				}
			case 2:
				if popped != nil {
					if !popped.Waits() {
						m.push(popped.flow, popped.Value, true)
					}
					l.Return(popped)
				}
			case 3:
				if len(all) > 0 {
					i := all[int(arg)%len(all)]
					if i.Waits() {
						m.remove(i.flow, i.Value)
					}
					l.Remove(i)
				}
			}
			n := 0
			for _, w := range m.waiting {
				n += len(w)
			}
			if l.Len() != n || len(l.flows) != len(m.order) {
				t.Fatalf("%d wait in %d flows, want %d in %d", l.Len(), len(l.flows), n, len(m.order))
			}
		}
	})
}

// FuzzCrowd plays a program of operations, two bytes each, and looks whether the books are right.
func FuzzCrowd(f *testing.F) {
	f.Add(uint8(10), []byte{0, 1, 0, 1, 0, 2, 1, 0, 64, 0, 3, 1, 1, 0})
	f.Fuzz(func(t *testing.T, most uint8, program []byte) {
		c := NewCrowd[int](int(most))
		var all []*Place[int]
		for len(program) >= 2 {
			op, arg := program[0], program[1]
			program = program[2:]
			if op%3 == 0 && len(all) > 0 {
				c.Leave(all[int(arg)%len(all)])
				continue
			}
			k := Key{Namespace: string(rune('a' + arg%4)), Service: string(rune('a' + arg/4%4)), Flow: Flow(arg / 16 % 4)}
			p, out := c.Enter(k, int(op/3), len(all))
			for _, who := range out {
				if all[who].at != nil {
					t.Fatalf("%d was sent away and stays", who)
				}
			}
			if p != nil {
				all = append(all, p)
			}
			sum, waits := 0, 0
			for _, p := range all {
				if p.at != nil {
					sum, waits = sum+p.cost, waits+1
				}
			}
			loads := 0
			for _, n := range c.loads() {
				loads += n
			}
			if sum != c.Used() || sum != loads || sum > int(most) || (waits == 0) != (len(c.root.kids) == 0) {
				t.Fatalf("%d places of %d are taken, %d by count, %d by namespaces", c.Used(), most, sum, loads)
			}
		}
	})
}
