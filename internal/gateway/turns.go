package gateway

import (
	"math/rand/v2"
	"sync/atomic"
)

// turns makes the numbers by which revisions and replicas are chosen. The upper halves, which
// choose the revision, are no random ones but the multiples of the golden ratio (a Weyl sequence):
// any stretch of them is spread evenly, so that a canary of 10 % has 100 of any 1,000 requests and
// not 100 more or less a few dozen, and so are those that any one service gets of the sequence.
// It is safe for concurrent use.
type turns struct{ n atomic.Uint32 }

// begin has them begin anywhere, so that gateways beside one another don't go in step.
func (t *turns) begin(at uint32) { t.n.Store(at) }

// golden is 2³² divided by the golden ratio, to the nearest odd number.
const golden = 0x9e3779b9

// next returns the next number.
func (t *turns) next() uint64 {
	return uint64(t.n.Add(1)*golden)<<32 | uint64(rand.Uint32())
}
