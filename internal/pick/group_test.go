package pick

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestTokensInFlightAreGivenBack(t *testing.T) {
	tests := map[string]struct {
		asked    int64
		streamed []int64
		// during is what is left then.
		during   int64
		produced int64
	}{
		"before anything came":              {100, nil, 1100, 0},
		"the prompt with the first token":   {100, []int64{1}, 99, 1},
		"token for token":                   {100, []int64{1, 1, 3}, 95, 5},
		"all of it":                         {100, []int64{60, 40}, 0, 100},
		"more than was expected":            {100, []int64{500}, 0, 500},
		"no more than answers have, mostly": {100_000, nil, 1000 + firstOutput, 0},
		"where nothing is said":             {0, []int64{1}, firstOutput - 1, 7},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewGroup(parsed(t, "least-tokens"))
			of := g.Keep(1, few)
			_, c := g.Pick(of, &Ask{Size: 4000, Output: tc.asked}, -1, 1, noon)
			for _, n := range tc.streamed {
				c.Streamed(n)
			}
			if got := of[0].Tokens(); got != tc.during || of[0].Requests() != 1 {
				t.Errorf("%d tokens and %d requests in flight, want %d and 1", got, of[0].Requests(), tc.during)
			}
			c.Release(Answered, tc.produced, 1, noon)
			c.Release(Answered, tc.produced, 1, noon) // of no effect
			c.Streamed(1)
			if of[0].Tokens() != 0 || of[0].Requests() != 0 {
				t.Errorf("%d tokens and %d requests are left", of[0].Tokens(), of[0].Requests())
			}
		})
	}
}

func few(i int) Name { return Name{ID: string(rune('a' + i))} }

func TestAnswersTeachHowLongAnswersAre(t *testing.T) {
	g := NewGroup(parsed(t, "least-tokens"))
	of := g.Keep(1, few)
	for range 200 {
		_, c := g.Pick(of, &Ask{}, -1, 1, noon)
		c.Release(Answered, 10, 1, noon)
	}
	_, c := g.Pick(of, &Ask{}, -1, 1, noon)
	defer c.Release(Unknown, 0, 1, noon)
	if got := of[0].Tokens(); got < 9 || got > 12 {
		t.Errorf("an answer is taken to have %d tokens, and all had 10", got)
	}
}

// A conversation stays where its beginning is, and conversations are spread.
func TestConversationsStayWhereTheyBegan(t *testing.T) {
	g := NewGroup(ForLanguage())
	of := g.Keep(8, few)
	home := map[int]int{}
	var got [8]int
	now := noon
	r := rand.New(rand.NewPCG(1, 1))
	for turn := range 6 {
		for talk := range 40 {
			ask := Ask{Blocks: hashesOf(promptOf(uint64(talk+1), 3000+turn*600)), Size: 3000 + turn*600, Output: 100}
			i, c := g.Pick(of, &ask, -1, r.Uint64(), now)
			if was, ok := home[talk]; ok && was != i {
				t.Errorf("turn %d of conversation %d went to %d, not to %d", turn, talk, i, was)
			}
			home[talk] = i
			got[i]++
			c.Release(Answered, 100, 1, now)
			now = now.Add(time.Second)
		}
	}
	for i, n := range got {
		if n == 0 {
			t.Errorf("replica %d got nothing: %v", i, got)
		}
	}
}

// One prompt that all share doesn't make one replica hot.
func TestASharedBeginningIsSpread(t *testing.T) {
	g := NewGroup(ForLanguage())
	of := g.Keep(8, few)
	shared := promptOf(0, 24_000)
	r := rand.New(rand.NewPCG(1, 1))
	var open []Charge
	most := 0.
	for i := range 4000 {
		ask := Ask{Blocks: hashesOf(append(shared[:24_000:24_000], promptOf(uint64(i+1), 4800)...)), Size: 28_800, Output: 200}
		_, c := g.Pick(of, &ask, -1, r.Uint64(), noon)
		open = append(open, c)
		if len(open) > 128 {
			at := r.IntN(len(open))
			open[at].Release(Answered, 200, 1, noon)
			open[at] = open[len(open)-1]
			open = open[:len(open)-1]
		}
		if i > 300 {
			total, top := int64(0), int64(0)
			for _, r := range of {
				total += r.Requests()
				top = max(top, r.Requests())
			}
			most = max(most, float64(top)*8/float64(total))
		}
	}
	if most > 1.05*DefaultBound {
		t.Errorf("the fullest replica had %.2f times the mean", most)
	}
}

func TestWhatOthersSendIsSeenInSamples(t *testing.T) {
	g := NewGroup(parsed(t, "least-tokens"))
	of := g.Keep(2, few)
	g.Told(of[0], Sample{At: noon, Running: 5})
	for range 20 {
		i, c := g.Pick(of, &Ask{Size: 400, Output: 10}, -1, rand.Uint64(), noon.Add(time.Second))
		if c.Release(Answered, 10, 1, noon); i != 1 {
			t.Fatal("the replica was chosen that has five requests of others")
		}
	}
	seen := map[int]bool{}
	for range 100 {
		i, c := g.Pick(of, &Ask{Size: 400, Output: 10}, -1, rand.Uint64(), noon.Add(stale))
		c.Release(Answered, 10, 1, noon)
		seen[i] = true
	}
	if len(seen) != 2 {
		t.Error("an old sample still counts")
	}
}

