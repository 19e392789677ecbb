// Package llmsim is a simulated LLM engine for what takes many replicas: it speaks the OpenAI API
// and vLLM's metrics and LoRA calls, keeps a paged KV cache whose blocks are found again by the
// prefix that they hold, batches continuously, and takes as long as a timing model says. It makes
// up its answers. What it shows of routing is about queues, batches and caches; nothing that must
// be right for real engines is tested with it alone.
//
// # Timing model
//
// The engine works in steps, as vLLM does. In each step every running sequence either has some of
// its prompt computed (a chunk; all chunks of a step together at most Timing.Chunk tokens) or
// produces one token. A step with n sequences and p uncached prompt tokens takes
//
//	Decode × (1 + (Loaded − 1) × (n − 1) / (MaxSeqs − 1)) + p × Prefill
//
// so decoding slows down as the batch grows, from Decode for one sequence to Loaded × Decode for a
// full batch, and a long prompt delays the others' tokens. A prompt's blocks that are in the cache
// cost nothing. Before a request may be scheduled at all, Overhead passes, in which the accelerator
// does something else.
//
// The default figures are a published latency profile, "8B class model on one H100, balanced load"
// of llm-d-inference-sim (manifests/latency-profiles/8b-h100-balanced-per-token.yaml, 2026): 12 ms
// a token, twice that in a full batch of 16, 30 ms and 250 µs a token of the prompt until the first
// token. That profile lets prompts be computed beside each other at no cost to one another; here
// they share the step's time, which is what continuous batching does on one accelerator. The slope
// is on the careful side: J. Musgrave, "vLLM throughput-latency sweep on NVIDIA A100" (2026) has
// 75 tokens a second of Llama 3.1 8B for one request and 6.6 times as many for eight, which is 1.2
// times as long a token where this model says 1.5. Blocks of 16 tokens are vLLM's default, and
// evicting the least recently used block that no request holds, the end of a prefix before its
// beginning, is what its cache does (docs/design/prefix_caching.md there).
//
// A token is four bytes of text. That is about right for English, and makes a prompt's tokens those
// of its beginning whatever comes behind.
package llmsim

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Config says what engine it is. The zero value is a vLLM with the default figures.
type Config struct {
	// Model is the served model's name; empty means "sim".
	Model string
	// MaxSeqs is how many sequences run at once; 0 means 16.
	MaxSeqs int
	// MaxWaiting is how many requests wait, beyond which they get 503; 0 means no bound.
	MaxWaiting int
	// MaxLen bounds prompt and answer together, in tokens; 0 means 32768.
	MaxLen int
	// Blocks is the size of the KV cache in blocks of BlockSize tokens; 0 means 4096 and 16.
	Blocks, BlockSize int
	Timing            Timing
	// Seed makes the answers' lengths and the jitter of the steps; the same seed and requests give
	// the same.
	Seed uint64
	// StreamInterval is how many tokens go in one frame of a stream after the first; 0 means 1.
	StreamInterval int
	// OldMetrics has the metrics under the names of vLLM's V0.
	OldMetrics bool
	LoRA       LoRA
}

// Timing is how long things take, see the package's comment. Zero fields mean the default given.
type Timing struct {
	// Decode is a step's time with one sequence; 12 ms.
	Decode time.Duration
	// Loaded is how many times as long a step takes with MaxSeqs sequences; 2.
	Loaded float64
	// Overhead is the time until a request can be scheduled; 30 ms, negative for none.
	Overhead time.Duration
	// Prefill is the time of one uncached token of a prompt; 250 µs.
	Prefill time.Duration
	// Chunk is how many tokens of prompts are computed in one step at most; 2048.
	Chunk int
	// Jitter is the standard deviation of a step's time as a share of it, cut at two of them; 0.
	Jitter float64
	// Scale multiplies all times, so that 0.1 is ten times as fast; 1.
	Scale float64
}

// LoRA says what adapters the engine takes.
type LoRA struct {
	// Slots is how many adapters can be in one batch; 0 means that LoRA is off.
	Slots int
	// Registered is how many can be loaded at all; 0 means any number.
	Registered int
	// Load is the time that loading one takes, once Timing.Scale is applied.
	Load time.Duration
	// SGLang has the adapters loaded and told of by SGLang's calls instead of vLLM's.
	SGLang bool
}

func (c Config) withDefaults() Config {
	or := func(n *int, def int) {
		if *n == 0 {
			*n = def
		}
	}
	if c.Model == "" {
		c.Model = "sim"
	}
	or(&c.MaxSeqs, 16)
	or(&c.MaxLen, 32768)
	or(&c.Blocks, 4096)
	or(&c.BlockSize, 16)
	or(&c.StreamInterval, 1)
	t := &c.Timing
	or(&t.Chunk, 2048)
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&t.Decode, 12 * time.Millisecond}, {&t.Overhead, 30 * time.Millisecond}, {&t.Prefill, 250 * time.Microsecond}} {
		if *d.field == 0 {
			*d.field = d.value
		}
		*d.field = max(*d.field, 0)
	}
	if t.Loaded == 0 {
		t.Loaded = 2
	}
	if t.Scale == 0 {
		t.Scale = 1
	}
	return c
}

