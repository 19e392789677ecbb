package llmsim

import (
	"slices"
	"time"
)

// sequence is one request on its way through the engine.
type sequence struct {
	adapter string
	// text is the prompt as rendered, and then what was produced.
	text []byte
	// prompt and most are how many tokens the prompt has and the answer may have.
	prompt, most int
	// stop says that the answer ends by itself.
	stop bool
	// answer makes the text of the answer's next token.
	answer func() string

	arrived, eligible time.Time
	// admitted and first are zero until then.
	admitted, first, last time.Time
	// cached are the prompt's tokens that were in the cache at the first admission; computed are
	// those, and what was produced, whose keys and values exist.
	cached, computed, produced int
	// blocks are held; hashed of them are full and known, and chain is where their hashes end.
	blocks []*block
	hashed int
	chain  chain
	// chunk is how many of the prompt's tokens the current step computes; 0 means that it decodes.
	chunk int
	// cancelled says that nobody waits for it.
	cancelled bool
	// out gets each token, and is closed behind the last. It has room for all.
	out chan string
}

// scheduler says what each step does. It is pure but for the time that it notes.
type scheduler struct {
	cfg     *Config
	cache   *cache
	waiting []*sequence
	running []*sequence
}

// outcome is what a step brought.
type outcome struct {
	at        time.Time
	tokens    int
	preempted int
	// first are the sequences that got their first token, gaps the times between others' tokens.
	first    []*sequence
	gaps     []time.Duration
	finished []*sequence
}

// due is when the next waiting request may be scheduled; zero where none waits for its time alone.
func (s *scheduler) due() time.Time {
	var due time.Time
	for _, q := range s.waiting {
		if due.IsZero() || q.eligible.Before(due) {
			due = q.eligible
		}
	}
	if len(s.running) == s.cfg.MaxSeqs {
		return time.Time{}
	}
	return due
}

// take admits those that wait as far as there are places, blocks and slots for adapters, in the
// order in which they came. It returns those that are admitted for the first time.
func (s *scheduler) take(now time.Time) []*sequence {
	s.drop()
	var admitted []*sequence
	for i := 0; i < len(s.waiting) && len(s.running) < s.cfg.MaxSeqs; {
		q := s.waiting[i]
		if q.eligible.After(now) || !s.slot(q.adapter) {
			i++ // another may go before it, as vLLM lets it
			continue
		}
		if !s.admit(q) {
			break // the blocks that come free are for the one that waits longest
		}
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.running = append(s.running, q)
		if q.admitted.IsZero() {
			q.admitted = now
			admitted = append(admitted, q)
		}
	}
	return admitted
}

// drop forgets what nobody waits for.
func (s *scheduler) drop() {
	gone := func(q *sequence) bool { return q.cancelled }
	for _, q := range s.running {
		if gone(q) {
			s.release(q)
		}
	}
	s.running = slices.DeleteFunc(s.running, gone)
	s.waiting = slices.DeleteFunc(s.waiting, gone)
}

// slot reports whether an adapter can be in the batch.
func (s *scheduler) slot(adapter string) bool {
	if adapter == "" {
		return true
	}
	in := s.adapters()
	return slices.Contains(in, adapter) || len(in) < s.cfg.LoRA.Slots
}

// adapters are those of the running sequences.
func (s *scheduler) adapters() []string { return adaptersOf(s.running) }

func adaptersOf(seqs []*sequence) []string {
	var in []string
	for _, q := range seqs {
		if q.adapter != "" && !slices.Contains(in, q.adapter) {
			in = append(in, q.adapter)
		}
	}
	return in
}

// admit gives a sequence the blocks of its text so far, or none.
func (s *scheduler) admit(q *sequence) bool {
	size := s.cfg.BlockSize
	length := tokens(len(q.text))
	c := newChain(q.adapter)
	var hashes []uint64
	for at := range (length - 1) / size { // the last token is always computed, for what follows it
		hashes = append(hashes, c.next(q.block(at, size)))
	}
	q.blocks = s.cache.found(hashes)
	need := (length+size)/size - len(q.blocks) // with room for a token
	if need > s.cache.free() {
		s.release(q)
		return false
	}
	q.hashed = len(q.blocks)
	q.computed = q.hashed * size
	q.chain = newChain(q.adapter)
	if q.hashed > 0 {
		q.chain.last = hashes[q.hashed-1]
	}
	if q.admitted.IsZero() {
		q.cached = q.computed
	}
	for range need {
		q.blocks = append(q.blocks, s.cache.take())
	}
	return true
}