func TestAnAdapterStaysWhereItIsLoaded(t *testing.T) {
	g := NewGroup(parsed(t, "lora, least-requests=0.1"))
	of := g.Keep(4, few)
	ask := Ask{Adapter: Hash("sql")}
	first, c := g.Pick(of, &ask, -1, 1, noon)
	c.Release(Answered, 0, 1, noon)
	for range 30 {
		i, c := g.Pick(of, &ask, -1, rand.Uint64(), noon)
		if c.Release(Answered, 0, 1, noon); i != first {
			t.Fatalf("it went to %d, then to %d", first, i)
		}
	}
	// Engines know better.
	full := Sample{At: noon, Adapters: []string{"a", "b"}, MaxAdapters: 2}
	g.Told(of[first], full)
	other := (first + 1) % 4
	g.Told(of[other], Sample{At: noon, Adapters: []string{"sql"}, MaxAdapters: 2})
	for range 30 {
		i, c := g.Pick(of, &ask, -1, rand.Uint64(), noon)
		if c.Release(Answered, 0, 1, noon); i != other {
			t.Fatalf("it went to %d, and %d has it", i, other)
		}
	}
}

// ends makes a request at a replica end in a way.
func ends(g *Group, r *Replica, o Outcome, times int, now time.Time) {
	for range times {
		c := g.Take(r, &Ask{}, now)
		c.Release(o, 0, 0, now)
	}
}

// chosen are the replicas that requests go to, none of which is known to end.
func chosen(g *Group, of []*Replica, now time.Time) map[int]bool {
	got := map[int]bool{}
	for range 100 {
		i, c := g.Pick(of, &Ask{}, -1, rand.Uint64(), now)
		c.Release(Unknown, 0, 0, now)
		got[i] = true
	}
	return got
}

func TestAReplicaThatFailsIsEjectedAndLetBackIn(t *testing.T) {
	for name, tc := range map[string]struct {
		outcome Outcome
		times   int
	}{
		"that can't be reached, at once":    {Unreached, 1},
		"that answers with errors, in time": {Failed, tolerated},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewGroup(ForTensors())
			of := g.Keep(4, few)
			ends(g, of[0], tc.outcome, tc.times-1, noon)
			if got := chosen(g, of, noon); !got[0] {
				t.Fatalf("ejected before its time: %v", got)
			}
			ends(g, of[0], tc.outcome, tc.times, noon)
			if got := chosen(g, of, noon.Add(firstEjection-1)); got[0] || len(got) != 3 {
				t.Fatalf("%v are chosen", got)
			}
			due := noon.Add(firstEjection)
			i, probe := g.Pick(of, &Ask{}, -1, rand.Uint64(), due)
			if i != 0 {
				t.Fatalf("no request tries it when it is time: %d got it", i)
			}
			if got := chosen(g, of, due); got[0] {
				t.Fatal("a second request tries it at the same time")
			}
			probe.Release(tc.outcome, 0, 0, due)
			if got := chosen(g, of, due.Add(2*firstEjection-1)); got[0] {
				t.Fatal("it isn't out for longer the second time")
			}
			due = due.Add(2 * firstEjection)
			i, probe = g.Pick(of, &Ask{}, -1, rand.Uint64(), due)
			if i != 0 {
				t.Fatal("no request tries it again")
			}
			probe.Release(Unknown, 0, 0, due) // the client went away
			if i, probe = g.Pick(of, &Ask{}, -1, rand.Uint64(), due); i != 0 {
				t.Fatal("a request that told nothing used up the try")
			}
			probe.Release(Answered, 0, 0, due)
			if got := chosen(g, of, due); !got[0] || len(got) != 4 {
				t.Fatalf("it isn't let back in: %v", got)
			}
			ends(g, of[0], tc.outcome, tc.times-1, due)
			if got := chosen(g, of, due); !got[0] {
				t.Fatal("what was before it was let in still counts")
			}
		})
	}
}

func TestAnAnswerBetweenFailuresMakesThemForgotten(t *testing.T) {
	g := NewGroup(ForTensors())
	of := g.Keep(2, few)
	for range 10 {
		ends(g, of[0], Failed, tolerated-1, noon)
		ends(g, of[0], Answered, 1, noon)
	}
	if got := chosen(g, of, noon); !got[0] {
		t.Error("ejected")
	}
}

func TestTheLastOnesAreNeverEjected(t *testing.T) {
	for n := 1; n <= 7; n++ {
		for _, o := range []Outcome{Failed, Unreached} {
			g := NewGroup(ForTensors())
			of := g.Keep(n, few)
			for i := range of {
				ends(g, of[i], o, tolerated, noon)
				if got := chosen(g, of, noon); len(got) == 0 || got[-1] {
					t.Fatalf("nobody of %d is left", n)
				} else if o == Failed && 2*len(got) < n {
					t.Fatalf("%v are left of %d that answer", got, n)
				}
			}
		}
	}
}

