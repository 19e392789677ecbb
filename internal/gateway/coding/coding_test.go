package coding_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"stationmaster.dev/stationmaster/internal/gateway/coding"
)

// pieces gives what it holds, one after the other.
type pieces struct {
	left [][]byte
	end  error
}

func (p *pieces) Next() ([]byte, error) {
	if len(p.left) == 0 {
		if p.end != nil {
			return nil, p.end
		}
		return nil, io.EOF
	}
	// Valid until the next call only: so what comes is overwritten by then.
	next := slices.Clone(p.left[0])
	clear(p.left[0])
	p.left = p.left[1:]
	return next, nil
}

type flusher interface {
	io.WriteCloser
	Flush() error
}

// writers are how senders compress.
var writers = map[string]struct {
	name string
	make func(io.Writer) flusher
}{
	"gzip":             {"gzip", func(w io.Writer) flusher { return gzip.NewWriter(w) }},
	"GZip, of old":     {" X-GZip ", func(w io.Writer) flusher { return gzip.NewWriter(w) }},
	"deflate":          {"deflate", func(w io.Writer) flusher { return zlib.NewWriter(w) }},
	"deflate, as some": {"deflate", func(w io.Writer) flusher { f, _ := flate.NewWriter(w, 6); return f }},
	"zstd":             {"zstd", func(w io.Writer) flusher { z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); return z }},
}

// packed compresses texts, each with a flush behind it, and tells where each ends.
func packed(make func(io.Writer) flusher, texts ...string) (whole []byte, ends []int) {
	var b bytes.Buffer
	w := make(&b)
	for _, text := range texts {
		_, _ = io.WriteString(w, text)
		_ = w.Flush()
		ends = append(ends, b.Len())
	}
	_ = w.Close()
	return b.Bytes(), ends
}

func read(b *coding.Body) (string, error) {
	defer b.Close()
	var out strings.Builder
	for {
		piece, err := b.Next()
		out.Write(piece)
		if err != nil {
			return out.String(), err
		}
	}
}

func TestABodyCutAnywhereComesWhole(t *testing.T) {
	const text = "Grüße, 世界! "
	for name, tc := range writers {
		t.Run(name, func(t *testing.T) {
			whole, _ := packed(tc.make, text, text, strings.Repeat(text, 50))
			for at := range whole {
				got, err := read(coding.New(tc.name, &pieces{left: [][]byte{slices.Clone(whole[:at]), slices.Clone(whole[at:])}}))
				if err != io.EOF || got != strings.Repeat(text, 52) { //nolint:errorlint // it isn't wrapped
					t.Fatalf("cut at %d: %v %q", at, err, got)
				}
			}
		})
	}
}

// TestWhatWasFlushedComesAtOnce has a source that fails the test when it is asked too early.
func TestWhatWasFlushedComesAtOnce(t *testing.T) {
	texts := []string{"data: 1\n\n", "data: 2\n\n", "data: " + strings.Repeat("long ", 20_000) + "\n\n"}
	for name, tc := range writers {
		t.Run(name, func(t *testing.T) {
			whole, ends := packed(tc.make, texts...)
			source := new(pieces)
			b := coding.New(tc.name, source)
			defer b.Close()
			from := 0
			for i, end := range ends {
				source.left, from = [][]byte{slices.Clone(whole[from:end])}, end
				source.end = errors.New("asked too early")
				got := ""
				for len(got) < len(texts[i]) {
					piece, err := b.Next()
					if err != nil {
						t.Fatalf("%d bytes of %d: %v", len(got), len(texts[i]), err)
					}
					got += string(piece)
				}
				if got != texts[i] {
					t.Fatalf("%.100q", got)
				}
			}
			source.left, source.end = [][]byte{slices.Clone(whole[from:])}, nil
			if rest, err := read(b); rest != "" || err != io.EOF { //nolint:errorlint // it isn't wrapped
				t.Errorf("%q %v", rest, err)
			}
		})
	}
}

func TestBrokenBodiesAreTold(t *testing.T) {
	lost := errors.New("the connection is lost")
	for name, tc := range writers {
		whole, ends := packed(tc.make, strings.Repeat("text", 100))
		half := whole[:ends[0]/2]
		if _, err := read(coding.New(tc.name, &pieces{left: [][]byte{slices.Clone(half)}})); !errors.Is(err, coding.ErrBroken) || errors.Is(err, io.EOF) {
			t.Errorf("%s, half of it: %v", name, err)
		}
		if _, err := read(coding.New(tc.name, &pieces{left: [][]byte{slices.Clone(half)}, end: lost})); !errors.Is(err, lost) || errors.Is(err, coding.ErrBroken) {
			t.Errorf("%s, a lost connection: %v", name, err)
		}
		if got, err := read(coding.New(tc.name, &pieces{})); got != "" || err != io.EOF { //nolint:errorlint // it isn't wrapped
			t.Errorf("%s, nothing: %q %v", name, got, err)
		}
		if got, err := read(coding.New(tc.name, &pieces{left: [][]byte{slices.Clone(whole), []byte("more")}})); got != strings.Repeat("text", 100) {
			t.Errorf("%s, more behind it: %.20q %v", name, got, err)
		}
	}
	if _, err := read(coding.New("gzip", &pieces{left: [][]byte{[]byte(`{"plain":1}`)}})); !errors.Is(err, coding.ErrBroken) {
		t.Errorf("plain text: %v", err)
	}
}

func TestOtherCodingsArentKnown(t *testing.T) {
	for _, name := range []string{"br", "identity", "", "gzip, gzip", "aws-chunked", "compress"} {
		if coding.Known(name) {
			t.Errorf("%q", name)
		}
	}
}

// FuzzBody: whatever comes is read to an end or an error, and what was compressed comes back.
func FuzzBody(f *testing.F) {
	for _, tc := range writers {
		whole, _ := packed(tc.make, "data: {}\n\n", "text")
		f.Add(tc.name, whole, 3)
	}
	f.Fuzz(func(t *testing.T, name string, body []byte, cut int) {
		if !coding.Known(name) {
			return
		}
		if cut < 0 || cut > len(body) {
			cut = len(body)
		}
		b := coding.New(name, &pieces{left: [][]byte{slices.Clone(body[:cut]), slices.Clone(body[cut:])}})
		defer b.Close()
		for range 1000 {
			if _, err := b.Next(); err != nil {
				break
			}
		}
		for label, tc := range writers {
			if tc.name != name {
				continue
			}
			whole, _ := packed(tc.make, string(body))
			if got, err := read(coding.New(name, &pieces{left: [][]byte{whole}})); err != io.EOF || got != string(body) { //nolint:errorlint // it isn't wrapped
				t.Errorf("%s: %v %q", label, err, got)
			}
		}
	})
}
