package jsonscan

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
)

func checkFloat32(tb testing.TB, v float32) {
	tb.Helper()
	if a := math.Abs(float64(v)); a != 0 && (a < 1e-6 || a >= 1e21) {
		return
	}
	want := strconv.AppendFloat(nil, float64(v), 'f', -1, 32)
	if got := AppendFloat(nil, float64(v), 32); string(got) != string(want) {
		tb.Fatalf("%08x: %s, want %s", math.Float32bits(v), got, want)
	}
}

// TestFloat32AsStrconvWritesThem compares numbers of each size, those at the edges of sizes and of
// powers of two, and a million that were drawn.
func TestFloat32AsStrconvWritesThem(t *testing.T) {
	for _, v := range []float32{0, 1, 10, 0.1, 0.5, 0.3, 1.0 / 3, 16777216, 8388608.5, 9999999, 9999999.5, 1e-4, 9.999999e-5, 0.00010000001, 0.999999940395, 99.99999, 123456.7, 1e7, 2.5, 0.0625} {
		for _, near := range []float32{v, -v, math.Nextafter32(v, 0), math.Nextafter32(v, math.MaxFloat32)} {
			checkFloat32(t, near)
		}
	}
	for e := uint32(100); e < 160; e++ {
		for _, fraction := range []uint32{0, 1, 2, 3, 1<<23 - 1, 1<<23 - 2, 1 << 22} {
			checkFloat32(t, math.Float32frombits(e<<23|fraction))
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1_000_000 {
		checkFloat32(t, math.Float32frombits((105+r.Uint32N(50))<<23|r.Uint32()&(1<<23-1)))
	}
	for i := range 100_000 { // few digits
		checkFloat32(t, float32(i)/1000)
	}
}

func FuzzFloat32(f *testing.F) {
	f.Add(uint32(0x3f800001))
	f.Fuzz(func(t *testing.T, bits uint32) {
		if v := math.Float32frombits(bits); v-v == 0 {
			checkFloat32(t, v)
		}
	})
}

func BenchmarkAppendFloat32(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	values := make([]float32, 1024)
	for i := range values {
		values[i] = float32(r.NormFloat64() / 20)
	}
	for name, one := range map[string]func([]byte, float32) []byte{
		"here":    func(dst []byte, v float32) []byte { return AppendFloat(dst, float64(v), 32) },
		"strconv": func(dst []byte, v float32) []byte { return strconv.AppendFloat(dst, float64(v), 'f', -1, 32) },
	} {
		b.Run(name, func(b *testing.B) {
			var dst []byte
			for b.Loop() {
				dst = dst[:0]
				for _, v := range values {
					dst = one(dst, v)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(values)), "ns/number")
		})
	}
}
