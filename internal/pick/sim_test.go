package pick

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The simulation of a fleet has the shape of figures published of vLLM and of simulators of it: a
// replica reads prompts one after another, at 0.3 ms for each token that isn't in its cache, and
// makes the tokens of up to 16 answers together, 12 ms for each, and more the more there are. Its
// cache has room for so many tokens, and forgets what was out of use for longest.
const (
	perPromptToken = 300 * time.Microsecond
	perToken       = 12 * time.Millisecond
	slots          = 16
)

type engineSim struct {
	cache map[uint64]int64 // block → last use
	tick  int64
	// room is for how many blocks of 512 bytes.
	room    int
	waiting []*requestSim
	running int
	reading bool
	// served are the requests that came here, in all.
	served int
}

type requestSim struct {
	ask    Ask
	blocks []uint64
	output int
	came   time.Duration
	charge Charge
	at     int
	then   func(now time.Duration)
}

type event struct {
	at time.Duration
	n  int
	do func(now time.Duration)
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

type fleetSim struct {
	events  events
	n       int
	engines []*engineSim
	group   *Group
	of      []*Replica
	rnd     *rand.Rand
	firsts  []float64 // seconds to the first token
	tokens  int
	last    time.Duration
	imbalance,
	looks float64
}

func newFleetSim(policy Policy, replicas, room int) *fleetSim {
	f := &fleetSim{group: NewGroup(policy), rnd: rand.New(rand.NewPCG(1, 2))}
	f.of = f.group.Keep(replicas, name)
	for range replicas {
		f.engines = append(f.engines, &engineSim{cache: map[uint64]int64{}, room: room})
	}
	return f
}

func (f *fleetSim) after(now, d time.Duration, do func(time.Duration)) {
	f.n++
	heap.Push(&f.events, event{now + d, f.n, do})
}

func (f *fleetSim) run() {
	for len(f.events) > 0 {
		e := heap.Pop(&f.events).(event)
		e.do(e.at)
	}
}

// come has a request picked a replica for and wait there.
func (f *fleetSim) come(now time.Duration, r *requestSim) {
	r.came = now
	r.at, r.charge = f.group.Pick(f.of, &r.ask, -1, f.rnd.Uint64(), noon.Add(now))
	e := f.engines[r.at]
	e.served++
	e.waiting = append(e.waiting, r)
	total, most := int64(0), int64(0)
	for _, r := range f.of {
		total += r.Requests()
		most = max(most, r.Requests())
	}
	if total >= int64(4*len(f.of)) {
		f.looks++
		f.imbalance += float64(most) * float64(len(f.of)) / float64(total)
	}
	f.read(now, e)
}

// read has a replica read the prompt that is next.
func (f *fleetSim) read(now time.Duration, e *engineSim) {
	if e.reading || len(e.waiting) == 0 || e.running >= slots {
		return
	}
	r := e.waiting[0]
	e.waiting = e.waiting[1:]
	e.reading, e.running = true, e.running+1
	missed := 0
	known := true
	for _, b := range r.blocks {
		if _, ok := e.cache[b]; !ok || !known {
			missed, known = missed+1, false
		}
		e.tick++
		e.cache[b] = e.tick
	}
	for len(e.cache) > e.room { // in lots, for it is dear
		uses := make([]int64, 0, len(e.cache))
		for _, u := range e.cache {
			uses = append(uses, u)
		}
		slices.Sort(uses)
		for b, u := range e.cache {
			if u <= uses[e.room/8] {
				delete(e.cache, b)
			}
		}
	}
	f.after(now, 5*time.Millisecond+time.Duration(missed)*128*perPromptToken, func(now time.Duration) {
		e.reading = false
		f.firsts = append(f.firsts, (now - r.came).Seconds())
		r.charge.Streamed(1)
		f.token(now, e, r, 1)
		f.read(now, e)
	})
}

// token makes the next tokens of an answer, some at a time.
func (f *fleetSim) token(now time.Duration, e *engineSim, r *requestSim, made int) {
	if made >= r.output {
		e.running--
		f.tokens += made
		f.last = now
		r.charge.Release(Answered, int64(made), f.rnd.Uint64(), noon.Add(now))
		f.read(now, e)
		if r.then != nil {
			r.then(now)
		}
		return
	}
	n := min(10, r.output-made)
	step := time.Duration(float64(n) * float64(perToken) * (1 + float64(e.running)/slots))
	f.after(now, step, func(now time.Duration) {
		r.charge.Streamed(int64(n))
		f.token(now, e, r, made+n)
	})
}

// promptSim is a prompt as a list of pieces of 512 bytes, told by numbers.
func promptSim(pieces []uint64, output int) *requestSim {
	var b Blocks
	b.Begin("")
	var piece [512]byte
	r := &requestSim{output: output}
	sum := uint64(14695981039346656037)
	for _, p := range pieces {
		for i := range piece {
			piece[i] = byte(p >> (i % 8 * 8))
		}
		_, _ = b.Write(piece[:])
		sum = mix(sum ^ p)
		r.blocks = append(r.blocks, sum)
	}
	r.ask = Ask{Blocks: slices.Clone(b.Hashes()), Size: b.Size(), Output: int64(output)}
	return r
}

func pieces(seed uint64, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = mix(seed<<20 + uint64(i) + 1)
	}
	return out
}

