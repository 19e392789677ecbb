package gateway

import (
	"io"
	"net"
	"slices"
	"sync"

	"stationmaster.dev/stationmaster/internal/gateway/upstream"
)

// memory is a body that is in memory, all of it, in pieces that an engine gets as they lie there.
type memory struct {
	pieces [][]byte
	size   int64
	rest   net.Buffers // what wasn't read
}

func inMemory(pieces ...[]byte) *memory {
	m := &memory{pieces: pieces, rest: slices.Clone(pieces)}
	for _, p := range pieces {
		m.size += int64(len(p))
	}
	return m
}

func (m *memory) Read(p []byte) (int, error) { return m.rest.Read(p) }

// again is the body from its beginning.
func (m *memory) again() io.Reader { return inMemory(m.pieces...) }

func (m *memory) Close() error { return nil }

// firstParts and largeBodies are buffers for bodies that are read whole, which would else be garbage of
// their own: one for what of a large body is read at first, one for all of it.
var firstParts, largeBodies sync.Pool

// bodies is where buffers of a size are kept; nil for none.
func bodies(size int) *sync.Pool {
	switch {
	case size == upstream.WholeBody:
		return &firstParts
	case size > upstream.WholeBody && size <= maxForUsage:
		return &largeBodies
	}
	return nil
}

// bodyBuffer returns an empty buffer with room for size bytes.
func bodyBuffer(size int) []byte {
	if kept := bodies(size); kept != nil {
		if b, ok := kept.Get().(*[]byte); ok && cap(*b) >= size {
			return (*b)[:0]
		}
	}
	return make([]byte, 0, size)
}

// spareBody gives back a buffer that nobody reads any more.
func spareBody(b []byte) {
	if kept := bodies(cap(b)); kept != nil {
		kept.Put(&b)
	}
}
