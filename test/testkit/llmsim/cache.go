package llmsim

import (
	"container/list"
	"hash/fnv"
)

// cache is the paged KV cache: blocks that requests hold, and blocks that none holds but that are
// known by what they contain, of which the least recently used gives way.
type cache struct {
	capacity int
	// held are the blocks with references; total adds those in idle.
	held, total int
	byHash      map[uint64]*block
	// idle has the blocks that nobody holds, the next to give way first.
	idle list.List
}

// block is one page of the cache. Its hash stands for its tokens and all before them; 0 is for one
// that isn't full yet.
type block struct {
	hash uint64
	refs int
	at   *list.Element
}

func newCache(capacity int) *cache {
	return &cache{capacity: capacity, byHash: make(map[uint64]*block, capacity)}
}

// found returns the blocks of a prefix that are there, and holds them.
func (c *cache) found(hashes []uint64) []*block {
	var out []*block
	for _, h := range hashes {
		b := c.byHash[h]
		if b == nil {
			break
		}
		c.hold(b)
		out = append(out, b)
	}
	return out
}

func (c *cache) hold(b *block) {
	if b.refs == 0 {
		c.idle.Remove(b.at)
		b.at = nil
		c.held++
	}
	b.refs++
}

// take returns an empty block, nil where requests hold them all.
func (c *cache) take() *block {
	if c.total == c.capacity {
		oldest := c.idle.Front()
		if oldest == nil {
			return nil
		}
		b := c.idle.Remove(oldest).(*block) //nolint:forcetypeassert // it has nothing else
		delete(c.byHash, b.hash)
		c.total--
	}
	c.total++
	c.held++
	return &block{refs: 1}
}

// fill makes a full block known by its hash. It returns the block to go on with: where the cache
// knows such a one already, that.
func (c *cache) fill(b *block, hash uint64) *block {
	if same := c.byHash[hash]; same != nil {
		if same != b {
			c.hold(same)
			c.release(b)
		}
		return same
	}
	b.hash = hash
	c.byHash[hash] = b
	return b
}

// release lets go of a block.
func (c *cache) release(b *block) {
	if b.refs--; b.refs > 0 {
		return
	}
	c.held--
	if b.hash == 0 {
		c.total--
		return
	}
	b.at = c.idle.PushBack(b)
}

// free is how many blocks can be taken.
func (c *cache) free() int { return c.capacity - c.held }

// usage is the share of the blocks that requests hold.
func (c *cache) usage() float64 { return float64(c.held) / float64(c.capacity) }

// bytesPerToken is how much text a token stands for.
const bytesPerToken = 4

// tokens is how many tokens a text has.
func tokens(text int) int { return (text + bytesPerToken - 1) / bytesPerToken }

// chain hashes blocks of a text, each with what comes before it. Its zero value is for a text
// without an adapter.
type chain struct{ last uint64 }

// next returns the hash of a block behind those hashed before.
func (c *chain) next(text []byte) uint64 {
	h := fnv.New64a()
	var before [8]byte
	for i := range before {
		before[i] = byte(c.last >> (8 * i))
	}
	_, _ = h.Write(before[:])
	_, _ = h.Write(text)
	c.last = max(h.Sum64(), 1)
	return c.last
}
