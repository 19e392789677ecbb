// Package jsonscan walks JSON text once, from left to right, without building values of it.
package jsonscan

import (
	"fmt"
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
		_, err = s.String()
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
	if !s.Eat('"') {
		return nil, s.Errorf("%s where a string should start", s.what())
	}
	from, ascii := s.pos, true
	for s.pos < len(s.buf) {
		c := s.buf[s.pos]
		switch {
		case c == '"':
			raw := s.buf[from:s.pos]
			if !ascii && !utf8.Valid(raw) {
				return nil, s.Errorf("the string isn't UTF-8")
			}
			s.pos++
			return raw[:len(raw):len(raw)], nil
		case c == '\\':
			return s.unescape(from)
		case c < 0x20:
			return nil, s.Errorf("control character 0x%02x in a string", c)
		case c >= utf8.RuneSelf:
			ascii = false
		}
		s.pos++
	}
	return nil, s.Errorf("the text ends within a string")
}

// unescape goes on with a string that started at from and has its first escape at pos.
func (s *Scanner) unescape(from int) ([]byte, error) {
	out := append([]byte(nil), s.buf[from:s.pos]...)
	for s.pos < len(s.buf) {
		c := s.buf[s.pos]
		switch {
		case c == '"':
			if !utf8.Valid(out) {
				return nil, s.Errorf("the string isn't UTF-8")
			}
			s.pos++
			return out, nil
		case c == '\\':
			var err error
			if out, err = s.escape(out); err != nil {
				return nil, err
			}
		case c < 0x20:
			return nil, s.Errorf("control character 0x%02x in a string", c)
		default:
			out = append(out, c)
			s.pos++
		}
	}
	return nil, s.Errorf("the text ends within a string")
}

var escapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (s *Scanner) escape(out []byte) ([]byte, error) {
	if s.pos+1 >= len(s.buf) {
		return nil, s.Errorf("the text ends within an escape")
	}
	c := s.buf[s.pos+1]
	if r, ok := escapes[c]; ok {
		s.pos += 2
		return append(out, r), nil
	}
	if c != 'u' {
		return nil, s.Errorf("there is no escape \\%c", c)
	}
	r, ok := s.hex(s.pos + 2)
	if !ok {
		return nil, s.Errorf("four hexadecimal digits must follow \\u")
	}
	s.pos += 6
	if utf16.IsSurrogate(r) {
		if s.pos+1 >= len(s.buf) || s.buf[s.pos] != '\\' || s.buf[s.pos+1] != 'u' {
			return nil, s.Errorf("half a surrogate pair")
		}
		low, ok := s.hex(s.pos + 2)
		if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
			return nil, s.Errorf("half a surrogate pair")
		}
		s.pos += 6
	}
	return utf8.AppendRune(out, r), nil
}

func (s *Scanner) hex(at int) (rune, bool) {
	if at+4 > len(s.buf) {
		return 0, false
	}
	var r rune
	for _, c := range s.buf[at : at+4] {
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