// Step returns how long a step takes with seqs sequences, of which prefill prompt tokens are
// computed, without jitter and scale.
func (c Config) Step(seqs, prefill int) time.Duration {
	c = c.withDefaults()
	return c.step(seqs, prefill)
}

func (c *Config) step(seqs, prefill int) time.Duration {
	decode := float64(c.Timing.Decode)
	if c.MaxSeqs > 1 {
		decode *= 1 + (c.Timing.Loaded-1)*float64(seqs-1)/float64(c.MaxSeqs-1)
	}
	return time.Duration(decode) + time.Duration(prefill)*c.Timing.Prefill
}

// Engine is one replica. Its handler takes requests, which get on while Run runs. It is safe for
// concurrent use.
type Engine struct {
	cfg     Config
	mux     *http.ServeMux
	metrics *metrics
	// wake has a token when there may be something to do.
	wake chan struct{}
	// crashed is closed when the engine has crashed.
	crashed chan struct{}

	mu    sync.Mutex
	sched scheduler
	// adapters are those that are loaded, with their paths.
	adapters map[string]string
	fault    Fault
	stats    Stats
	rnd      *rand.Rand
	dead     bool
	created  int64
	ids      int64
}

// Stats are totals since the engine was made.
type Stats struct {
	Requests, Finished, Preempted int
	// PromptTokens and CachedTokens are those of admitted prompts, and of these the ones that were
	// in the cache; OutputTokens are what was produced.
	PromptTokens, CachedTokens, OutputTokens int
	// Busy is the time of all steps, before Timing.Scale.
	Busy time.Duration
}

// New makes an engine. It starts nothing.
func New(cfg Config) *Engine {
	cfg = cfg.withDefaults()
	e := &Engine{
		cfg: cfg, wake: make(chan struct{}, 1), crashed: make(chan struct{}),
		adapters: map[string]string{}, rnd: rand.New(rand.NewPCG(cfg.Seed, 0x5eed)), //nolint:gosec // made to be repeatable
		created: time.Now().Unix(),
	}
	e.sched = scheduler{cfg: &e.cfg, cache: newCache(cfg.Blocks)}
	e.metrics = newMetrics(e)
	e.mux = e.routes()
	return e
}

// ErrCrashed is what Run returns of an engine that was told to crash.
var ErrCrashed = errors.New("the simulated engine crashed")

// Run works until ctx ends, then returns nil; or until the engine crashes. Requests that are under
// way then end without an answer.
func (e *Engine) Run(ctx context.Context) error {
	defer e.die()
	for {
		wait, again := e.work(ctx)
		if again {
			continue
		}
		timer := time.NewTimer(wait)
		if wait < 0 {
			timer.Stop() // nothing is due
		}
		select {
		case <-ctx.Done():
		case <-e.crashed:
		case <-e.wake:
		case <-timer.C:
		}
		timer.Stop()
		switch {
		case ctx.Err() != nil:
			return nil
		case e.isDead():
			return ErrCrashed
		}
	}
}

// work does a step if there is one to do. Else it returns in how long there may be, negative for
// not before a wake.
func (e *Engine) work(ctx context.Context) (wait time.Duration, again bool) {
	e.mu.Lock()
	now := time.Now()
	for _, q := range e.sched.take(now) {
		e.stats.PromptTokens += q.prompt
		e.stats.CachedTokens += q.cached
		e.metrics.admitted(q, now)
	}
	seqs, prefill := e.sched.next()
	if seqs == 0 || e.fault.Hang {
		due := e.sched.due()
		e.mu.Unlock()
		if seqs > 0 || due.IsZero() {
			return -1, false
		}
		return max(due.Sub(now), 0), false
	}
	d := e.cfg.step(seqs, prefill)
	if e.cfg.Timing.Jitter > 0 {
		d = time.Duration(float64(d) * (1 + e.cfg.Timing.Jitter*min(max(e.rnd.NormFloat64(), -2), 2)))
	}
	if e.fault.Slow > 0 {
		d = time.Duration(float64(d) * e.fault.Slow)
	}
	e.stats.Busy += d
	e.mu.Unlock()

	timer := time.NewTimer(e.scaled(d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return -1, false
	case <-e.crashed:
		return -1, false
	case <-timer.C:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	made := e.sched.done(time.Now())
	e.stats.OutputTokens += made.tokens
	e.stats.Finished += len(made.finished)
	e.stats.Preempted += made.preempted
	e.metrics.stepped(made)
	return 0, true
}

func (e *Engine) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * e.cfg.Timing.Scale)
}

func (e *Engine) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *Engine) isDead() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dead
}

// die ends all that is under way.
func (e *Engine) die() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.dead {
		e.dead = true
		close(e.crashed)
	}
}

// Stats returns what was done since the engine was made.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// Load returns how many requests run and wait.
func (e *Engine) Load() (running, waiting int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.sched.running), len(e.sched.waiting)
}

// ServeHTTP answers as the engine does.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.mux.ServeHTTP(w, r) }
