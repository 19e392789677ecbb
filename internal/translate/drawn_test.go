package translate_test

import (
	"encoding/binary"
	"math"
	"strings"
)

// drawn draws values from the bytes that a fuzzer changes: any bytes make values of what all protocols can
// carry, texts that are UTF-8 and numbers that are finite. Where the bytes have ended, all is zero.
type drawn struct{ rest []byte }

func (d *drawn) bytes(n int) []byte {
	out := make([]byte, n)
	d.rest = d.rest[copy(out, d.rest):]
	return out
}

// upTo is a number from 0 to n-1.
func (d *drawn) upTo(n int) int { return int(d.bytes(1)[0]) % n }

func (d *drawn) flag() bool { return d.upTo(2) == 1 }

func (d *drawn) text() string {
	n := min(d.upTo(24), len(d.rest))
	return strings.ToValidUTF8(string(d.bytes(n)), "é\"\x00")
}

// texts are one to four, each another.
func (d *drawn) texts() []string {
	out := make([]string, 1+d.upTo(4))
	for i := range out {
		out[i] = d.text() + string(rune('a'+i))
	}
	return out
}

func (d *drawn) int() int64 { return int64(binary.LittleEndian.Uint64(d.bytes(8))) } //nolint:gosec // any bits will do

func (d *drawn) float() float64 {
	bits := binary.LittleEndian.Uint64(d.bytes(8))
	if v := math.Float64frombits(bits); v-v == 0 {
		return v
	}
	return math.Float64frombits(bits &^ (1 << 62))
}

func (d *drawn) floats(n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		bits := binary.LittleEndian.Uint32(d.bytes(4))
		if out[i] = math.Float32frombits(bits); out[i]-out[i] != 0 {
			out[i] = math.Float32frombits(bits &^ (1 << 30))
		}
	}
	return out
}