func TestARetryIsNoTry(t *testing.T) {
	g := NewGroup(ForTensors())
	of := g.Keep(3, few)
	ends(g, of[0], Unreached, 1, noon)
	i, c := g.Pick(of, &Ask{}, 1, rand.Uint64(), noon.Add(time.Hour))
	if c.Release(Answered, 0, 0, noon); i != 2 {
		t.Errorf("%d got what 1 couldn't do, and 0 may be out still", i)
	}
}

func TestPickingAllocatesNothing(t *testing.T) {
	for _, text := range []string{"prefix=3, least-tokens, kv-cache, queue", "session", "lora", "round-robin"} {
		g := NewGroup(parsed(t, text))
		of := g.Keep(100, name)
		ask := Ask{Blocks: hashesOf(promptOf(1, 5000)), Size: 5000, Output: 10, Session: 7, Adapter: 9}
		g.Pick(of, &ask, -1, 1, noon)
		if n := testing.AllocsPerRun(200, func() {
			_, c := g.Pick(of, &ask, -1, rand.Uint64(), noon)
			c.Release(Answered, 1, 1, noon)
		}); n > 0 {
			t.Errorf("%s: %v allocations", text, n)
		}
	}
}

func TestAPolicyChangesWhileRequestsAreUnderWay(t *testing.T) {
	g := NewGroup(parsed(t, "round-robin"))
	of := g.Keep(3, few)
	ask := Ask{Blocks: hashesOf(promptOf(1, 1000)), Size: 1000}
	_, c := g.Pick(of, &ask, -1, 1, noon)
	for _, text := range []string{"prefix", "least-tokens", "prefix, lora", "round-robin"} {
		g.SetPolicy(parsed(t, text))
		of = g.Keep(3, few)
		i, d := g.Pick(of, &ask, -1, 1, noon)
		if i < 0 {
			t.Fatal("nobody")
		}
		d.Release(Answered, 3, 1, noon)
	}
	c.Release(Answered, 3, 1, noon)
	for _, r := range of {
		if r.Tokens() != 0 || r.Requests() != 0 {
			t.Errorf("%d tokens and %d requests are left", r.Tokens(), r.Requests())
		}
	}
}

// A sample is of a moment when more was under way here than is now.
func TestOwnRequestsAreNotTakenForThoseOfOthers(t *testing.T) {
	g := NewGroup(parsed(t, "least-requests"))
	of := g.Keep(2, few)
	for range 6 {
		c := g.Take(of[0], &Ask{}, noon)
		defer c.Release(Answered, 0, 0, noon)
	}
	ended := g.Take(of[0], &Ask{}, noon)
	ended.Release(Answered, 0, 0, noon)
	g.Told(of[0], Sample{At: noon, KVUse: -1, Running: 7})
	if of[0].others != 0 {
		t.Errorf("%v requests are taken to be of others", of[0].others)
	}
	g.Told(of[0], Sample{At: noon.Add(time.Second), KVUse: -1, Running: 7, Waiting: 2})
	if of[0].others != 3 {
		t.Errorf("%v requests are taken to be of others, want 3", of[0].others)
	}
	g.Told(of[0], Sample{At: noon.Add(time.Second), KVUse: -1, Running: 99})
	if of[0].others != 3 {
		t.Error("a sample was taken twice")
	}
}

func TestReplicasThatFailedTogetherAreTriedApart(t *testing.T) {
	for _, ejections := range []int{0, 1, 4, 60} {
		for _, rnd := range []uint64{0, 1 << 63, 1<<64 - 1} {
			h := health{ejections: ejections}
			h.note(Unreached, false, noon, rnd)
			d := min(firstEjection<<min(ejections, 10), maxEjection)
			if out := h.until.Sub(noon); out < d || out > d+d/5 {
				t.Errorf("out for %v after %d times, want %v and up to a fifth more", out, ejections, d)
			}
		}
	}
}

// What a replica has of a prompt isn't counted as work for it, nor against it.
func TestWhatIsCachedIsNoWork(t *testing.T) {
	g := NewGroup(ForLanguage())
	of := g.Keep(2, few)
	var b Blocks
	b.Begin("")
	_, _ = b.Write(make([]byte, 40_000))
	ask := Ask{Blocks: b.Hashes(), Size: 40_000, Output: 100}
	at, c := g.Pick(of, &ask, -1, 1, noon)
	if got := of[at].Tokens(); got != 10_100 {
		t.Fatalf("a new prompt counts for %d tokens, want all 10,000 and the answer's 100", got)
	}
	c.Streamed(1)
	again, second := g.Pick(of, &ask, -1, 2, noon)
	if got := of[at].Tokens(); again != at || got < 199 || got > 199+10_000/8 {
		t.Errorf("the same prompt counts for %d tokens at %d, want little more than the answers' 199 at %d", got, again, at)
	}
	c.Release(Answered, 100, 1, noon)
	second.Release(Answered, 100, 1, noon)
	if of[0].Tokens() != 0 || of[1].Tokens() != 0 {
		t.Error("tokens are left")
	}
}