type load func(f *fleetSim)

// talks are conversations: a system prompt that groups of them share, and turns, each with all that
// came before. People think between turns.
func talks(conversations, groups, turns int, every time.Duration) load {
	return func(f *fleetSim) {
		r := rand.New(rand.NewPCG(3, 4))
		for i := range conversations {
			history := pieces(uint64(i%groups+1), 24) // 12 KB, 3,000 tokens
			var turn func(now time.Duration, n int)
			turn = func(now time.Duration, n int) {
				history = append(history, pieces(uint64(10_000+i*100+n), 3)...)
				req := promptSim(history, 60+r.IntN(120))
				if n+1 < turns {
					req.then = func(now time.Duration) {
						think := time.Duration(r.ExpFloat64() * float64(4*time.Second))
						f.after(now, think, func(now time.Duration) { turn(now, n+1) })
					}
				}
				f.come(now, req)
			}
			f.after(0, time.Duration(i)*every, func(now time.Duration) { turn(now, 0) })
		}
	}
}

// shared are single questions behind one of some long prompts.
func shared(requests, prompts, size int, every time.Duration) load {
	return func(f *fleetSim) {
		r := rand.New(rand.NewPCG(5, 6))
		now := time.Duration(0)
		for i := range requests {
			p := append(pieces(uint64(r.IntN(prompts)+1), size), pieces(uint64(20_000+i), 6)...)
			req := promptSim(p, 60+r.IntN(60))
			now += time.Duration(r.ExpFloat64() * float64(every))
			f.after(0, now, func(now time.Duration) { f.come(now, req) })
		}
	}
}

// result is of the times to the first token in seconds, of the tokens a second, and of how many times
// the mean the replica with the most requests had, on average while there were many, and got in all.
type result struct{ mean, p50, p99, rate, imbalance, spread float64 }

func (r result) String() string {
	return fmt.Sprintf("first token after %.2f s, p50 %.2f s, p99 %.2f s; %.0f tokens a second; %.2f times the mean at once, %.2f in all", r.mean, r.p50, r.p99, r.rate, r.imbalance, r.spread)
}

func simulate(policy Policy, room int, l load) result {
	f := newFleetSim(policy, 8, room)
	l(f)
	f.run()
	slices.Sort(f.firsts)
	sum, most := 0., 0
	for _, v := range f.firsts {
		sum += v
	}
	for _, e := range f.engines {
		most = max(most, e.served)
	}
	n := float64(len(f.firsts))
	return result{sum / n, f.firsts[len(f.firsts)/2], f.firsts[len(f.firsts)*99/100], float64(f.tokens) / f.last.Seconds(), f.imbalance / math.Max(f.looks, 1), float64(most) * 8 / n}
}

// What the policies are for, at once: prompts with common beginnings, of which one replica's cache has
// room for a part and those of all for all.
func TestPrefixesSpareWorkAndShareItOut(t *testing.T) {
	const room = 2000 // blocks of each replica; the prompts have 3,000 and 4,500 of their own
	for name, tc := range map[string]struct {
		load load
		// rate is how many times as many tokens a second there are at least: people think in between.
		rate float64
	}{
		"conversations":         {talks(300, 40, 6, 150*time.Millisecond), 1.1},
		"a few long beginnings": {shared(1500, 60, 47, 60*time.Millisecond), 2},
	} {
		t.Run(name, func(t *testing.T) {
			robin, least, ours := simulate(parsed(t, "round-robin"), room, tc.load), simulate(ForTensors(), room, tc.load), simulate(ForLanguage(), room, tc.load)
			t.Logf("round robin:    %v\nleast requests: %v\nthe default:    %v", robin, least, ours)
			if ours.mean*3 > min(robin.mean, least.mean) || ours.p99 > min(robin.p99, least.p99) {
				t.Error("the first token doesn't come three times as soon")
			}
			if ours.rate < tc.rate*max(robin.rate, least.rate) {
				t.Errorf("there aren't %v times as many tokens a second", tc.rate)
			}
			if ours.spread > 1.3 {
				t.Errorf("one replica got %.2f times the mean", ours.spread)
			}
		})
	}
}

func TestPrefixesCostNothingWhereThereAreNone(t *testing.T) {
	l := shared(1000, 1_000_000, 20, 150*time.Millisecond)
	least, ours := simulate(ForTensors(), 2000, l), simulate(ForLanguage(), 2000, l)
	t.Logf("least requests: %v\nthe default:    %v", least, ours)
	if ours.mean > 1.05*least.mean || ours.p99 > 1.05*least.p99 || ours.rate < .95*least.rate || ours.spread > 1.3 {
		t.Errorf("%v, and with least requests %v", ours, least)
	}
}
