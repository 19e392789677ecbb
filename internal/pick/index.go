package pick

import (
	"math/bits"
	"time"
)

// Index tells which replicas of a revision lately got a block: blocks by their hashes, replicas as
// bits. It holds no more than a number of bytes: it begins small, grows up to that, and then the
// block that was out of use for longest gives way, of two as old the deeper one. A replica is
// forgotten for a block that it didn't get for one to two ages.
//
// Blocks lie in buckets of four, as lines do in a processor's cache: a hash says the bucket, and
// what is full gives way within the bucket. It isn't safe for concurrent use.
type Index struct {
	limit int
	age   int64 // in seconds
	// words is how many words of bits a block has for each of two ages.
	words int
	mask  uint64 // number of buckets less one
	used  int
	// keys are pairs of a block's hash, 0 where there is no block, and a stamp, which orders blocks
	// by when they were of use: a bucket's lie in one line of the processor's cache. holders are the
	// replicas of this age and of the one before.
	keys, holders []uint64
	// live are the replicas that are there; seen and holds are scratch; next is the first slot never given.
	live, seen, holds []uint64
	next              int
}

const (
	// DefaultIndexBytes bounds the index of one revision.
	DefaultIndexBytes = 16 << 20
	// DefaultAge is how long a replica is at least taken to have a block that it got.
	DefaultAge = 10 * time.Minute

	bucket     = 4
	minBuckets = 64
)

// NewIndex makes an index of at most limit bytes, in which replicas are forgotten after age.
func NewIndex(limit int, age time.Duration) *Index {
	x := &Index{limit: limit, age: max(int64(age/time.Second), 1)}
	x.alloc(minBuckets, 1)
	return x
}

// entryBytes is what a block costs.
func entryBytes(words int) int { return 8 * (2 + 2*words) }

func (x *Index) alloc(buckets, words int) {
	n := buckets * bucket
	x.words, x.mask, x.used = words, uint64(buckets-1), 0
	x.keys, x.holders = make([]uint64, 2*n), make([]uint64, n*2*words)
	live := make([]uint64, words)
	copy(live, x.live)
	x.live, x.seen, x.holds = live, make([]uint64, words), make([]uint64, words)
}

// Bytes is how much memory the index's blocks take.
func (x *Index) Bytes() int { return x.room() * entryBytes(x.words) }

// room is for how many blocks there is room.
func (x *Index) room() int { return len(x.keys) / 2 }

// Blocks is how many blocks are known.
func (x *Index) Blocks() int { return x.used }

// Add makes a replica known and returns its slot. Where slots have run out those of replicas that
// were removed are given out again, and all slots may change: renumber is called for each that
// is there with what it was and what it is.
func (x *Index) Add(renumber func(from, to int)) int {
	if x.next == 64*x.words {
		x.compact(renumber)
	}
	slot := x.next
	x.next++
	x.live[slot/64] |= 1 << (slot % 64)
	return slot
}

// Remove forgets a replica.
func (x *Index) Remove(slot int) { x.live[slot/64] &^= 1 << (slot % 64) }

// compact gives the replicas that are there the first slots, with room for as many more as there
// is in words.
func (x *Index) compact(renumber func(from, to int)) {
	old := *x
	to := make([]int, 64*old.words)
	n := 0
	for slot := range to {
		if to[slot] = -1; old.live[slot/64]&(1<<(slot%64)) != 0 {
			to[slot] = n
			renumber(slot, n)
			n++
		}
	}
	words := (n+n/4)/64 + 1
	buckets := int(old.mask) + 1
	for buckets > minBuckets && buckets*bucket*entryBytes(words) > x.limit {
		buckets /= 2
	}
	x.alloc(buckets, words)
	clear(x.live)
	for slot := range n {
		x.live[slot/64] |= 1 << (slot % 64)
	}
	x.next = n
	fresh := make([]uint64, 2*words)
	x.take(&old, func(holders []uint64) []uint64 {
		clear(fresh)
		for age := range 2 {
			for i, w := range holders[age*old.words : (age+1)*old.words] {
				for ; w != 0; w &= w - 1 {
					if s := to[i*64+bits.TrailingZeros64(w)]; s >= 0 {
						fresh[age*words+s/64] |= 1 << (s % 64)
					}
				}
			}
		}
		return fresh
	})
}

