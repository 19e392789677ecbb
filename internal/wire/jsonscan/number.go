package jsonscan

import (
	"bytes"
	"math"
	"strconv"
)

// Number reads a number and returns its text, and whether it is written as an integer.
func (s *Scanner) Number() (text []byte, integer bool, err error) {
	s.Peek()
	n, err := s.number()
	return n.text, n.integer, err
}

// decimal is a number's text, taken apart: its value is (-1)^negative * mantissa * 10^exp
// when exact is set, else mantissa and exp mean nothing.
type decimal struct {
	text     []byte
	mantissa uint64
	exp      int64
	negative bool
	integer  bool
	exact    bool
}

// maxExponent is beyond what the digits of any text can make up for.
const maxExponent = 1 << 50

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// number reads one number of RFC 8259, section 6, at pos.
func (s *Scanner) number() (decimal, error) {
	buf, i := s.buf, s.pos
	n := decimal{integer: true, exact: true}
	if i < len(buf) && buf[i] == '-' {
		n.negative = true
		i++
	}
	digits := 0
	from := i
	for ; i < len(buf) && isDigit(buf[i]); i++ {
		n.mantissa = n.mantissa*10 + uint64(buf[i]-'0')
		digits++
	}
	if digits == 0 || digits > 1 && buf[from] == '0' {
		s.pos = i
		if digits == 0 {
			return n, s.Errorf("%s where a number should be", s.what())
		}
		return n, s.Errorf("a number starts with 0")
	}
	if i < len(buf) && buf[i] == '.' {
		n.integer = false
		i++
		from = i
		for ; i < len(buf) && isDigit(buf[i]); i++ {
			n.mantissa = n.mantissa*10 + uint64(buf[i]-'0')
			digits++
			n.exp--
		}
		if i == from {
			s.pos = i
			return n, s.Errorf("%s where a digit should follow the point", s.what())
		}
	}
	if i < len(buf) && (buf[i] == 'e' || buf[i] == 'E') {
		n.integer = false
		i++
		minus := false
		if i < len(buf) && (buf[i] == '+' || buf[i] == '-') {
			minus = buf[i] == '-'
			i++
		}
		from = i
		var e int64
		for ; i < len(buf) && isDigit(buf[i]); i++ {
			e = min(e*10+int64(buf[i]-'0'), maxExponent)
		}
		if i == from {
			s.pos = i
			return n, s.Errorf("%s where a digit should follow the exponent", s.what())
		}
		if minus {
			e = -e
		}
		n.exp += e
	}
	// 19 digits always fit in 64 bits; leading zeros only make this more careful.
	n.exact = digits <= 19
	n.text = buf[s.pos:i]
	s.pos = i
	return n, nil
}

var pow10 = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// float64 is the nearest double when mantissa and power are exact doubles, so that the one
// operation rounds once (Clinger, "How to read floating point numbers accurately", 1990).
func (n *decimal) float64() (float64, bool) {
	if !n.exact || n.mantissa >= 1<<53 || n.exp < -22 || n.exp > 22 {
		return 0, false
	}
	v := float64(n.mantissa)
	if n.exp < 0 {
		v /= pow10[-n.exp]
	} else {
		v *= pow10[n.exp]
	}
	if n.negative {
		v = -v
	}
	return v, true
}

// Float64 reads a floating-point number: a JSON number, null for not-a-number, or one of NaN,
// Infinity and -Infinity, which Python's json module writes. A number beyond the range is
// infinite, as in Python and JavaScript.
func (s *Scanner) Float64() (float64, error) {
	if !s.atDigit() {
		if v, ok := s.special(s.Peek()); ok {
			return v, nil
		}
	}
	n, err := s.number()
	if err != nil {
		return 0, err
	}
	if v, ok := n.float64(); ok {
		return v, nil
	}
	// The only possible error is the range, and then the result is infinite.
	v, _ := strconv.ParseFloat(string(n.text), 64)
	return v, nil
}

// Float32 is Float64 for single precision, rounded once from the text. A number that only
// double precision can hold is an error.
func (s *Scanner) Float32() (float32, error) {
	if !s.atDigit() {
		if v, ok := s.special(s.Peek()); ok {
			return float32(v), nil
		}
	}
	n, err := s.number()
	if err != nil {
		return 0, err
	}
	if v, ok := n.float64(); ok {
		// Rounding twice is wrong only where the double lies half-way between two singles.
		const halfway, low29 = 1 << 28, 1<<29 - 1
		a := math.Abs(v)
		if math.Float64bits(v)&low29 != halfway && (a == 0 || a > 1e-37 && a < 3.4e38) {
			return float32(v), nil
		}
	}
	v, err := strconv.ParseFloat(string(n.text), 32)
	if err != nil {
		if wide, _ := strconv.ParseFloat(string(n.text), 64); !math.IsInf(wide, 0) {
			return 0, s.Errorf("%s is out of range for FP32", n.text)
		}
	}
	return float32(v), nil
}

