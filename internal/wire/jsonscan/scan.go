// Package jsonscan walks JSON text once, from left to right, without building values of it.
package jsonscan

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
)

// MaxDepth is how deeply arrays and objects may nest, far above any tensor's rank.
const MaxDepth = 256

// Scanner reads the values of one JSON text. It is not safe for several goroutines.
type Scanner struct {
	buf   []byte
	pos   int
	depth int
	base  int
}

// New returns a scanner at the start of text. What it returns may alias text.
func New(text []byte) *Scanner { return &Scanner{buf: text} }

// NewAt is New for a part of a longer text that starts there at base, for messages.
func NewAt(text []byte, base int) *Scanner { return &Scanner{buf: text, base: base} }

// Pos is the offset of the next byte to read.
func (s *Scanner) Pos() int { return s.pos }

// Rest is how many bytes are unread: no value yet to come can hold more elements.
func (s *Scanner) Rest() int { return len(s.buf) - s.pos }

// Errorf returns an error of kind errdef.ErrInvalid that says at which byte the text is wrong.
func (s *Scanner) Errorf(format string, args ...any) error {
	return errdef.New(errdef.ErrInvalid, fmt.Sprintf("JSON at byte %d: ", s.base+s.pos)+brief.Sprintf(format, args...))
}

// Peek skips white space and returns the byte that the next value or delimiter starts with,
// or 0 at the end.
func (s *Scanner) Peek() byte {
	for s.pos < len(s.buf) {
		c := s.buf[s.pos]
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
		s.pos++
	}
	return 0
}

// Eat takes c if it comes next, after white space, and says whether it did.
func (s *Scanner) Eat(c byte) bool {
	if s.pos < len(s.buf) && s.buf[s.pos] == c || s.Peek() == c {
		s.pos++
		return true
	}
	return false
}

// End is an error unless only white space is left.
func (s *Scanner) End() error {
	if s.Peek(); s.pos < len(s.buf) {
		return s.Errorf("%s after the end of the value", s.what())
	}
	return nil
}

// what describes the next byte.
func (s *Scanner) what() string {
	if s.pos >= len(s.buf) {
		return "the text ends"
	}
	if c := s.buf[s.pos]; c >= 0x20 && c < 0x7f {
		return fmt.Sprintf("unexpected %q", c)
	}
	return fmt.Sprintf("unexpected byte 0x%02x", s.buf[s.pos])
}

