package jsonscan

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// run reads as many elements of an array as come in the usual form, each with a comma behind it, and leaves
// all others, among them the last one, where they are. It is how long arrays of numbers are read fast.
type run[T any] func(s *Scanner, values []T) []T

// Float32s is Nested of Float32.
func Float32s(s *Scanner, hint int) (Elements[float32], error) {
	return nested(s, hint, (*Scanner).Float32, func(s *Scanner, values []float32) []float32 {
		pos := s.pos
		for {
			n, next := quick(s.buf, pos)
			if next == 0 {
				break
			}
			v := float64(n.mantissa) / pow10[n.decimals]
			// The double is wrong by two of its last places at most, and rounding it by another only
			// where it lies near to half-way between two singles.
			const halfway, low29, near = 1 << 28, 1<<29 - 1, 4
			if off := math.Float64bits(v)&low29 - (halfway - near); off <= 2*near {
				break
			}
			values = append(values, n.signed(float32(v)))
			pos = next
		}
		s.pos = pos
		return values
	})
}

// Float64s is Nested of Float64.
func Float64s(s *Scanner, hint int) (Elements[float64], error) {
	return nested(s, hint, (*Scanner).Float64, func(s *Scanner, values []float64) []float64 {
		pos := s.pos
		for {
			n, next := quick(s.buf, pos)
			if next == 0 {
				break
			}
			values = append(values, n.float64())
			pos = next
		}
		s.pos = pos
		return values
	})
}

// Ints is Nested of Int, for a datatype that has these bounds.
func Ints[T int8 | int16 | int32 | int64](s *Scanner, hint int, lo, hi int64) (Elements[T], error) {
	one := func(s *Scanner) (T, error) {
		v, err := s.Int(lo, hi)
		return T(v), err
	}
	return nested(s, hint, one, func(s *Scanner, values []T) []T {
		pos := s.pos
		for {
			n, next := quickInt(s.buf, pos)
			v := int64(n.mantissa) //nolint:gosec // of eighteen digits
			if n.negative {
				v = -v
			}
			if next == 0 || v < lo || v > hi {
				break
			}
			values = append(values, T(v))
			pos = next
		}
		s.pos = pos
		return values
	})
}

// Uints is Nested of Uint, for a datatype that has this bound.
func Uints[T uint8 | uint16 | uint32 | uint64](s *Scanner, hint int, hi uint64) (Elements[T], error) {
	one := func(s *Scanner) (T, error) {
		v, err := s.Uint(hi)
		return T(v), err
	}
	return nested(s, hint, one, func(s *Scanner, values []T) []T {
		pos := s.pos
		for {
			n, next := quickInt(s.buf, pos)
			if next == 0 || n.negative || n.mantissa > hi {
				break
			}
			values = append(values, T(n.mantissa))
			pos = next
		}
		s.pos = pos
		return values
	})
}

// quickNumber is the number mantissa / 10^decimals, or its opposite; decimals is 22 at most.
type quickNumber struct {
	mantissa uint64
	decimals uint
	negative bool
}

// signed gives v, which is positive, the number's sign; which that is, is anybody's guess, so without a branch.
func (n quickNumber) signed(v float32) float32 {
	sign := uint32(0)
	if n.negative {
		sign = 1 << 31
	}
	return math.Float32frombits(math.Float32bits(v) | sign)
}

// longestQuick is more than the quick ways look at: a sign, whole digits, a point, three times eight digits,
// eight bytes more, a comma and a space.
const longestQuick = 64

