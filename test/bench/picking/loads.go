package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// The engines: each has room for about 100,000 tokens, what 13 GB hold of Llama 3.1 8B's keys and
// values in 16 bits (128 KiB a token).
const (
	replicas  = 8
	blocks    = 6400
	blockSize = 16
)

// load is what users ask.
type load struct {
	name, about string
	users       int
	// thinks are how long users think between an answer and the next request, on average: the
	// shorter, the more is asked. Each is a run.
	thinks []time.Duration
	// user makes one user's requests.
	user func(rnd *rand.Rand, n int) user
}

// user returns the next request; answer is what came last.
type user func(answer string) ask

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type ask struct {
	messages []message
	tokens   int
}

var loads = []load{
	{
		name: "multi-turn", users: 192,
		about: "conversations of 6 to 9 questions, with 500 tokens that all share, about 1,000 of their own (log-normal, 5,000 at most), " +
			"120 to 160 a question and 80 to 120 an answer: the shape of vLLM's benchmark of multi-turn conversations " +
			"(benchmarks/multi_turn/generate_multi_turn.json), which stands for ShareGPT's there",
		thinks: []time.Duration{16 * time.Second, 6 * time.Second, 3 * time.Second},
		user:   conversation,
	},
	{
		name: "shared", users: 192,
		about: "one of 60 system prompts of 6,000 tokens, then a question of 1,200 that nobody shares, and an answer of 200: the prompts of " +
			"llm-d's guide to its optimised baseline, which has 150 of them and answers of 1,000",
		thinks: []time.Duration{36 * time.Second, 18 * time.Second, 9 * time.Second},
		user:   shared,
	},
	{
		name: "apart", users: 192,
		about:  "prompts of about 1,000 tokens (log-normal, 5,000 at most) that share nothing, and answers of 80 to 120",
		thinks: []time.Duration{12 * time.Second},
		user:   apart,
	},
}

// text is so many tokens that no other seed has.
func text(tokens int, seed uint64) string {
	rnd := rand.New(rand.NewPCG(seed, 0x7e87)) //nolint:gosec // made to be repeatable
	const letters = "abcdefghijklmnopqrstuvwxyz"
	b := make([]byte, 4*tokens)
	for i := range b {
		b[i] = letters[rnd.IntN(len(letters))]
		if i%6 == 5 {
			b[i] = ' '
		}
	}
	return string(b)
}

// logNormal has a mean, and half as its median.
func logNormal(rnd *rand.Rand, mean, most float64) int {
	sigma := math.Sqrt(2 * math.Ln2)
	return int(min(math.Exp(math.Log(mean/2)+sigma*rnd.NormFloat64()), most)) + 1
}

func between(rnd *rand.Rand, from, to int) int { return from + rnd.IntN(to-from+1) }

// common is what all conversations begin with.
var common = text(500, 1)

func conversation(rnd *rand.Rand, _ int) user {
	var messages []message
	// At the start users are somewhere in their conversations.
	left := rnd.IntN(9)
	return func(answer string) ask {
		if left == 0 || len(messages) == 0 {
			if len(messages) > 0 || left == 0 {
				left = between(rnd, 6, 9)
			}
			messages = []message{{"system", common}, {"user", text(logNormal(rnd, 1000, 5000), rnd.Uint64()) + text(between(rnd, 120, 160), rnd.Uint64())}}
		} else {
			messages = append(messages, message{"assistant", answer}, message{"user", text(between(rnd, 120, 160), rnd.Uint64())})
		}
		left--
		return ask{messages, between(rnd, 80, 120)}
	}
}

const (
	groups       = 60
	systemTokens = 6000
)

var systems = func() []string {
	out := make([]string, groups)
	for i := range out {
		out[i] = text(systemTokens, uint64(1000+i))
	}
	return out
}()

func shared(rnd *rand.Rand, _ int) user {
	return func(string) ask {
		return ask{[]message{{"system", systems[rnd.IntN(groups)]}, {"user", text(1200, rnd.Uint64())}}, 200}
	}
}

func apart(rnd *rand.Rand, n int) user {
	return func(string) ask {
		return ask{[]message{{"user", fmt.Sprintf("%d:%d ", n, rnd.Uint64()) + text(logNormal(rnd, 1000, 5000), rnd.Uint64())}}, between(rnd, 80, 120)}
	}
}
