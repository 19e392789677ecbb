package pick

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// promptOf is text that differs from seed to seed.
func promptOf(seed uint64, size int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, size)
	for i := range b {
		b[i] = 'a' + byte(r.UintN(26))
	}
	return b
}

func name(i int) Name { return Name{ID: fmt.Sprintf("llm-predictor-00001-%04d", i)} }

// BenchmarkPick is what it costs to find one of 100 replicas, with the hashes of the prompt's blocks
// at hand and an index that knows 2,000 prompts; and that with counting the request there, noting
// its prompt, and giving it back.
func BenchmarkPick(b *testing.B) {
	policies := map[string]Policy{"language": ForLanguage(), "tensors": ForTensors()}
	for _, s := range []Scorer{LeastTokens, Session, Prefix, KVCache, RoundRobin} {
		policies[s.String()] = single(s)
	}
	for _, policy := range []string{"language", "tensors", "least-tokens", "session", "prefix", "kv-cache", "round-robin"} {
		for _, size := range []int{8 << 10, 220 << 10} {
			if size > 8<<10 && policy != "language" {
				continue
			}
			b.Run(fmt.Sprintf("%s/%dKiB", policy, size>>10), func(b *testing.B) {
				now := time.Unix(1_800_000_000, 0)
				g := NewGroup(policies[policy])
				of := g.Keep(100, name)
				asks := make([]Ask, 2000)
				for i := range asks {
					// A fifth of the prompt is shared by all.
					var blocks Blocks
					blocks.Begin("")
					_, _ = blocks.Write(promptOf(0, size/5))
					_, _ = blocks.Write(promptOf(uint64(i+1), size-size/5))
					asks[i] = Ask{Blocks: append([]uint64(nil), blocks.Hashes()...), Size: size, Output: 200, Session: uint64(i + 1)}
				}
				charges := make([]Charge, 400)
				n := 0
				step := func() {
					at := n % len(charges)
					charges[at].Release(Answered, 100, 0, now)
					_, charges[at] = g.Pick(of, &asks[n*7%len(asks)], -1, rand.Uint64(), now)
					n++
				}
				for range 4000 {
					step()
				}
				b.Run("decide", func(b *testing.B) {
					measured(b, func() {
						g.mu.Lock()
						g.look(of, &asks[n*7%len(asks)], -1, now)
						g.Policy().Choose(g.states, Want{Tokens: 2000}, rand.Uint64(), g.turn)
						g.mu.Unlock()
						n++
					})
				})
				b.Run("all", func(b *testing.B) { measured(b, step) })
			})
		}
	}
}

// BenchmarkChoose is the decision alone, from states at hand.
func BenchmarkChoose(b *testing.B) {
	p := ForLanguage()
	states := make([]State, 100)
	for i := range states {
		states[i] = State{ID: uint64(i), Requests: float64(i % 7), Tokens: float64(i % 13 * 100), Matched: float64(i%5) / 10, KVUse: -1, Waiting: -1}
	}
	measured(b, func() { p.Choose(states, Want{Tokens: 500}, rand.Uint64(), 0) })
}

// measured runs step, and also reports what it takes in the best hundred in a row, for machines that
// do other things, too.
func measured(b *testing.B, step func()) {
	b.Helper()
	b.ReportAllocs()
	best, n, from := time.Duration(1<<62), 0, time.Now()
	for b.Loop() {
		step()
		if n++; n%100 == 0 {
			now := time.Now()
			best, from = min(best, now.Sub(from)), now
		}
	}
	if n >= 100 {
		b.ReportMetric(float64(best)/100, "best-ns/op")
	}
}

// BenchmarkBlocks is the hashing of a prompt that is in memory.
func BenchmarkBlocks(b *testing.B) {
	for _, size := range []int{1 << 10, 8 << 10, 220 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			prompt := promptOf(1, size)
			var blocks Blocks
			b.SetBytes(int64(size))
			measured(b, func() {
				blocks.Begin("m")
				_, _ = blocks.Write(prompt)
			})
		})
	}
}
