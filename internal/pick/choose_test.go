package pick

import (
	"math/rand/v2"
	"testing"
)

// on are states with the loads given, of which nothing else is known.
func on(loads ...float64) []State {
	out := make([]State, len(loads))
	for i, l := range loads {
		out[i] = State{ID: Hash(string(rune('a' + i))), Requests: l, Tokens: 100 * l, KVUse: -1, Waiting: -1}
	}
	return out
}

func with(states []State, change func([]State)) []State {
	change(states)
	return states
}

func parsed(t testing.TB, text string) Policy {
	t.Helper()
	p, err := Parse(text, false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWhichReplicaIsChosen(t *testing.T) {
	tests := map[string]struct {
		policy string
		states []State
		want   Want
		turn   uint64
		choose []int
	}{
		"nobody to choose from":                    {"least-requests", nil, Want{}, 0, []int{-1}},
		"the only one":                             {"least-requests", on(7), Want{}, 0, []int{0}},
		"the least requests":                       {"least-requests", on(3, 1, 2), Want{}, 0, []int{1}},
		"any of the least":                         {"least-requests", on(3, 1, 1), Want{}, 0, []int{1, 2}},
		"any, where there is no load":              {"least-requests", on(0, 0, 0), Want{}, 0, []int{0, 1, 2}},
		"the least tokens, not requests":           {"least-tokens", with(on(1, 2), func(s []State) { s[0].Tokens = 900 }), Want{}, 0, []int{1}},
		"the one whose turn it is":                 {"round-robin", on(9, 0, 0), Want{}, 3, []int{0}},
		"the next one":                             {"round-robin", on(9, 0, 0), Want{}, 4, []int{1}},
		"but for one that is left out":             {"round-robin", with(on(0, 0, 0), func(s []State) { s[0].Skip = true }), Want{}, 4, []int{1}},
		"who has the prompt's beginning":           {"prefix", with(on(1, 1, 1), func(s []State) { s[2].Matched = .5 }), Want{Tokens: 100}, 0, []int{2}},
		"whoever has more of it":                   {"prefix", with(on(1, 1, 1), func(s []State) { s[1].Matched, s[2].Matched = .6, .5 }), Want{Tokens: 100}, 0, []int{1}},
		"not who has it and too much to do":        {"prefix, least-tokens", with(on(4, 1, 2), func(s []State) { s[0].Matched = 1 }), Want{Tokens: 100}, 0, []int{1}},
		"who has it while it has little to do":     {"prefix, least-tokens=0.1", with(on(1, 0, 0), func(s []State) { s[0].Matched = 1 }), Want{Tokens: 100}, 0, []int{0}},
		"the least load where all are over it":     {"prefix, bound=1.25", with(on(5, 4, 4.5), func(s []State) { s[0].Matched = 1 }), Want{Tokens: 300}, 0, []int{1}},
		"who told of free cache":                   {"kv-cache", with(on(0, 0), func(s []State) { s[0].KVUse, s[1].KVUse = .9, .1 }), Want{}, 0, []int{1}},
		"any, where nobody told":                   {"kv-cache", on(0, 5), Want{}, 0, []int{0, 1}},
		"who didn't tell counts as the mean":       {"kv-cache", with(on(0, 0, 0), func(s []State) { s[0].KVUse, s[1].KVUse = .9, .1 }), Want{}, 0, []int{1}},
		"who told of no queue":                     {"queue", with(on(0, 0), func(s []State) { s[0].Waiting, s[1].Waiting = 3, 0 }), Want{}, 0, []int{1}},
		"who has the adapter":                      {"lora", with(on(1, 0), func(s []State) { s[0].Adapter, s[1].Adapter = 1, .5 }), Want{Adapter: true}, 0, []int{0}},
		"any, where no adapter is asked for":       {"lora", with(on(1, 1), func(s []State) { s[0].Adapter = 1 }), Want{}, 0, []int{0, 1}},
		"not who was ejected":                      {"least-requests", with(on(0, 1, 1), func(s []State) { s[0].Health = Failing }), Want{}, 0, []int{1, 2}},
		"who fails, where most do":                 {"least-requests", with(on(0, 0, 1), func(s []State) { s[0].Health, s[1].Health = Failing, Failing }), Want{}, 0, []int{0, 1}},
		"not who can't be reached, even then":      {"least-requests", with(on(0, 0, 1, 1), func(s []State) { s[0].Health, s[1].Health, s[2].Health = Unreachable, Failing, Failing }), Want{}, 0, []int{1}},
		"one left, for the others aren't there":    {"least-requests", with(on(0, 0, 9), func(s []State) { s[0].Health, s[1].Health = Unreachable, Unreachable }), Want{}, 0, []int{2}},
		"who can't be reached, where nobody can":   {"least-requests", with(on(0, 1), func(s []State) { s[0].Health, s[1].Health = Unreachable, Unreachable }), Want{}, 0, []int{0}},
		"one of two, for half of them is enough":   {"least-requests", with(on(0, 9), func(s []State) { s[0].Health = Failing }), Want{}, 0, []int{1}},
		"another than the one that was left out":   {"prefix", with(on(1, 1), func(s []State) { s[0].Matched, s[0].Skip = 1, true }), Want{Tokens: 100}, 0, []int{1}},
		"nobody, where all were left out":          {"prefix", with(on(1), func(s []State) { s[0].Skip = true }), Want{}, 0, []int{-1}},
		"a mix: the prompt outweighs little load":  {"prefix=3, least-tokens", with(on(2, 1, 1, 1, 1, 1, 1, 1, 2, 2), func(s []State) { s[0].Matched = .5 }), Want{Tokens: 10}, 0, []int{1, 2, 3, 4, 5, 6, 7}},
		"a mix: and is outweighed by much of load": {"prefix, least-tokens=9, bound=9", with(on(4, 0), func(s []State) { s[0].Matched = 1 }), Want{Tokens: 100}, 0, []int{1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := parsed(t, tc.policy)
			got := map[int]bool{}
			for i := range 200 {
				got[p.Choose(tc.states, tc.want, mix(uint64(i)), tc.turn)] = true
			}
			for _, i := range tc.choose {
				if !got[i] {
					t.Errorf("%d was never chosen of %v", i, got)
				}
				delete(got, i)
			}
			for i := range got {
				t.Errorf("%d was chosen", i)
			}
		})
	}
}

func TestADecisionIsAFunctionOfWhatItIsGiven(t *testing.T) {
	p := parsed(t, "prefix=3, least-tokens, session, kv-cache")
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		states := on(make([]float64, 1+r.IntN(30))...)
		for i := range states {
			states[i].Tokens, states[i].Matched = float64(r.IntN(5)), float64(r.IntN(3))/2
		}
		want, rnd := Want{Tokens: 2, Session: r.Uint64()}, r.Uint64()
		if a, b := p.Choose(states, want, rnd, 7), p.Choose(states, want, rnd, 7); a != b {
			t.Fatalf("%d, then %d", a, b)
		}
	}
}

func TestThoseThatTieAreChosenAlike(t *testing.T) {
	p := parsed(t, "least-requests")
	states := on(0, 5, 0, 0, 5, 0)
	var got [6]int
	r := rand.New(rand.NewPCG(3, 4))
	const n = 40000
	for range n {
		got[p.Choose(states, Want{}, r.Uint64(), 0)]++
	}
	for _, i := range []int{0, 2, 3, 5} {
		if got[i] < n/4*9/10 || got[i] > n/4*11/10 {
			t.Errorf("replica %d got %d of %d: %v", i, got[i], n, got)
		}
	}
}

// Whatever replicas have of a prompt, none gets a request that would make its load more than the
// bound times the mean, unless it is the least loaded or has at most one such request already.
func TestAffinityStaysWithinItsBound(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, text := range []string{"prefix", "prefix=3, least-tokens", "prefix=100, bound=1", "session", "session=5, least-requests, bound=1.5", "lora, least-requests"} {
		p := parsed(t, text)
		for range 2000 {
			states := on(make([]float64, 1+r.IntN(40))...)
			total, tokens := 0., p.ReadsPrompts()
			load := func(s *State) float64 {
				if tokens {
					return s.Tokens
				}
				return s.Requests
			}
			least := 1e18
			for i := range states {
				s := &states[i]
				s.Requests = float64(r.IntN(20))
				s.Tokens = s.Requests * float64(1+r.IntN(500))
				if r.IntN(4) == 0 {
					s.Matched, s.Adapter = r.Float64(), float64(r.IntN(2))
				}
				total += load(s)
				least = min(least, load(s))
			}
			want := Want{Tokens: float64(1 + r.IntN(2000)), Session: r.Uint64() | 1, Adapter: true}
			own := 1.
			if tokens {
				own = want.Tokens
			}
			s := &states[p.Choose(states, want, r.Uint64(), r.Uint64())]
			most := max(2*own, p.Bound*(total+own)/float64(len(states)))
			if load(s) > least && load(s)+own > most*(1+1e-9) {
				t.Fatalf("%s: a load of %v, with %v more, over %v; the least is %v of %d", text, load(s), own, most, least, len(states))
			}
		}
	}
}

// Where no replica has anything of the prompt, the default for language models is least tokens.
func TestPromptsThatShareNothingGoToTheLeastLoaded(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	p := ForLanguage()
	for range 5000 {
		states := on(make([]float64, 1+r.IntN(20))...)
		least := 1e18
		for i := range states {
			states[i].Tokens = float64(r.IntN(3000))
			least = min(least, states[i].Tokens)
		}
		if s := states[p.Choose(states, Want{Tokens: float64(r.IntN(1000))}, r.Uint64(), 0)]; s.Tokens != least {
			t.Fatalf("%v tokens in flight where another has %v", s.Tokens, least)
		}
	}
}

func TestASessionStaysWhereItWasWhenReplicasComeAndGo(t *testing.T) {
	p := parsed(t, "session")
	states := on(make([]float64, 10)...)
	moved, n := 0, 2000
	for s := range n {
		want := Want{Session: mix(uint64(s)) | 1}
		was := p.Choose(states, want, mix(uint64(s)), 0)
		if again := p.Choose(states, want, mix(uint64(s+1)), 5); again != was {
			t.Fatalf("session %d went to %d, then to %d", s, was, again)
		}
		if now := p.Choose(states[:9], want, 1, 0); was != 9 && now != was {
			t.Fatalf("session %d moved from %d to %d, and both are there", s, was, now)
		} else if was == 9 {
			moved++
		}
	}
	if moved < n/10/2 || moved > n/10*2 {
		t.Errorf("%d of %d sessions were on one of ten", moved, n)
	}
}