// quick reads a number at pos with a comma behind it, and returns where the next element is, or zero where
// it leaves the number to those who read all there are.
func quick(text []byte, pos int) (n quickNumber, next int) {
	if len(text)-pos < longestQuick {
		return n, 0
	}
	buf, i := text[pos:pos+longestQuick], 0
	if n.negative = buf[0] == '-'; n.negative {
		i = 1
	}
	from := i
	for c := buf[i] - '0'; c <= 9; c = buf[i] - '0' {
		n.mantissa = n.mantissa*10 + uint64(c)
		if i++; i-from > mostWhole {
			return n, 0
		}
	}
	if i == from || i-from > 1 && buf[from] == '0' {
		return n, 0
	}
	if buf[i] == '.' {
		more, a := readDigits(binary.LittleEndian.Uint64(buf[i+1:]))
		n.mantissa = n.mantissa*tenTo[a&15] + more
		at, b := i+1+int(a), uint(0) //nolint:gosec // eight at most
		if a == 8 {
			at = i + 9 // known before the digits are
			more, b = readDigits(binary.LittleEndian.Uint64(buf[at:]))
			n.mantissa = n.mantissa*tenTo[b&15] + more
		}
		n.decimals = a + b
		if a == 0 || uint(i-from)+n.decimals > 19 { //nolint:gosec // few
			return n, 0
		}
		i = at + int(b) //nolint:gosec // as above
		if b == 8 {
			if i = n.readOn(buf, i); i == 0 {
				return n, 0
			}
		}
	}
	if buf[i] != ',' {
		return n, 0
	}
	if i++; buf[i] == ' ' {
		i++
	}
	return n, pos + i
}

// mostWhole is how many digits may stand before the point.
const mostWhole = 15

// readOn reads the seventeenth decimal digit and those behind it, and returns where they end, zero where
// they are too many.
func (n *quickNumber) readOn(buf []byte, i int) int {
	more, digits := readDigits(binary.LittleEndian.Uint64(buf[i:]))
	power := tenTo[digits&15]
	high, low := bits.Mul64(n.mantissa, power)
	if n.decimals += digits; high != 0 || low > math.MaxUint64-power || n.decimals > 22 {
		return 0
	}
	n.mantissa = low + more
	return i + int(digits) //nolint:gosec // eight at most
}

// quickInt is quick for whole numbers of up to eighteen digits.
func quickInt(text []byte, pos int) (n quickNumber, next int) {
	if len(text)-pos < longestQuick {
		return n, 0
	}
	buf, i := text[pos:pos+longestQuick], 0
	if n.negative = buf[0] == '-'; n.negative {
		i = 1
	}
	from := i
	for c := buf[i] - '0'; c <= 9; c = buf[i] - '0' {
		n.mantissa = n.mantissa*10 + uint64(c)
		if i++; i-from > 18 {
			return n, 0
		}
	}
	if i == from || i-from > 1 && buf[from] == '0' || buf[i] != ',' {
		return n, 0
	}
	if i++; buf[i] == ' ' {
		i++
	}
	return n, pos + i
}

// tenTo has more entries than are used, so that an index of four bits is within it.
var tenTo = [16]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}

// float64 is the nearest double.
func (n quickNumber) float64() float64 {
	var v float64
	if n.mantissa < 1<<53 { // both are exact, so that the one division rounds once
		v = float64(n.mantissa) / pow10[n.decimals]
	} else {
		v = divided(n.mantissa, n.decimals)
	}
	if n.negative {
		return -v
	}
	return v
}

var fiveTo = func() (all [23]uint64) {
	all[0] = 1
	for i := range len(all) - 1 {
		all[i+1] = 5 * all[i]
	}
	return all
}()

// divided is the double nearest to n / 10^decimals; n isn't zero. It divides by 5^decimals with a quotient
// of 63 bits at least and a remainder, so that it is known on which side of half-way the quotient lies.
func divided(n uint64, decimals uint) float64 {
	five := fiveTo[decimals]
	up, by := bits.LeadingZeros64(n), bits.LeadingZeros64(five)
	n <<= up
	quotient, rest := bits.Div64(n>>1, n<<63, five<<by)
	exponent := by - up - 63 - int(decimals) //nolint:gosec // 22 at most
	drop := 11 - bits.LeadingZeros64(quotient)
	kept, dropped, half := quotient>>drop, quotient&(1<<drop-1), uint64(1)<<drop>>1
	if dropped > half || dropped == half && (rest > 0 || kept&1 == 1) {
		kept++
	}
	return float64(kept) * math.Float64frombits(uint64(1023+exponent+drop)<<52) //nolint:gosec // within a double's range
}
