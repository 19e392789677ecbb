package jsonscan

import (
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// AppendString appends text as a JSON string. Bytes that aren't UTF-8 become U+FFFD.
func AppendString(dst, text []byte) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRune(text[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(append(dst, text[from:i]...), "\ufffd"...)
				from = i + 1
			}
			i += n
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, text[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		from = i
	}
	return append(append(dst, text[from:]...), '"')
}

// AppendFloat appends v with as few digits as its precision (32 or 64 bits) needs. JSON has no
// word for the rest: not-a-number becomes null, and an infinity a number beyond the range,
// 1e999, which Python, JavaScript and Float64 read as infinite.
func AppendFloat(dst []byte, v float64, bits int) []byte {
	switch {
	case math.IsNaN(v):
		return append(dst, "null"...)
	case math.IsInf(v, 1):
		return append(dst, "1e999"...)
	case math.IsInf(v, -1):
		return append(dst, "-1e999"...)
	}
	if a := math.Abs(v); a != 0 && (a < 1e-6 || a >= 1e21) {
		return strconv.AppendFloat(dst, v, 'e', -1, bits)
	}
	if bits == 32 && cap(dst)-len(dst) < roomForFloat {
		dst = slices.Grow(dst, roomForFloat)
	}
	if bits == 32 {
		if out, ok := quickFloat32(dst, float32(v)); ok {
			return out
		}
	}
	return strconv.AppendFloat(dst, v, 'f', -1, bits)
}