func newChain(adapter string) chain {
	var c chain
	if adapter != "" {
		c.next([]byte(adapter))
	}
	return c
}

// block is the text of a block.
func (q *sequence) block(at, size int) []byte {
	from := at * size * bytesPerToken
	return q.text[from:min(from+size*bytesPerToken, len(q.text))]
}

// release lets go of a sequence's blocks, the last first, so that the end of a prefix gives way
// before its beginning.
func (s *scheduler) release(q *sequence) {
	for _, b := range slices.Backward(q.blocks) {
		s.cache.release(b)
	}
	q.blocks, q.hashed, q.computed = nil, 0, 0
}

// next says what the next step does: with how many sequences, and how many tokens of prompts. The
// budget for prompts goes to those that were admitted first.
func (s *scheduler) next() (seqs, prefill int) {
	budget := s.cfg.Timing.Chunk
	for _, q := range s.running {
		q.chunk = 0
		left := tokens(len(q.text)) - q.computed
		if q.produced > 0 && left <= 1 || left <= 0 {
			seqs++
			continue
		}
		if q.chunk = min(left, budget); q.chunk == 0 {
			q.chunk = -1 // it waits for the next step
			continue
		}
		budget -= q.chunk
		prefill += q.chunk
		seqs++
	}
	return seqs, prefill
}

// done ends the step that next said.
func (s *scheduler) done(now time.Time) outcome {
	o := outcome{at: now}
	for _, q := range slices.Clone(s.running) {
		if q.blocks == nil || q.chunk < 0 {
			continue // preempted in this step, or not in it
		}
		if q.cancelled {
			continue
		}
		q.computed += max(q.chunk, 1)
		q.computed = min(q.computed, tokens(len(q.text)))
		s.commit(q)
		if q.computed < tokens(len(q.text)) {
			continue
		}
		s.produce(q, now, &o)
	}
	s.running = slices.DeleteFunc(s.running, func(q *sequence) bool { return q.blocks == nil })
	return o
}

// commit makes the blocks known that are full and computed.
func (s *scheduler) commit(q *sequence) {
	size := s.cfg.BlockSize
	for q.hashed < len(q.blocks) && (q.hashed+1)*size <= q.computed && (q.hashed+1)*size*bytesPerToken <= len(q.text) {
		h := q.chain.next(q.block(q.hashed, size))
		q.blocks[q.hashed] = s.cache.fill(q.blocks[q.hashed], h)
		q.hashed++
	}
}

// produce gives a sequence its next token.
func (s *scheduler) produce(q *sequence, now time.Time, o *outcome) {
	word := q.answer()
	q.text = append(q.text, word...)
	q.produced++
	q.out <- word
	o.tokens++
	if q.first.IsZero() {
		q.first = now
		o.first = append(o.first, q)
	} else {
		o.gaps = append(o.gaps, now.Sub(q.last))
	}
	q.last = now
	if q.produced == q.most {
		s.release(q)
		close(q.out)
		o.finished = append(o.finished, q)
		return
	}
	if tokens(len(q.text)) < len(q.blocks)*s.cfg.BlockSize {
		return
	}
	b := s.cache.take()
	for b == nil && s.preempt(q, o) {
		b = s.cache.take()
	}
	if b != nil {
		q.blocks = append(q.blocks, b)
	}
}

// preempt takes the blocks of the sequence that was admitted last, which has to be computed anew.
// It reports false where that is q itself, which then has none any more.
func (s *scheduler) preempt(q *sequence, o *outcome) bool {
	for _, victim := range slices.Backward(s.running) {
		if victim.blocks == nil {
			continue
		}
		o.preempted++
		s.release(victim)
		s.waiting = slices.Insert(s.waiting, 0, victim)
		return victim != q
	}
	panic("BUG: no sequence holds a block")
}