// Object reads an object and calls field for each key, at the value, which field must read.
// A key aliases the text and may come twice: field decides.
func (s *Scanner) Object(field func(key []byte) error) error {
	if !s.Eat('{') {
		return s.Errorf("%s where an object should start", s.what())
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.Eat('}') {
		return nil
	}
	for {
		if s.Peek() != '"' {
			return s.Errorf("%s where a key should start", s.what())
		}
		key, err := s.String()
		if err != nil {
			return err
		}
		if !s.Eat(':') {
			return s.Errorf("%s where ':' should follow the key", s.what())
		}
		if err := field(key); err != nil {
			return err
		}
		if s.Eat('}') {
			return nil
		}
		if !s.Eat(',') {
			return s.Errorf("%s where ',' or '}' should follow", s.what())
		}
	}
}

// Array reads an array and calls element for each element, at the value, which element must
// read.
func (s *Scanner) Array(element func(i int) error) error {
	if !s.Eat('[') {
		return s.Errorf("%s where an array should start", s.what())
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.Eat(']') {
		return nil
	}
	for i := 0; ; i++ {
		if err := element(i); err != nil {
			return err
		}
		if s.Eat(']') {
			return nil
		}
		if !s.Eat(',') {
			return s.Errorf("%s where ',' or ']' should follow", s.what())
		}
	}
}

func (s *Scanner) enter() error {
	if s.depth++; s.depth > MaxDepth {
		return s.Errorf("nested deeper than %d", MaxDepth)
	}
	return nil
}

func (s *Scanner) leave() { s.depth-- }

// Literal takes word (such as "true" or "null") if it comes next.
func (s *Scanner) Literal(word string) bool {
	s.Peek()
	if len(s.buf)-s.pos < len(word) || string(s.buf[s.pos:s.pos+len(word)]) != word {
		return false
	}
	s.pos += len(word)
	return true
}

// Skip reads one value of any type, checks that it is well formed, and returns its text.
func (s *Scanner) Skip() ([]byte, error) {
	c := s.Peek()
	from := s.pos
	var err error
	switch {
	case c == '{':
		err = s.Object(func([]byte) error { _, err := s.Skip(); return err })
	case c == '[':
		err = s.Array(func(int) error { _, err := s.Skip(); return err })
	case c == '"':
		_, _, err = s.quoted()
	case c == 't' && s.Literal("true"), c == 'f' && s.Literal("false"), c == 'n' && s.Literal("null"),
		c == 'N' && s.Literal("NaN"), c == 'I' && s.Literal("Infinity"), c == '-' && s.Literal("-Infinity"):
	case c == '-' || c >= '0' && c <= '9':
		_, _, err = s.Number()
	default:
		err = s.Errorf("%s where a value should start", s.what())
	}
	return s.buf[from:s.pos], err
}

// String reads a string and returns its bytes, which are valid UTF-8 and alias the text when
// nothing in it is escaped.
func (s *Scanner) String() ([]byte, error) {
	raw, escaped, err := s.quoted()
	if err != nil || !escaped {
		return raw, err
	}
	out := make([]byte, 0, len(raw)) // an escape is longer than what it stands for
	for at := 0; at < len(raw); {
		n := bytes.IndexByte(raw[at:], '\\')
		if n < 0 {
			n = len(raw) - at
		}
		out = append(out, raw[at:at+n]...)
		if at += n; at == len(raw) {
			break
		}
		r, n, err := s.escape(raw[at:])
		if err != nil {
			panic("BUG: an escape was taken that can't be read: " + err.Error())
		}
		out = utf8.AppendRune(out, r)
		at += n
	}
	return out, nil
}

// quoted reads a string and returns what is between its quotes, and whether something there is
// escaped. It has checked all of it.
func (s *Scanner) quoted() (raw []byte, escaped bool, err error) {
	if !s.Eat('"') {
		return nil, false, s.Errorf("%s where a string should start", s.what())
	}
	from, ascii := s.pos, true
	for {
		n, only := plain(s.buf[s.pos:])
		ascii = ascii && only
		if s.pos += n; s.pos == len(s.buf) {
			return nil, false, s.Errorf("the text ends within a string")
		}
		switch c := s.buf[s.pos]; c {
		case '"':
			raw = s.buf[from:s.pos:s.pos]
			// Escapes are ASCII, so that what is between them is whole runes if all of it is.
			if !ascii && !utf8.Valid(raw) {
				return nil, false, s.Errorf("the string isn't UTF-8")
			}
			s.pos++
			return raw, escaped, nil
		case '\\':
			escaped = true
			_, n, err := s.escape(s.buf[s.pos:])
			if err != nil {
				return nil, false, err
			}
			s.pos += n
		default:
			return nil, false, s.Errorf("control character 0x%02x in a string", c)
		}
	}
}

// plain is how many bytes of b stand for themselves in a string: up to a quote, a backslash or a
// control character, or all. ascii is whether these are ASCII. It looks at eight bytes at a time: of
// what is subtracted below, a borrow marks only bytes behind the first that is meant.
func plain(b []byte) (n int, ascii bool) {
	const each, high = 0x0101010101010101, 0x8080808080808080
	var seen uint64
	for ; len(b)-n >= 8; n += 8 {
		x := binary.LittleEndian.Uint64(b[n:])
		quote, slash := x^('"'*each), x^('\\'*each)
		if end := ((x-' '*each)&^x | (quote-each)&^quote | (slash-each)&^slash) & high; end != 0 {
			k := bits.TrailingZeros64(end) / 8
			seen |= x & (1<<(8*k) - 1)
			return n + k, seen&high == 0
		}
		seen |= x
	}
	for ; n < len(b) && b[n] >= ' ' && b[n] != '"' && b[n] != '\\'; n++ {
		seen |= uint64(b[n])
	}
	return n, seen&high == 0
}

// escape reads the escape that b begins with: what it stands for, and how long it is.
func (s *Scanner) escape(b []byte) (r rune, n int, err error) {
	if len(b) < 2 {
		return 0, 0, s.Errorf("the text ends within an escape")
	}
	switch c := b[1]; c {
	case '"', '\\', '/':
		return rune(c), 2, nil
	case 'b':
		return '\b', 2, nil
	case 'f':
		return '\f', 2, nil
	case 'n':
		return '\n', 2, nil
	case 'r':
		return '\r', 2, nil
	case 't':
		return '\t', 2, nil
	case 'u':
	default:
		return 0, 0, s.Errorf("there is no escape \\%c", c)
	}
	r, ok := hex(b[2:])
	if !ok {
		return 0, 0, s.Errorf("four hexadecimal digits must follow \\u")
	}
	if !utf16.IsSurrogate(r) {
		return r, 6, nil
	}
	if len(b) < 8 || b[6] != '\\' || b[7] != 'u' {
		return 0, 0, s.Errorf("half a surrogate pair")
	}
	low, ok := hex(b[8:])
	if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
		return 0, 0, s.Errorf("half a surrogate pair")
	}
	return r, 12, nil
}

func hex(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
