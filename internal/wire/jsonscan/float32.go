package jsonscan

import (
	"math"
	"strconv"
)

// appendFloat32 appends v with as few digits as tell it from other float32s, of those the nearest, as
// strconv does. Most of what tensors hold lies between 0.0001 and ten million: there all the sums are
// exact in float64, and take a quarter of the time.
func appendFloat32(dst []byte, v float32) []byte {
	bits := math.Float32bits(v)
	a := math.Abs(float64(v))
	fraction := bits & (1<<23 - 1)
	if a < 1e-4 || a >= 1e7 || fraction == 0 {
		// Below a power of two the next float is nearer than above; strconv knows.
		return strconv.AppendFloat(dst, float64(v), 'f', -1, 32)
	}
	if whole := uint32(a); float64(whole) == a {
		if bits>>31 != 0 {
			dst = append(dst, '-')
		}
		return strconv.AppendUint(dst, uint64(whole), 10)
	}
	point := -3 // a has so many digits before its point, or lacks so many behind it
	for limit := 1e-3; a >= limit; limit = bound[point+3] {
		point++
	}
	// Half of the distance to the next float.
	half := math.Float64frombits(uint64(bits>>23&0xff-127-24+1023) << 52)
	digits, tie := uint64(0), false
	decimals := 0
	for n := 8; ; n-- {
		k := n - point
		if k < 1 {
			break // only whole numbers have so few, and this is none
		}
		d, fits, even := nearest(a, half, k)
		tie = tie || even
		if !fits {
			break
		}
		digits, decimals = d, k
	}
	if digits == 0 {
		decimals = 9 - point
		var even bool
		digits, _, even = nearest(a, half, decimals)
		tie = tie || even
	}
	if tie {
		return strconv.AppendFloat(dst, float64(v), 'f', -1, 32)
	}
	if bits>>31 != 0 {
		dst = append(dst, '-')
	}
	return appendDecimal(dst, digits, decimals)
}

// bound[i] is what a number with i-3 digits before its point is less than.
var bound = [...]float64{1e-3, 1e-2, 1e-1, 1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7}

// nearest is the whole number nearest to a times 10^k, and whether that is within half of a float. tie
// says that two are as near, or that the float's edge was hit, where rounding is strconv's business.
func nearest(a, half float64, k int) (digits uint64, fits, tie bool) {
	scaled, edge := a*pow10[k], half*pow10[k]
	digits = uint64(scaled + 0.5)
	off := math.Abs(scaled - float64(digits))
	return digits, off < edge, off == 0.5 || off == edge
}

// appendDecimal appends digits with a point before the last so many of them, without zeros at the end.
func appendDecimal(dst []byte, digits uint64, decimals int) []byte {
	var buf [24]byte
	at := len(buf)
	for digits%10 == 0 && decimals > 0 {
		digits, decimals = digits/10, decimals-1
	}
	for range decimals {
		at--
		buf[at] = byte('0' + digits%10)
		digits /= 10
	}
	if decimals > 0 {
		at--
		buf[at] = '.'
	}
	for {
		at--
		buf[at] = byte('0' + digits%10)
		if digits /= 10; digits == 0 {
			break
		}
	}
	return append(dst, buf[at:]...)
}
