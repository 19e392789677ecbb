// Package coding gives compressed bodies in the plain, piece by piece as they come.
package coding

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// Pieces is a body. Next returns its next piece, valid until the next call, and io.EOF at its end.
type Pieces interface {
	Next() ([]byte, error)
}

// ErrBroken is a body that isn't what its coding says.
var ErrBroken = errors.New("the compressed body can't be read")

// maxWindow bounds what zstd may have to remember, as browsers do (RFC 8878, section 3.1.1.1.2).
const maxWindow = 8 << 20

// pieceSize is how much is decoded at once.
const pieceSize = 32 << 10

// Known reports whether a content coding, as HTTP names it, can be read: gzip, deflate and zstd. Several
// in a row can't.
func Known(name string) bool { return opener(name) != nil }

func opener(name string) func(*Body) (io.Reader, error) {
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "gzip", "x-gzip":
		return func(b *Body) (io.Reader, error) { return gzip.NewReader(b) }
	case "deflate":
		return func(b *Body) (io.Reader, error) {
			if b.zlib() {
				return zlib.NewReader(b)
			}
			return flate.NewReader(b), nil // as some servers take the name
		}
	case "zstd":
		return func(b *Body) (io.Reader, error) {
			// One block at a time, without goroutines of its own.
			r, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
			if err != nil {
				return nil, err
			}
			b.close = r.Close
			return r, nil
		}
	}
	return nil
}

// Body is a compressed body in the plain. What its sender flushed comes at once, without a wait for more.
// It is for one goroutine.
type Body struct {
	from Pieces
	open func(*Body) (io.Reader, error)
	// r is nil before the first byte; close, where there is one, is called once.
	r     io.Reader
	close func()
	// piece is what came and r didn't take yet, and err how the coming ended.
	piece []byte
	err   error
	out   []byte
}

// New returns a body that is compressed with a coding that is Known.
func New(name string, from Pieces) *Body {
	return &Body{from: from, open: opener(name)}
}

// Next returns the next piece, valid until the next call, and io.EOF once the whole body was read well.
// Errors are ErrBroken, and those of the body's source. An empty body is one of any coding.
func (b *Body) Next() ([]byte, error) {
	if b.r == nil {
		if !b.more() {
			return nil, b.err
		}
		r, err := b.open(b)
		if err != nil {
			return nil, b.broken(err)
		}
		b.r, b.out = r, make([]byte, pieceSize)
	}
	for {
		n, err := b.r.Read(b.out)
		switch {
		case n > 0:
			return b.out[:n], nil // an error comes again
		case err == io.EOF: // a wrapped one is no end
			for b.more() {
				b.piece = nil // what stands behind means nothing
			}
			b.end()
			return nil, b.err
		case err != nil:
			return nil, b.broken(err)
		}
	}
}

// broken tells what is wrong with the body from what is wrong with its source.
func (b *Body) broken(err error) error {
	b.end()
	if b.err != nil && !errors.Is(b.err, io.EOF) {
		return b.err
	}
	return fmt.Errorf("%w: %w", ErrBroken, unexpected(err))
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (b *Body) end() {
	if b.close != nil {
		b.close()
		b.close = nil
	}
}

// Close ends the reading of a body that wasn't read to its end. It may be called more than once.
func (b *Body) Close() { b.end() }

// more waits for the next bytes, and reports false at their end.
func (b *Body) more() bool {
	for len(b.piece) == 0 && b.err == nil {
		b.piece, b.err = b.from.Next()
	}
	return len(b.piece) > 0
}

// Read and ReadByte are for the decoders, which read nothing ahead of one that has both.
func (b *Body) Read(p []byte) (int, error) {
	if !b.more() {
		return 0, b.err
	}
	n := copy(p, b.piece)
	b.piece = b.piece[n:]
	return n, nil
}

// ReadByte is as Read.
func (b *Body) ReadByte() (byte, error) {
	if !b.more() {
		return 0, b.err
	}
	c := b.piece[0]
	b.piece = b.piece[1:]
	return c, nil
}

// zlib reports whether what comes begins as a stream of zlib does (RFC 1950, section 2.2).
func (b *Body) zlib() bool {
	if len(b.piece) == 1 {
		first := b.piece[0]
		b.piece = nil
		b.more()
		b.piece = append([]byte{first}, b.piece...)
	}
	return len(b.piece) > 1 && b.piece[0]&15 == 8 && (int(b.piece[0])<<8|int(b.piece[1]))%31 == 0
}
