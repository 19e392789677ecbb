package jsonscan

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strconv"
)

// AppendFloats appends single-precision numbers as an array, each as AppendFloat does.
func AppendFloats(dst []byte, values []float32) []byte {
	dst = append(dst, '[')
	for i, v := range values {
		if cap(dst)-len(dst) < 1+roomForFloat { // a comma, too
			dst = slices.Grow(dst, 13*(len(values)-i)+roomForFloat)
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		out, ok := quickFloat32(dst, v)
		if !ok {
			out = AppendFloat(dst, float64(v), 32)
		}
		dst = out
	}
	return append(dst, ']')
}

// roomForFloat is more than what quickFloat32 writes.
const roomForFloat = 32

// scale is how float32s of one exponent become whole numbers: times 10^decimals, such that the distance to
// the next float is at least 1 and less than 10. That of a fraction m * 2^e is m * five * 2^-(shift-1).
type scale struct {
	five            uint64
	decimals, shift uint8
}

// The exponents, as a float32's bits have them, from that of 2^-19, which is above the numbers that are
// written with an exponent of ten, to that of 2^23, above which all floats are whole.
const (
	lowestScaled  = 127 - 19
	highestScaled = 127 + 23
	// bias is what makes an exponent that of a whole fraction of 24 bits.
	bias = 127 + 23
)

var scales = func() (all [highestScaled - lowestScaled]scale) {
	for i := range all {
		e := bias - lowestScaled - i // floats of this exponent are fractions times 2^-e
		decimals, five := 0, uint64(1)
		for pow10[decimals] < float64(uint64(1)<<e) {
			decimals++
			five *= 5
		}
		all[i] = scale{five, uint8(decimals), uint8(e - decimals + 1)} //nolint:gosec // small by the bounds above
	}
	return all
}()

// quickFloat32 appends v with as few digits as tell it from other float32s, of those the nearest, as strconv
// does. It knows most numbers of the range in which most lie, and says whether this one was: there the interval
// of all that is nearer to v than to another float is exact in 64 bits, and times a power of ten it holds
// a whole number at least, and at most one that ends in zero (after Giulietti, "The Schubfach way to render
// doubles", 2020). dst has roomForFloat.
func quickFloat32(dst []byte, v float32) (_ []byte, ok bool) {
	b := math.Float32bits(v)
	exponent, fraction := b>>23&0xff, uint64(b&(1<<23-1))
	if exponent-lowestScaled > highestScaled-lowestScaled {
		return dst, false
	}
	m, whole := fraction|1<<23, uint(bias-exponent)
	if m&(1<<whole-1) == 0 {
		if v < 0 {
			dst = append(dst, '-')
		}
		return strconv.AppendUint(dst, m>>whole, 10), true
	}
	if fraction == 0 { // the next float is nearer below than above
		return dst, false
	}
	s := &scales[exponent-lowestScaled]
	shift := uint(s.shift) & 63
	center := 2 * m * s.five
	low, high := center-s.five, center+s.five
	digits := center >> shift
	tens := digits / 10 * 10
	below, above := tens<<shift, (tens+10)<<shift
	rest, half := center&(1<<shift-1), uint64(1)<<shift>>1
	if below == low || above == high || rest == half {
		return dst, false // an end of the interval is in it for every other float
	}
	// What follows goes either way from number to number, so that it is without branches.
	if rest > half {
		digits++
	}
	if below > low {
		digits = tens
	}
	if above < high {
		digits = tens + 10
	}
	n := len(dst)
	room := dst[n : n+roomForFloat : cap(dst)]
	room[0] = '-'
	at := int(b >> 31)
	decimals := uint(s.decimals)
	if whole := m >> whole; whole == 0 {
		room[at], room[at+1] = '0', '.'
		at += 2
	} else {
		at = len(append(strconv.AppendUint(room[:at], whole, 10), '.'))
		digits -= whole * tenTo[decimals&15] // a number above one has seven decimals at most
	}
	// Sixteen digits, of which the last ones are needed, and of those not the zeros at the end.
	upper := digits / 1e8
	lower := eightDigits(digits - upper*1e8)
	upper = eightZeros | upper<<56
	zeros := uint(bits.LeadingZeros64(lower^eightZeros)) / 8 //nolint:gosec // 64 at most
	drop := 128 - 8*decimals
	out := room[at : at+16]
	binary.LittleEndian.PutUint64(out, upper>>drop|lower<<(64-drop)|lower>>(drop-64))
	binary.LittleEndian.PutUint64(out[8:], lower>>drop)
	return dst[:n+at+int(decimals-zeros)], true //nolint:gosec // small
}

const eightZeros = 0x3030303030303030

// eightDigits are those of a number below 10^8, the first one in the lowest byte: the number is cut in two
// of four digits, those in two of two, and those in two, all parts at once.
func eightDigits(n uint64) uint64 {
	const (
		by100, by10     = 10486, 103 // over 2^20 and 2^10: enough for four digits, and for two
		fours, twos     = 0x0000007f0000007f, 0x000f000f000f000f
		lane100, lane10 = 20, 10
	)
	high := n / 10000
	n = high | (n-high*10000)<<32
	high = n * by100 >> lane100 & fours
	n = high | (n-high*100)<<16
	high = n * by10 >> lane10 & twos
	return (high | (n-high*10)<<8) | eightZeros
}

// readDigits reads up to eight digits at the beginning of text: their value and how many they are.
func readDigits(text uint64) (value uint64, n uint) {
	const (
		notDigit, high = 0x7676767676767676, 0x8080808080808080
		pairs          = 0x000000ff000000ff
		hundreds, ones = 100 + 1000000<<32, 1 + 10000<<32
	)
	text ^= eightZeros
	n = uint(bits.TrailingZeros64((text|(text+notDigit))&high)) / 8 //nolint:gosec // 64 at most
	text <<= 64 - 8*n                                               // zeros before the first
	text = text*10 + text>>8
	return (text&pairs*hundreds + text>>16&pairs*ones) >> 32, n
}