// take brings in the blocks of an index, with holders turned into those of this one.
func (x *Index) take(old *Index, turn func([]uint64) []uint64) {
	for i := range old.room() {
		h, s := old.keys[2*i], old.keys[2*i+1]
		if h == 0 {
			continue
		}
		at := x.place(h, s)
		if at < 0 {
			continue
		}
		x.keys[2*at+1] = s
		copy(x.holders[at*2*x.words:], turn(old.holders[i*2*old.words:(i+1)*2*old.words]))
	}
}

func (x *Index) grow() {
	buckets := 2 * (int(x.mask) + 1)
	if buckets*bucket*entryBytes(x.words) > x.limit {
		return
	}
	old := *x
	x.alloc(buckets, old.words)
	x.take(&old, func(holders []uint64) []uint64 { return holders })
}

// find returns where a block is, or -1.
func (x *Index) find(h uint64) int {
	from := int(h&x.mask) * bucket
	switch keys := x.keys[2*from : 2*from+2*bucket : 2*from+2*bucket]; h {
	case keys[0]:
		return from
	case keys[2]:
		return from + 1
	case keys[4]:
		return from + 2
	case keys[6]:
		return from + 3
	}
	return -1
}

// place returns where a block that isn't known goes, in place of the one with the lowest stamp
// where there is no room; -1 if its own stamp is lower.
func (x *Index) place(h, stamp uint64) int {
	from := int(h&x.mask) * bucket
	at := from
	for i := from; i < from+bucket; i++ {
		if x.keys[2*i] == 0 {
			x.keys[2*i] = h
			x.used++
			return i
		}
		if x.keys[2*i+1] < x.keys[2*at+1] {
			at = i
		}
	}
	if x.keys[2*at+1] > stamp {
		return -1
	}
	x.keys[2*at] = h
	clear(x.holders[at*2*x.words : (at+1)*2*x.words])
	return at
}

// stamp orders blocks: by the second of their last use, then the shallower one is the greater.
func stamp(second int64, depth int) uint64 {
	return uint64(second)<<8 | uint64(255-min(depth, 255))
}

// ages are the stamps with which this age, and the one before, began.
type ages struct{ this, last uint64 }

func (x *Index) agesAt(second int64) ages {
	began := second / x.age * x.age
	return ages{uint64(began) << 8, uint64(max(began-x.age, 0)) << 8}
}

// turn brings a block's holders to this age.
func (x *Index) turn(at int, a ages) {
	switch s := x.keys[2*at+1]; {
	case s >= a.this:
	case s >= a.last:
		h := x.holders[at*2*x.words : (at+1)*2*x.words]
		copy(h[x.words:], h[:x.words])
		clear(h[:x.words])
	default:
		clear(x.holders[at*2*x.words : (at+1)*2*x.words])
	}
}

// Put notes that the replica with a slot got a prompt with these blocks.
func (x *Index) Put(hashes []uint64, slot int, now time.Time) {
	if x.used > x.room()/2 {
		x.grow()
	}
	second := now.Unix()
	a := x.agesAt(second)
	// Tail first, so that what gives way to this prompt itself is its end.
	for i := len(hashes) - 1; i >= 0; i-- {
		s := stamp(second, i)
		at := x.find(hashes[i])
		if at >= 0 {
			x.turn(at, a)
		} else if at = x.place(hashes[i], s); at < 0 {
			continue
		}
		x.keys[2*at+1] = s
		x.holders[at*2*x.words+slot/64] |= 1 << (slot % 64)
	}
}

// Rest stands for all replicas of which nothing was told before.
const Rest = -1

// Match calls found with each replica that got some of these blocks lately, and how many of them
// from the first one on; the last time, if all that are left got as many, with Rest.
func (x *Index) Match(hashes []uint64, now time.Time, found func(slot, blocks int)) {
	a := x.agesAt(now.Unix())
	clear(x.seen)
	for i := len(hashes) - 1; i >= 0; i-- {
		at := x.find(hashes[i])
		if at < 0 {
			continue
		}
		stamp := x.keys[2*at+1]
		if stamp < a.last {
			continue
		}
		h := x.holders[at*2*x.words : (at+1)*2*x.words]
		all := true
		for w := range x.words {
			holds := h[w]
			if stamp >= a.this {
				holds |= h[x.words+w]
			}
			x.holds[w] = holds & x.live[w] &^ x.seen[w]
			x.seen[w] |= x.holds[w]
			all = all && x.seen[w] == x.live[w]
		}
		if all {
			found(Rest, i+1)
			return
		}
		for w, holds := range x.holds {
			for ; holds != 0; holds &= holds - 1 {
				found(w*64+bits.TrailingZeros64(holds), i+1)
			}
		}
	}
}