// atDigit is the quick way past white space and special words, for the usual number.
func (s *Scanner) atDigit() bool { return s.pos < len(s.buf) && isDigit(s.buf[s.pos]) }

func (s *Scanner) special(c byte) (float64, bool) {
	switch {
	case c == 'n' && s.Literal("null"), c == 'N' && s.Literal("NaN"):
		return math.NaN(), true
	case c == 'I' && s.Literal("Infinity"):
		return math.Inf(1), true
	case c == '-' && s.Literal("-Infinity"):
		return math.Inf(-1), true
	}
	return 0, false
}

// maxIntegral is the largest integer that a double holds beside all smaller ones, and maxDigits
// how many digits it has.
const (
	maxIntegral = 1 << 53
	maxDigits   = 16
)

// Int reads a whole number between lo and hi, exactly. Up to 2^53, which any client's doubles
// hold, it may be written with a fraction of zero or an exponent.
func (s *Scanner) Int(lo, hi int64) (int64, error) {
	s.Peek()
	n, err := s.number()
	if err != nil {
		return 0, err
	}
	var v int64
	switch {
	case n.integer && n.exact && n.mantissa < math.MaxInt64:
		if v = int64(n.mantissa); n.negative {
			v = -v
		}
	case n.integer:
		if v, err = strconv.ParseInt(string(n.text), 10, 64); err != nil {
			return 0, s.Errorf("%s is out of the range %d to %d", n.text, lo, hi)
		}
	default:
		u, ok := n.whole()
		if !ok {
			return 0, s.notWhole(&n)
		}
		if v = int64(u); n.negative {
			v = -v
		}
	}
	if v < lo || v > hi {
		return 0, s.Errorf("%s is out of the range %d to %d", n.text, lo, hi)
	}
	return v, nil
}

// Uint is Int for numbers from 0 to hi.
func (s *Scanner) Uint(hi uint64) (uint64, error) {
	s.Peek()
	n, err := s.number()
	if err != nil {
		return 0, err
	}
	var v uint64
	switch {
	case n.integer && n.exact:
		v = n.mantissa
	case n.integer:
		if v, err = strconv.ParseUint(string(n.text), 10, 64); err != nil {
			return 0, s.Errorf("%s is out of the range 0 to %d", n.text, hi)
		}
	default:
		var ok bool
		if v, ok = n.whole(); !ok {
			return 0, s.notWhole(&n)
		}
	}
	if v > hi || n.negative && v > 0 {
		return 0, s.Errorf("%s is out of the range 0 to %d", n.text, hi)
	}
	return v, nil
}

// whole is the number without its sign when that is a whole number up to 2^53. It works on the
// digits, as rounding would make whole numbers of others.
func (n *decimal) whole() (uint64, bool) {
	digits := n.text
	if i := bytes.IndexAny(digits, "eE"); i >= 0 {
		digits = digits[:i]
	}
	digits = bytes.TrimLeft(digits, "-0.")
	kept := bytes.TrimRight(digits, "0.")
	exp := n.exp + int64(bytes.Count(digits[len(kept):], []byte("0")))
	kept = bytes.ReplaceAll(kept, []byte("."), nil)
	if len(kept) == 0 {
		return 0, true
	}
	if exp < 0 || int64(len(kept))+exp > maxDigits {
		return 0, false
	}
	var v uint64
	for _, c := range kept {
		v = v*10 + uint64(c-'0')
	}
	for range exp {
		v *= 10
	}
	return v, v <= maxIntegral
}

func (s *Scanner) notWhole(n *decimal) error {
	return s.Errorf("%s isn't a whole number up to 2^53", n.text)
}

// Bool reads true or false, or 1 or 0.
func (s *Scanner) Bool() (bool, error) {
	switch {
	case s.Literal("true"):
		return true, nil
	case s.Literal("false"):
		return false, nil
	}
	if c := s.Peek(); c == '0' || c == '1' {
		text, integer, err := s.Number()
		if err == nil && integer && len(text) == 1 {
			return c == '1', nil
		}
	}
	return false, s.Errorf("%s where true or false should be", s.what())
}
