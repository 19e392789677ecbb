package pick

import (
	"github.com/cespare/xxhash/v2"
)

// A prompt's blocks end at fixed places: each 128 bytes up to 1 KiB, and from there on eight times
// in each doubling. So two prompts that share a beginning share their first blocks, a prompt has few
// blocks however long it is, and what is known of the shared part is right to an eighth of it.
const (
	firstBlock = 128
	perOctave  = 8
	// MaxBlocks is how many blocks a prompt has at most; what lies beyond the last, at 2 MiB, isn't
	// looked at.
	MaxBlocks = 96
)

// blockEnd is where the i-th block ends, in bytes.
func blockEnd(i int) int {
	if i < perOctave {
		return (i + 1) * firstBlock
	}
	octave := i / perOctave
	return firstBlock << (octave - 1) * (perOctave + 1 + i%perOctave)
}

// Blocks hashes a prompt as it comes: after each block there is a hash of all up to there. Begin
// must be called first. It allocates nothing.
type Blocks struct {
	digest xxhash.Digest
	// size is how many bytes of the prompt came, next where the current block ends.
	size, next int
	n          int
	sums       [MaxBlocks]uint64
}

// Begin starts a prompt. seed is what else must be equal for a cache to be of use, such as an
// adapter's name; it isn't counted as a part of the prompt.
func (b *Blocks) Begin(seed string) {
	b.digest.Reset()
	_, _ = b.digest.WriteString(seed)
	b.size, b.n, b.next = 0, 0, firstBlock
}

// Write takes more of the prompt. It takes all and never fails.
func (b *Blocks) Write(p []byte) (int, error) {
	all := len(p)
	for b.n < MaxBlocks && b.size+len(p) >= b.next {
		part := p[:b.next-b.size]
		_, _ = b.digest.Write(part)
		p, b.size = p[len(part):], b.next
		b.sums[b.n] = max(b.digest.Sum64(), 1)
		b.n++
		b.next = blockEnd(b.n)
	}
	if b.n < MaxBlocks {
		_, _ = b.digest.Write(p)
	}
	b.size += len(p)
	return all, nil
}

// Hashes are those of the blocks that are whole, the first one first. They are valid until Begin.
func (b *Blocks) Hashes() []uint64 { return b.sums[:b.n] }

// Size is how many bytes of the prompt came.
func (b *Blocks) Size() int { return b.size }

// Hash is a hash of a text; never 0.
func Hash(s string) uint64 { return max(xxhash.Sum64String(s), 1) }

// mix spreads the bits of a hash: the finalizer of SplitMix64 (S. Vigna).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
